"""The judge: a small classifier of concept, style and background.

It learns from rendered scenes only, never from model output, some of them softened the way a
tokenizer softens. Its accuracy on generated images is the prompt-following measure.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lantern.training import data
from lantern.training.art import STYLES, Art, Concept
from lantern.training.loop import Budget, Optimisation, Run, autocast
from lantern.training.tokenizer import to_tensor

JITTER = data.Jitter(smallest=90, largest=112, shift=12)


class Judge(nn.Module):
    """images [B, 3, 128, 128] in [-1, 1] -> logits of concept, style, background and features."""

    def __init__(self, concepts: int):
        super().__init__()
        widths = (64, 128, 192, 256)
        self.stem = nn.Conv2d(48, widths[0], 3, padding=1)
        self.blocks = nn.ModuleList()
        for c_in, c_out in zip(widths, widths[1:], strict=False):
            self.blocks.append(
                nn.Sequential(
                    nn.GroupNorm(8, c_in),
                    nn.SiLU(),
                    nn.Conv2d(c_in, c_in, 3, padding=1),
                    nn.GroupNorm(8, c_in),
                    nn.SiLU(),
                    nn.Conv2d(c_in, c_out, 3, 2, padding=1),
                )  # fmt: skip
            )
        self.norm = nn.GroupNorm(8, widths[-1])
        self.mix = nn.Linear(widths[-1] * 16, 256)
        self.concept = nn.Linear(256, concepts)
        self.style = nn.Linear(256, len(STYLES))
        self.background = nn.Linear(256, len(data.BACKGROUNDS))

    def features(self, images: Tensor) -> Tensor:
        """[B, 256]."""
        x = self.stem(F.pixel_unshuffle(images, 4))
        for block in self.blocks:
            x = block(x)
        return F.silu(self.mix(F.silu(self.norm(x)).flatten(1)))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        features = self.features(images)
        return {
            "concept": self.concept(features),
            "style": self.style(features),
            "background": self.background(features),
        }


@dataclass
class Labels:
    """What a batch of images shows, as indices."""

    concept: Tensor
    style: Tensor
    background: Tensor


def sample(art: Art, concepts: list[Concept], rng, count: int) -> tuple[Tensor, Labels]:
    """Rendered scenes with their labels; a third are blurred a little."""
    index = {c.name: i for i, c in enumerate(concepts)}
    images, rows = [], []
    for _ in range(count):
        held_out = bool(rng.random() < 0.05)
        spec, concept, style = data.sample_spec(
            art, concepts, rng, jitter=JITTER, held_out_pairs=held_out
        )
        images.append(data.render(art, spec))
        rows.append(
            (index[concept.name], STYLES.index(style), data.BACKGROUNDS.index(spec.background))
        )
    batch = to_tensor(images)
    soft = F.interpolate(F.avg_pool2d(batch, 2), scale_factor=2.0, mode="bilinear")
    blurred = torch.from_numpy(rng.random(count) < 0.5)[:, None, None, None]
    batch = torch.where(blurred, soft, batch)
    batch = batch + 0.03 * torch.randn(batch.shape)
    return batch, Labels(*torch.tensor(rows).T)


def train_judge(
    art: Art, concepts: list[Concept], folder: Path, budget: Budget, seed: int = 0
) -> Judge:
    """Train, resume or, if the budget is spent, just load the judge in ``folder``."""
    torch.manual_seed(seed)
    judge = Judge(len(concepts))
    run = Run(
        folder,
        judge,
        budget,
        Optimisation(lr=1.5e-3, weight_decay=0.05, ema=0.995, report_every=20),
        config={"concepts": [c.name for c in concepts], "seed": seed},
    )
    for step in run.steps():
        images, labels = sample(art, concepts, np.random.default_rng((seed, 77, step)), 48)
        with autocast(torch.device("cpu")):
            logits = judge(images)
        loss = sum(F.cross_entropy(logits[n].float(), v) for n, v in vars(labels).items())
        right = (logits["concept"].argmax(1) == labels.concept).float().mean()
        run.update(loss, concept=right)
    with torch.no_grad():
        torch._foreach_copy_(run.parameters, run.ema)
    return judge.eval().requires_grad_(False)


@torch.inference_mode()
def accuracy(judge: Judge, images: Tensor, labels: Labels) -> dict[str, float]:
    """Shares of images whose concept (top-1, top-5), style and background are recognised."""
    logits = judge(images)
    top5 = logits["concept"].topk(5, dim=1).indices
    return {
        "concept_top1": _share(top5[:, 0] == labels.concept),
        "concept_top5": _share((top5 == labels.concept[:, None]).any(1)),
        "style": _share(logits["style"].argmax(1) == labels.style),
        "background": _share(logits["background"].argmax(1) == labels.background),
    }


def _share(hits: Tensor) -> float:
    return float(hits.float().mean())
