"""Which models exist, where their files lie, and loading them with clear errors.

A model is a folder: ``model.json`` (title, defaults, licences), and ``target/``, ``drafter/``,
``tokenizer/``, ``text/`` with a config.json and safetensors weights each.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

ROOT = Path(__file__).resolve().parent.parent / "checkpoints"
PARTS = {
    "target": ("config.json", "model.safetensors"),
    "drafter": ("config.json", "model.safetensors"),
    "tokenizer": ("config.json", "model.safetensors"),
    "text": ("config.json", "model.safetensors", "tokenizer.json"),
}


@dataclass(frozen=True)
class ModelEntry:
    """What the registry knows about a model before loading it."""

    name: str
    title: str
    summary: str
    licence: str
    source: str


MODELS = {
    "emoji-128": ModelEntry(
        name="emoji-128",
        title="emoji-128",
        summary="21 M parameters, 128 x 128 px, 256 tokens; trained by this repository",
        licence="Apache-2.0 (weights); art MIT and Apache-2.0, see the model card",
        source="shipped in checkpoints/emoji-128",
    ),
}


def entry(name: str) -> ModelEntry:
    """The registry entry; ValueError lists the known names."""
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; known are {', '.join(MODELS)}.")
    return MODELS[name]


def folder_of(name: str) -> Path:
    """Where a model's files are: $LANTERN_MODELS/<name> if that exists, else checkpoints/<name>."""
    entry(name)
    elsewhere = os.environ.get("LANTERN_MODELS")
    if elsewhere and (Path(elsewhere) / name).is_dir():
        return Path(elsewhere) / name
    return ROOT / name


def missing_files(name: str) -> list[Path]:
    """Files of a model that are not there, relative to its folder."""
    folder = folder_of(name)
    wanted = [Path("model.json")]
    wanted += [Path(part) / file for part, files in PARTS.items() for file in files]
    return [file for file in wanted if not (folder / file).is_file()]


def load_weights(module: nn.Module, file: Path) -> None:
    """Fill ``module`` from a safetensors file, strictly.

    FileNotFoundError if it is missing; ValueError, naming file and tensor, if it is broken, or a
    tensor is missing, unexpected or of another shape. Values are converted to the module's dtype.
    """
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing; restore it or download the model again.")
    try:
        state = load_file(file)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} is damaged ({error}); restore it.") from None
    own = module.state_dict()
    problems = [f"{name} is missing" for name in own if name not in state]
    problems += [f"{name} is unexpected" for name in state if name not in own]
    problems += [
        f"{name} has shape {tuple(state[name].shape)}, expected {tuple(own[name].shape)}"
        for name in own
        if name in state and state[name].shape != own[name].shape
    ]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ValueError(
            f"{file} does not fit its config: {problems[0]}{more}; is it the right file?"
        )
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(state[name])
