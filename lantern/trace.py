"""What a run did, as plain data: events per step and per token, metrics, JSON. No torch here.

Everything the UI, the command line, recorded runs and benchmarks show is computed from
``DecodeTrace``. Accepted length counts every token a target pass commits, the target's own bonus
token included, and the prefill pass commits one; so AR has mean accepted length 1.0.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from dataclasses import dataclass, field

EXACT, RELAXED, TARGET = "exact", "relaxed", "target"
PHASES = ("text", "prefill", "draft", "verify", "accept", "vq")


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One committed token.

    ``choice`` is what the target itself would have taken there, ``margin`` its lead over the
    runner-up in perturbed logits; ``p_choice`` and ``p_token`` are probabilities after filtering;
    ``relaxed_mass`` is p(A(token)) under what refused
    siblings left of the distribution; ``rank`` is the place of ``choice`` among the token's
    neighbours (1 = nearest; 0 = not relaxed, or at temperature 0 outvoted by neighbours that do
    not include it) and ``distance`` their latent l2 distance.
    """

    position: int
    token: int
    kind: str
    choice: int
    margin: float
    p_choice: float
    p_token: float
    relaxed_mass: float
    rank: int
    distance: float
    depth: int


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """One node of the step's draft tree; ``score`` is its cumulative draft log-probability."""

    token: int
    parent: int
    depth: int
    score: float
    accepted: bool


@dataclass(frozen=True, slots=True)
class StepEvent:
    """One target pass: the tokens it committed, from grid position ``start`` on, its draft tree
    and its seconds by phase."""

    step: int
    start: int
    tokens: tuple[TokenEvent, ...]
    nodes: tuple[NodeEvent, ...]
    seconds: dict[str, float]

    @property
    def accepted_length(self) -> int:
        return len(self.tokens)

    def to_dict(self) -> dict:
        return dataclasses.asdict(self) | {"accepted_length": self.accepted_length}

    @classmethod
    def from_dict(cls, values: dict) -> StepEvent:
        return cls(
            values["step"],
            values["start"],
            tuple(TokenEvent(**t) for t in values["tokens"]),
            tuple(NodeEvent(**n) for n in values["nodes"]),
            values["seconds"],
        )


@dataclass
class DecodeTrace:
    """A whole run. ``options`` are the decode options as a flat dict; ``environment`` holds device,
    dtype, torch version and threads; ``extra_seconds`` the text and vq phases."""

    model: str
    prompt: str
    options: dict
    grid: int
    environment: dict
    events: list[StepEvent] = field(default_factory=list)
    extra_seconds: dict[str, float] = field(default_factory=dict)
    image_sha256: str | None = None

    @property
    def mode(self) -> str:
        return self.options["mode"]

    @property
    def token_events(self) -> list[TokenEvent]:
        return [token for event in self.events for token in event.tokens]

    @property
    def tokens(self) -> list[int]:
        return [token.token for token in self.token_events]

    @property
    def complete(self) -> bool:
        return len(self.tokens) == self.grid**2

    @property
    def steps(self) -> int:
        """Target passes."""
        return len(self.events)

    @property
    def mean_accepted_length(self) -> float:
        return len(self.tokens) / self.steps if self.steps else 0.0

    @property
    def kinds(self) -> Counter:
        """How many tokens are of each kind."""
        return Counter(token.kind for token in self.token_events)

    @property
    def relaxed_share(self) -> float:
        """Share of all tokens that were accepted only through a neighbour."""
        return self.kinds[RELAXED] / len(self.tokens) if self.events else 0.0

    @property
    def accepted_lengths(self) -> dict[int, int]:
        """Accepted length -> number of steps."""
        return dict(sorted(Counter(event.accepted_length for event in self.events).items()))

    @property
    def seconds_by_phase(self) -> dict[str, float]:
        """Seconds of text, prefill, draft, verify, accept and vq."""
        total = dict.fromkeys(PHASES, 0.0) | self.extra_seconds
        for event in self.events:
            for phase, value in event.seconds.items():
                total[phase] += value
        return total

    @property
    def seconds(self) -> float:
        """Decode time: from after text encoding to before VQ decoding."""
        return sum(v for phase, v in self.seconds_by_phase.items() if phase not in ("text", "vq"))

    @property
    def tokens_per_second(self) -> float:
        return len(self.tokens) / self.seconds if self.seconds else 0.0

    def first_difference(self, other: DecodeTrace) -> int | None:
        """First position where the two runs hold different tokens; None if they agree as far as
        both go."""
        pairs = zip(self.tokens, other.tokens, strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), None)

    def to_dict(self) -> dict:
        return {
            "model": self.model,
            "prompt": self.prompt,
            **self.options,
            "grid": self.grid,
            "environment": self.environment,
            "tokens": self.tokens,
            "steps": self.steps,
            "mean_accepted_length": self.mean_accepted_length,
            "relaxed_share": self.relaxed_share,
            "seconds": self.seconds,
            "seconds_by_phase": self.seconds_by_phase,
            "tokens_per_second": self.tokens_per_second,
            "image_sha256": self.image_sha256,
            "option_names": list(self.options),
            "extra_phases": list(self.extra_seconds),
            "events": [event.to_dict() for event in self.events],
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_dict(cls, values: dict) -> DecodeTrace:
        """Rebuild a trace; metrics are recomputed. ValueError if a part is missing."""
        try:
            seconds = values["seconds_by_phase"]
            return cls(
                values["model"],
                values["prompt"],
                {name: values[name] for name in values["option_names"]},
                values["grid"],
                values["environment"],
                [StepEvent.from_dict(event) for event in values["events"]],
                {phase: seconds[phase] for phase in values["extra_phases"]},
                values["image_sha256"],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"not a trace of this program: {error!r} is missing or wrong."
            ) from None

    @classmethod
    def from_json(cls, text: str) -> DecodeTrace:
        return cls.from_dict(json.loads(text))
