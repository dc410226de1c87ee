"""Drafting: the drafter's cache of one image, and how a draft tree is grown.

Dynamic trees are EAGLE-2's (arXiv 2406.16858): at every level the best candidates by cumulative
log-probability go on, and the best of all are kept. Static trees, as LANTERN++ (arXiv 2502.06352)
uses them, have one shape whatever the drafter believes. Knows nothing of acceptance.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from lantern.cache import KVCache
from lantern.config import DecodeOptions, TreeShape
from lantern.models.drafter import Drafter
from lantern.models.llamagen import Transformer
from lantern.sampling import guide, process
from lantern.tree import DraftTree

# Keeps the scores of filtered candidates (-inf) finite, so that sums of them stay comparable.
LOG_FLOOR = -1e4
# Static trees hold the likeliest paths if the r-th guess is right with probability proportional to
# this to the r.
RANK_DECAY = 0.45
FIRST_RANK = 0.6


class Drafting:
    """Drafter rows of one image. ``prediction`` [2, 1, W] is its latest output: what it believes
    the target's hidden state at the root to be."""

    def __init__(
        self,
        drafter: Drafter,
        target: Transformer,
        options: DecodeOptions,
        cache: KVCache,
        noise: Tensor,
    ):
        """``cache``: empty, with room for the image's rows and ``rows_beyond``; ``noise``
        [positions, V]: the target's own."""
        self.drafter, self.target, self.cache = drafter, target, cache
        self.options, self.shape, self.noise = options, options.tree, noise
        self.device = noise.device
        self.last = target.config.image_tokens - 1
        width, levels = self.shape.branch, self.shape.depth
        # Depth of every candidate of a full dynamic tree; of a shallower one the first of them.
        self.depths = torch.arange(2, levels + 1).repeat_interleave(width**2)
        self.depths = F.pad(self.depths, (width, 0), value=1).to(self.device)

    @staticmethod
    def rows_beyond(shape: TreeShape) -> int:
        """Rows of the cache that a tree needs behind those of the image."""
        return max(shape.branch * shape.depth, shape.nodes)

    def extend(self, ids: Tensor, hidden: Tensor) -> None:
        """Append rows (token, hidden of the position before it) for good and keep the last
        prediction; ids [T], hidden [2, T, W]."""
        t, start = len(ids), self.cache.length
        mask = None
        if t > 1:
            future = torch.ones(t, start + t, dtype=torch.bool, device=self.device).triu(start + 1)
            mask = torch.zeros_like(future, dtype=hidden.dtype).masked_fill_(future, -torch.inf)
        x = self.drafter.embed(ids, self.target).expand(2, -1, -1)
        out = self.drafter(x, hidden, slice(start, start + t), mask, self.cache, start)
        self.cache.length = start + t
        self.prediction = out[:, -1:]

    def grow(self, root: int, position: int) -> DraftTree:
        """The draft tree over token ``root`` at grid ``position``, never past the image's end."""
        levels = min(self.shape.depth, self.last - position)
        if levels == 0:
            return DraftTree.root_only(root, self.device)
        grow = self._grow_static if self.shape.growth == "static" else self._grow_dynamic
        return grow(root, position, levels)

    def _grow_dynamic(self, root: int | Tensor, position: int | Tensor, levels: int) -> DraftTree:
        width = self.shape.branch
        tokens, score = self._candidates(self.prediction, position + 1)
        all_tokens, all_scores = [tokens[0]], [score[0]]
        all_parents = [torch.full((width,), -1, device=self.device)]
        frontier = torch.arange(width, device=self.device)  # indices into the candidate list
        feature = self.prediction.expand(-1, width, -1)
        lineage = torch.zeros(width, 0, dtype=torch.bool, device=self.device)
        itself = torch.eye(width, dtype=torch.bool, device=self.device)
        frontier_tokens, frontier_score = tokens[0], score[0]
        for level in range(1, levels):
            seen = torch.cat([lineage, itself], dim=1)  # [width, width * level]
            out = self._level(frontier_tokens, feature, seen, level)
            tokens, score = self._candidates(out, position + 1 + level)
            score = score + frontier_score[:, None]
            offset = width + (level - 1) * width * width
            all_tokens.append(tokens.flatten())
            all_scores.append(score.flatten())
            all_parents.append(frontier.repeat_interleave(width))
            frontier_score, best = score.flatten().topk(width)
            frontier_tokens, frontier = tokens.flatten()[best], best + offset
            feature, lineage = out[:, best // width], seen[best // width]
        tokens = torch.cat(all_tokens)
        depths = self.depths[: len(tokens)]
        scores = self._rank(torch.cat(all_scores), depths, position)
        return DraftTree.select(
            root, tokens, scores, torch.cat(all_parents), depths, self.shape.nodes,
            levels=levels, width=width,
        )  # fmt: skip

    def _rank(self, scores: Tensor, depths: Tensor, position: int | Tensor) -> Tensor:
        """The scores candidates are chosen by: as they are, since none is past the image's end."""
        return scores

    def _grow_static(self, root: int | Tensor, position: int | Tensor, levels: int) -> DraftTree:
        shape = self.shape
        plan = static_plan(shape.nodes, shape.depth, shape.branch, self.device)
        tokens, score = self._candidates(self.prediction, position + 1)
        feature = self.prediction
        head = torch.zeros(1, dtype=torch.long, device=self.device)
        all_tokens, all_scores = [head + root], [head.float()]
        for level, part in enumerate(plan.levels[:levels], start=1):
            node_tokens, node_scores = tokens[part.row, part.rank], score[part.row, part.rank]
            all_tokens.append(node_tokens)
            all_scores.append(node_scores)
            if level == levels or not len(part.fed):
                break
            fed_tokens, fed_scores = node_tokens[part.fed], node_scores[part.fed]
            feature = self._level(fed_tokens, feature[:, part.above], part.seen, level)
            tokens, score = self._candidates(feature, position + 1 + level)
            score = score + fed_scores[:, None]
        count = plan.counts[min(levels, len(plan.levels))]
        return DraftTree(
            torch.cat(all_tokens), plan.parent[:count], plan.depth[:count], torch.cat(all_scores),
            levels, min(shape.branch, count - 1),
        )  # fmt: skip

    def _level(self, tokens: Tensor, feature: Tensor, seen: Tensor, level: int) -> Tensor:
        """Feed one level of the tree: tokens [M] with their parents' features [2, M, W]; ``seen``
        [M, R] says which of the R rows fed for this tree each may attend to, its own among the
        last M. Returns [2, M, W]; the rows are overwritten by the next tree or commit."""
        m, start = len(tokens), self.cache.length
        rows = start + seen.shape[1] - m
        mask = torch.zeros(m, rows + m, device=self.device, dtype=feature.dtype)
        mask[:, start:].masked_fill_(~seen, -torch.inf)
        x = self.drafter.embed(tokens, self.target).expand(2, -1, -1)
        positions = torch.full((m,), start + level - 1, device=self.device)
        return self.drafter(x, feature, positions, mask, self.cache, rows)

    def _candidates(self, out: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """Drafter output [2, M, W] that predicts ``position`` -> its ``branch`` best tokens and
        log-probabilities [M, branch], under the target's own CFG, temperature and filters.

        Coupled, they are ranked with the noise the target will choose with: what the target draws
        at this position is then the first guess wherever the two distributions agree.
        """
        options = self.options
        logits = guide(self.drafter.logits(out, self.target), options.cfg)
        z = process(logits, options.temperature, options.top_k, options.top_p)
        if options.coupled:
            z = z + self.noise[position]
        best = F.log_softmax(z, dim=-1).topk(self.shape.branch, dim=-1)
        # A drafter that computes NaN drafts badly; only finite scores keep parents before children.
        return best.indices, best.values.nan_to_num_(LOG_FLOOR).clamp_(LOG_FLOOR, 0.0)


@lru_cache(maxsize=64)
def static_paths(nodes: int, depth: int, branch: int) -> list[tuple[int, ...]]:
    """The static tree as paths of ranks, the root () first, level by level: the ``nodes`` paths of
    highest prior probability, the r-th guess of a node being right with .6 * .45**r."""
    paths, open_paths = [], [(-1.0, ())]
    while open_paths and len(paths) < nodes:
        score, path = heapq.heappop(open_paths)
        paths.append(path)
        if len(path) < depth:
            for rank in range(branch):
                child = score * FIRST_RANK * RANK_DECAY**rank
                heapq.heappush(open_paths, (child, (*path, rank)))
    return sorted(paths, key=lambda path: (len(path), path))


@dataclass(frozen=True)
class StaticLevel:
    """One level of a static tree, as indices. Node i of the level is candidate ``rank`` [n] of row
    ``row`` [n] of the candidates at hand. ``fed`` [m]: nodes with children, whose parents' features
    stand in rows ``above`` [m] and which see the rows ``seen`` [m, R] fed so far."""

    row: Tensor
    rank: Tensor
    fed: Tensor
    above: Tensor
    seen: Tensor


@dataclass(frozen=True)
class StaticPlan:
    """``parent`` and ``depth`` [N] of the nodes; ``counts[l]``: nodes down to level l."""

    levels: tuple[StaticLevel, ...]
    parent: Tensor
    depth: Tensor
    counts: tuple[int, ...]


@lru_cache(maxsize=64)
def static_plan(nodes: int, depth: int, branch: int, device: torch.device) -> StaticPlan:
    """``static_paths`` as index tensors, made once for a shape and device."""

    def index(values) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    paths = static_paths(nodes, depth, branch)
    number = {path: i for i, path in enumerate(paths)}
    with_children = {path[:-1] for path in paths[1:]}
    levels, fed, seen = [], {(): 0}, torch.zeros(1, 0, dtype=torch.bool, device=device)
    for level in range(1, len(paths[-1]) + 1):
        here = [path for path in paths if len(path) == level]
        row = index([fed[path[:-1]] for path in here])
        going_on = [i for i, path in enumerate(here) if path in with_children]
        keep = index(going_on)
        itself = torch.eye(len(going_on), dtype=torch.bool, device=device)
        seen = torch.cat([seen[row[keep]], itself], dim=1)
        rank = index([path[-1] for path in here])
        levels.append(StaticLevel(row, rank, keep, row[keep], seen))
        fed = {here[i]: j for j, i in enumerate(going_on)}
    depths = [len(path) for path in paths]
    return StaticPlan(
        tuple(levels),
        index([number[path[:-1]] for path in paths]),  # the root is its own parent: ()[:-1] is ()
        index(depths),
        tuple(sum(d <= level for d in depths) for level in range(len(levels) + 1)),
    )
