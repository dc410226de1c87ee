"""Pre-encoded samples for the target: image tokens, caption vectors and what was drawn.

A shard is made from freshly rendered scenes on first use and kept in the run folder; epochs walk
through the shards in turn.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lantern.models.text import ClassNames, TextEncoder
from lantern.models.vq import VQModel
from lantern.training import data
from lantern.training.art import STYLES, Art, Concept
from lantern.training.loop import autocast
from lantern.training.tokenizer import to_tensor


@dataclass
class Batch:
    """tokens int64 [B, T]; captions [B, P, d] left-padded with zeros, or class ids int64 [B, 1];
    valid bool [B, P]; labels int64 [B], the drawing (concept and style), -1 where unknown; drawn
    bool [B, T], the tokens that the drawing touches, all where unknown."""

    tokens: Tensor
    captions: Tensor
    valid: Tensor
    labels: Tensor
    drawn: Tensor

    def to(self, device: torch.device | str) -> Batch:
        return Batch(*(value.to(device) for value in vars(self).values()))


@dataclass
class Shard:
    """tokens int16 [N, T]; caption vectors of all samples end to end, fp16 [sum n, d], or class
    ids int32 [N], with ``offsets`` int32 [N + 1]; labels int16 [N] and drawn bool [N, T] as in
    ``Batch``."""

    tokens: Tensor
    vectors: Tensor
    offsets: Tensor
    labels: Tensor | None = None
    drawn: Tensor | None = None

    def __post_init__(self):
        if self.labels is None:
            self.labels = torch.full((len(self.tokens),), -1, dtype=torch.int16)
        if self.drawn is None:
            self.drawn = torch.ones_like(self.tokens, dtype=torch.bool)

    def __len__(self) -> int:
        return len(self.tokens)

    def batch(self, index: Tensor, prefix: int) -> Batch:
        kind = torch.float32 if self.vectors.is_floating_point() else torch.int64
        captions = torch.zeros(len(index), prefix, *self.vectors.shape[1:], dtype=kind)
        valid = torch.zeros(len(index), prefix, dtype=torch.bool)
        for row, i in enumerate(index.tolist()):
            start, end = int(self.offsets[i]), int(self.offsets[i + 1])
            captions[row, prefix - (end - start) :] = self.vectors[start:end]
            valid[row, prefix - (end - start) :] = True
        labels, drawn = self.labels[index].long(), self.drawn[index]
        return Batch(self.tokens[index].long(), captions, valid, labels, drawn)

    @classmethod
    def join(cls, tokens: list[Tensor], captions: list[Tensor], **known: Tensor) -> Shard:
        """From tokens [n, T] of any integer type and one caption a sample (``encode_captions``);
        ``known``: labels, drawn."""
        lengths = torch.tensor([0] + [len(caption) for caption in captions])
        offsets = lengths.cumsum(0).int()
        return cls(torch.cat(tokens).short(), torch.cat(captions), offsets, **known)


def encode_captions(text: TextEncoder | ClassNames, captions: list[str]) -> list[Tensor]:
    """What a shard keeps of each caption: vectors fp16 [n_i, d], or the class id int32 [1]."""
    if isinstance(text, ClassNames):
        return [text.condition(caption)[0].int().cpu() for caption in captions]
    return [vectors.half().cpu() for vectors in text.encode(captions)]


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
    """Render and encode ``count`` samples; ``held_out`` draws only held-out pairs. A label is the
    place in ``concepts`` times the number of styles, plus the style's."""
    rng = np.random.default_rng(seed)
    place = {concept.label: i for i, concept in enumerate(concepts)}
    tokens, vectors, labels, drawn = [], [], [], []
    for start in range(0, count, 32):
        images, captions = [], []
        for _ in range(min(32, count - start)):
            spec, concept, style = data.sample_spec(
                art, concepts, rng, jitter=jitter, held_out_pairs=held_out
            )
            image, cover = data.render_with_cover(art, spec)
            images.append(image)
            drawn.append(torch.from_numpy(cover > 0))
            captions.append(data.sample_caption(concept, spec.background, style, rng))
            labels.append(place[concept.label] * len(STYLES) + STYLES.index(style))
        with torch.inference_mode(), autocast(torch.device("cpu")):
            tokens.append(vq.encode(to_tensor(images)).flatten(1))
        vectors.extend(encode_captions(text, captions))
    side = int(tokens[0].shape[1] ** 0.5)
    cells = F.adaptive_max_pool2d(torch.stack(drawn)[:, None].half(), side).bool().flatten(1)
    return Shard.join(tokens, vectors, labels=torch.tensor(labels, dtype=torch.int16), drawn=cells)


def fingerprint(*values) -> str:
    """Twelve hex digits that stand for what shards were made from."""
    return hashlib.sha256(json.dumps(values, default=str).encode()).hexdigest()[:12]


class Shards:
    """``count`` shards of ``size`` samples each, made on demand under ``folder``."""

    def __init__(self, folder: Path, make, count: int, size: int):
        self.folder, self.make, self.count, self.size = folder, make, count, size
        self.loaded: tuple[int, Shard] | None = None

    @classmethod
    def of(cls, folder: Path, items: list, make: Callable[[list], Shard], most: int) -> Shards:
        """Shards of at most ``most`` of ``items`` each. All have one size, so that a few items may
        be in two shards."""
        count = -(-len(items) // most)
        size = -(-len(items) // count)

        def make_numbered(size: int, number: int) -> Shard:
            return make([items[i % len(items)] for i in range(number * size, (number + 1) * size)])

        return cls(folder, make_numbered, count, size)

    def _file(self, number: int) -> Path:
        return self.folder / f"shard-{number:03d}.pt"

    def ensure(self, number: int) -> None:
        """Make a shard unless it is there."""
        if not self._file(number).exists():
            self.get(number)

    def get(self, epoch: int) -> Shard:
        number = epoch % self.count
        if self.loaded and self.loaded[0] == number:
            return self.loaded[1]
        file = self._file(number)
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

    def batch(self, step: int, batch_size: int, prefix: int) -> Batch:
        """The batch of one training step: shards in turn, each in an order of its own. A shard
        smaller than a batch is repeated within it."""
        per_shard = max(1, self.size // batch_size)
        epoch, place = divmod(step, per_shard)
        order = torch.randperm(self.size, generator=torch.Generator().manual_seed(epoch))
        order = order.repeat(-(-batch_size // self.size))
        return self.get(epoch).batch(order[place * batch_size :][:batch_size], prefix)


@dataclass(frozen=True)
class Mixture:
    """Batches of two sources: one of ``second`` in ``share`` of the steps, evenly spread."""

    first: Shards
    second: Shards
    share: float

    def batch(self, step: int, batch_size: int, prefix: int) -> Batch:
        done = int(step * self.share)
        if int((step + 1) * self.share) > done:
            return self.second.batch(done, batch_size, prefix)
        return self.first.batch(step - done, batch_size, prefix)
