"""How the cost of a step grows with the image: 256 tokens (Stage I), 576, 1024 (Stage II).

Random weights, since time does not depend on their values. Beside the whole target pass stands
attention alone over as many rows: all that may grow is what attention must do.
"""

from __future__ import annotations

from statistics import median

import torch
import torch.nn.functional as F

from lantern.cache import KVCache
from lantern.config import ModelConfig
from lantern.models.llamagen import Transformer
from lantern.runtime import Stopwatch, describe, pack

GRIDS = (16, 24, 32)
PREFIX = 120
VOCABULARY = 16384
REPEATS = 15
MOST_NODES = 256


@torch.inference_mode()
def report(
    width: int, layers: int, heads: int, nodes: int, device: torch.device, dtype: torch.dtype
) -> str:
    """Markdown: milliseconds of a pass with one node and with ``nodes``, in the middle of the image
    and at its end, and of the attention in it. ValueError for sizes no model has."""
    if not 1 <= nodes <= MOST_NODES:
        raise ValueError(f"nodes must be from 1 to {MOST_NODES}, not {nodes}.")
    where = describe(device, dtype)
    stored = torch.float32 if dtype == torch.int8 else dtype
    lines = [
        f"Target of width {width}, {layers} layers, {heads} heads, random weights, on "
        f"{where['hardware']} ({where['device']}, {where['threads']} threads, {where['dtype']}, "
        f"torch {where['torch']}); ms, median of {REPEATS}.",
        "",
        "| tokens | rows in the cache | AR pass | its attention | rest | "
        f"{nodes} nodes | its attention | rest |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for grid in GRIDS:
        config = ModelConfig(
            VOCABULARY, width, layers, heads, _mlp_width(width), grid, PREFIX, caption_dim=64
        )
        target = Transformer(config).to(device).eval().requires_grad_(False)
        for parameter in target.parameters():  # not the complex rotations
            parameter.data = parameter.data.to(stored)
        pack(target, None, dtype)
        rows = PREFIX + grid * grid
        cache = KVCache(
            layers, 2, heads, rows + nodes, config.head_dim, device=device, dtype=stored
        )  # fmt: skip
        for done in (PREFIX + grid * grid // 2, rows - 1):
            cells = []
            for count in (1, nodes):
                whole = _milliseconds(device, _step, target, cache, done, count)
                part = _milliseconds(device, _attention, cache, done, count)
                cells += [f"{whole:.2f}", f"{part:.2f}", f"{whole - part:.2f}"]
            lines.append(f"| {grid * grid} | {done} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _mlp_width(width: int) -> int:
    """LlamaGen's: two thirds of four times the width, rounded up to a multiple of 256."""
    return -(-8 * width // 3 // 256) * 256


def _step(target: Transformer, cache: KVCache, done: int, nodes: int) -> None:
    x = target.embedding.weight[:nodes].expand(2, -1, -1)
    positions = torch.full((nodes,), min(done, len(target.rotation) - 1), device=x.device)
    mask = torch.zeros(1, 1, nodes, done + nodes, dtype=x.dtype, device=x.device)
    target.logits(target(x, positions, mask, cache, done))


def _attention(cache: KVCache, done: int, nodes: int) -> None:
    mask = cache.kv.new_zeros(1, 1, nodes, done + nodes)
    for keys, values in cache.kv:
        q = keys[:, :, :nodes]
        F.scaled_dot_product_attention(
            q, keys[:, :, : done + nodes], values[:, :, : done + nodes], attn_mask=mask
        )


def _milliseconds(device: torch.device, work, *arguments) -> float:
    watch, laps = Stopwatch(device), []
    for _ in range(REPEATS + 2):
        watch.start()
        work(*arguments)
        laps.append(watch.lap())
    return 1e3 * median(laps[2:])
