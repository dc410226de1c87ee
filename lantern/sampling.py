"""From logits to a choice: CFG, temperature, filters, and the Gumbel noise all modes share.

Sampling is ``argmax(z + g)`` with z the processed logits and g a table of standard Gumbel noise
drawn once per request, so AR, EAGLE-2 and LANTERN meet the same luck at the same position.
Everything here is fp32 and runs on the logits' device.
"""

from __future__ import annotations

import torch
from torch import Tensor


def guide(logits: Tensor, scale: float) -> Tensor:
    """Classifier-free guidance: logits [2, .., V] (cond, uncond) -> [.., V]."""
    cond, uncond = logits[0], logits[1]
    return torch.lerp(uncond, cond, scale)


def process(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Temperature, then top-k, then top-p on guided logits [N, V]; filtered tokens become -inf.

    Temperature 0 returns the logits untouched: greedy decoding uses no filter. Top-k keeps ties
    of the k-th largest; top-p keeps the smallest set of most likely tokens whose mass reaches p.
    """
    if temperature == 0:
        return logits
    z = logits if temperature == 1 else logits / temperature
    if 0 < top_k < z.shape[-1]:
        threshold = z.topk(top_k, dim=-1, sorted=False).values.amin(-1, keepdim=True)
        z = z.masked_fill(z < threshold, -torch.inf)
    if top_p < 1:
        ordered, order = z.sort(dim=-1, descending=True)
        mass = ordered.softmax(-1)
        outside = mass.cumsum(-1) - mass >= top_p
        z = z.masked_fill(torch.zeros_like(outside).scatter(-1, order, outside), -torch.inf)
    return z


def gumbel_table(
    seed: int, positions: int, vocab: int, temperature: float, device: torch.device | str
) -> Tensor:
    """Standard Gumbel noise g [positions, vocab], fp32, drawn on the CPU from ``seed``; zeros at
    temperature 0."""
    if temperature == 0:
        return torch.zeros(1, device=device).expand(positions, vocab)
    generator = torch.Generator().manual_seed(seed)
    noise = torch.empty(positions, vocab).exponential_(generator=generator)
    return noise.clamp_(min=torch.finfo(torch.float32).tiny).log_().neg_().to(device)


def choose(z: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The target's own choice argmax(z + g) and its margin over the runner-up: ([N] int64, [N])."""
    best = (z + noise).topk(2, dim=-1)
    return best.indices[:, 0], best.values[:, 0] - best.values[:, 1]
