"""Train the target transformer on pre-encoded scenes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lantern.config import ModelConfig
from lantern.formats import load_weights
from lantern.models.llamagen import Transformer, condition_mask
from lantern.training.loop import Budget, Optimisation, Run, autocast
from lantern.training.shards import Batch, Shard, Shards

EMOJI_TARGET = ModelConfig(
    vocab_size=4096,
    width=384,
    layers=10,
    heads=6,
    mlp_width=1024,
    grid=16,
    prefix=24,
    caption_dim=384,
    attend_condition=True,
    padded_rows="self",
)
CAPTION_DROP = 0.1


def initialise(model: Transformer) -> None:
    """Normal(0, 0.02); projections that write to the residual stream start smaller."""
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2 and "uncond" not in name:
            nn.init.normal_(parameter, std=0.02)
        if name.endswith(("attention.out.weight", "mlp.down.weight")):
            parameter.data.div_((2 * model.config.layers) ** 0.5)


def training_mask(valid: Tensor, length: int, config: ModelConfig) -> Tensor:
    """Boolean mask [B, 1, S, S], S = P + length, that allows what decoding allows: condition slots
    as ``condition_mask`` says, image tokens all valid slots and tokens before them."""
    b, p = valid.shape
    keys = torch.cat([valid, valid.new_ones(b, length)], 1)[:, None]
    causal = torch.ones(p + length, p + length, dtype=torch.bool, device=valid.device).tril()
    mask = causal & keys
    mask[:, :p, :p] = condition_mask(valid, config)
    return mask[:, None]


def drop_captions(model: Transformer, batch: Batch, share: float) -> Tensor:
    """Captions [B, P, d], or class ids [B, 1], with a random share of rows replaced by the
    unconditional one."""
    drop = torch.rand(len(batch.tokens), device=batch.captions.device) < share
    drop = drop.view(-1, *[1] * (batch.captions.ndim - 1))
    return torch.where(drop, model.caption.uncond, batch.captions)


def forward_tokens(model: Transformer, captions: Tensor, valid: Tensor, tokens: Tensor) -> Tensor:
    """Teacher-forced hidden states [B, P + T - 1, W]; row P - 1 + i predicts token i."""
    prefix = model.caption(captions)
    x = torch.cat([prefix, model.embedding(tokens[:, :-1])], dim=1)
    mask = training_mask(valid, tokens.shape[1] - 1, model.config)
    return model(x, slice(0, x.shape[1]), mask)


def next_token_loss(model: Transformer, batch: Batch, drop: float = 0.0) -> Tensor:
    """Mean cross-entropy in nats over all image tokens."""
    captions = drop_captions(model, batch, drop)
    hidden = forward_tokens(model, captions, batch.valid, batch.tokens)
    logits = model.head(hidden[:, model.config.prefix - 1 :])
    return F.cross_entropy(logits.flatten(0, 1).float(), batch.tokens.flatten())


def train_target(
    shards: Shards,
    held_out: Shard,
    folder: Path,
    out: Path,
    budget: Budget,
    *,
    config: ModelConfig = EMOJI_TARGET,
    batch_size: int = 16,
    lr: float = 1.2e-3,
    seed: int = 0,
    init: Path | None = None,
    sample=None,
) -> None:
    """Train (or resume) in ``folder``; ``init`` starts from exported weights; ``sample`` is called
    as sample(model, step) now and then with the averaged weights."""
    torch.manual_seed(seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Transformer(config).to(device)
    initialise(model)
    if init:
        load_weights(model, init / "model.safetensors")
    run = Run(
        folder,
        model,
        budget,
        Optimisation(lr=lr, weight_decay=0.05, warmup=100, report_every=20),
        config={"model": asdict(config), "lr": lr, "batch": batch_size, "seed": seed},
    )
    prefix = config.prefix

    def report(values: dict) -> None:
        if run.step % 200 == 0:
            with run.averaged(), torch.no_grad(), autocast(device):
                losses = [
                    next_token_loss(model, held_out.batch(i, prefix).to(device))
                    for i in torch.arange(len(held_out)).split(16)
                ]
            values["held_out"] = round(float(torch.stack(losses).mean()), 4)
            run.export(out, model.config)
        if sample and run.step % 400 == 0:
            with run.averaged():
                sample(model, run.step)

    for step in run.steps(report):
        batch = shards.batch(step, batch_size, prefix).to(device)
        with autocast(device):
            loss = next_token_loss(model, batch, CAPTION_DROP)
        run.update(loss)
    run.export(out, model.config)
