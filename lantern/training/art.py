"""Emoji drawings from npm packages, rendered once into ``data/art.npz``.

Sources: @lobehub/fluent-emoji-3d (MIT, style "3D"), @iconify-json/noto (Apache-2.0, style
"cartoon"), names and tags from emojibase-data (MIT). Needs npm on the PATH and resvg-py.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

PACKAGES = {
    "names": "emojibase-data@17.0.0",
    "3D": "@lobehub/fluent-emoji-3d@1.1.0",
    "cartoon": "@iconify-json/noto@1.2.9",
}
STYLES = ("3D", "cartoon")
SIZE = 128
# emojibase groups whose drawings the tokenizer sees: faces, animals, food, travel, activities,
# objects. The rest is people, symbols, flags and text.
GROUPS = (0, 3, 4, 5, 6, 7)
CONCEPTS_FILE = Path(__file__).with_name("concepts.txt")


@dataclass(frozen=True)
class Concept:
    """Something the model is taught: caption name, emojibase label, other words for it, and
    whether it belongs to the core."""

    name: str
    label: str
    synonyms: tuple[str, ...] = ()
    core: bool = False


@dataclass
class Art:
    """Drawings: ``rgba`` uint8 [N, 128, 128, 4], with ``label`` and ``style`` of each."""

    rgba: np.ndarray
    labels: list[str]
    styles: list[str]
    index: dict[tuple[str, str], int] = field(init=False)

    def __post_init__(self):
        self.index = {pair: i for i, pair in enumerate(zip(self.labels, self.styles, strict=True))}


def read_concepts(core_only: bool = False, path: Path = CONCEPTS_FILE) -> list[Concept]:
    """The concepts of ``concepts.txt``, in file order; ``core_only`` for the starred ones."""
    concepts = []
    for line in path.read_text(encoding="utf-8").splitlines():
        line = line.split("#")[0].strip()
        if not line:
            continue
        core, line = line.startswith("*"), line.lstrip("* ")
        if core_only and not core:
            continue
        head, *synonyms = (part.strip() for part in line.split("|"))
        label, _, name = (part.strip() for part in head.partition("="))
        concepts.append(Concept(name or label, label, tuple(synonyms), core))
    return concepts


def load_art(path: Path) -> Art:
    """Read what ``build_art`` wrote; FileNotFoundError tells how to make it."""
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing; make it with: python -m lantern build-data")
    with np.load(path) as data:
        return Art(data["rgba"], data["labels"].tolist(), data["styles"].tolist())


def build_art(path: Path) -> Art:
    """Fetch the packages through npm, render every drawing to 128 px RGBA and save ``path``."""
    if shutil.which("npm") is None:
        raise RuntimeError("npm is needed to fetch the drawings; install Node.js and try again.")
    with tempfile.TemporaryDirectory() as folder:
        roots = {key: _fetch(spec, Path(folder) / key) for key, spec in PACKAGES.items()}
        emoji = json.loads((roots["names"] / "en" / "data.json").read_text(encoding="utf-8"))
        emoji = [e for e in emoji if e.get("group") in GROUPS]
        drawings = [
            (e["label"], style, image)
            for style, reader in (("3D", _read_webp), ("cartoon", _read_svg))
            for e, image in reader(roots[style], emoji)
        ]
    path.parent.mkdir(parents=True, exist_ok=True)
    labels, styles, images = zip(*drawings, strict=True)
    art = Art(np.stack(images), list(labels), list(styles))
    np.savez_compressed(path, rgba=art.rgba, labels=np.array(labels), styles=np.array(styles))
    return art


def _fetch(spec: str, folder: Path) -> Path:
    folder.mkdir()
    subprocess.run(["npm", "pack", "--silent", spec], cwd=folder, check=True, capture_output=True)
    with tarfile.open(next(folder.glob("*.tgz"))) as archive:
        archive.extractall(folder, filter="data")
    return folder / "package"


def _stems(hexcode: str) -> tuple[str, ...]:
    """File names under which a code point sequence may be stored (variation selector optional)."""
    code = hexcode.lower()
    bare = code.replace("-fe0f", "")
    return code, bare, f"{bare}-fe0f"


def _read_webp(root: Path, emoji: list[dict]):
    for e in emoji:
        for stem in _stems(e["hexcode"]):
            file = root / "assets" / f"{stem}.webp"
            if file.exists():
                image = Image.open(file).convert("RGBA").resize((SIZE, SIZE), Image.LANCZOS)
                yield e, np.asarray(image)
                break


def _read_svg(root: Path, emoji: list[dict]):
    import resvg_py

    icons = json.loads((root / "icons.json").read_text(encoding="utf-8"))
    names = json.loads((root / "chars.json").read_text(encoding="utf-8"))
    for e in emoji:
        name = next((names[s] for s in _stems(e["hexcode"]) if s in names), None)
        name = icons["aliases"].get(name, {}).get("parent", name)
        if name not in icons["icons"]:
            continue
        icon = icons["icons"][name]
        width = icon.get("width", icons.get("width", 128))
        height = icon.get("height", icons.get("height", 128))
        svg = (
            f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
            f'viewBox="0 0 {width} {height}" width="{SIZE}" height="{SIZE}">{icon["body"]}</svg>'
        )
        png = resvg_py.svg_to_bytes(svg_string=svg, width=SIZE, height=SIZE)
        yield e, np.asarray(Image.open(io.BytesIO(bytes(png))).convert("RGBA"))
