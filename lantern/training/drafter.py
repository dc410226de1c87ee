"""Train the EAGLE drafter on a frozen target.

Both CFG rows of every sample go through target and drafter, so the loss sees the distribution the
draft tree is really built from; or, as the published drafters were trained, one row each, a share
of the captions dropped, without CFG: half the cost. Every third batch is unrolled on the drafter's
own output, since that is what it is fed below the first level of a tree.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lantern.config import DrafterConfig
from lantern.formats import (
    fill,
    native,
    published_drafter,
    published_drafter_values,
    read_state,
)
from lantern.models.drafter import Drafter
from lantern.models.llamagen import Transformer
from lantern.sampling import guide
from lantern.training.loop import Budget, Optimisation, Run, autocast
from lantern.training.shards import Batch, Mixture, Shard, Shards
from lantern.training.target import drop_captions, forward_tokens

if TYPE_CHECKING:
    from accelerate import Accelerator

UNROLL = 3
UNROLL_DECAY = 0.7
CE_WEIGHT = 0.3


def initialise(drafter: Drafter) -> None:
    """Start close to "the next hidden state is this one": fc = [small noise | identity] and
    residual branches near zero."""
    width = drafter.fc.weight.shape[0]
    for name, parameter in drafter.named_parameters():
        if parameter.ndim >= 2:
            nn.init.normal_(parameter, std=0.02)
        if name.endswith(("attention.out.weight", "mlp.down.weight")):
            parameter.data.mul_(0.5)
    with torch.no_grad():
        drafter.fc.weight[:, width:].copy_(torch.eye(width))
        if drafter.fc.bias is not None:
            drafter.fc.bias.zero_()


def both_rows(target: Transformer, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states under CFG: hidden [2B, P+T-1, W] (conditional rows first), tokens [2B, T],
    valid [2B, P]."""
    uncond = target.caption.uncond.expand_as(batch.captions)
    captions = torch.cat([batch.captions, uncond])
    tokens, valid = batch.tokens.repeat(2, 1), batch.valid.repeat(2, 1)
    return forward_tokens(target, captions, valid, tokens), tokens, valid


def one_row(target: Transformer, batch: Batch, drop: float) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states without CFG, captions dropped in a share ``drop`` of the samples; shapes as in
    ``both_rows`` with B rows."""
    captions = drop_captions(target, batch, drop).captions
    hidden = forward_tokens(target, captions, batch.valid, batch.tokens)
    return hidden, batch.tokens, batch.valid


def guided(target: Transformer, hidden: Tensor, cfg: float | None) -> Tensor:
    """Hidden [2B, T, W] -> guided logits [B, T, V]; without ``cfg`` [B, T, W] -> [B, T, V]."""
    logits = target.logits(hidden)
    return logits if cfg is None else guide(logits.unflatten(0, (2, -1)), cfg)


def predictions(
    drafter: Drafter, target: Transformer, hidden: Tensor, tokens: Tensor, valid: Tensor, depth: int
) -> list[tuple[Tensor, Tensor]]:
    """Drafter outputs of 1..depth unrolled levels with the hidden states they should equal.

    Level j pairs its own output of level j - 1, one position on, with the true tokens; each item is
    ([2B, R, W], [2B, R, W]) over image rows.
    """
    p, t = valid.shape[1], tokens.shape[1]
    ids = torch.cat([tokens.new_zeros(len(tokens), p - 1), tokens[:, : t - 1]], dim=1)
    embedded = drafter.embed(ids, target)
    feature = hidden[:, :-1]
    # The drafter has no padding mask: plain causal attention.
    n = ids.shape[1]
    mask = torch.ones(n, n, dtype=torch.bool, device=ids.device).tril()[None, None]
    results = []
    for level in range(depth):
        out = drafter(embedded, feature, slice(0, n), mask)
        first = p - 1 + level
        results.append((out[:, first:], hidden[:, first + 1 :]))
        feature = torch.cat([hidden[:, :1], out[:, :-1]], dim=1)
    return results


def draft_loss(
    drafter, target, batch: Batch, cfg: float, depth: int, drop: float | None = None
) -> tuple[Tensor, dict]:
    """Loss and figures of the first level: argmax agreement and total variation, under CFG or,
    with ``drop`` given, of single rows."""
    with torch.no_grad():
        rows = both_rows(target, batch) if drop is None else one_row(target, batch, drop)
    scale = cfg if drop is None else None
    loss, figures = 0.0, {}
    for level, (out, wanted) in enumerate(predictions(drafter, target, *rows, depth)):
        with torch.no_grad():
            p = guided(target, wanted, scale).softmax(-1)
        log_q = guided(target, out, scale).log_softmax(-1)
        ce = -(p * log_q).sum(-1).mean()
        loss = loss + UNROLL_DECAY**level * (F.smooth_l1_loss(out, wanted) + CE_WEIGHT * ce)
        if level == 0:
            with torch.no_grad():
                figures["agreement"] = (p.argmax(-1) == log_q.argmax(-1)).float().mean()
                figures["tv"] = 0.5 * (p - log_q.exp()).abs().sum(-1).mean()
    return loss, figures


class Objective(nn.Module):
    """``draft_loss`` as a forward pass, which is what distributed training wraps."""

    def __init__(self, drafter: Drafter, target: Transformer, cfg: float, drop: float | None):
        super().__init__()
        self.drafter, self.cfg, self.drop = drafter, cfg, drop
        # In a tuple it is no submodule: nothing of the target is trained or synchronised.
        self.frozen = (target,)

    def forward(self, batch: Batch, depth: int) -> tuple[Tensor, dict]:
        (target,) = self.frozen
        with autocast(batch.tokens.device):
            return draft_loss(self.drafter, target, batch, self.cfg, depth, self.drop)


@torch.no_grad()
def agreement(
    drafter, target, shard: Shard, cfg: float, count: int = 64, batch_size: int = 8
) -> dict:
    """Figures on held-out samples: argmax agreement and TV of the first drafted level."""
    totals: dict[str, float] = {}
    count, prefix = min(count, len(shard)), target.config.prefix
    for index in torch.arange(count).split(batch_size):
        batch = shard.batch(index, prefix).to(target.embedding.weight.device)
        _, figures = draft_loss(drafter, target, batch, cfg, 1)
        for name, value in figures.items():
            totals[name] = totals.get(name, 0.0) + float(value) * len(index) / count
    return totals


def start(config: DrafterConfig, target: Transformer, init: Path | None) -> Drafter:
    """A drafter to train, from the weights in folder ``init`` if given. A token table of its own
    is the target's, and stays as it is."""
    drafter = Drafter(config, target.config)
    initialise(drafter)
    if config.own_embedding:
        drafter.embedding.weight.data.copy_(target.embedding.weight)
        drafter.embedding.requires_grad_(False)
    if init:
        file = init / "model.safetensors"
        if not file.is_file() and (init / "pytorch_model.bin").is_file():
            file = init / "pytorch_model.bin"
        fill(drafter, read_state(file), file, names_of(config))
    return drafter


def names_of(config: DrafterConfig):
    """Drafters with a token table of their own are stored as the published ones are."""
    return published_drafter if config.own_embedding else native


def train_drafter(
    samples: Shards | Mixture,
    held_out: Shard,
    target: Transformer,
    folder: Path,
    out: Path,
    budget: Budget,
    *,
    config: DrafterConfig,
    accelerator: Accelerator,
    cfg: float = 2.0,
    drop: float | None = None,
    batch_size: int = 4,
    lr: float = 1e-3,
    seed: int = 0,
    init: Path | None = None,
) -> Run:
    """Train (or resume) in ``folder`` and write the drafter to ``out``; returns the finished run.

    ``target`` is frozen, fp32 and on the accelerator's device; ``init`` is the folder of a drafter
    to start from; ``drop`` as in ``draft_loss``; ``batch_size`` counts for each process.
    """
    torch.manual_seed(seed)
    drafter = start(config, target, init).to(accelerator.device)
    run = Run(
        folder,
        drafter,
        budget,
        Optimisation(lr=lr, warmup=50, ema=0.998, clip=0.5, report_every=20),
        config={
            "drafter": asdict(config), "lr": lr, "batch": batch_size, "cfg": cfg, "drop": drop,
            "seed": seed, "processes": accelerator.num_processes,
        },
        trainable=lambda name: not name.startswith("embedding"),
        accelerator=accelerator,
        objective=Objective(drafter, target, cfg, drop),
    )  # fmt: skip
    values = published_drafter_values(config, target.config) if config.own_embedding else config

    def report(figures: dict) -> None:
        if run.step % 100 == 0:
            with run.averaged():
                measured = agreement(drafter, target, held_out, cfg, 32)
            figures |= {f"held_out_{k}": round(v, 4) for k, v in measured.items()}
            run.export(out, values, names=names_of(config))

    for step in run.steps(report):
        whole = samples.batch(step, batch_size * accelerator.num_processes, target.config.prefix)
        with accelerator.split_between_processes(vars(whole)) as mine:
            batch = Batch(**mine).to(accelerator.device)
        loss, figures = run.objective(batch, UNROLL if step % 3 == 2 else 1)
        run.update(loss, **figures)
    run.export(out, values, names=names_of(config))
    return run
