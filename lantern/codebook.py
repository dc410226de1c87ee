"""The codebook as something to look at: near codes, a map of all of them, and images in which
tokens gave way to near ones (the paper's Figure 3)."""

from __future__ import annotations

import torch
from PIL import Image
from torch import Tensor

from lantern.models.vq import to_uint8
from lantern.pipeline import Pipeline

# A code is shown as the middle of a square of itself, so that the border does not colour it.
SQUARE = 4
MIDDLE = slice(1, 3)


def distances(codes: Tensor, code: int) -> Tensor:
    """l2 distance of every code to ``code``, fp32 [V], between unit vectors ``codes`` [V, d].

    ValueError if there is no such code.
    """
    check_code(code, len(codes))
    return (codes - codes[code]).norm(dim=-1).float()


def check_code(code: int, size: int) -> None:
    """ValueError in words unless ``code`` is one of a codebook of ``size`` codes."""
    if isinstance(code, bool) or not isinstance(code, int) or not 0 <= code < size:
        raise ValueError(f"the code must be a whole number from 0 to {size - 1}.")


def plane(codes: Tensor) -> Tensor:
    """Two principal components of the codes [V, d]: fp32 [V, 2]. Signs are fixed (the largest
    loading is positive), so that two calls agree."""
    centred = codes.float() - codes.float().mean(0)
    _, axes = torch.linalg.eigh(centred.T @ centred)
    axes = axes[:, -2:].flip(1)
    signs = axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()
    return centred @ (axes * signs)


@torch.inference_mode()
def patches(pipeline: Pipeline, codes: list[int]) -> list[Image.Image]:
    """What each code looks like among its own kind: RGB images of 2 x 2 tokens."""
    for code in codes:
        check_code(code, pipeline.vocab_size)
    ids = torch.tensor(codes, device=pipeline.device).view(-1, 1, 1)
    pixels = to_uint8(pipeline.vq.decode(ids.expand(-1, SQUARE, SQUARE)))
    side = pipeline.vq.config.downsample
    middle = slice(MIDDLE.start * side, MIDDLE.stop * side)
    return [Image.fromarray(p) for p in pixels[:, middle, middle].cpu().numpy()]


@torch.inference_mode()
def encode(pipeline: Pipeline, image: Image.Image) -> list[int]:
    """Tokens of any picture: its middle square, scaled to the model's size."""
    rgb = image.convert("RGB")
    side = min(rgb.size)
    left, top = (rgb.width - side) // 2, (rgb.height - side) // 2
    square = rgb.resize((pipeline.pixels,) * 2, Image.LANCZOS, (left, top, left + side, top + side))
    raw = torch.frombuffer(bytearray(square.tobytes()), dtype=torch.uint8)
    pixels = raw.view(1, pipeline.pixels, pipeline.pixels, 3).permute(0, 3, 1, 2)
    return pipeline.vq.encode(pixels.to(pipeline.device) / 127.5 - 1).flatten().tolist()


def replace_tokens(
    tokens: list[int], neighbours: Tensor, share: float, k: int, seed: int
) -> list[int]:
    """Replace a random ``share`` of tokens by a random one of their ``k`` nearest codes.

    ``neighbours`` [V, K], nearest first. The places chosen for a smaller share are among those for
    a larger one. ValueError for a share outside 0..1, a k outside 1..K or an unknown code.
    """
    most = neighbours.shape[1]
    if not 0 <= share <= 1:
        raise ValueError("the share must be from 0 to 1.")
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= most:
        raise ValueError(f"k must be a whole number from 1 to {most}.")
    for token in tokens:
        check_code(token, len(neighbours))
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(tokens), generator=generator)
    ranks = (torch.rand(len(tokens), generator=generator) * k).long()
    changed = list(tokens)
    for place in order[: round(share * len(tokens))].tolist():
        changed[place] = int(neighbours[tokens[place], ranks[place]])
    return changed
