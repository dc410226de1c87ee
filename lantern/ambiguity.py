"""How sure the target is of its next token, along a whole image (the paper's Figure 2).

Flat distributions, "token selection ambiguity", are why exact speculative decoding gains little on
images and why LANTERN lets neighbours stand in.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lantern.config import DecodeOptions
from lantern.models.llamagen import prefix_mask
from lantern.pipeline import Pipeline
from lantern.sampling import guide, process

# Mean probability of the likeliest and of the ten likeliest tokens (arXiv 2410.03355).
PAPER = {"LlamaGen": (0.206, 0.520), "Anole": (0.064, 0.204)}
TOP = 10


@dataclass(frozen=True)
class Ambiguity:
    """Per token of an image, in drawing order, fp32 [T] each: probability of the likeliest token
    (``top1``) and of the ten likeliest together (``top10``), ``entropy`` in nats."""

    top1: Tensor
    top10: Tensor
    entropy: Tensor


@torch.inference_mode()
def target_logits(
    pipeline: Pipeline, prompt: str, tokens: list[int], options: DecodeOptions
) -> Tensor:
    """The target over ``tokens`` in one pass: processed logits z fp32 [len(tokens) + 1, V]; row i
    is what token i is drawn from (no row past the image's end).

    ValueError if the prompt or a token is not one of this model's.
    """
    target, device = pipeline.decoder.target, pipeline.device
    config = target.config
    tokens = tokens[: config.image_tokens - 1]
    if any(not 0 <= token < config.vocab_size for token in tokens):
        raise ValueError(f"tokens must be codes from 0 to {config.vocab_size - 1}.")
    caption, valid = pipeline.text.condition(pipeline.text.check(prompt))
    p = config.prefix
    x = target.prefix(caption)
    ids = torch.tensor(tokens, dtype=torch.long, device=device)
    x = torch.cat([x, target.embedding(ids).expand(2, -1, -1)], dim=1)
    n = p + len(tokens)
    mask = torch.full((1, 1, n, n), -torch.inf, device=device).triu(1)
    mask[..., :p, :p] = prefix_mask(valid, config)
    mask[..., p:, :p].masked_fill_(~valid, -torch.inf)
    hidden = target(x, slice(0, n), mask.to(x.dtype))[:, p - 1 :]
    guided = guide(target.logits(hidden), options.cfg)
    return process(guided, options.temperature, options.top_k, options.top_p)


@torch.inference_mode()
def ambiguity(
    pipeline: Pipeline, prompt: str, tokens: list[int], options: DecodeOptions
) -> Ambiguity:
    """Measure a finished image ``tokens`` [T]; errors as in ``target_logits``. At temperature 0
    the distribution is that of temperature 1 without filters."""
    probs = target_logits(pipeline, prompt, tokens, options).softmax(-1)
    best = probs.topk(min(TOP, probs.shape[-1]), dim=-1).values
    entropy = -torch.xlogy(probs, probs).sum(-1)
    return Ambiguity(best[:, 0].cpu(), best.sum(-1).cpu(), entropy.cpu())
