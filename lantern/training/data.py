"""Scenes and captions: one drawing on one background, and sentences that describe it.

A scene is a pure function of its ``SceneSpec``; specs come from a seeded generator, so held-out
scenes are other seeds and held-out (concept, background) pairs never enter target training.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from PIL import Image

from lantern.training.art import SIZE, STYLES, Art, Concept

COLOURS = {
    "red": (214, 52, 48),
    "orange": (240, 140, 40),
    "yellow": (248, 210, 66),
    "green": (70, 165, 80),
    "teal": (40, 150, 150),
    "blue": (60, 110, 215),
    "purple": (130, 80, 190),
    "pink": (240, 150, 185),
    "brown": (130, 90, 60),
    "gray": (140, 145, 150),
    "white": (242, 242, 240),
    "black": (32, 32, 36),
}
# Caption phrases of each textured place, the usual one first.
PLACES = {
    "sky": ("in the sky", "in the clouds"),
    "night": ("at night", "under the stars", "in the night sky"),
    "grass": ("on the grass", "on a meadow", "in the grass"),
    "sea": ("on the sea", "on the water", "on the ocean"),
    "sand": ("on the sand", "on the beach", "in the desert"),
    "sunset": ("at sunset", "in the evening light"),
    "snow": ("in the snow", "in winter"),
}
BACKGROUNDS = (*COLOURS, *PLACES)
# Plain colours are paper: grain of this many grey levels. The tokenizer's reconstruction hardly
# shows it, yet it decides which of several interchangeable codes a patch gets; without it the
# codes of a plain colour are certain and there is nothing to relax (docs/log.md).
GRAIN = 2.5
# Mirrored, these would show something wrong.
NO_MIRROR = {"clock", "alarm clock", "guitar", "violin", "key"}


@dataclass(frozen=True)
class Jitter:
    """How freely drawings are placed: side in pixels, shift from the centre in pixels, the step of
    the shift (equal to a token's side, a drawing keeps its tokens wherever it lies), and whether
    drawings that allow it are mirrored half of the time."""

    smallest: int = 96
    largest: int = 107
    shift: int = 8
    step: int = 1
    mirror: bool = True


@dataclass(frozen=True)
class SceneSpec:
    """One scene; ``seed`` drives texture, size and place."""

    drawing: int
    background: str
    mirror: bool
    seed: int
    jitter: Jitter = Jitter()


def is_held_out(concept: str, background: str) -> bool:
    """Whether a pair is kept from training, about one in twenty; stable across runs."""
    return zlib.crc32(f"{concept}|{background}".encode()) % 20 == 0


def render(art: Art, spec: SceneSpec) -> np.ndarray:
    """Draw the scene: uint8 [128, 128, 3]."""
    return render_with_cover(art, spec)[0]


def render_with_cover(art: Art, spec: SceneSpec) -> tuple[np.ndarray, np.ndarray]:
    """The scene, uint8 [128, 128, 3], and how opaque the drawing is there, uint8 [128, 128]."""
    rng = np.random.default_rng(spec.seed)
    canvas = Image.fromarray(background(spec.background, rng))
    side = int(rng.integers(spec.jitter.smallest, spec.jitter.largest + 1))
    drawing = Image.fromarray(art.rgba[spec.drawing])
    if spec.mirror:
        drawing = drawing.transpose(Image.FLIP_LEFT_RIGHT)
    drawing = drawing.resize((side, side), Image.LANCZOS)
    free, step = SIZE - side, spec.jitter.step
    most = spec.jitter.shift // step
    x, y = (
        int(np.clip(free / 2 + step * rng.integers(-most, most + 1), 0, free)) for _ in range(2)
    )
    canvas.paste(drawing, (x, y), drawing)
    cover = Image.new("L", canvas.size)
    cover.paste(drawing.getchannel("A"), (x, y))
    return np.asarray(canvas), np.asarray(cover)


def background(name: str, rng: np.random.Generator) -> np.ndarray:
    """A plain colour with a slight gradient and grain, or a painted place: uint8 [128, 128, 3]."""
    height = np.linspace(0, 1, SIZE)[:, None, None]
    if name in COLOURS:
        base = np.array(COLOURS[name], dtype=float) + rng.normal(0, 6, 3)
        image = base * (1 + (0.5 - height) * rng.uniform(0.05, 0.25))
        return _to_uint8(image + GRAIN * _noise(rng, ((16, 16), (32, 32)), fade=0.8))
    return _to_uint8(_PLACE_PAINTERS[name](height, rng))


def _to_uint8(image: np.ndarray) -> np.ndarray:
    return np.clip(image, 0, 255).astype(np.uint8)


def _noise(rng: np.random.Generator, octaves: tuple[tuple[int, int], ...], fade: float = 0.6):
    """Sum of smooth random fields with the given (rows, columns), roughly unit variance."""
    total, weight, norm = np.zeros((SIZE, SIZE)), 1.0, 0.0
    for rows, columns in octaves:
        field = Image.fromarray(rng.standard_normal((rows, columns)).astype(np.float32))
        total += weight * np.asarray(field.resize((SIZE, SIZE), Image.BICUBIC))
        norm, weight = norm + weight**2, weight * fade
    return (total / norm**0.5)[:, :, None]


def _blend(top, bottom, t):
    return np.array(top, dtype=float) * (1 - t) + np.array(bottom, dtype=float) * t


def _sky(height, rng):
    clouds = 1 / (1 + np.exp(-4 * (_noise(rng, ((3, 5), (6, 10), (12, 20))) - 0.5)))
    return _blend(_blend((88, 160, 235), (180, 215, 248), height), (250, 252, 255), 0.85 * clouds)


def _night(height, rng):
    image = _blend((12, 16, 48), (46, 40, 92), height) * np.ones((SIZE, SIZE, 1))
    for _ in range(int(rng.integers(25, 45))):
        y, x, size = rng.integers(0, SIZE - 2), rng.integers(0, SIZE - 2), rng.integers(1, 3)
        image[y : y + size, x : x + size] = rng.uniform(170, 255)
    return image


def _grass(height, rng):
    blades = _noise(rng, ((10, 40), (20, 80), (5, 8)), fade=0.8)
    return _blend((120, 190, 80), (58, 140, 50), height) + 18 * blades * np.array([0.8, 1, 0.5])


def _sea(height, rng):
    waves = _noise(rng, ((26, 5), (44, 9), (12, 4)), fade=0.7)
    return _blend((92, 175, 215), (18, 84, 150), height) + 16 * waves * (0.5 + height)


def _sand(height, rng):
    grain = _noise(rng, ((14, 4), (40, 40), (90, 90)), fade=0.7)
    return _blend((240, 216, 160), (212, 174, 112), height) + 9 * grain


def _sunset(height, rng):
    clouds = _noise(rng, ((9, 3), (18, 6), (30, 10)), fade=0.6)
    upper = _blend((84, 60, 130), (246, 130, 88), np.clip(height * 1.8, 0, 1))
    image = _blend(upper, (255, 212, 120), np.clip(height * 1.8 - 0.9, 0, 1))
    return image + 14 * clouds


def _snow(height, rng):
    drift = _noise(rng, ((4, 5), (9, 12), (40, 40)), fade=0.5)
    image = _blend((206, 222, 240), (246, 250, 255), height) + 7 * drift
    for _ in range(int(rng.integers(15, 35))):
        y, x = rng.integers(0, SIZE - 3, 2)
        image[y : y + 2, x : x + 2] = 255
    return image


_PLACE_PAINTERS = {
    "sky": _sky,
    "night": _night,
    "grass": _grass,
    "sea": _sea,
    "sand": _sand,
    "sunset": _sunset,
    "snow": _snow,
}


def background_phrase(name: str, rng: np.random.Generator | None = None) -> str:
    """ "on a red background" or a phrase for a place; without ``rng`` the usual one."""
    if name in COLOURS:
        article = "an" if name == "orange" else "a"
        phrases = (f"on {article} {name} background", f"on {name}", f"with a {name} background")
        weights = (0.7, 0.15, 0.15)
    else:
        phrases = PLACES[name]
        weights = (0.6,) + (0.4 / (len(phrases) - 1),) * (len(phrases) - 1)
    return phrases[0] if rng is None else str(rng.choice(phrases, p=weights))


def canonical_caption(name: str, background_name: str, style: str) -> str:
    """The caption in its plain form: "hot dog on a purple background, 3D style"."""
    return f"{name} {background_phrase(background_name)}, {style} style"


def sample_caption(
    concept: Concept, background_name: str, style: str, rng: np.random.Generator
) -> str:
    """One of many ways to say it: synonyms, articles, word order, style or background left out."""
    name = concept.name
    if concept.synonyms and rng.random() < 0.3:
        name = str(rng.choice(concept.synonyms))
    draw = rng.random()
    if draw < 0.4 and not name.endswith("s") or draw < 0.15:
        name = ("an " if name[0] in "aeiou" else "a ") + name
    elif draw < 0.5:
        name = "the " + name
    place = background_phrase(background_name, rng)
    draw = rng.random()
    if draw < 0.62:
        return f"{name} {place}, {style} style"
    if draw < 0.80:
        return f"{name} {place}"
    if draw < 0.87:
        return f"{style} {name} {place}"
    if draw < 0.93:
        return f"{place}, {name}, {style} style"
    if draw < 0.97:
        return f"{name}, {style} style"
    return name


def sample_captions(concepts: list[Concept], count: int, seed: int, held_out: bool) -> list[str]:
    """Captions of random scenes, held-out pairs of concept and background or all others."""
    rng = np.random.default_rng((seed, held_out))
    captions = []
    while len(captions) < count:
        concept = concepts[int(rng.integers(len(concepts)))]
        name = BACKGROUNDS[int(rng.integers(len(BACKGROUNDS)))]
        style = STYLES[int(rng.integers(len(STYLES)))]
        if is_held_out(concept.name, name) == held_out:
            captions.append(sample_caption(concept, name, style, rng))
    return captions


def sample_spec(
    art: Art,
    concepts: list[Concept],
    rng: np.random.Generator,
    *,
    jitter: Jitter,
    held_out_pairs: bool = False,
) -> tuple[SceneSpec, Concept, str]:
    """Draw a scene of a taught concept; returns the spec, the concept and the style."""
    while True:
        concept = concepts[int(rng.integers(len(concepts)))]
        style = STYLES[int(rng.integers(len(STYLES)))]
        name = BACKGROUNDS[int(rng.integers(len(BACKGROUNDS)))]
        drawing = art.index.get((concept.label, style))
        if drawing is not None and is_held_out(concept.name, name) == held_out_pairs:
            break
    free = jitter.mirror and concept.name not in NO_MIRROR
    mirror = free and bool(rng.random() < 0.5)
    spec = SceneSpec(drawing, name, mirror, int(rng.integers(2**62)), jitter)
    return spec, concept, style


def sample_any_spec(art: Art, rng: np.random.Generator, jitter: Jitter) -> SceneSpec:
    """Draw a scene of any drawing at all, taught or not: what the tokenizer trains on."""
    return SceneSpec(
        int(rng.integers(len(art.labels))),
        BACKGROUNDS[int(rng.integers(len(BACKGROUNDS)))],
        bool(rng.random() < 0.5),
        int(rng.integers(2**62)),
        jitter,
    )
