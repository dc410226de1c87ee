"""Train the EAGLE drafter on a frozen target.

Both CFG rows of every sample go through target and drafter, so the loss sees the distribution the
draft tree is really built from. Every third batch is unrolled on the drafter's own output, since
that is what it is fed below the first level of a tree.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lantern.config import DrafterConfig, ModelConfig, config_from_dict, read_json
from lantern.formats import load_weights
from lantern.models.drafter import Drafter
from lantern.models.llamagen import Transformer
from lantern.sampling import guide
from lantern.training.loop import Budget, Optimisation, Run, autocast
from lantern.training.shards import Batch, Shard, Shards
from lantern.training.target import forward_tokens

UNROLL = 3
UNROLL_DECAY = 0.7
CE_WEIGHT = 0.3


def load_target(folder: Path) -> Transformer:
    """The exported target, frozen."""
    config = config_from_dict(ModelConfig, read_json(folder / "config.json"), where=str(folder))
    target = Transformer(config)
    load_weights(target, folder / "model.safetensors")
    return target.eval().requires_grad_(False)


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


def guided(target: Transformer, hidden: Tensor, cfg: float) -> Tensor:
    """Hidden [2B, T, W] -> guided logits [B, T, V]."""
    return guide(target.logits(hidden).unflatten(0, (2, -1)), cfg)


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


def draft_loss(drafter, target, batch: Batch, cfg: float, depth: int) -> tuple[Tensor, dict]:
    """Loss and figures of the first level: argmax agreement and total variation under CFG."""
    with torch.no_grad():
        hidden, tokens, valid = both_rows(target, batch)
    loss, figures = 0.0, {}
    for level, (out, wanted) in enumerate(
        predictions(drafter, target, hidden, tokens, valid, depth)
    ):
        with torch.no_grad():
            p = guided(target, wanted, cfg).softmax(-1)
        log_q = guided(target, out, cfg).log_softmax(-1)
        ce = -(p * log_q).sum(-1).mean()
        loss = loss + UNROLL_DECAY**level * (F.smooth_l1_loss(out, wanted) + CE_WEIGHT * ce)
        if level == 0:
            with torch.no_grad():
                figures["agreement"] = (p.argmax(-1) == log_q.argmax(-1)).float().mean()
                figures["tv"] = 0.5 * (p - log_q.exp()).abs().sum(-1).mean()
    return loss, figures


@torch.no_grad()
def agreement(drafter, target, shard: Shard, cfg: float, count: int = 64) -> dict:
    """Figures on held-out samples: argmax agreement and TV of the first drafted level."""
    totals: dict[str, float] = {}
    batches = torch.arange(min(count, len(shard))).split(8)
    for index in batches:
        _, figures = draft_loss(drafter, target, shard.batch(index, target.config.prefix), cfg, 1)
        for name, value in figures.items():
            totals[name] = totals.get(name, 0.0) + float(value) / len(batches)
    return totals


def train_drafter(
    shards: Shards,
    held_out: Shard,
    target_folder: Path,
    folder: Path,
    out: Path,
    budget: Budget,
    *,
    config: DrafterConfig,
    cfg: float = 2.0,
    batch_size: int = 4,
    lr: float = 1e-3,
    seed: int = 0,
    init: Path | None = None,
) -> None:
    """Train (or resume) in ``folder``; ``init`` starts from an exported drafter."""
    torch.manual_seed(seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    target = load_target(target_folder).to(device)
    drafter = Drafter(config, target.config).to(device)
    initialise(drafter)
    if init:
        load_weights(drafter, init / "model.safetensors")
    run = Run(
        folder,
        drafter,
        budget,
        Optimisation(lr=lr, warmup=50, ema=0.998, clip=0.5, report_every=20),
        config={"drafter": asdict(config), "lr": lr, "batch": batch_size, "cfg": cfg, "seed": seed},
    )

    def report(values: dict) -> None:
        if run.step % 100 == 0:
            with run.averaged():
                figures = agreement(drafter, target, held_out, cfg, 32)
            values |= {f"held_out_{k}": round(v, 4) for k, v in figures.items()}
            run.export(out, drafter.config)

    for step in run.steps(report):
        epoch, place = divmod(step * batch_size, shards.size)
        order = torch.randperm(shards.size, generator=torch.Generator().manual_seed(epoch))
        index = order[place : place + batch_size]
        batch = shards.get(epoch).batch(index, target.config.prefix)
        batch = Batch(*(value.to(device) for value in vars(batch).values()))
        with autocast(device):
            loss, figures = draft_loss(drafter, target, batch, cfg, UNROLL if step % 3 == 2 else 1)
        run.update(loss, **figures)
    run.export(out, drafter.config)
