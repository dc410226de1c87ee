"""The decode loop. AR, EAGLE-2 and LANTERN are the same loop with other trees and rules.

Knows models, caches, trees and rules; knows nothing of prompts, images, files or the UI. All state
of a request lives in its own ``Request``, so requests never share anything but weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from lantern.acceptance import review, rule_for
from lantern.cache import CachePool
from lantern.config import DecodeOptions
from lantern.drafting import Drafting
from lantern.models.drafter import Drafter
from lantern.models.llamagen import Transformer, prefix_mask
from lantern.runtime import Stopwatch
from lantern.sampling import choose, guide, gumbel_table, process
from lantern.trace import EXACT, RELAXED, TARGET, NodeEvent, StepEvent, TokenEvent
from lantern.tree import DraftTree, deepest


class DecodeError(RuntimeError):
    """The model produced something that cannot be decoded."""


class Decoder:
    """Target, drafter and the codebook's geometry.

    codes [V, d]: unit codebook rows, for latent distances; neighbours int32 [V, K]. Both may be
    absent (None) where only AR and EAGLE-2 run.
    """

    def __init__(
        self,
        target: Transformer,
        drafter: Drafter | None = None,
        codes: Tensor | None = None,
        neighbours: Tensor | None = None,
    ):
        self.target, self.drafter = target, drafter
        self.codes, self.neighbours = codes, neighbours
        self.caches = CachePool()
        self.graphs: RequestMaker | None = None  # graphs.Graphs where the runtime wants them

    def forget(self) -> None:
        """Drop buffers kept for later images."""
        self.caches.clear()
        if self.graphs:
            self.graphs.clear()

    @torch.inference_mode()
    def stream(self, caption: Tensor, valid: Tensor, options: DecodeOptions) -> Iterator[StepEvent]:
        """Decode one image, yielding a StepEvent per target pass; the first is the prefill.

        caption [P, caption_dim] left-padded, valid [P] bool. Time between events, while the caller
        holds the generator, is not counted. Closing the generator stops after the current step.
        """
        _check_parts(self, options)
        request = (self.graphs.request if self.graphs else Request)(self, caption, valid, options)
        try:
            yield request.prefill()
            while request.position < request.last:
                yield request.step()
        finally:
            request.release()


class RequestMaker(Protocol):
    """What makes requests in place of the plain ones: see graphs.py."""

    def request(
        self, decoder: Decoder, caption: Tensor, valid: Tensor, options: DecodeOptions
    ) -> Request: ...

    def clear(self) -> None: ...


def _check_parts(decoder: Decoder, options: DecodeOptions) -> None:
    """ValueError if the mode needs a part that this model lacks."""
    if options.mode != "ar" and options.tree.nodes > 1 and decoder.drafter is None:
        raise ValueError(f"mode {options.mode} needs a drafter and this model has none; use ar.")
    if rule_for(options).k and decoder.neighbours is None:
        raise ValueError(f"mode {options.mode} needs a neighbour table and this model has none.")


class Request:
    """Caches, noise and the current root of one image.

    ``position`` is the grid position of ``root``, the last chosen token, which enters the target's
    cache with the next pass.
    """

    def __init__(self, decoder: Decoder, caption: Tensor, valid: Tensor, options: DecodeOptions):
        self.target, self.drafter = decoder.target, decoder.drafter
        self.codes, self.neighbours = decoder.codes, decoder.neighbours
        self.options, self.rule = options, rule_for(options)
        self.shape = options.tree
        self.drafting = options.mode != "ar" and self.shape.nodes > 1
        config = self.target.config
        weight = self.target.embedding.weight
        self.device, self.watch = weight.device, Stopwatch(weight.device)
        self.watch.start()
        self.prefix, self.last = config.prefix, config.image_tokens - 1
        self.caption, self.valid = caption, valid
        self.greedy = options.temperature == 0
        self.steps = 0
        self.caches = decoder.caches
        self._prepare()

    def _prepare(self) -> None:
        """Caches and masks."""
        config, weight = self.target.config, self.target.embedding.weight
        where = {"device": self.device, "dtype": weight.dtype}
        rows = config.prefix + config.image_tokens
        slots = rows + self.shape.nodes
        self.cache = self.caches.take(
            config.layers, 2, config.heads, slots, config.head_dim, **where
        )
        self.draft_cache = None
        if self.drafting:
            heads = self.drafter.config.heads
            self.draft_cache = self.caches.take(
                len(self.drafter.layers), 2, heads, rows + Drafting.rows_beyond(self.shape),
                config.width // heads, **where,
            )  # fmt: skip
        # Additive mask of every later query: padded caption slots are hidden, all else is seen.
        self.seen = torch.zeros(1, 1, self.shape.nodes, slots, device=self.device)
        self.seen[..., : config.prefix].masked_fill_(~self.valid, -torch.inf)
        self.seen = self.seen.to(weight.dtype)

    def release(self) -> None:
        """Hand the caches back."""
        for cache in (self.cache, self.draft_cache):
            if cache is not None:
                self.caches.give(cache)

    # -- passes ---------------------------------------------------------------------------------

    def prefill(self) -> StepEvent:
        """Run the condition slots and choose token 0."""
        config = self.target.config
        self.noise = self._draw_noise()
        mask = prefix_mask(self.valid, config, self.cache.kv.dtype)
        x = self.target.prefix(self.caption)
        hidden = self.target(x, slice(0, self.prefix), mask, self.cache, 0)
        self.cache.length = self.prefix
        first = torch.zeros(1, dtype=torch.long, device=self.device)
        probs, choices, margins = self._read(hidden[:, -1:], first)
        p_choice = probs.gather(1, choices[:, None])[:, 0]
        token, margin, p = torch.stack([choices.float(), margins, p_choice])[:, 0].tolist()
        self._check(margin + p)
        self.root, self.position = int(token), 0
        if self.drafting:
            self._begin_drafting(hidden)
        event = self._token(0, self.root, TARGET, self.root, margin, p, p)
        return self._event(0, [event], (), {"prefill": self.watch.lap()})

    def _draw_noise(self) -> Tensor:
        """The image's Gumbel noise [positions, V]."""
        config, options = self.target.config, self.options
        return gumbel_table(
            options.seed, config.image_tokens, config.vocab_size, options.temperature, self.device
        )

    def _condition_ids(self) -> Tensor:
        """The drafter's tokens [P] of the condition: token 0, the last one the root."""
        ids = torch.zeros(self.prefix, dtype=torch.long, device=self.device)
        ids[-1] = self.root
        return ids

    def _begin_drafting(self, hidden: Tensor) -> None:
        """The drafter's rows of the condition, each with its hidden state [2, P, W]."""
        self.draft = Drafting(self.drafter, self.target, self.options, self.draft_cache, self.noise)
        self.draft.extend(self._condition_ids(), hidden)

    def step(self) -> StepEvent:
        """Draft a tree, verify it in one target pass and commit what was accepted."""
        self.watch.start()
        tree = self._tree()
        seconds = {"draft": self.watch.lap()}
        hidden = self._verify(tree)
        after = (self.position + 1 + tree.depth).clamp(max=self.last)
        probs, choices, margins = self._read(hidden, after)
        seconds["verify"] = self.watch.lap()
        report = self._report(*self._judge(tree, probs, choices, margins))
        path, tokens, nodes = self._commit(report)
        self.cache.keep(self.cache.length, path)
        seconds["accept"] = self.watch.lap()
        if self.drafting and self.position < self.last:
            ids = torch.tensor([t.token for t in tokens], device=self.device)
            self.draft.extend(ids, hidden[:, path[: len(ids)]])
        seconds["draft"] += self.watch.lap()
        return self._event(tokens[0].position, tokens, nodes, seconds)

    def _tree(self) -> DraftTree:
        if self.drafting:
            return self.draft.grow(self.root, self.position)
        return DraftTree.root_only(self.root, self.device)

    def _verify(self, tree: DraftTree) -> Tensor:
        """One target pass over the tree: hidden [2, N, W]. Rows land behind the committed ones."""
        n, start = len(tree), self.cache.length
        mask = self.seen[:, :, :n, : start + n]
        if n > 1:
            mask = mask.clone()
            mask[0, 0, :, start:].masked_fill_(~tree.ancestors, -torch.inf)
        x = self.target.embedding(tree.tokens).expand(2, -1, -1)
        positions = self.prefix + self.position + tree.depth
        return self.target(x, positions, mask, self.cache, start)

    def _read(self, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Hidden [2, N, W] that predict ``positions`` [N] -> probs [N, V], choices and margins."""
        options = self.options
        logits = guide(self.target.logits(hidden), options.cfg)
        z = process(logits, options.temperature, options.top_k, options.top_p)
        choices, margins = choose(z, self.noise[positions])
        return z.softmax(-1), choices, margins

    def _judge(self, tree: DraftTree, probs: Tensor, choices: Tensor, margins: Tensor):
        """Review the tree; names and fp32 rows [names, N] of everything the host needs to know
        about this step. Integers travel as fp32, exact up to 2**24."""
        codes = self.codes if self.options.pick == "nearest" else None
        verdict = review(tree, probs, choices, self.rule, self.neighbours, self.greedy, codes)
        accept = self._inside(tree, verdict.accept)
        choice = choices[tree.parent]
        rows = {
            "token": tree.tokens,
            "parent": tree.parent,
            "depth": tree.depth,
            "score": tree.score,
            "choice": choices,
            "margin": margins,
            "p_choice": probs.gather(1, choices[:, None])[:, 0],
            "p_token": probs[tree.parent, tree.tokens],
            "mass": verdict.mass,
            "end": deepest(tree, accept).expand(len(tree)),
        }
        if self.rule.k:
            near = self.neighbours[tree.tokens, : self.rule.k] == choice[:, None]
            # 1 = nearest; 0 = the choice is not among the k nearest.
            rows["rank"] = (near.int().argmax(1) + 1) * near.any(1)
            rows["distance"] = (self.codes[choice] - self.codes[tree.tokens]).norm(dim=-1)
        return tuple(rows), torch.stack([value.float() for value in rows.values()])

    def _inside(self, tree: DraftTree, accept: Tensor) -> Tensor:
        """``accept`` of the nodes inside the image, which all are."""
        return accept

    # -- bookkeeping ----------------------------------------------------------------------------

    def _report(self, names: tuple[str, ...], packed: Tensor) -> dict[str, list[float]]:
        """The step's one device-to-host copy."""
        return dict(zip(names, packed.tolist(), strict=True))

    def _commit(self, report: dict) -> tuple[list[int], list[TokenEvent], tuple[NodeEvent, ...]]:
        """Advance the root by what was accepted: path of nodes, new tokens and the tree."""
        self._check(sum(report["margin"]) + sum(report["p_choice"]))
        node = int(report["end"][0])
        path = [node]
        while node:
            node = int(report["parent"][node])
            path.insert(0, node)
        tokens = []
        for parent, node in zip(path, path[1:], strict=False):
            token, choice = int(report["token"][node]), int(report["choice"][parent])
            relaxed = token != choice
            tokens.append(
                self._token(
                    self.position + len(tokens) + 1, token, RELAXED if relaxed else EXACT, choice,
                    report["margin"][parent], report["p_choice"][parent], report["p_token"][node],
                    mass=report["mass"][node],
                    rank=int(report["rank"][node]) if relaxed else 0,
                    distance=report["distance"][node] if relaxed else 0.0,
                    depth=len(tokens) + 1,
                )
            )  # fmt: skip
        position = self.position + len(path)
        if position <= self.last:
            end = path[-1]
            choice, p = int(report["choice"][end]), report["p_choice"][end]
            tokens.append(
                self._token(position, choice, TARGET, choice, report["margin"][end], p, p)
            )
        self.root, self.position = tokens[-1].token, tokens[-1].position
        columns = (report[name] for name in ("token", "parent", "depth", "score"))
        nodes = tuple(
            NodeEvent(int(t), int(q), int(d), s, i in path and i > 0)
            for i, (t, q, d, s) in enumerate(zip(*columns, strict=True))
        )
        return path, tokens, nodes

    def _token(
        self, position, token, kind, choice, margin, p_choice, p_token,
        *, mass=0.0, rank=0, distance=0.0, depth=0,
    ) -> TokenEvent:  # fmt: skip
        # With one token left alive by the filters the runner-up is -inf; JSON has no infinity.
        margin = min(margin, 1e9)
        return TokenEvent(
            position, token, kind, choice, margin, p_choice, p_token, mass, rank, distance, depth
        )

    def _check(self, figures: float) -> None:
        """DecodeError if a sum of margins and probabilities shows that logits were no numbers."""
        if math.isnan(figures):
            raise DecodeError(
                "the model produced logits that are not numbers; lower CFG or check the weights."
            )

    def _event(self, start, tokens, nodes, seconds) -> StepEvent:
        event = StepEvent(self.steps, start, tuple(tokens), tuple(nodes), seconds)
        self.steps += 1
        return event
