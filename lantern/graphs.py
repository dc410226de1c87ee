"""Decode steps of fixed shape, so that a GPU replays them as CUDA graphs.

A plain step has tensors as long as the image so far, and the host decides how long. Here every
tensor keeps its size from the first step to the last: caches show all their slots and masks hide
those that hold nothing yet; position and root live on the device; trees keep their depth to the
image's end, where nodes beyond it are drafted last and never accepted. Three graphs make a step -
draft, verify, commit - and one copy to the host brings back what happened.

Nothing in them may copy a Python number to the device: that waits, and cannot be captured. So
scalars are filled in (``masked_fill``, ``x[:1] = ...``), here and in what is called from here.

Without ``capture`` the same functions run one by one, on any device: that is how they are tested.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from lantern.cache import FixedCache
from lantern.config import DecodeOptions
from lantern.decode import Decoder, Request
from lantern.drafting import LOG_FLOOR, Drafting
from lantern.sampling import gumbel_table
from lantern.trace import NodeEvent, StepEvent
from lantern.tree import DraftTree

KEPT = 8  # requests kept ready: every mode of a run, and those of one other setting
WARM_UPS = 2


class Graphs:
    """Gives out requests whose buffers and graphs serve many images. Safe to use from several
    threads: an image in progress has its request to itself."""

    def __init__(self, capture: bool = True):
        self.capture = capture
        self._free: OrderedDict[DecodeOptions, FixedRequest] = OrderedDict()
        self._lock = threading.Lock()

    def request(
        self, decoder: Decoder, caption: Tensor, valid: Tensor, options: DecodeOptions
    ) -> FixedRequest:
        """A request ready for its prefill. What has to be captured for new options is captured
        before the request's clock starts."""
        with self._lock:
            request = self._free.pop(replace(options, seed=0), None)
        if request is None:
            request = FixedRequest(decoder, caption, valid, options)
            request.give_back = lambda: self._give(request)
            request.restart(caption, valid, options)
            if self.capture:
                request.capture()
        request.restart(caption, valid, options)
        return request

    def _give(self, request: FixedRequest) -> None:
        with self._lock:
            self._free[replace(request.options, seed=0)] = request
            while len(self._free) > KEPT:
                self._free.popitem(last=False)

    def clear(self) -> None:
        """Let go of all requests that no image holds."""
        with self._lock:
            self._free.clear()


class FixedDrafting(Drafting):
    """Drafting at a position that the device knows: ``place`` [1] int64, the root's."""

    def __init__(self, drafter, target, options, cache: FixedCache, noise: Tensor, place: Tensor):
        super().__init__(drafter, target, options, cache, noise)
        self.place, self.prefix = place, target.config.prefix
        self.slots = torch.arange(cache.slots, device=self.device)
        self.end = len(drafter.rotation) - 1
        weight = target.embedding.weight
        self.prediction = weight.new_zeros(2, 1, target.config.width)

    def begin(self, ids: Tensor, hidden: Tensor) -> None:
        """The rows of the condition: ids [P], hidden [2, P, W]."""
        buffer = self.prediction
        self.cache.length = 0
        self.extend(ids, hidden)
        self.prediction = buffer.copy_(self.prediction)

    def commit(self, ids: Tensor, hidden: Tensor, last: Tensor) -> None:
        """``extend`` by rows 0..last, last [1] on the device, of ids [T] and hidden [2, T, W]; the
        rest is overwritten by the next commit."""
        rows = self.prefix + self.place + self.slots[: len(ids)]
        mask = additive(self.slots <= rows[:, None], hidden.dtype)
        x = self.drafter.embed(ids, self.target).expand(2, -1, -1)
        out = self.drafter(x, hidden, rows.clamp(max=self.end), mask, self.cache, rows)
        self.prediction.copy_(out.index_select(1, last))

    def grow(self, root: Tensor, position: Tensor) -> DraftTree:
        """A tree of full depth, also where the image ends sooner."""
        grow = self._grow_static if self.shape.growth == "static" else self._grow_dynamic
        return grow(root, position, self.shape.depth)

    def _rank(self, scores: Tensor, depths: Tensor, position: Tensor) -> Tensor:
        # Children score no higher than parents, so those beyond the end still follow them.
        return scores.masked_fill(position + depths > self.last, 1e3 * LOG_FLOOR)

    def _level(self, tokens: Tensor, feature: Tensor, seen: Tensor, level: int) -> Tensor:
        m, fed = seen.shape
        start = self.prefix + self.place
        rows = start + self.slots[:fed]
        mask = additive(self.slots < start, feature.dtype).repeat(m, 1)
        mask.index_copy_(1, rows, additive(seen, feature.dtype))
        x = self.drafter.embed(tokens, self.target).expand(2, -1, -1)
        positions = (start + level - 1).clamp(max=self.end).expand(m)
        return self.drafter(x, feature, positions, mask, self.cache, rows[fed - m :])

    def _candidates(self, out: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        return super()._candidates(out, position.clamp(max=self.last))


class FixedRequest(Request):
    """A request in buffers that outlive its image; ``restart`` begins the next one.

    ``root_here`` and ``place`` [1] int64 are root and position on the device; the host follows
    behind with what the step's one copy told it.
    """

    give_back: Callable[[], None]

    def _prepare(self) -> None:
        target, shape, where = self.target, self.shape, {"device": self.device}
        config, weight = target.config, target.embedding.weight
        rows, self.levels = config.prefix + config.image_tokens, 0
        self.root_here = torch.zeros(1, dtype=torch.long, **where)
        self.place = torch.zeros(1, dtype=torch.long, **where)
        self.noise = gumbel_table(
            0, config.image_tokens, config.vocab_size, self.options.temperature, self.device
        )
        self.draft = self.draft_cache = None
        kind = where | {"dtype": weight.dtype}
        if self.drafting:
            self.levels, heads = shape.depth, self.drafter.config.heads
            self.draft_cache = FixedCache(
                len(self.drafter.layers), 2, heads,
                rows + max(Drafting.rows_beyond(shape), self.levels + 1), config.width // heads,
                **kind,
            )  # fmt: skip
            self.draft = FixedDrafting(
                self.drafter, target, self.options, self.draft_cache, self.noise, self.place
            )
        beyond = max(shape.nodes, self.levels + 1)
        self.cache = FixedCache(
            config.layers, 2, config.heads, rows + beyond, config.head_dim, **kind
        )
        self.slots = torch.arange(self.cache.slots, **where)
        self.shown = torch.ones(self.cache.slots, dtype=torch.bool, **where)
        self.phases = [self._draft_phase, self._verify_phase, self._commit_phase]

    def restart(self, caption: Tensor, valid: Tensor, options: DecodeOptions) -> None:
        """Begin another image with the same options, but for the seed."""
        self.caption, self.valid, self.options = caption, valid, options
        self.steps = 0
        self.shown[: self.prefix] = valid
        # What a broken run left behind must not reach the next one through a mask: 0 * NaN is NaN.
        for cache in (self.cache, self.draft_cache):
            if cache is not None:
                cache.kv.zero_()
                cache.reset()
        self.place.zero_()
        self.watch.start()

    def release(self) -> None:
        self.give_back()

    def capture(self) -> None:
        """Turn the three phases into CUDA graphs that share their memory."""
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):  # kernels are chosen and workspaces made outside a capture
            for _ in range(WARM_UPS):
                for phase in self.phases:
                    phase()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        captured, pool = [], torch.cuda.graph_pool_handle()
        for phase in self.phases:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                phase()
            captured.append(graph.replay)
        self.phases = captured
        self.page = torch.empty(self.packed.shape, pin_memory=True)

    # -- the image ------------------------------------------------------------------------------

    def _draw_noise(self) -> Tensor:
        return self.noise.copy_(super()._draw_noise()) if not self.greedy else self.noise

    def _begin_drafting(self, hidden: Tensor) -> None:
        self.draft.begin(self._condition_ids(), hidden)

    def prefill(self) -> StepEvent:
        event = super().prefill()
        self.root_here.fill_(self.root)
        return event

    def step(self) -> StepEvent:
        self.watch.start()
        marks = [self._mark()]
        for phase in self.phases:
            phase()
            marks.append(self._mark())
        before = self.position
        _, tokens, nodes = self._commit(self._report(self.names, self.packed))
        whole = self.watch.lap()
        draft, verify = self._between(*marks[:2]), self._between(*marks[1:3])
        seconds = {"draft": draft, "verify": verify, "accept": max(0.0, whole - draft - verify)}
        return self._event(before + 1, tokens, self._of_the_image(nodes, before), seconds)

    def _draft_phase(self) -> None:
        self.tree = (
            self.draft.grow(self.root_here, self.place)
            if self.drafting
            else DraftTree.root_only(self.root_here, self.device)
        )

    def _verify_phase(self) -> None:
        tree, target, dtype = self.tree, self.target, self.cache.kv.dtype
        start = self.prefix + self.place
        rows = start + self.slots[: len(tree)]
        mask = additive(self.shown & (self.slots < start), dtype).repeat(len(tree), 1)
        mask.index_copy_(1, rows, additive(tree.ancestors, dtype))
        x = target.embedding(tree.tokens).expand(2, -1, -1)
        positions = (start + tree.depth).clamp(max=self.prefix + self.last)
        self.hidden = target(x, positions, mask[None, None], self.cache, rows)
        after = (self.place + 1 + tree.depth).clamp(max=self.last)
        self.reading = self._read(self.hidden, after)

    def _commit_phase(self) -> None:
        tree = self.tree
        self.names, self.packed = self._judge(tree, *self.reading)
        choices = self.reading[1]
        end = self.packed[self.names.index("end"), :1].long()
        chain = [end]
        for _ in range(self.levels):
            chain.append(tree.parent[chain[-1]])
        last, ahead = tree.depth[end], self.slots[: self.levels + 1]
        # From the root down; beyond the path's end once more its end, which nobody reads.
        path = torch.cat(chain)[(last - ahead).clamp(min=0)]
        start = self.prefix + self.place
        self.cache.move(start + path, start + ahead)
        if self.drafting:
            tokens = torch.where(ahead < last, tree.tokens[path.roll(-1)], choices[end])
            self.draft.commit(tokens, self.hidden[:, path], last)
        self.root_here.copy_(choices[end])
        self.place.add_(last + 1)

    def _inside(self, tree: DraftTree, accept: Tensor) -> Tensor:
        return accept & (self.place + tree.depth <= self.last)

    def _of_the_image(self, nodes: tuple[NodeEvent, ...], root: int) -> tuple[NodeEvent, ...]:
        """Without the nodes beyond the image's end, which fill the tree up."""
        kept = [i for i, node in enumerate(nodes) if root + node.depth <= self.last]
        number = {old: new for new, old in enumerate(kept)}
        return tuple(replace(nodes[i], parent=number[nodes[i].parent]) for i in kept)

    # -- host and device ------------------------------------------------------------------------

    def _report(self, names: tuple[str, ...], packed: Tensor) -> dict[str, list[float]]:
        if packed.device.type == "cuda":
            page = getattr(self, "page", None)
            if page is not None:
                packed = page.copy_(packed, non_blocking=True)
                torch.cuda.current_stream(self.device).synchronize()
        return super()._report(names, packed)

    def _mark(self):
        """A moment, as the device counts it."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, first, second) -> float:
        """Seconds between two marks that have passed."""
        return second - first if self.device.type != "cuda" else first.elapsed_time(second) / 1e3


def additive(shown: Tensor, dtype: torch.dtype) -> Tensor:
    """Bool mask -> additive mask: 0 where shown, -inf elsewhere."""
    return torch.zeros(shown.shape, dtype=dtype, device=shown.device).masked_fill_(
        ~shown, -torch.inf
    )
