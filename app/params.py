"""RunParams: what a visitor chooses for a run, checked before anything is queued."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from app.i18n import say
from lantern import checkpoints
from lantern.acceptance import RULES
from lantern.config import ALL_MODES, MAX_K, MAX_SEED, MODES
from lantern.models.text import is_text


@dataclass(frozen=True)
class Bound:
    """Range of a number; ``whole`` for integers."""

    low: float
    high: float
    whole: bool = False


MAX_PROMPT = 2000  # characters; how many word pieces fit only the model's text encoder knows

# Narrower than what the library accepts where a slider needs an end.
BOUNDS = {
    "seed": Bound(0, MAX_SEED, whole=True),
    "k": Bound(0, MAX_K, whole=True),
    "delta": Bound(0, 1),
    "temperature": Bound(0, 2),
    "cfg": Bound(0, 20),
    "top_k": Bound(0, 16384, whole=True),
    "top_p": Bound(0.01, 1),
    "nodes": Bound(1, 64, whole=True),
    "depth": Bound(1, 10, whole=True),
    "branch": Bound(1, 16, whole=True),
    "factor": Bound(1, 1000),
}
# Words to choose from, and what the choice is called in a sentence.
CHOICES = {
    "rule": ("rule", tuple(RULES)),
    "pick": ("pick", ("first", "nearest")),
    "growth": ("tree growth", ("dynamic", "static")),
}
SWITCHES = ("coupled", "auto")


@dataclass(frozen=True)
class RunParams:
    """One Compare run; every mode shares these. ``prompt`` is a class name where the model draws
    classes. ``coupled`` adds the coupled modes, ``auto`` lets every mode use the draft tree that
    suits this device instead of nodes, depth and branch."""

    model: str
    prompt: str
    seed: int
    k: int
    delta: float
    temperature: float
    cfg: float
    top_k: int
    top_p: float
    nodes: int
    depth: int
    branch: int
    rule: str
    factor: float
    pick: str
    growth: str
    coupled: bool
    auto: bool

    @classmethod
    def names(cls) -> list[str]:
        return [field.name for field in dataclasses.fields(cls)]

    @classmethod
    def from_values(cls, *values) -> RunParams:
        """Build from values in field order; ValueError with the first problem."""
        given = dict(zip(cls.names(), values, strict=True))
        for name, value in given.items():
            message = problem(name, value)
            if message:
                raise ValueError(message)
        for name, bound in BOUNDS.items():
            given[name] = int(given[name]) if bound.whole else float(given[name])
        return cls(**given)

    @property
    def modes(self) -> tuple[str, ...]:
        """What is drawn, in this order, as far as the model can."""
        return ALL_MODES if self.coupled else MODES

    def decode_changes(self) -> dict:
        """Keyword arguments for ``Pipeline.options``."""
        return {name: getattr(self, name) for name in self.names() if name not in _NOT_DECODING}


_NOT_DECODING = ("model", "prompt", *SWITCHES)


def draws_classes(model) -> bool:
    """Whether this is a registered model that draws classes; any value may be asked about."""
    return (
        isinstance(model, str) and model in checkpoints.MODELS and checkpoints.entry(model).by_class
    )


def sentence_case(text: str) -> str:
    """The library's messages start in lower case; on the page they are sentences."""
    return text[:1].upper() + text[1:]


def problem(name: str, value) -> str | None:
    """One sentence saying what is wrong with a value and what to do; None if it is fine."""
    if name == "model":
        if not isinstance(value, str) or value not in checkpoints.MODELS:
            return say("bad.model", names=", ".join(checkpoints.MODELS))
        message = checkpoints.unavailable(value)
        return message and sentence_case(message)
    if name == "prompt":
        if not isinstance(value, str) or not value.strip():
            return say("bad.prompt")
        if not is_text(value):
            return say("bad.prompt.text")
        if len(value) > MAX_PROMPT:
            return say("bad.prompt.long", most=MAX_PROMPT)
        return None
    if name in CHOICES:
        title, words = CHOICES[name]
        known = ", ".join(words)
        return None if value in words else say("bad.choice", title=title, words=known)
    if name in SWITCHES:
        return None if isinstance(value, bool) else say("bad.switch", name=name)
    message = outside(name.replace("_", "-"), value, BOUNDS[name])
    if not message and name == "temperature" and 0 < value < 0.01:
        return say("bad.temperature")
    return message


def outside(title: str, value, bound: Bound) -> str | None:
    """One sentence if ``value`` is no number within ``bound``; None if it is fine."""
    expected = say(
        "bad.whole" if bound.whole else "bad.number", name=title, low=f"{bound.low:g}",
        high=f"{bound.high:.10g}",
    )  # fmt: skip
    if isinstance(value, bool) or not isinstance(value, int | float):
        return expected
    # The range first: NaN is in none, and a huge whole number has no float.
    if not bound.low <= value <= bound.high or (bound.whole and value != int(value)):
        return expected
    return None
