"""Folders of images with captions, as training samples.

The caption of ``name.jpg`` is in ``name.txt`` beside it, or all captions are in a
``metadata.jsonl`` with ``file_name`` and ``text`` (the imagefolder convention of Hugging Face).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from tqdm import tqdm

from lantern.models.text import ClassNames, TextEncoder
from lantern.models.vq import VQModel
from lantern.training.loop import autocast
from lantern.training.shards import Shard, encode_captions
from lantern.training.tokenizer import to_tensor

SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp"}
Example = tuple[Path, str]


def read_folder(folder: Path) -> list[Example]:
    """(image, caption) of every image below ``folder``, sorted by path.

    FileNotFoundError if the folder or a listed image is missing; ValueError if there is no image,
    an image has no caption or the metadata cannot be read.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; give --data a folder of images.")
    listed = _metadata(folder / "metadata.jsonl")
    if listed is not None:
        return sorted(listed.items())
    files = sorted(f for f in folder.rglob("*") if f.suffix.lower() in SUFFIXES)
    if not files:
        raise ValueError(
            f"{folder} holds no image; put {', '.join(sorted(SUFFIXES))} files there, each with "
            "its caption in a .txt file of the same name."
        )
    return [(file, _caption(file)) for file in files]


def _caption(file: Path) -> str:
    note = file.with_suffix(".txt")
    try:
        return note.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        raise ValueError(
            f"{file} has no caption; write it into {note.name} beside it or list all images in "
            "metadata.jsonl."
        ) from None
    except UnicodeDecodeError:
        raise ValueError(f"{note} is not UTF-8 text; save it as UTF-8.") from None


def _metadata(file: Path) -> dict[Path, str] | None:
    if not file.exists():
        return None
    examples = {}
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            image, caption = file.parent / str(row["file_name"]), row["text"]
        except (json.JSONDecodeError, KeyError, TypeError):
            caption = None
        if not isinstance(caption, str):
            raise ValueError(
                f'{file}, line {number}: must be like {{"file_name": "a.png", "text": "caption"}}.'
            )
        if not image.is_file():
            raise FileNotFoundError(
                f"{file}, line {number}: {image.name} is missing; put it there or take the line "
                "out."
            )
        examples[image] = caption
    if not examples:
        raise ValueError(f"{file} lists no image; write one JSON object a line.")
    return examples


def load_image(file: Path, pixels: int) -> np.ndarray:
    """The image, centre-cropped to a square and resized: uint8 [pixels, pixels, 3]. ValueError if
    it cannot be read."""
    try:
        with Image.open(file) as image:
            image.draft("RGB", (pixels, pixels))  # decodes a large JPEG at a fraction of its size
            image = ImageOps.exif_transpose(image).convert("RGB")
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        reason = str(error).split("\n")[0]
        raise ValueError(
            f"{file} cannot be read as an image ({reason}); replace it or take it out."
        ) from None
    return np.asarray(ImageOps.fit(image, (pixels, pixels), Image.Resampling.LANCZOS))


def check_examples(
    examples: list[Example], text: TextEncoder | ClassNames, pixels: int
) -> list[Example]:
    """Examples with their captions as the model takes them. ValueError names the first image that
    cannot be read or whose caption the model does not take."""
    checked = []
    for file, caption in tqdm(examples, desc="checking images", leave=False, disable=None):
        try:
            caption = text.check(caption)
        except ValueError as error:
            raise ValueError(f"caption of {file}: {error}") from None
        load_image(file, pixels)
        checked.append((file, caption))
    return checked


def image_shard(
    vq: VQModel,
    text: TextEncoder | ClassNames,
    examples: list[Example],
    pixels: int,
    batch_size: int = 16,
) -> Shard:
    """Encode images and captions."""
    device = vq.quantize.embedding.weight.device
    tokens, captions = [], []
    starts = range(0, len(examples), batch_size)
    for start in tqdm(starts, desc="encoding images", leave=False, disable=None):
        files, said = zip(*examples[start : start + batch_size], strict=True)
        images = to_tensor([load_image(file, pixels) for file in files]).to(device)
        with torch.inference_mode(), autocast(device):
            tokens.append(vq.encode(images).flatten(1).cpu())
        captions.extend(encode_captions(text, list(said)))
    return Shard.join(tokens, captions)
