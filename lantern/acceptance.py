"""Acceptance rules and the batched verdict over a draft tree.

A rule only says which neighbours may stand in for a candidate: A(c), a prefix of its nearest
codes, as a function of probabilities. Trees, noise and bookkeeping are ``review``'s business.

With shared noise the target's own choice y at a node is known. Children are tried in draft order;
a child c is accepted iff y is c or in A(c), where A(c) is found in what the refused siblings left
of the distribution: their {c'} + A(c') removed, the rest renormalised. At temperature 0 a child is
accepted iff p(c) + p(A(c)) >= max p and the longest accepted path wins.
LANTERN: arXiv 2410.03355; EAGLE-2: arXiv 2406.16858.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lantern.config import DecodeOptions
from lantern.tree import DraftTree


class AcceptanceRule(Protocol):
    """``k``: how many nearest codes are looked at; 0 means none ever stands in."""

    k: int

    def members(self, own: Tensor, near: Tensor) -> Tensor:
        """Which neighbours form A(c): bool [M, k].

        own [M]: probability of each candidate; near [M, k]: probabilities of its nearest codes,
        nearest first; both under what is left of the target distribution.
        """
        ...


@dataclass(frozen=True)
class Exact:
    """The target's choice or nothing: lossless."""

    k: int = 0

    def members(self, own: Tensor, near: Tensor) -> Tensor:
        return torch.zeros_like(near, dtype=torch.bool)


@dataclass(frozen=True)
class Lantern:
    """The longest prefix of the k nearest codes whose probability sums to at most ``delta``.
    Moving that mass onto the candidate changes the distribution by exactly it in total variation,
    so TVD <= delta per candidate."""

    k: int
    delta: float

    def members(self, own: Tensor, near: Tensor) -> Tensor:
        return near.cumsum(-1) <= self.delta


@dataclass(frozen=True)
class Jsd:
    """As ``Lantern``, but the budget limits the Jensen-Shannon divergence, in bits, between p and
    the distribution with the mass of A(c) moved onto c (the paper's ablation)."""

    k: int
    delta: float

    def members(self, own: Tensor, near: Tensor) -> Tensor:
        mass, own = near.cumsum(-1), own[:, None]
        # Codes that lose everything contribute mass / 2; c moves from p to p + mass.
        middle = own + mass / 2
        at_c = torch.xlogy(own, own / middle) + torch.xlogy(own + mass, (own + mass) / middle)
        return mass / 2 + at_c.nan_to_num(0.0) / (2 * math.log(2)) <= self.delta


@dataclass(frozen=True)
class Multiplicative:
    """LANTERN++ (arXiv 2502.06352): the neighbours' mass is at most ``factor - 1`` times p(c), so
    c's probability grows at most ``factor``-fold; 1 is the exact rule."""

    k: int
    factor: float

    def members(self, own: Tensor, near: Tensor) -> Tensor:
        return near.cumsum(-1) <= (self.factor - 1) * own[:, None]


# name -> constructor from the options; a new rule is one dataclass above and one line here.
RULES = {
    "tvd": lambda options: Lantern(options.k, options.delta),
    "jsd": lambda options: Jsd(options.k, options.delta),
    "multiplicative": lambda options: Multiplicative(options.k, options.factor),
}


def rule_for(options: DecodeOptions) -> AcceptanceRule:
    """The rule a mode uses. No neighbours or no budget is the exact rule, token for token: without
    that, neighbours of zero probability would count as members."""
    if options.rule not in RULES:
        raise ValueError(f"rule must be one of {', '.join(RULES)}, not {options.rule!r}.")
    spent = options.factor == 1 if options.rule == "multiplicative" else options.delta == 0
    if not options.relaxed or options.k == 0 or spent:
        return Exact()
    return RULES[options.rule](options)


@dataclass(frozen=True)
class Verdict:
    """Per node: ``accept`` bool [N] (taken if its parent is reached; the root is False) and
    ``mass`` [N], the probability of A(c) when the node was tried."""

    accept: Tensor
    mass: Tensor


def review(
    tree: DraftTree,
    probs: Tensor,
    choices: Tensor,
    rule: AcceptanceRule,
    neighbours: Tensor | None,
    greedy: bool,
    codes: Tensor | None = None,
) -> Verdict:
    """Judge every node of the tree at once.

    probs [N, V]: target distribution after each node; choices int64 [N]: the target's choice
    there; neighbours int32 [V, K]: nearest codes, nearest first (unused by the exact rule). With
    ``codes`` [V, d] the child nearest to the choice is taken instead of the first that covers it.
    """
    if rule.k == 0 or tree.width == 0:
        accept = tree.tokens == choices[tree.parent]
        accept[:1] = False
        return Verdict(accept, torch.zeros_like(tree.score))
    if greedy:
        return _review_greedy(tree, probs, rule, neighbours)
    if codes is not None:
        return _review_nearest(tree, probs, choices, rule, neighbours, codes)
    return _review_sampled(tree, probs, choices, rule, neighbours)


def _review_greedy(tree, probs, rule, neighbours) -> Verdict:
    p = probs[tree.parent]
    own = p.gather(1, tree.tokens[:, None])[:, 0]
    near = p.gather(1, neighbours[tree.tokens, : rule.k].long())
    mass = (near * rule.members(own, near)).sum(-1)
    accept = own + mass >= p.amax(-1)
    accept[:1] = False
    return Verdict(accept, mass)


def _review_sampled(tree, probs, choices, rule, neighbours) -> Verdict:
    n = len(tree)
    accept = torch.zeros(n + 1, dtype=torch.bool, device=probs.device)  # slot n takes the padding
    mass = torch.zeros(n + 1, device=probs.device)
    left = probs.clone()
    remaining = torch.ones(n, 1, device=probs.device)
    done = torch.zeros(n, dtype=torch.bool, device=probs.device)
    children = tree.children.unbind(1)
    for turn, child in enumerate(children):  # one child of every node at a time, in draft order
        exists = child >= 0
        code = tree.tokens[child.clamp(min=0)]
        near_codes = neighbours[code, : rule.k].long()
        scale = remaining.clamp(min=1e-12)
        own = left.gather(1, code[:, None])
        near = left.gather(1, near_codes)
        members = rule.members(own[:, 0] / scale[:, 0], near / scale) & exists[:, None]
        relaxed = (near * members).sum(-1, keepdim=True)
        hit = (code == choices) | ((near_codes == choices[:, None]) & members).any(-1)
        taken = hit & exists & ~done
        slot = child.masked_fill(~exists, n)
        accept[slot] = taken
        mass[slot] = (relaxed / scale)[:, 0]
        if turn + 1 == len(children):
            break
        # Refused: its mass and that of A(c) leave the distribution.
        done = done | taken
        left.scatter_(1, near_codes, near.masked_fill(members, 0))
        left.scatter_(1, code[:, None], own.masked_fill(exists[:, None], 0))
        remaining = remaining - (own + relaxed).masked_fill(~exists[:, None], 0)
    return Verdict(accept[:n], mass[:n])


def _review_nearest(tree, probs, choices, rule, neighbours, codes) -> Verdict:
    """Every A(c) is found in the whole distribution, so the TVD bound holds for each child, and of
    the children that cover the choice the nearest is taken: the choice itself if it is a child."""
    p, choice = probs[tree.parent], choices[tree.parent]
    near_codes = neighbours[tree.tokens, : rule.k].long()
    own, near = p.gather(1, tree.tokens[:, None])[:, 0], p.gather(1, near_codes)
    members = rule.members(own, near)
    covers = (tree.tokens == choice) | ((near_codes == choice[:, None]) & members).any(-1)
    distance = (codes[tree.tokens] - codes[choice]).norm(dim=-1)
    distance = distance.masked_fill(~covers, torch.inf)
    n = len(tree)
    slots = tree.children.masked_fill(tree.children < 0, n)
    of_child = torch.cat([distance, distance.new_full((1,), torch.inf)])[slots]
    best = slots.gather(1, of_child.argmin(1, keepdim=True))[:, 0]
    chosen = torch.zeros(n + 1, dtype=torch.bool, device=probs.device).index_fill_(0, best, True)
    accept = chosen[:n] & covers
    accept[:1] = False
    return Verdict(accept, (near * members).sum(-1))
