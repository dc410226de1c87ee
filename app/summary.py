"""Traces -> sentences and small HTML. Only numbers and fixed words go in, never visitor text."""

from __future__ import annotations

from lantern.config import MODES
from lantern.trace import RELAXED, DecodeTrace

TITLES = {
    "ar": "AR",
    "eagle2": "EAGLE-2",
    "lantern": "LANTERN",
    "eagle2-coupled": "EAGLE-2 coupled",
    "lantern-coupled": "LANTERN coupled",
}
SUBTITLES = {
    "ar": "one token a pass",
    "eagle2": "drafts, lossless",
    "lantern": "drafts, neighbours may stand in",
    "eagle2-coupled": "drafts share the noise, lossless",
    "lantern-coupled": "drafts share the noise, neighbours may stand in",
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
        f"<dl>{cells}</dl>{_tuned_tree(mode, trace)}</div>"
    )


def _tuned_tree(mode: str, trace: DecodeTrace) -> str:
    """The tree that was chosen for this lane; nothing if the visitor chose it. AR has a line too,
    so that the cards of a run are equally high."""
    options = trace.options
    if not options.get("auto_tree"):
        return ""
    text = f"tree {options['nodes']} × {options['depth']} × {options['branch']}"
    if mode == "ar":
        text = "no tree"
    elif options["nodes"] == 1:
        text = "no tree pays here"
    return f'<p class="lt-tree" title="nodes × depth × guesses a level">{text}</p>'


def sentence(traces: dict[str, DecodeTrace]) -> str:
    """What this run showed, in plain words; empty until the three standard lanes are complete."""
    traces = {mode: trace for mode, trace in traces.items() if trace.complete}
    if not all(mode in traces for mode in MODES):
        return ""
    ar, eagle, lantern = (traces[mode] for mode in MODES)
    total = len(ar.tokens)
    difference = _difference(ar, eagle)
    if not difference and eagle.options["nodes"] == 1:
        first = "EAGLE-2 drew AR's image <b>token for token</b> without drafts"
        first += ", as no tree pays on this device" if eagle.options.get("auto_tree") else ""
    elif not difference:
        first = (
            f"EAGLE-2 drew AR's image <b>token for token</b> in {eagle.steps} target passes "
            f"instead of {ar.steps}"
        )
    else:
        first = f"EAGLE-2 took {eagle.steps} target passes instead of {ar.steps} and {difference}"
    relaxed = lantern.kinds[RELAXED]
    if relaxed:
        second = (
            f"LANTERN needed <b>{lantern.steps}</b>, letting neighbours stand in for "
            f"<b>{relaxed} of {total}</b> tokens"
        )
    elif lantern.options["nodes"] == 1:
        second = "LANTERN had no drafts to relax"
    else:
        second = f"LANTERN needed {lantern.steps} and had to replace no token"
    speeds = (
        f"That made EAGLE-2 {ratio(ar, eagle)} and LANTERN {ratio(ar, lantern)} in this run "
        f"({ar.environment['device'].upper()}, {ar.environment['dtype']})."
    )
    return f"<p class='lt-sentence'>{first}; {second}. {speeds}{_coupling(traces)}</p>"


def _difference(ar: DecodeTrace, other: DecodeTrace) -> str:
    """Where a lossless lane first differs from AR and why; empty if it does not."""
    where = ar.first_difference(other)
    if where is None:
        return ""
    margin = ar.token_events[where].margin
    cause = "a tie within rounding" if margin < ROUNDING else "which rounding does not explain"
    return f"first differs from AR at token {where}, margin {margin:.1e}, {cause}"


def _coupling(traces: dict[str, DecodeTrace]) -> str:
    """What coupled drafting brought, from complete lanes; empty if it was not drawn."""
    if "eagle2-coupled" not in traces:
        return ""
    ar, eagle = traces["ar"], traces["eagle2-coupled"]
    image = _difference(ar, eagle) or "is still AR's image token for token"
    text = (
        f" Coupled, EAGLE-2 took <b>{eagle.steps}</b> passes instead of {traces['eagle2'].steps}, "
        f"was {ratio(ar, eagle)} and {image}"
    )
    if "lantern-coupled" in traces:
        lantern = traces["lantern-coupled"]
        text += (
            f"; LANTERN took <b>{lantern.steps}</b> instead of {traces['lantern'].steps} "
            f"and was {ratio(ar, lantern)}"
        )
    if ar.options["temperature"] == 0:
        text += " (at temperature 0 there is no noise to share)"
    return text + "."


def ratio(ar: DecodeTrace, other: DecodeTrace) -> str:
    """ "1.42× as fast as AR"; slower runs are called slower."""
    value = ar.seconds / other.seconds
    if value >= 1:
        return f"{value:.2f}× as fast as AR"
    return f"slower than AR ({value:.2f}×)"
