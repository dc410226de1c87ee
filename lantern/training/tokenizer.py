"""Train the VQ tokenizer on rendered scenes.

First an autoencoder whose latents lie on the unit sphere, then quantisation: spherical k-means on
collected latents gives the codebook, after which codes follow their latents by an exponential
average, gradients pass straight through and codes unused for long are re-seeded. Quantising from
the first step collapses to brightness alone at this budget.

With ``init`` an exported tokenizer is the teacher instead: the encoder first imitates its latents,
then all parts train on with the teacher's decoder and codebook.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lantern.config import VQConfig, config_from_dict, read_json
from lantern.formats import load_weights
from lantern.models.vq import VQModel
from lantern.training import data
from lantern.training.art import Art, Concept, read_concepts
from lantern.training.loop import Budget, Optimisation, Run, autocast

EMOJI_VQ = VQConfig(
    codebook_size=4096,
    codebook_dim=8,
    base_width=80,
    channel_multipliers=(1, 2),
    z_channels=160,
    res_blocks=2,
    patch_size=4,
    norm_groups=16,
    local_encoder=True,
)
AUTOENCODER_SHARE = 0.3
IMITATION_SHARE = 0.15
JITTER = data.Jitter(smallest=80, largest=112, shift=16)
HELD_OUT_SEED = 1_000_003


def load_tokenizer(folder: Path) -> VQModel:
    """The exported tokenizer, frozen."""
    config = config_from_dict(VQConfig, read_json(folder / "config.json"), where=str(folder))
    model = VQModel(config)
    load_weights(model, folder / "model.safetensors")
    return model.eval().requires_grad_(False)


def to_tensor(images: list[np.ndarray]) -> Tensor:
    """uint8 [H, W, 3] images -> float [B, 3, H, W] in [-1, 1]."""
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 127.5 - 1


def held_out_scenes(art: Art, concepts: list[Concept], count: int) -> Tensor:
    """Fixed scenes of ``concepts`` that no training seed produces: [count, 3, 128, 128]."""
    rng = np.random.default_rng(HELD_OUT_SEED)
    specs = [data.sample_spec(art, concepts, rng, jitter=data.Jitter())[0] for _ in range(count)]
    return to_tensor([data.render(art, spec) for spec in specs])


def reconstruction_loss(image: Tensor, target: Tensor) -> Tensor:
    """L1 plus half the L1 of horizontal and vertical differences, at three scales."""
    loss = 0.0
    for _ in range(3):
        loss = loss + (image - target).abs().mean()
        for axis in (2, 3):
            loss = loss + 0.5 * (image.diff(dim=axis) - target.diff(dim=axis)).abs().mean()
        image, target = F.avg_pool2d(image, 2), F.avg_pool2d(target, 2)
    return loss


def psnr(image: Tensor, target: Tensor) -> float:
    """Mean peak signal-to-noise ratio in dB over a batch in [-1, 1]."""
    error = ((image.clamp(-1, 1) - target) / 2).square().mean(dim=(1, 2, 3))
    return float((-10 * torch.log10(error)).mean())


def spherical_kmeans(points: Tensor, count: int, rounds: int = 12) -> Tensor:
    """``count`` unit centres of unit ``points`` [N, d]; empty centres restart on random points."""
    centres = points[torch.randperm(len(points))[:count]].clone()
    for _ in range(rounds):
        owner = torch.cat([(chunk @ centres.T).argmax(1) for chunk in points.split(8192)])
        sums = torch.zeros_like(centres).index_add_(0, owner, points)
        empty = torch.bincount(owner, minlength=count) == 0
        sums[empty] = points[torch.randint(len(points), (int(empty.sum()),))]
        centres = F.normalize(sums, dim=-1)
    return centres


class Codebook:
    """Keeps the codebook at the exponential average of the latents assigned to each code."""

    def __init__(self, model: VQModel, decay: float = 0.99, patience: int = 400):
        self.weight = model.quantize.embedding.weight
        self.decay, self.patience = decay, patience
        size = self.weight.shape[0]
        self.state = {
            "sums": torch.zeros_like(self.weight.data),
            "counts": torch.zeros(size),
            "idle": torch.zeros(size),
            "ready": torch.zeros(1),
        }

    @torch.no_grad()
    def start(self, centres: Tensor) -> None:
        self.weight.data.copy_(centres)
        self.state["sums"].copy_(centres)
        self.state["counts"].fill_(1.0)
        self.state["ready"].fill_(1.0)

    @torch.no_grad()
    def update(self, z: Tensor, codes: Tensor) -> None:
        sums, counts, idle = (self.state[n] for n in ("sums", "counts", "idle"))
        used = torch.bincount(codes, minlength=len(counts)).float()
        counts.lerp_(used, 1 - self.decay)
        sums.lerp_(torch.zeros_like(sums).index_add_(0, codes, z), 1 - self.decay)
        idle.add_(1).masked_fill_(used > 0, 0)
        dead = (idle > self.patience).nonzero()[:, 0]
        if len(dead):
            sums[dead] = z[torch.randint(len(z), (len(dead),))]
            counts[dead], idle[dead] = 1.0, 0.0
        self.weight.data.copy_(F.normalize(sums, dim=-1))


def train_tokenizer(
    art: Art,
    folder: Path,
    out: Path,
    budget: Budget,
    *,
    lr: float = 1e-3,
    seed: int = 0,
    init: Path | None = None,
) -> None:
    """Train (or resume) in ``folder`` and write weights and config to ``out``; ``init`` is the
    folder of a tokenizer to start from."""
    torch.manual_seed(seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = VQModel(EMOJI_VQ).to(device, memory_format=torch.channels_last)
    codebook = Codebook(model)
    teacher = None
    if init:
        teacher = load_tokenizer(init).to(device, memory_format=torch.channels_last)
        for name in ("decoder", "post_quant_conv"):
            getattr(model, name).load_state_dict(getattr(teacher, name).state_dict())
        codebook.start(teacher.quantize.codes)
    run = Run(
        folder,
        model,
        budget,
        Optimisation(lr=lr, betas=(0.9, 0.98), ema=0.998),
        config={"vq": asdict(EMOJI_VQ), "lr": lr, "seed": seed, "budget": asdict(budget)},
        trainable=lambda name: not name.startswith("quantize"),
        extra=codebook.state,
    )
    held_out = held_out_scenes(art, read_concepts(), 48)
    seen: list[Tensor] = []

    def report(values: dict) -> None:
        if run.step % 500 == 0:
            with run.averaged(), torch.no_grad():
                codes = model.encode(held_out)
                image = (
                    model.decode(codes)
                    if codebook.state["ready"]
                    else model.decode_latents(model.latents(held_out))
                )
            values["psnr"] = round(psnr(image, held_out), 3)
            if codebook.state["ready"]:
                run.export(out, model.config, keep=lambda name: "quantize" in name)

    for step in run.steps(report):
        if run.progress >= AUTOENCODER_SHARE and not codebook.state["ready"] and len(seen) >= 20:
            codebook.start(spherical_kmeans(torch.cat(seen), EMOJI_VQ.codebook_size))
            seen.clear()
        quantise = bool(codebook.state["ready"])
        imitate = teacher is not None and run.progress < IMITATION_SHARE
        rng = np.random.default_rng((seed, step))
        images = _crops(art, rng, *((6, 128) if quantise else (16, 64))).to(device)
        images = images.contiguous(memory_format=torch.channels_last)
        with autocast(device):
            z = model.latents(images).float()
            if imitate:
                with torch.no_grad():
                    wanted = teacher.latents(images).float()
                likeness = (z * wanted).sum(-1).mean()
                run.update(1 - likeness, likeness=likeness.detach())
                continue
            if quantise:
                flat = z.detach().reshape(-1, z.shape[-1])
                codes = model.quantize.nearest(flat)
                codebook.update(flat, codes)
                chosen = F.embedding(codes, model.quantize.codes.detach()).view_as(z)
                commitment = 0.25 * (z - chosen).square().sum(-1).mean()
                decoded = model.decode_latents(z + (chosen - z).detach())
            else:
                if run.progress > AUTOENCODER_SHARE - 0.05:
                    seen = [*seen[-150:], z.detach().reshape(-1, z.shape[-1])]
                commitment = torch.zeros(())
                noisy = F.normalize(z + 0.02 * torch.randn_like(z), dim=-1)
                decoded = model.decode_latents(noisy)
        decoded = decoded.float()
        loss = reconstruction_loss(decoded, images) + commitment
        run.update(loss, commitment=commitment.detach(), train_psnr=psnr(decoded.detach(), images))
    run.export(out, model.config, keep=lambda name: "quantize" in name)


def _crops(art: Art, rng: np.random.Generator, count: int, size: int) -> Tensor:
    images = []
    for _ in range(count):
        image = data.render(art, data.sample_any_spec(art, rng, JITTER))
        y, x = rng.integers(0, image.shape[0] - size + 1, 2)
        images.append(image[y : y + size, x : x + size])
    return to_tensor(images)
