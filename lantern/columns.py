"""Traces as columns of numbers: an eighth of the size of ``DecodeTrace.to_json``, for pages and
recordings. Probabilities and times keep five significant digits. No torch here."""

from __future__ import annotations

from lantern.trace import (
    EXACT,
    PHASES,
    RELAXED,
    TARGET,
    DecodeTrace,
    NodeEvent,
    StepEvent,
    TokenEvent,
)

LETTERS = {EXACT: "e", RELAXED: "r", TARGET: "t"}
KINDS = {letter: kind for kind, letter in LETTERS.items()}
WHOLE = ("token", "choice", "rank", "depth")
REAL = ("margin", "p_choice", "p_token", "relaxed_mass", "distance")
TIMED = ("prefill", "draft", "verify", "accept")


def short(value: float) -> float:
    """Five significant digits."""
    return float(f"{value:.5g}")


def to_columns(trace: DecodeTrace) -> dict:
    """Plain lists and strings: ``tokens`` by position, ``steps`` by target pass (``length``
    tokens each), ``nodes`` of all draft trees end to end (``count`` a step)."""
    tokens, nodes = trace.token_events, [node for event in trace.events for node in event.nodes]
    return {
        "model": trace.model,
        "prompt": trace.prompt,
        "options": trace.options,
        "grid": trace.grid,
        "environment": trace.environment,
        "extra_seconds": {phase: short(s) for phase, s in trace.extra_seconds.items()},
        "image_sha256": trace.image_sha256,
        "tokens": {
            "kind": "".join(LETTERS[t.kind] for t in tokens),
            **{name: [getattr(t, name) for t in tokens] for name in WHOLE},
            **{name: [short(getattr(t, name)) for t in tokens] for name in REAL},
        },
        "steps": {
            "length": [event.accepted_length for event in trace.events],
            "seconds": {
                phase: [short(event.seconds.get(phase, 0.0)) for event in trace.events]
                for phase in TIMED
            },
        },
        "nodes": {
            "count": [len(event.nodes) for event in trace.events],
            "token": [n.token for n in nodes],
            "parent": [n.parent for n in nodes],
            "depth": [n.depth for n in nodes],
            "score": [short(n.score) for n in nodes],
            "accepted": "".join("01"[n.accepted] for n in nodes),
        },
    }


def from_columns(values: dict) -> DecodeTrace:
    """The trace again. ValueError if ``values``, which may come from anywhere, is not what
    ``to_columns`` makes."""
    try:
        trace = _rebuild(values)
        whole = [getattr(t, name) for t in trace.token_events for name in WHOLE]
        whole += [v for e in trace.events for n in e.nodes for v in (n.token, n.parent, n.depth)]
        if not all(isinstance(v, int) and 0 <= v < 2**31 for v in (*whole, trace.grid)):
            raise ValueError("a number is not a whole one")
        float(trace.seconds + sum(t.margin + t.p_token for t in trace.token_events))
        return trace
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ValueError(f"not a run of this program: {error!r}") from None


def _rebuild(values: dict) -> DecodeTrace:
    tokens, steps, nodes = values["tokens"], values["steps"], values["nodes"]
    columns = [[KINDS[letter] for letter in tokens["kind"]]]
    columns += [tokens[name] for name in (*WHOLE, *REAL)]
    names = ("kind", *WHOLE, *REAL)
    records = [
        TokenEvent(position=i, **dict(zip(names, row, strict=True)))
        for i, row in enumerate(zip(*columns, strict=True))
    ]
    tree = [
        NodeEvent(token, parent, depth, score, accepted == "1")
        for token, parent, depth, score, accepted in zip(
            *(nodes[name] for name in ("token", "parent", "depth", "score", "accepted")),
            strict=True,
        )
    ]
    events, start, first = [], 0, 0
    for step, (length, count) in enumerate(zip(steps["length"], nodes["count"], strict=True)):
        seconds = {phase: steps["seconds"][phase][step] for phase in TIMED}
        seconds = {phase: s for phase, s in seconds.items() if s or phase != "prefill"}
        events.append(
            StepEvent(
                step, start, tuple(records[start : start + length]),
                tuple(tree[first : first + count]), seconds,
            )
        )  # fmt: skip
        start, first = start + length, first + count
    if start != len(records) or first != len(tree):
        raise ValueError("steps and tokens do not add up")
    extra = {
        phase: values["extra_seconds"][phase]
        for phase in PHASES
        if phase in values["extra_seconds"]
    }
    return DecodeTrace(
        str(values["model"]), str(values["prompt"]), dict(values["options"]), values["grid"],
        dict(values["environment"]), events, extra, values["image_sha256"],
    )  # fmt: skip
