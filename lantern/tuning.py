"""nodes="auto": the draft tree with the most expected tokens per second on this device.

Two things are measured: what a step costs by tree size, once per device and model (kept on disk),
and how often a child of each depth and rank is accepted, from the last runs with the same options
(from a short probe if there are none). A tree of the likeliest nodes then has a known expected
length: one plus the sum of its nodes' probabilities.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import os
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median

from lantern.config import DecodeOptions, TreeShape
from lantern.runtime import describe
from lantern.trace import DecodeTrace, StepEvent

NODES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
DEPTHS = range(1, 9)
BRANCHES = (1, 2, 3, 4, 6, 8)
PROBE = TreeShape(nodes=24, depth=5, branch=4)
PROBE_STEPS = 40
# A rank needs this many tries before its rate counts for more than its neighbour's.
PRIOR_TRIES = 8


@dataclass(frozen=True)
class Costs:
    """Seconds of a step: ``verify`` (with acceptance) by nodes, ``draft`` by branch, for one level
    and for each further one."""

    verify: dict[int, float]
    draft: dict[int, tuple[float, float]]

    def step(self, shape: TreeShape) -> float:
        """Expected seconds of one step; measured sizes are joined by straight lines."""
        if shape.nodes == 1:
            return self.verify[1]
        first, further = self.draft[shape.branch]
        return self._verify(shape.nodes) + first + (shape.depth - 1) * further

    def _verify(self, nodes: int) -> float:
        low = max(n for n in self.verify if n <= nodes)
        high = min(n for n in self.verify if n >= nodes)
        share = (nodes - low) / (high - low) if high > low else 0.0
        return self.verify[low] + share * (self.verify[high] - self.verify[low])


class Rates:
    """How often a child of a given depth and rank was accepted once its parent was."""

    def __init__(self):
        self.tries: dict[tuple[int, int], int] = defaultdict(int)
        self.hits: dict[tuple[int, int], int] = defaultdict(int)

    def add(self, event: StepEvent) -> None:
        """Count the children of every accepted node of a step."""
        ranks: dict[int, int] = defaultdict(int)
        for i, node in enumerate(event.nodes[1:], start=1):
            rank, ranks[node.parent] = ranks[node.parent], ranks[node.parent] + 1
            if node.parent == 0 or event.nodes[node.parent].accepted:
                self.tries[node.depth, rank] += 1
                self.hits[node.depth, rank] += event.nodes[i].accepted

    def rate(self, depth: int, rank: int) -> float:
        """Smoothed towards the level above, of which there are more tries; 0 where neither was
        ever tried."""
        above = self.rate(depth - 1, rank) if depth > 1 else 0.0
        tries = self.tries.get((depth, rank), 0)
        prior = PRIOR_TRIES if depth > 1 else 0
        if tries + prior == 0:
            return 0.0
        return (self.hits.get((depth, rank), 0) + prior * above) / (tries + prior)

    def expected(self, depth: int, branch: int, most: int) -> list[float]:
        """Expected accepted length of the best tree of 1, 2, .. ``most`` nodes."""
        lengths = [1.0]
        open_nodes: list[tuple[float, int, int]] = []

        def push(above: float, level: int, rank: int) -> None:
            if rank < branch and level <= depth:
                heapq.heappush(open_nodes, (-above * self.rate(level, rank), level, rank))

        for rank in range(branch):
            push(1.0, 1, rank)
        while open_nodes and len(lengths) < most:
            probability, level, _ = heapq.heappop(open_nodes)
            lengths.append(lengths[-1] - probability)
            for rank in range(branch):
                push(-probability, level + 1, rank)
        return lengths


def best_shape(rates: Rates, costs: Costs) -> tuple[TreeShape, float]:
    """The tree with the most expected tokens per second and its expected accepted length."""
    best = TreeShape(nodes=1), 1.0, 1.0 / costs.verify[1]
    for branch in BRANCHES:
        for depth in DEPTHS:
            for nodes, length in enumerate(rates.expected(depth, branch, max(NODES)), start=1):
                if nodes == 1:
                    continue
                shape = TreeShape(nodes, depth, branch)
                speed = length / costs.step(shape)
                if speed > best[2]:
                    best = shape, length, speed
    return best[0], best[1]


class Tuner:
    """Chooses trees for one pipeline; remembers what its runs accepted."""

    def __init__(self, pipeline):
        self.pipeline = pipeline
        self.rates: dict[str, Rates] = {}
        self.probed: set[str] = set()

    def observe(self, trace: DecodeTrace) -> None:
        """Learn from a finished run."""
        rates = self.rates.setdefault(_key(trace.options), Rates())
        for event in trace.events:
            rates.add(event)

    def choose(self, options: DecodeOptions) -> DecodeOptions:
        """``options`` with the best tree for its mode; AR is left alone."""
        if options.mode == "ar":
            return options
        if options.mode not in self.pipeline.modes:
            raise ValueError(
                f"mode {options.mode} needs a drafter and this model has none; use ar."
            )
        costs = self.costs(options)
        key = _key(options.to_dict())
        if key not in self.probed:
            # Runs with small trees say nothing about large ones, so they do not replace the probe.
            trace = self.pipeline.new_trace(self.pipeline.info.examples[0], options)
            probe = replace(PROBE, growth=options.tree.growth)
            self._steps(replace(options, tree=probe), PROBE_STEPS, trace)
            self.observe(trace)
            self.probed.add(key)  # only now: a visitor may stop the probe
        shape, _ = best_shape(self.rates[key], costs)
        return replace(options, tree=replace(shape, growth=options.tree.growth))

    def _steps(self, options: DecodeOptions, count: int, trace=None) -> list[StepEvent]:
        """The first steps of a run after the prefill."""
        stream = self.pipeline.stream(self.pipeline.info.examples[0], options, trace)
        events = list(islice(stream, count + 1))
        stream.close()
        return events[1:]

    def costs(self, options: DecodeOptions) -> Costs:
        """Measured on first use, then read from the cache folder."""
        file = cache_folder() / f"costs-{self._fingerprint(options)}.json"
        try:
            stored = json.loads(file.read_text())
            return Costs(
                {int(n): s for n, s in stored["verify"].items()},
                {int(b): tuple(s) for b, s in stored["draft"].items()},
            )
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            costs = self.measure(options)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            aside = file.with_suffix(f".{os.getpid()}.new")
            aside.write_text(json.dumps(asdict(costs)))
            os.replace(aside, file)
        except OSError:
            pass  # measured again next time
        return costs

    def measure(self, options: DecodeOptions, steps: int = 6) -> Costs:
        """Time a few real steps of every tree size."""

        def seconds(shape: TreeShape, *phases: str) -> float:
            events = self._steps(replace(options, tree=shape), steps + 1)[1:]
            return median(sum(event.seconds[p] for p in phases) for event in events)

        verify = {n: seconds(TreeShape(n, 4, 6), "verify", "accept") for n in NODES}
        draft = {}
        for branch in BRANCHES:
            one = seconds(TreeShape(branch + 1, 1, branch), "draft")
            four = seconds(TreeShape(branch + 1, 4, branch), "draft")
            draft[branch] = one, max(0.0, (four - one) / 3)
        return Costs(verify, draft)

    def _fingerprint(self, options: DecodeOptions) -> str:
        pipeline = self.pipeline
        target = pipeline.decoder.target
        what = [
            pipeline.name,
            asdict(target.config),
            asdict(pipeline.decoder.drafter.config),
            describe(pipeline.device, pipeline.dtype),
            [options.relaxed, options.k, options.top_k > 0, options.top_p < 1],
        ]
        return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]


def cache_folder() -> Path:
    """Where measurements are kept: $XDG_CACHE_HOME/lantern, else ~/.cache/lantern."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lantern"


def _key(options: dict) -> str:
    """Options that change what is accepted; seed and tree do not."""
    ignored = ("seed", "nodes", "depth", "branch", "auto_tree")
    return json.dumps({k: v for k, v in options.items() if k not in ignored}, sort_keys=True)
