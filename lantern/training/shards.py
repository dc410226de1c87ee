"""Pre-encoded samples for the target: image tokens, caption vectors and what was drawn.

A shard is made from freshly rendered scenes on first use and kept in the run folder; epochs walk
through the shards in turn.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lantern.models.text import TextEncoder
from lantern.models.vq import VQModel
from lantern.training import data
from lantern.training.art import Art, Concept
from lantern.training.loop import autocast
from lantern.training.tokenizer import to_tensor


@dataclass
class Batch:
    """tokens int64 [B, T]; captions [B, P, d] left-padded with zeros; valid bool [B, P]."""

    tokens: Tensor
    captions: Tensor
    valid: Tensor


@dataclass
class Shard:
    """tokens int16 [N, T]; caption vectors of all samples end to end, fp16 [sum n, d], with
    ``offsets`` int32 [N + 1]."""

    tokens: Tensor
    vectors: Tensor
    offsets: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def batch(self, index: Tensor, prefix: int) -> Batch:
        captions = torch.zeros(len(index), prefix, self.vectors.shape[1])
        valid = torch.zeros(len(index), prefix, dtype=torch.bool)
        for row, i in enumerate(index.tolist()):
            start, end = int(self.offsets[i]), int(self.offsets[i + 1])
            captions[row, prefix - (end - start) :] = self.vectors[start:end].float()
            valid[row, prefix - (end - start) :] = True
        return Batch(self.tokens[index].long(), captions, valid)


def make_shard(
    art: Art,
    concepts: list[Concept],
    vq: VQModel,
    text: TextEncoder,
    count: int,
    seed,
    jitter: data.Jitter,
    held_out: bool = False,
) -> Shard:
    """Render and encode ``count`` samples; ``held_out`` draws only held-out pairs."""
    rng = np.random.default_rng(seed)
    tokens, vectors = [], []
    for start in range(0, count, 32):
        images, captions = [], []
        for _ in range(min(32, count - start)):
            spec, concept, style = data.sample_spec(
                art, concepts, rng, jitter=jitter, held_out_pairs=held_out
            )
            images.append(data.render(art, spec))
            captions.append(data.sample_caption(concept, spec.background, style, rng))
        with torch.inference_mode(), autocast(torch.device("cpu")):
            tokens.append(vq.encode(to_tensor(images)).flatten(1).short())
        vectors.extend(v.half() for v in text.encode(captions))
    lengths = torch.tensor([0] + [len(v) for v in vectors])
    return Shard(torch.cat(tokens), torch.cat(vectors), lengths.cumsum(0).int())


class Shards:
    """``count`` shards of ``size`` samples each, made on demand under ``folder``."""

    def __init__(self, folder: Path, make, count: int, size: int):
        self.folder, self.make, self.count, self.size = folder, make, count, size
        self.loaded: tuple[int, Shard] | None = None

    def get(self, epoch: int) -> Shard:
        number = epoch % self.count
        if self.loaded and self.loaded[0] == number:
            return self.loaded[1]
        file = self.folder / f"shard-{number:03d}.pt"
        if file.exists():
            shard = Shard(**torch.load(file, weights_only=True))
        else:
            shard = self.make(self.size, number)
            self.folder.mkdir(parents=True, exist_ok=True)
            aside = file.with_suffix(".new")
            torch.save(vars(shard), aside)
            os.replace(aside, file)
        self.loaded = number, shard
        return shard
