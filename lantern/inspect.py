"""Why one token of a finished image stands where it does: what an inspector shows.

Everything is computed anew from the image's own tokens by one dense pass of the target, so it needs
no more than a trace, be it recorded elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from PIL import Image

from lantern.acceptance import rule_for
from lantern.ambiguity import target_logits
from lantern.config import DecodeOptions
from lantern.models.vq import to_uint8
from lantern.pipeline import Pipeline
from lantern.sampling import gumbel_table

LIKELIEST = 8
NEAREST = 12
# Tokens shown around the one looked at, in each direction.
AROUND = 3


@dataclass(frozen=True)
class Candidate:
    """A code the target could have drawn: its probability ``p`` and its perturbed logit's distance
    from the best one, ``behind`` (0 for the choice)."""

    code: int
    p: float
    behind: float


@dataclass(frozen=True)
class Neighbour:
    """A near code of the token: place among its neighbours (1 = nearest), latent l2 ``distance``,
    probability, ``running`` sum of probabilities up to it, and whether it may be stood in for:
    whether it is in A(token)."""

    rank: int
    code: int
    distance: float
    p: float
    running: float
    member: bool


@dataclass(frozen=True)
class Inspection:
    """One token. ``choice``: what the target draws there; ``refused``: siblings that were tried
    before it, whose mass is taken out of the neighbours' probabilities; ``members``: size of
    A(token). ``pictures``: code -> crop of the image with that code in place."""

    position: int
    token: int
    choice: int
    p_token: float
    p_choice: float
    entropy: float
    likeliest: tuple[Candidate, ...]
    nearest: tuple[Neighbour, ...]
    members: int
    budget: float
    refused: tuple[int, ...]
    pictures: dict[int, Image.Image]


@torch.inference_mode()
def inspect_token(
    pipeline: Pipeline,
    prompt: str,
    options: DecodeOptions,
    tokens: list[int],
    position: int,
    refused: list[int] | tuple[int, ...] = (),
) -> Inspection:
    """Look at ``tokens[position]`` of a complete image.

    ``refused``: codes of the siblings that were tried before it, in draft order. ValueError if the
    tokens are not a complete image of this model or the position is outside of it.
    """
    count = pipeline.grid**2
    if len(tokens) != count or not 0 <= position < count:
        raise ValueError(f"an image of this model has {count} tokens, numbered from 0.")
    bad = [c for c in (*tokens, *refused) if not 0 <= c < pipeline.vocab_size]
    if bad:
        raise ValueError(f"tokens must be codes from 0 to {pipeline.vocab_size - 1}, not {bad[0]}.")
    token = tokens[position]
    z = target_logits(pipeline, prompt, tokens[:position], options)[-1]
    probs = z.softmax(-1)
    noise = gumbel_table(options.seed, count, len(z), options.temperature, z.device)[position]
    perturbed = z + noise
    choice = int(perturbed.argmax())
    best = probs.topk(min(LIKELIEST, len(probs))).indices.tolist()
    if choice not in best:
        best[-1] = choice
    if token not in best:
        best.insert(0, token)
    lead = perturbed.max()
    likeliest = [Candidate(c, float(probs[c]), float(lead - perturbed[c])) for c in best]
    likeliest.sort(key=lambda c: -c.p)
    nearest, members, budget = _neighbours(pipeline, options, probs, token, choice, refused)
    shown = [token, choice, *(n.code for n in nearest), *best]
    return Inspection(
        position,
        token,
        choice,
        float(probs[token]),
        float(probs[choice]),
        float(-torch.xlogy(probs, probs).sum()),
        tuple(likeliest),
        nearest,
        members,
        budget,
        tuple(refused),
        swapped(pipeline, tokens, position, list(dict.fromkeys(shown))),
    )


def _neighbours(pipeline, options, probs, token, choice, refused):
    """The nearest codes of ``token`` and, further away, the choice; size of A(token); budget on
    the running sum, where the rule has one."""
    decoder, rule = pipeline.decoder, rule_for(options)
    table = decoder.neighbours
    if table is None:
        return (), 0, 0.0
    k = rule.k or min(options.k, table.shape[1])
    if k == 0:
        return (), 0, 0.0
    left = probs.clone()
    for code in refused if rule.k else ():  # as acceptance.review does it
        near = table[code, :k].long()
        total = left.sum().clamp(min=1e-12)
        member = rule.members(left[code][None] / total, left[near][None] / total)[0]
        left[near[member]] = 0
        left[code] = 0
    left = left / left.sum().clamp(min=1e-12)
    codes = table[token, :k].long()
    near = left[codes]
    member = rule.members(left[token][None], near[None])[0] if rule.k else near < 0
    running = near.cumsum(0)
    distance = (decoder.codes[codes] - decoder.codes[token]).norm(dim=-1)
    rows = list(range(min(NEAREST, k)))
    place = (codes == choice).nonzero()
    if len(place) and int(place[0]) not in rows:
        rows.append(int(place[0]))
    nearest = tuple(
        Neighbour(
            i + 1, int(codes[i]), float(distance[i]), float(near[i]), float(running[i]),
            bool(member[i]),
        )
        for i in rows
    )  # fmt: skip
    budget = {"tvd": options.delta, "multiplicative": (options.factor - 1) * float(left[token])}
    return nearest, int(member.sum()), budget.get(options.rule, 0.0) if rule.k else 0.0


@torch.inference_mode()
def swapped(
    pipeline: Pipeline, tokens: list[int], position: int, codes: list[int]
) -> dict[int, Image.Image]:
    """The image around ``position`` with each of ``codes`` in its place, decoded whole and cropped
    to at most ``AROUND`` tokens in every direction."""
    grid, side = pipeline.grid, pipeline.vq.config.downsample
    row, column = divmod(position, grid)
    top, left = max(0, row - AROUND), max(0, column - AROUND)
    bottom, right = min(grid, row + AROUND + 1), min(grid, column + AROUND + 1)
    base = torch.tensor(tokens, device=pipeline.device)
    pictures = {}
    for some in torch.tensor(codes, device=pipeline.device).split(8):
        variants = base.repeat(len(some), 1)
        variants[:, position] = some
        pixels = to_uint8(pipeline.vq.decode(variants.view(-1, grid, grid)))
        pixels = pixels[:, top * side : bottom * side, left * side : right * side].cpu().numpy()
        pictures |= {
            code: Image.fromarray(p) for code, p in zip(some.tolist(), pixels, strict=True)
        }
    return pictures
