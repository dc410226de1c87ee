"""The decode loop. AR, EAGLE-2 and LANTERN are the same loop with other trees and rules.

Knows models, caches, trees and rules; knows nothing of prompts, images, files or the UI. All state
of a request lives in its own ``_Request``, so requests never share anything but weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from lantern.acceptance import review, rule_for
from lantern.cache import KVCache
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

    @torch.inference_mode()
    def stream(self, caption: Tensor, valid: Tensor, options: DecodeOptions) -> Iterator[StepEvent]:
        """Decode one image, yielding a StepEvent per target pass; the first is the prefill.

        caption [P, caption_dim] left-padded, valid [P] bool. Time between events, while the caller
        holds the generator, is not counted. Closing the generator stops after the current step.
        """
        request = _Request(self, caption, valid, options)
        yield request.prefill()
        while request.position < request.last:
            yield request.step()


class _Request:
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
        if self.drafting and self.drafter is None:
            raise ValueError(
                f"mode {options.mode} needs a drafter and this model has none; use ar."
            )
        if self.rule.k and self.neighbours is None:
            raise ValueError(
                f"mode {options.mode} needs a neighbour table and this model has none."
            )
        config = self.target.config
        weight = self.target.embedding.weight
        self.device, self.watch = weight.device, Stopwatch(weight.device)
        self.watch.start()
        self.prefix, self.last = config.prefix, config.image_tokens - 1
        self.caption, self.valid = caption, valid
        self.greedy = options.temperature == 0
        slots = config.prefix + config.image_tokens + self.shape.nodes
        self.cache = KVCache(
            config.layers, 2, config.heads, slots, config.head_dim,
            device=self.device, dtype=weight.dtype,
        )  # fmt: skip
        # Additive mask of every later query: padded caption slots are hidden, all else is seen.
        self.seen = torch.zeros(1, 1, self.shape.nodes, slots, device=self.device)
        self.seen[..., : config.prefix].masked_fill_(~valid, -torch.inf)
        self.seen = self.seen.to(weight.dtype)
        self.steps = 0

    # -- passes ---------------------------------------------------------------------------------

    def prefill(self) -> StepEvent:
        """Run the condition slots and choose token 0."""
        config, options = self.target.config, self.options
        self.noise = gumbel_table(
            options.seed, config.image_tokens, config.vocab_size, options.temperature, self.device
        )
        mask = prefix_mask(self.valid, config, self.cache.kv.dtype)
        x = self.target.prefix(self.caption)
        hidden = self.target(x, slice(0, self.prefix), mask, self.cache, 0)
        self.cache.length = self.prefix
        probs, choices, margins = self._read(hidden[:, -1:], torch.zeros(1, dtype=torch.long))
        p_choice = probs.gather(1, choices[:, None])[:, 0]
        token, margin, p = torch.stack([choices.float(), margins, p_choice])[:, 0].tolist()
        self._check(margin)
        self.root, self.position = int(token), 0
        if self.drafting:
            self.draft = Drafting(self.drafter, self.target, options, self.cache.slots, self.noise)
            # Condition rows pair their hidden state with token 0, the last one with the root.
            ids = torch.zeros(self.prefix, dtype=torch.long, device=self.device)
            ids[-1] = self.root
            self.draft.extend(ids, hidden)
        event = self._token(0, self.root, TARGET, self.root, margin, p, p)
        return self._event(0, [event], (), {"prefill": self.watch.lap()})

    def step(self) -> StepEvent:
        """Draft a tree, verify it in one target pass and commit what was accepted."""
        self.watch.start()
        tree = self._tree()
        seconds = {"draft": self.watch.lap()}
        hidden = self._verify(tree)
        after = (self.position + 1 + tree.depth).clamp(max=self.last)
        probs, choices, margins = self._read(hidden, after)
        seconds["verify"] = self.watch.lap()
        codes = self.codes if self.options.pick == "nearest" else None
        verdict = review(tree, probs, choices, self.rule, self.neighbours, self.greedy, codes)
        report = self._report(tree, probs, choices, margins, verdict)
        self._check(sum(report["margin"]))
        path, tokens = self._commit(tree, report)
        nodes = tuple(
            NodeEvent(int(t), int(q), int(d), s, i in path and i > 0)
            for i, (t, q, d, s) in enumerate(
                zip(*(report[n] for n in ("token", "parent", "depth", "score")), strict=True)
            )
        )
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

    # -- bookkeeping ----------------------------------------------------------------------------

    def _report(self, tree, probs, choices, margins, verdict) -> dict[str, list[float]]:
        """Everything the host needs about this step, in the step's one device-to-host copy.

        Integers travel as fp32, exact up to 2**24.
        """
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
            "end": deepest(tree, verdict.accept).expand(len(tree)),
        }
        if self.rule.k:
            near = self.neighbours[tree.tokens, : self.rule.k] == choice[:, None]
            # 1 = nearest; 0 = the choice is not among the k nearest.
            rows["rank"] = (near.int().argmax(1) + 1) * near.any(1)
            rows["distance"] = (self.codes[choice] - self.codes[tree.tokens]).norm(dim=-1)
        packed = torch.stack([value.float() for value in rows.values()])
        return dict(zip(rows, packed.tolist(), strict=True))

    def _commit(self, tree: DraftTree, report: dict) -> tuple[list[int], list[TokenEvent]]:
        """Keep the accepted rows in the cache, advance the root; returns path and new tokens."""
        node = int(report["end"][0])
        path = [node]
        while node:
            node = int(report["parent"][node])
            path.insert(0, node)
        self.cache.keep(self.cache.length, path)
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
        return path, tokens

    def _token(
        self, position, token, kind, choice, margin, p_choice, p_token,
        *, mass=0.0, rank=0, distance=0.0, depth=0,
    ) -> TokenEvent:  # fmt: skip
        # With one token left alive by the filters the runner-up is -inf; JSON has no infinity.
        margin = min(margin, 1e9)
        return TokenEvent(
            position, token, kind, choice, margin, p_choice, p_token, mass, rank, distance, depth
        )

    def _check(self, margin: float) -> None:
        if math.isnan(margin):
            raise DecodeError(
                "the model produced logits that are not numbers; lower CFG or check the weights."
            )

    def _event(self, start, tokens, nodes, seconds) -> StepEvent:
        event = StepEvent(self.steps, start, tuple(tokens), tuple(nodes), seconds)
        self.steps += 1
        return event
