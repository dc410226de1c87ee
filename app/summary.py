"""Traces -> sentences and small HTML. Only numbers and fixed words go in, never visitor text."""

from __future__ import annotations

from app.i18n import say
from lantern.config import MODES
from lantern.trace import RELAXED, DecodeTrace

TITLES = {
    "ar": "AR",
    "eagle2": "EAGLE-2",
    "lantern": "LANTERN",
    "eagle2-coupled": "EAGLE-2 coupled",
    "lantern-coupled": "LANTERN coupled",
}
# Margins of perturbed logits below this can flip between a tree pass and a one-token pass. bf16
# keeps 8 bits: logits of 16 to 32 lie .125 apart, and CFG multiplies what is lost.
ROUNDING = {"float32": 1e-3, "bfloat16": 0.5}


def empty_card(mode: str, loading: str = "") -> str:
    """A lane before it begins, or while its model is ``loading``."""
    if loading:
        return (
            f'<div class="lt-card lt-{mode} lt-empty"><div class="lt-bar"></div>'
            f'<p class="lt-note">{loading}</p></div>'
        )
    return (
        f'<div class="lt-card lt-{mode} lt-empty"><div class="lt-head">'
        f"<b>–</b><span>{say('card.' + mode)}</span></div></div>"
    )


def no_drafter_card(mode: str, model: str) -> str:
    """A lane that this model cannot fill."""
    command = f"<code>python -m lantern train-drafter <span>--model {model}</span></code>"
    return (
        f'<div class="lt-card lt-{mode} lt-empty"><p class="lt-note">'
        f"{say('card.no_drafter', command=command)}</p></div>"
    )


def lane_card(mode: str, trace: DecodeTrace | None, baseline: DecodeTrace | None) -> str:
    """The figures under a lane's image."""
    if trace is None or not trace.events:
        return empty_card(mode)
    phases = trace.seconds_by_phase
    done = trace.complete
    if not done:
        big, note = f"{len(trace.tokens)}/{trace.grid**2}", say("card.so_far")
    elif mode == "ar" or baseline is None or not baseline.complete:
        big, note = f"{trace.seconds:.2f} s", say("card.to_decode")
    else:
        big, note = f"{baseline.seconds / trace.seconds:.2f}×", say("card.speed")
    rows = [
        (say("card.decode"), f"{trace.seconds:.2f} s"),
        (say("card.passes"), f"{trace.steps}"),
        (say("card.mal"), f"{trace.mean_accepted_length:.2f}"),
        (say("card.rate"), f"{trace.tokens_per_second:.0f}"),
        (say("card.text"), f"{1000 * phases['text']:.0f} ms"),
        (say("card.vq"), f"{1000 * phases['vq']:.0f} ms" if "vq" in trace.extra_seconds else "–"),
    ]
    cells = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in rows)
    return (
        f'<div class="lt-card lt-{mode}"><div class="lt-head"><b>{big}</b><span>{note}</span></div>'
        f"<dl>{cells}</dl>{_tuned_tree(mode, trace)}</div>"
    )


def _tuned_tree(mode: str, trace: DecodeTrace) -> str:
    """The tree that was chosen for this lane; nothing if the visitor chose it. AR has a line too,
    so that the cards of a run are equally high."""
    options = trace.options
    if not options.get("auto_tree"):
        return ""
    text = say("card.tree", **{name: options[name] for name in ("nodes", "depth", "branch")})
    if mode == "ar":
        text = say("card.tree.ar")
    elif options["nodes"] == 1:
        text = say("card.tree.none")
    return f'<p class="lt-tree" title="{say("card.tree.title")}">{text}</p>'


def sentence(traces: dict[str, DecodeTrace]) -> str:
    """What this run showed, in plain words; empty until the three standard lanes are complete."""
    traces = {mode: trace for mode, trace in traces.items() if trace.complete}
    if not all(mode in traces for mode in MODES):
        return ""
    ar, eagle, lantern = (traces[mode] for mode in MODES)
    total = len(ar.tokens)
    difference = _difference(ar, eagle)
    if not difference and eagle.options["nodes"] == 1:
        tuned = ".auto" if eagle.options.get("auto_tree") else ""
        first = say("said.eagle.nodrafts" + tuned)
    elif not difference:
        first = say("said.eagle.same", steps=eagle.steps, ar=ar.steps)
    else:
        first = say("said.eagle.differs", steps=eagle.steps, ar=ar.steps, difference=difference)
    relaxed = lantern.kinds[RELAXED]
    if relaxed:
        second = say("said.lantern.relaxed", steps=lantern.steps, relaxed=relaxed, total=total)
    elif lantern.options["nodes"] == 1:
        second = say("said.lantern.nodrafts")
    else:
        second = say("said.lantern.exact", steps=lantern.steps)
    speeds = say(
        "said.speeds", eagle=ratio(ar, eagle), lantern=ratio(ar, lantern),
        device=ar.environment["device"].upper(), dtype=ar.environment["dtype"],
    )  # fmt: skip
    whole = say(
        "said.join", first=first, second=second, speeds=speeds, coupled=_coupling(traces)
    )  # fmt: skip
    return f"<p class='lt-sentence'>{whole}</p>"


def _difference(ar: DecodeTrace, other: DecodeTrace) -> str:
    """Where a lossless lane first differs from AR and why; empty if it does not."""
    where = ar.first_difference(other)
    if where is None:
        return ""
    margin = ar.token_events[where].margin
    close = margin < ROUNDING.get(ar.environment["dtype"], ROUNDING["float32"])
    cause = say("said.tie" if close else "said.no_tie")
    return say("said.differs", where=where, margin=f"{margin:.1e}", cause=cause)


def _coupling(traces: dict[str, DecodeTrace]) -> str:
    """What coupled drafting brought, from complete lanes; empty if it was not drawn."""
    if "eagle2-coupled" not in traces:
        return ""
    ar, eagle = traces["ar"], traces["eagle2-coupled"]
    image = _difference(ar, eagle) or say("said.coupled.same")
    text = say(
        "said.coupled", steps=eagle.steps, plain=traces["eagle2"].steps, ratio=ratio(ar, eagle),
        image=image,
    )  # fmt: skip
    if "lantern-coupled" in traces:
        lantern = traces["lantern-coupled"]
        text += say(
            "said.coupled.lantern", steps=lantern.steps, plain=traces["lantern"].steps,
            ratio=ratio(ar, lantern),
        )  # fmt: skip
    if ar.options["temperature"] == 0:
        text += say("said.coupled.greedy")
    return text + say("said.stop")


def ratio(ar: DecodeTrace, other: DecodeTrace) -> str:
    """ "1.42× as fast as AR"; slower runs are called slower."""
    value = ar.seconds / other.seconds
    return say("said.faster" if value >= 1 else "said.slower", ratio=f"{value:.2f}")
