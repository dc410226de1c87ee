"""Frozen configuration objects: what a model is (read from config.json) and how to decode.

Knows no tensors. Every ``from_dict`` refuses unknown keys, so that a misspelt or foreign config
file is noticed when it is read and not when an image looks wrong.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path


def config_from_dict(cls, values: dict, *, where: str = "config"):
    """Build the dataclass ``cls`` from ``values``; ValueError names unknown or missing keys."""
    known = {field.name for field in dataclasses.fields(cls) if field.init}
    unknown = sorted(set(values) - known)
    if unknown:
        raise ValueError(
            f"{where}: unknown keys {', '.join(unknown)}; known are {', '.join(sorted(known))}."
        )
    required = {
        field.name
        for field in dataclasses.fields(cls)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    missing = sorted(required - set(values))
    if missing:
        raise ValueError(f"{where}: missing keys {', '.join(missing)}.")
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    for field in dataclasses.fields(cls):
        kind = _SIMPLE.get(field.type)
        value = values.get(field.name)
        if kind and field.name in values and not _fits(value, kind):
            raise ValueError(
                f"{where}: {field.name} must be {_TITLES.get(kind, kind.__name__)}, not {value!r}."
            )
    try:
        return cls(**values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


# Field annotations are strings here; the ones a config file can get wrong.
_SIMPLE = {
    "int": int, "float": float, "bool": bool, "str": str, "dict": dict,
    "tuple[int, ...]": tuple, "tuple[str, ...]": tuple,
}  # fmt: skip
_TITLES = {tuple: "a list"}


def _fits(value, kind: type) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


def read_json(path: Path) -> dict:
    """The JSON object in ``path``; FileNotFoundError or ValueError says what is wrong with it."""
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} is missing; restore it or download the model again."
        ) from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); restore the file.") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}); restore the file.") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a JSON object.")
    return values


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _require_positive(name: str, value: float) -> None:
    _require(0 < value < math.inf, f"{name} must be a number above 0, not {value!r}.")


@dataclass(frozen=True)
class ModelConfig:
    """Target transformer in the LlamaGen family.

    ``grid`` is the side of the token grid, ``prefix`` the number of condition slots in front of
    the image tokens, ``caption_dim`` the width of the text encoder's output. ``classes`` > 0 makes
    the model class-conditional: one condition slot, no caption.

    ``attend_condition`` False is the published models' convention: condition slots rotate to zero,
    so an image token sees all caption pieces alike. True rotates them by nothing, so that an image
    token can attend to single pieces.

    ``padded_rows`` says what a padded caption slot attends to. No image token ever sees such a
    slot, but the drafter reads its hidden state. "self": itself only (LlamaGen's own code); the
    published transformers code adds two masks and so depends on their dtype: "fp32": padded slots
    up to itself and valid slots after it; "bf16": padded slots up to itself.
    """

    vocab_size: int
    width: int
    layers: int
    heads: int
    mlp_width: int
    grid: int
    prefix: int
    caption_dim: int
    norm_eps: float = 1e-5
    rope_base: float = 10000.0
    attend_condition: bool = False
    padded_rows: str = "bf16"
    classes: int = 0

    def __post_init__(self):
        for name in ("vocab_size", "width", "layers", "heads", "mlp_width", "grid", "prefix",
                     "caption_dim"):  # fmt: skip
            _require_positive(name, getattr(self, name))
        _require_positive("norm_eps", self.norm_eps)
        _require_positive("rope_base", self.rope_base)
        _require(self.classes >= 0, f"classes must be 0 or more, not {self.classes!r}.")
        _require(
            self.padded_rows in ("self", "fp32", "bf16"),
            f"padded_rows must be self, fp32 or bf16, not {self.padded_rows!r}.",
        )
        _require(
            self.width % self.heads == 0 and self.head_dim % 4 == 0,
            f"width {self.width} needs heads ({self.heads}) that split it into multiples of 4.",
        )

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def image_tokens(self) -> int:
        return self.grid * self.grid


@dataclass(frozen=True)
class DrafterConfig:
    """EAGLE drafter: ``layers`` decoder layers behind ``fc([embedding; hidden])``.

    ``own_embedding``: the published drafters carry a token table of their own; ours use the
    target's."""

    layers: int = 1
    heads: int = 5
    mlp_width: int = 864
    norm_eps: float = 1e-6
    fc_bias: bool = True
    own_embedding: bool = False

    def __post_init__(self):
        for name in ("layers", "heads", "mlp_width", "norm_eps"):
            _require_positive(name, getattr(self, name))


@dataclass(frozen=True)
class VQConfig:
    """VQ tokenizer of LlamaGen's kind.

    ``patch_size`` > 1 folds patches of pixels into channels before the first convolution, which
    is what makes a tokenizer affordable on a CPU; the official models use 1.

    ``local_encoder`` confines a token to its own patch and a few pixels around it: 1 x 1
    convolutions, no attention, norms over the channels of one place. The same object then has the
    same tokens before every background, which a small target learns many times faster; group norm
    and attention let every token depend on the whole image.
    """

    codebook_size: int = 16384
    codebook_dim: int = 8
    base_width: int = 128
    channel_multipliers: tuple[int, ...] = (1, 1, 2, 2, 4)
    z_channels: int = 256
    res_blocks: int = 2
    patch_size: int = 1
    norm_groups: int = 32
    local_encoder: bool = False

    def __post_init__(self):
        for name in ("codebook_size", "codebook_dim", "base_width", "z_channels", "res_blocks",
                     "patch_size", "norm_groups"):  # fmt: skip
            _require_positive(name, getattr(self, name))
        multipliers = self.channel_multipliers
        _require(len(multipliers) > 0, "channel_multipliers must not be empty.")
        for multiplier in multipliers:
            _require(
                isinstance(multiplier, int) and multiplier > 0,
                f"channel_multipliers must be whole numbers from 1, not {multiplier!r}.",
            )
        _require(
            self.base_width % self.norm_groups == 0,
            f"base_width {self.base_width} must be a multiple of norm_groups {self.norm_groups}.",
        )

    @property
    def downsample(self) -> int:
        """Pixels per token along one side."""
        return self.patch_size * 2 ** (len(self.channel_multipliers) - 1)


@dataclass(frozen=True)
class TreeShape:
    """EAGLE-2 draft tree: at most ``nodes`` nodes verified at once (root included), ``depth``
    drafted levels, ``branch`` candidates kept per level. ``nodes`` = 1 is plain AR decoding.
    ``growth``: "dynamic" follows the drafter's confidence, "static" has one shape always."""

    nodes: int = 12
    depth: int = 4
    branch: int = 4
    growth: str = "dynamic"

    def __post_init__(self):
        _require(
            self.growth in ("dynamic", "static"),
            f"tree must be dynamic or static, not {self.growth!r}.",
        )
        for name, low, high in (("nodes", 1, 64), ("depth", 1, 16), ("branch", 1, 32)):
            value = getattr(self, name)
            _require(
                isinstance(value, int) and low <= value <= high,
                f"{name} must be a whole number from {low} to {high}, not {value!r}.",
            )


# The paper's three modes, and the two that draft with the noise the target will draw with.
MODES = ("ar", "eagle2", "lantern")
COUPLED = ("eagle2-coupled", "lantern-coupled")
ALL_MODES = MODES + COUPLED
MAX_SEED = 2**32 - 1
MAX_K = 1000


@dataclass(frozen=True)
class DecodeOptions:
    """Everything that determines the tokens besides model and prompt.

    temperature 0 is greedy decoding; ``top_k`` 0 and ``top_p`` 1 switch the filters off. ``k`` and
    ``delta`` belong to the LANTERN modes and are ignored by the others; so do ``rule``, how the
    budget is measured, ``factor``, the budget of the multiplicative rule in place of delta, and
    ``pick``: which of several children that cover the target's choice is taken, the "first" in
    draft order or the "nearest" in latent space.
    """

    mode: str = "lantern"
    seed: int = 0
    k: int = 100
    delta: float = 0.2
    temperature: float = 1.0
    cfg: float = 2.0
    top_k: int = 1000
    top_p: float = 1.0
    rule: str = "tvd"
    factor: float = 2.0
    pick: str = "first"
    tree: TreeShape = TreeShape()

    def __post_init__(self):
        _require(
            self.mode in ALL_MODES,
            f"mode must be one of {', '.join(ALL_MODES)}, not {self.mode!r}.",
        )
        _require(
            isinstance(self.seed, int) and 0 <= self.seed <= MAX_SEED,
            f"seed must be a whole number from 0 to {MAX_SEED}, not {self.seed!r}.",
        )
        _require(
            isinstance(self.k, int) and 0 <= self.k <= MAX_K,
            f"k must be a whole number from 0 to {MAX_K}, not {self.k!r}.",
        )
        _require(
            isinstance(self.top_k, int) and self.top_k >= 0,
            f"top-k must be 0 (off) or a positive whole number, not {self.top_k!r}.",
        )
        for name, low, high in (
            ("delta", 0, 1),
            ("temperature", 0, 10),
            ("cfg", 0, 20),
            ("top_p", 0, 1),
            ("factor", 1, 1000),
        ):
            value = getattr(self, name)
            _require(
                isinstance(value, int | float) and low <= value <= high,  # which NaN is not
                f"{name} must be a number from {low} to {high}, not {value!r}.",
            )
        _require(
            self.pick in ("first", "nearest"),
            f"pick must be first or nearest, not {self.pick!r}.",
        )
        _require(
            self.temperature == 0 or self.temperature >= 0.01,
            f"temperature must be 0 (greedy) or at least 0.01, not {self.temperature!r}.",
        )
        _require(self.top_p > 0, "top_p must be above 0; use 1 to switch the filter off.")

    @property
    def relaxed(self) -> bool:
        """Whether neighbours may stand in for the target's choice."""
        return self.mode.startswith("lantern")

    @property
    def coupled(self) -> bool:
        """Whether the drafter ranks candidates under the target's own noise."""
        return self.mode in COUPLED

    def to_dict(self) -> dict:
        values = dataclasses.asdict(self)
        return values | values.pop("tree")
