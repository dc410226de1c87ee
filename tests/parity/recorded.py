"""Access to tests/data/parity and the recorded models, loaded by the public format code.

Whoever receives something from here shares it with other tests and must not change it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lantern import formats
from lantern.acceptance import AcceptanceRule, Exact, Lantern, Multiplicative
from lantern.config import DecodeOptions, ModelConfig, TreeShape
from lantern.decode import Decoder, Request
from lantern.drafting import Drafting
from lantern.models.drafter import Drafter
from lantern.models.llamagen import Transformer, left_pad
from lantern.models.vq import VQModel
from lantern.tree import DraftTree

DATA = Path(__file__).resolve().parents[1] / "data" / "parity"
# What the float32 runs are known to hold against float64 is 8e-6.
TOLERANCE = 5e-5


@cache
def tensors(name: str) -> dict[str, Tensor]:
    """A recorded safetensors file."""
    return formats.read_state(DATA / f"{name}.safetensors")


@cache
def values(name: str):
    """A recorded JSON file."""
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))


def assert_close(ours: Tensor, theirs: Tensor, atol: float = TOLERANCE) -> None:
    torch.testing.assert_close(ours, theirs.to(ours.dtype), atol=atol, rtol=0)


@cache
def hf_target(padded_rows: str = "fp32") -> Transformer:
    """The transformers-style target. It was recorded in float32, hence the default."""
    config = formats.hf_target_config(DATA / "target_hf/config.json", padded_rows)
    file = DATA / "target_hf/model.safetensors"
    return _filled(Transformer(config), file, formats.hf_target)


@cache
def original_target(kind: str, padded_rows: str = "self") -> Transformer:
    """LlamaGen's own target, ``kind`` t2i or c2i."""
    file = DATA / f"target_orig/{kind}_model_orig_keys.safetensors"
    state = formats.read_state(file)
    config = formats.original_target_config(state, file, 8, padded_rows, head_dim=16)
    return _filled(Transformer(config), file, formats.original_target)


@cache
def drafter(variant: str = "a") -> tuple[Drafter, ModelConfig]:
    """A drafter and the configuration of the target it was made for; ``b`` has the 32 x 32 grid."""
    config = hf_target().config
    folder = DATA / "drafter"
    if variant == "b":
        config, folder = replace(config, grid=32), folder / "variant_b"
    own = formats.published_drafter_config(folder / "config.json", config)
    module = Drafter(own, config)
    return _filled(module, folder / "model.safetensors", formats.published_drafter), config


@cache
def tiny_vq(name: str) -> VQModel:
    """The tiny tokenizer vq16 or vq8."""
    file = DATA / f"vq/{name}_tiny_weights_fp16.safetensors"
    return _filled(VQModel(formats.vq_config(formats.read_state(file), file)), file, formats.native)


def _filled(module, file: Path, names: formats.Names):
    state = formats.read_state(file)
    return formats.fill(module, state, file, names).eval().requires_grad_(False)


@cache
def raw_table() -> Tensor:
    """Neighbours as the official script finds them, by the distance of raw codebook rows."""
    table = np.load(DATA / "vq/top_511_indices.npy").astype(np.int32)
    return torch.from_numpy(table)


def caption(prompt: int, name: str = "generate/io") -> tuple[Tensor, Tensor]:
    """Recorded text vectors of a prompt, left-padded: (caption [120, 32], valid [120])."""
    io = tensors(name)
    mask = io[f"p{prompt}.raw_caption_mask"].bool()
    return left_pad(io[f"p{prompt}.raw_caption_emb"][mask], len(mask))


def new_request(
    target: Transformer,
    condition: tuple[Tensor, Tensor],
    *,
    with_drafter: bool = False,
    tree: tuple[int, int, int] = (26, 5, 6),
    **options,
) -> Request:
    """A request that a test drives pass by pass; greedy AR or EAGLE-2 unless ``options`` differ."""
    mode = "eagle2" if with_drafter else "ar"
    chosen = {"mode": mode, "temperature": 0, "cfg": 3.0, "top_k": 0} | options
    decoder = Decoder(target, drafter()[0] if with_drafter else None)
    request = Request(decoder, *condition, DecodeOptions(**chosen, tree=TreeShape(*tree)))
    if with_drafter:
        noise = torch.zeros(target.config.image_tokens, target.config.vocab_size)
        request.draft = Drafting(
            decoder.drafter, target, request.options, request.draft_cache, noise
        )
    return request


@torch.inference_mode()
def feed(request: Request, tokens: list[int]) -> Tensor:
    """Commit image tokens one pass at a time; their hidden states [2, n, W]."""
    rows = []
    for token in tokens:
        rows.append(request._verify(DraftTree.root_only(token)))
        request.cache.keep(request.cache.length, [0])
        request.position += 1
    return torch.cat(rows, dim=1)


def tree_of(tokens: Tensor, parents: Tensor, depth: Tensor, width: int = 32) -> DraftTree:
    """A DraftTree from recorded arrays; the root may have any parent."""
    parents = parents.long().clone()
    parents[0] = 0
    tokens, depth = tokens.long(), depth.long()
    return DraftTree(tokens, parents, depth, torch.zeros(len(tokens)), int(depth.max()), width)


def rule_of(lantern: bool, k: int | None, delta: float | None) -> AcceptanceRule:
    """Our rule for recorded settings: delta above 1 means a factor there, delta 0 is exact here."""
    if not lantern or delta == 0:
        return Exact()
    return Lantern(k, delta) if delta <= 1 else Multiplicative(k, delta)
