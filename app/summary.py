"""Traces -> sentences and small HTML. Only numbers and fixed words go in, never visitor text."""

from __future__ import annotations

from lantern.trace import EXACT, RELAXED, TARGET, DecodeTrace

TITLES = {"ar": "AR", "eagle2": "EAGLE-2", "lantern": "LANTERN"}
SUBTITLES = {
    "ar": "one token a pass",
    "eagle2": "drafts, lossless",
    "lantern": "drafts, neighbours may stand in",
}

# Margins in perturbed fp32 logits below this can flip between a tree pass and a one-token pass.
ROUNDING = 1e-3


def empty_card(mode: str, loading: str = "") -> str:
    """A lane before it begins, or while its model is ``loading``."""
    if loading:
        return (
            f'<div class="lt-card lt-{mode} lt-empty"><div class="lt-bar"></div>'
            f'<p class="lt-note">{loading}</p></div>'
        )
    return (
        f'<div class="lt-card lt-{mode} lt-empty"><div class="lt-head">'
        f"<b>–</b><span>{SUBTITLES[mode]}</span></div></div>"
    )


def no_drafter_card(mode: str, model: str) -> str:
    """A lane that this model cannot fill."""
    command = f"<code>python -m lantern train-drafter <span>--model {model}</span></code>"
    return (
        f'<div class="lt-card lt-{mode} lt-empty"><p class="lt-note">'
        f"This model has no drafter yet; train one with {command}.</p></div>"
    )


def lane_card(mode: str, trace: DecodeTrace | None, baseline: DecodeTrace | None) -> str:
    """The figures under a lane's image."""
    if trace is None or not trace.events:
        return empty_card(mode)
    phases = trace.seconds_by_phase
    done = trace.complete
    if not done:
        big, note = f"{len(trace.tokens)}/{trace.grid**2}", "tokens so far"
    elif mode == "ar" or baseline is None or not baseline.complete:
        big, note = f"{trace.seconds:.2f} s", "to decode"
    else:
        big, note = f"{baseline.seconds / trace.seconds:.2f}×", "the speed of AR"
    rows = [
        ("decode", f"{trace.seconds:.2f} s"),
        ("passes", f"{trace.steps}"),
        ("tokens/pass", f"{trace.mean_accepted_length:.2f}"),
        ("tokens/s", f"{trace.tokens_per_second:.0f}"),
        ("text", f"{1000 * phases['text']:.0f} ms"),
        ("VQ", f"{1000 * phases['vq']:.0f} ms" if "vq" in trace.extra_seconds else "–"),
    ]
    cells = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in rows)
    return (
        f'<div class="lt-card lt-{mode}"><div class="lt-head"><b>{big}</b><span>{note}</span></div>'
        f"<dl>{cells}</dl></div>"
    )


def sentence(traces: dict[str, DecodeTrace]) -> str:
    """What this run showed, in plain words; empty until all three lanes are complete."""
    if not all(mode in traces and traces[mode].complete for mode in TITLES):
        return ""
    ar, eagle, lantern = (traces[mode] for mode in TITLES)
    total = len(ar.tokens)
    where = ar.first_difference(eagle)
    if where is None:
        first = (
            f"EAGLE-2 drew AR's image <b>token for token</b> in {eagle.steps} target passes "
            f"instead of {ar.steps}"
        )
    else:
        margin = ar.token_events[where].margin
        cause = "a tie within rounding" if margin < ROUNDING else "which rounding does not explain"
        first = (
            f"EAGLE-2 took {eagle.steps} target passes instead of {ar.steps} and first differs "
            f"from AR at token {where}, margin {margin:.1e}, {cause}"
        )
    relaxed = lantern.kinds[RELAXED]
    if relaxed:
        second = (
            f"LANTERN needed <b>{lantern.steps}</b>, letting neighbours stand in for "
            f"<b>{relaxed} of {total}</b> tokens"
        )
    else:
        second = f"LANTERN needed {lantern.steps} and had to replace no token"
    speeds = (
        f"That made EAGLE-2 {ratio(ar, eagle)} and LANTERN {ratio(ar, lantern)} in this run "
        f"({ar.environment['device'].upper()}, {ar.environment['dtype']})."
    )
    return f"<p class='lt-sentence'>{first}; {second}. {speeds}</p>"


def ratio(ar: DecodeTrace, other: DecodeTrace) -> str:
    """ "1.42× as fast as AR"; slower runs are called slower."""
    value = ar.seconds / other.seconds
    if value >= 1:
        return f"{value:.2f}× as fast as AR"
    return f"slower than AR ({value:.2f}×)"


def map_data(trace: DecodeTrace, image_url: str) -> dict:
    """What the token map shows of a complete trace: plain numbers and one image."""
    kinds = trace.kinds
    total = len(trace.tokens)
    letter = {EXACT: "e", RELAXED: "r", TARGET: "t"}
    return {
        "image": image_url,
        "grid": trace.grid,
        "kinds": "".join(letter[t.kind] for t in trace.token_events),
        "tokens": [
            [t.token, t.choice, t.rank, round(t.p_token, 4), round(t.p_choice, 4)]
            for t in trace.token_events
        ],
        "shares": {letter[kind]: round(100 * kinds[kind] / total) for kind in letter},
        "counts": {letter[kind]: kinds[kind] for kind in letter},
    }
