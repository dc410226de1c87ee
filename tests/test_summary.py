"""What a run is said to have shown: sentences, cards, map data and figures."""

from dataclasses import replace

from test_app import finish, load_small, params
from test_trace import hand_made

from app.figures import LANES, accepted_length_histogram
from app.studio import Studio
from app.summary import TITLES, lane_card, sentence
from lantern.config import ALL_MODES


def three_lanes(**changes):
    studio = Studio(load=load_small)
    job = finish(studio.submit(params(**changes), "a"))
    return {mode: lane.trace for mode, lane in job.lanes.items()}


def test_the_sentence_says_what_happened():
    traces = three_lanes()
    text = sentence(traces)
    assert "token for token" in text and f"{traces['eagle2'].steps} target passes" in text
    assert f"{traces['lantern'].steps}" in text and "of 16</b> tokens" in text
    assert sentence({"ar": traces["ar"]}) == ""
    ar = traces["ar"]
    for dtype, margin, words in (
        ("float32", 1e-5, "a tie within rounding"),
        ("float32", 0.3, "rounding does not explain"),
        ("bfloat16", 0.3, "a tie within rounding"),
        ("bfloat16", 2.0, "rounding does not explain"),
    ):
        ar.environment["dtype"] = dtype
        token = replace(ar.token_events[4], margin=margin)
        close, other = (replace(ar, events=list(ar.events)) for _ in range(2))
        close.events[4] = replace(ar.events[4], tokens=(token,))
        other.events[4] = replace(ar.events[4], tokens=(replace(token, token=63 - token.token),))
        text = sentence({"ar": close, "eagle2": other, "lantern": traces["lantern"]})
        assert "differs from AR at token 4" in text and words in text


def test_the_sentence_does_not_count_passes_that_had_no_drafts():
    traces = three_lanes(nodes=1)
    text = sentence(traces)
    assert "token for token</b> without drafts; LANTERN had no drafts to relax" in text
    for trace in traces.values():
        trace.options["auto_tree"] = True
    assert "as no tree pays on this device" in sentence(traces)
    assert "no tree pays here" in lane_card("lantern", traces["lantern"], traces["ar"])


def test_the_sentence_says_what_coupling_brought():
    traces = three_lanes(coupled=True)
    coupled = traces["eagle2-coupled"]
    text = sentence(traces)
    assert f"Coupled, EAGLE-2 took <b>{coupled.steps}</b> passes instead of" in text
    assert "is still AR's image token for token; LANTERN took" in text and "noise" not in text
    token = replace(traces["ar"].token_events[4], token=63 - traces["ar"].tokens[4])
    other = replace(coupled, events=list(traces["ar"].events))
    other.events[4] = replace(other.events[4], tokens=(token,))
    text = sentence(traces | {"eagle2-coupled": other})
    assert "and first differs from AR at token 4" in text and "token for token</b> in" in text
    del traces["lantern-coupled"]
    assert "LANTERN took" not in sentence(traces)
    coupled.events = coupled.events[:2]
    assert "Coupled" not in sentence(traces)  # stopped before it was complete
    greedy = sentence(three_lanes(coupled=True, temperature=0.0))
    assert "at temperature 0 there is no noise to share" in greedy


def test_cards_never_claim_a_speed_before_the_lane_is_complete():
    traces = three_lanes()
    assert "the speed of AR" in lane_card("lantern", traces["lantern"], traces["ar"])
    traces["lantern"].events = traces["lantern"].events[:2]
    card = lane_card("lantern", traces["lantern"], traces["ar"])
    assert "the speed of AR" not in card and "tokens so far" in card
    assert "–" in lane_card("ar", None, None)


def test_histogram_is_themed_svg_with_both_means():
    svg = accepted_length_histogram({"eagle2": hand_made("eagle2"), "lantern": hand_made()})
    assert svg.startswith("<svg") and "var(--lt-lantern)" in svg and "currentColor" in svg
    assert svg.count("mean 1.33") == 2 and "#010101" not in svg
    assert "coupled" not in svg


def test_histogram_tells_four_lanes_apart_without_colour():
    svg = accepted_length_histogram({mode: hand_made(mode) for mode in LANES})
    assert all(f"var(--lt-{mode})" in svg and TITLES[mode] in svg for mode in ALL_MODES[1:])
    hatches, lines = (list(kind) for kind in list(zip(*LANES.values(), strict=True))[1:])
    assert len(set(hatches)) == len(set(lines)) == 4
