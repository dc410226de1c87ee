"""Draft trees: plain data about the candidates of one step, and which of them are taken.

Node 0 is the root, the last chosen token, not yet in the cache. Parents precede children and
siblings stand in draft order (best first). Knows no models.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class DraftTree:
    """tokens, parent, depth int64 [N]; score fp32 [N]; the root is its own parent.

    ``levels`` and ``width`` bound the depth and the children per node; host numbers, so that no
    loop below has to ask the device."""

    tokens: Tensor
    parent: Tensor
    depth: Tensor
    score: Tensor
    levels: int
    width: int

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def root_only(cls, token: int, device: torch.device | str = "cpu") -> DraftTree:
        """The tree of plain AR decoding."""
        zero = torch.zeros(1, dtype=torch.long, device=device)
        return cls(zero + token, zero, zero, zero.float(), levels=0, width=0)

    @classmethod
    def select(
        cls,
        root: int,
        tokens: Tensor,
        score: Tensor,
        parent: Tensor,
        depth: Tensor,
        nodes: int,
        *,
        levels: int,
        width: int,
    ) -> DraftTree:
        """Keep the nodes - 1 best of all candidates [C], in list order, under the root.

        ``parent`` indexes the candidate list, -1 for children of the root; a candidate's parent
        precedes it and never scores below it. They tie when a conditional probability rounds to 1
        or a score is too large for the difference to show; the stable sort then keeps the parent.
        """
        order = score.argsort(descending=True, stable=True)
        keep = order[: nodes - 1].sort().values
        # Position of each kept candidate's parent among the kept, shifted by the root.
        parents = torch.searchsorted(keep, parent[keep]) + (parent[keep] >= 0)
        head = torch.zeros(1, dtype=torch.long, device=tokens.device)
        return cls(
            torch.cat([head + root, tokens[keep]]),
            torch.cat([head, parents]),
            torch.cat([head, depth[keep]]),
            torch.cat([head.float(), score[keep]]),
            levels,
            min(width, len(keep)),
        )

    @cached_property
    def ancestors(self) -> Tensor:
        """Bool [N, N]: row i is True at i and at every ancestor of i."""
        itself = torch.eye(len(self), dtype=torch.bool, device=self.tokens.device)
        seen = itself
        for _ in range(self.levels):
            seen = itself | seen[self.parent]
        return seen

    @cached_property
    def children(self) -> Tensor:
        """int64 [N, width]: node i's children in draft order, padded with -1."""
        n = len(self)
        number = torch.arange(n, device=self.tokens.device)
        parent = self.parent[1:]
        rank = (parent[:, None] == parent).tril(-1).sum(1)
        table = torch.full((n, self.width), -1, device=self.tokens.device)
        table[parent, rank] = number[1:]
        return table


def deepest(tree: DraftTree, accept: Tensor) -> Tensor:
    """Index of the node where the longest accepted path ends (0-d): every node on the path from
    the root has ``accept``; among equally long paths the first."""
    reached = torch.zeros_like(accept)
    reached[:1] = True
    for _ in range(tree.levels):
        reached = accept & reached[tree.parent]
        reached[:1] = True
    # Counting nodes backwards makes the first of equal depths the largest value.
    order = torch.arange(len(tree), 0, -1, device=accept.device)
    value = (tree.depth + 1) * (len(tree) + 1) + order
    return value.masked_fill(~reached, 0).argmax()
