"""Train the target transformer on pre-encoded scenes."""

from __future__ import annotations

from dataclasses import asdict, replace
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
# Tokens beside the drawing weigh this much: their loss is mostly noise that nobody can predict.
BACKGROUND_WEIGHT = 0.3
# The layer whose output the drawing reader looks at, and the weight of its loss.
READ_LAYER = 4
READ_WEIGHT = 0.2


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


def drop_captions(model: Transformer, batch: Batch, share: float) -> Batch:
    """The batch with a random share of captions [B, P, d], or class ids [B, 1], replaced by the
    unconditional one and its label by -1."""
    drop = torch.rand(len(batch.tokens), device=batch.captions.device) < share
    rows = drop.view(-1, *[1] * (batch.captions.ndim - 1))
    return replace(
        batch,
        captions=torch.where(rows, model.caption.uncond, batch.captions),
        labels=batch.labels.masked_fill(drop, -1),
    )


def forward_tokens(model: Transformer, captions: Tensor, valid: Tensor, tokens: Tensor) -> Tensor:
    """Teacher-forced hidden states [B, P + T - 1, W]; row P - 1 + i predicts token i."""
    prefix = model.caption(captions)
    x = torch.cat([prefix, model.embedding(tokens[:, :-1])], dim=1)
    mask = training_mask(valid, tokens.shape[1] - 1, model.config)
    return model(x, slice(0, x.shape[1]), mask)


def next_token_loss(model: Transformer, batch: Batch, background: float = 1.0) -> Tensor:
    """Mean cross-entropy in nats over all image tokens; those beside the drawing weigh
    ``background``."""
    hidden = forward_tokens(model, batch.captions, batch.valid, batch.tokens)
    logits = model.head(hidden[:, model.config.prefix - 1 :])
    losses = F.cross_entropy(
        logits.flatten(0, 1).float(), batch.tokens.flatten(), reduction="none"
    ).view_as(batch.tokens)
    weights = torch.where(batch.drawn, 1.0, background)
    return (losses * weights).sum() / weights.sum()


class DrawingReader(nn.Module):
    """Training aid: a linear reader of concept and style on the output of a middle layer of
    ``model``.

    Captions name them in a few word pieces among others, and next-token losses alone bind these
    to what is drawn very late (docs/log.md). Asking every position of an image for the drawing
    makes the lower layers fetch it from the caption; it is not part of the model.
    """

    def __init__(self, model: Transformer, drawings: int, layer: int = READ_LAYER):
        super().__init__()
        self.norm = nn.RMSNorm(model.config.width, model.config.norm_eps)
        self.head = nn.Linear(model.config.width, drawings)
        self.first = model.config.prefix - 1
        self.seen: Tensor | None = None
        model.layers[min(layer, model.config.layers - 1)].register_forward_hook(self._keep)

    def _keep(self, module, args, output: Tensor) -> None:
        self.seen = output if torch.is_grad_enabled() else None

    def forward(self, labels: Tensor) -> Tensor:
        """Mean cross-entropy in nats of the drawing over the positions of the last forward pass;
        labels int64 [B], -1 for rows to leave out."""
        logits = self.head(self.norm(self.seen[:, self.first :]))
        self.seen = None
        labels = labels[:, None].expand(logits.shape[:2])
        loss = F.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten(), ignore_index=-1, reduction="sum"
        )
        return loss / (labels >= 0).sum().clamp(min=1)


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
    drawings: int = 0,
    compiled: bool = False,
) -> None:
    """Train (or resume) in ``folder``; ``init`` starts from exported weights. With ``drawings``,
    the number of labels in the shards, a DrawingReader helps. ``compiled`` takes a minute to start
    and needs a C++ compiler on a CPU; updates then take a third less time (docs/log.md)."""
    torch.manual_seed(seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Transformer(config).to(device)
    initialise(model)
    if init:
        load_weights(model, init / "model.safetensors")
    reader = DrawingReader(model, drawings).to(device) if drawings else None
    run = Run(
        folder,
        model,
        budget,
        Optimisation(lr=lr, weight_decay=0.05, warmup=100, report_every=20),
        config={"model": asdict(config), "lr": lr, "batch": batch_size, "seed": seed},
        beside=reader,
    )
    prefix = config.prefix

    def report(values: dict) -> None:
        if run.step % 200 == 0:
            batches = [
                held_out.batch(i, prefix).to(device) for i in torch.arange(len(held_out)).split(16)
            ]
            with run.averaged(), torch.no_grad(), autocast(device):
                for name, weight in (("held_out", 1.0), ("held_out_drawn", 0.0)):
                    losses = [next_token_loss(model, batch, weight) for batch in batches]
                    values[name] = round(float(torch.stack(losses).mean()), 4)
            run.export(out, model.config)

    def losses(batch: Batch) -> tuple[Tensor, Tensor]:
        loss = next_token_loss(model, batch, BACKGROUND_WEIGHT)
        return loss, reader(batch.labels) if reader else loss.new_zeros(())

    if compiled:
        losses = torch.compile(losses, dynamic=False)
    for step in run.steps(report):
        batch = shards.batch(step, batch_size, prefix).to(device)
        batch = drop_captions(model, batch, CAPTION_DROP)
        with autocast(device):
            loss, reading = losses(batch)
        run.update(loss + READ_WEIGHT * reading, tokens=loss.detach(), drawing=reading.detach())
    run.export(out, model.config)
