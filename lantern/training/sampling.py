"""Images drawn by the target itself, many at once: what a drafter meets when it is used.

Autoregressive, with the sampling functions and the noise of the decode loop: image i of a batch is
the one that ``Decoder`` draws from the same caption and seed. Speculation would only slow this
down, since a full batch leaves no idle arithmetic to spend on drafts.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from tqdm import tqdm

from lantern.cache import KVCache
from lantern.config import DecodeOptions
from lantern.models.llamagen import Transformer, condition_mask
from lantern.models.text import ClassNames, TextEncoder
from lantern.runtime import default_dtype, pack_linears, packer
from lantern.sampling import choose, guide, gumbel_table, process
from lantern.training.loop import autocast_dtype
from lantern.training.shards import Shard, encode_captions


@torch.inference_mode()
def sample_tokens(
    target: Transformer, captions: Tensor, valid: Tensor, seeds: list[int], options: DecodeOptions
) -> Tensor:
    """Image tokens int64 [B, T] of B captions.

    captions [B, P, caption_dim] left-padded or class ids [B, 1]; valid bool [B, P]; one seed an
    image. Temperature, CFG and filters come from ``options``; its mode, seed and tree do not count.
    RuntimeError if the model's logits are not numbers.
    """
    config, weight = target.config, target.embedding.weight
    b, p, device = len(seeds), config.prefix, weight.device
    cache = KVCache(
        config.layers, 2 * b, config.heads, p + config.image_tokens, config.head_dim,
        device=device, dtype=weight.dtype,
    )  # fmt: skip
    noise = torch.stack(
        [
            gumbel_table(seed, config.image_tokens, config.vocab_size, options.temperature, device)
            for seed in seeds
        ],
        dim=1,
    )  # [T, B, V]

    def mask_of(allowed: Tensor) -> Tensor:
        mask = torch.zeros(allowed.shape, dtype=weight.dtype, device=device)
        return mask.masked_fill_(~allowed, -torch.inf)[:, None].repeat(2, 1, 1, 1)

    uncond = target.caption.uncond.expand_as(captions)
    x = target.caption(torch.cat([captions.to(uncond.dtype), uncond]))
    before = mask_of(condition_mask(valid, config))
    # Later queries: padded caption slots are hidden, all else is seen.
    after = mask_of(torch.nn.functional.pad(valid, (0, config.image_tokens), value=True)[:, None])
    tokens = torch.empty(b, config.image_tokens, dtype=torch.long, device=device)
    for position in range(config.image_tokens):
        if position == 0:
            hidden = target(x, slice(0, p), before, cache, 0)
        else:
            row = p + position - 1
            x = target.embedding(tokens[:, position - 1 : position]).repeat(2, 1, 1)
            hidden = target(x, slice(row, row + 1), after[..., : row + 1], cache, row)
        logits = guide(target.logits(hidden[:, -1]).unflatten(0, (2, b)), options.cfg)
        z = process(logits, options.temperature, options.top_k, options.top_p)
        tokens[:, position], margins = choose(z, noise[position])
        # Looked at here and there only: reading a number back makes a GPU wait.
        if position in (0, config.image_tokens - 1) and margins.isnan().any():
            raise RuntimeError("the model's logits are not numbers; lower CFG or check the weights")
    return tokens


def decoding_copy(module: nn.Module) -> nn.Module:
    """A frozen copy in the dtype that decoding uses on the module's device."""
    module = copy.deepcopy(module).eval().requires_grad_(False)
    for parameter in module.parameters():  # not .to(dtype): it would spoil complex buffers
        parameter.data = parameter.data.to(default_dtype(parameter.device))
    return module


def sampling_copy(target: Transformer) -> Transformer:
    """A copy that draws fast: on a CPU with packed weights, in bf16 where it computes in it. The
    drawn images follow the target's distribution up to rounding."""
    module = decoding_copy(target)
    return pack_linears(module, packer(autocast_dtype(module.embedding.weight.device)))


def sample_shard(
    target: Transformer,
    text: TextEncoder | ClassNames,
    items: list[tuple[str, int]],
    options: DecodeOptions,
    batch_size: int,
) -> Shard:
    """Draw one image for every (prompt, seed); ``target`` as ``sampling_copy`` makes it."""
    device, prefix = target.embedding.weight.device, target.config.prefix
    tokens, captions = [], encode_captions(text, [prompt for prompt, _ in items])
    with tqdm(total=len(items), unit="image", desc="drawing", disable=None) as bar:
        for start in range(0, len(items), batch_size):
            chosen = slice(start, start + batch_size)
            here, seeds = captions[chosen], [seed for _, seed in items[chosen]]
            none = [torch.zeros(1, target.config.image_tokens)] * len(here)
            batch = Shard.join(none, here).batch(torch.arange(len(here)), prefix).to(device)
            drawn = sample_tokens(target, batch.captions, batch.valid, seeds, options)
            tokens.append(drawn.cpu())
            bar.update(len(here))
    return Shard.join(tokens, captions)
