"""Benchmark: prompts x seeds x variants, interleaved, against AR in the same run.

A variant is a mode with a tree: the trees asked for, and trees tuned for this device for the
lossless modes, so that no relaxation is ever compared with a badly chosen exact baseline. Ratios
are per (prompt, seed, repeat) and then summarised by their median, so slow moments of the machine
hit both sides of a ratio. Tables are ``report``'s business.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tqdm import tqdm

from lantern.config import ALL_MODES, DecodeOptions
from lantern.pipeline import Pipeline
from lantern.report import sweep_tables, tables, temperature_table
from lantern.runtime import streaming_seconds
from lantern.trace import DecodeTrace

SWEEP_K = (100, 300, 1000)
SWEEP_DELTA = (0.05, 0.1, 0.2, 0.4)
SWEEP_TEMPERATURE = (0.0, 1.0)
TEMPERATURES = (0.0, 0.4, 0.8, 1.0, 1.2)
TUNED = ("eagle2", "eagle2-coupled")


@dataclass(frozen=True)
class Plan:
    """What to run: ``repeats`` rounds over prompts x seeds."""

    prompts: tuple[str, ...]
    seeds: int
    repeats: int

    def rounds(self) -> list[tuple[str, int, int]]:
        every = range(self.repeats)
        return [(p, s, r) for r in every for p in self.prompts for s in range(self.seeds)]


def run_bench(
    pipeline: Pipeline,
    options: DecodeOptions,
    modes: list[str],
    plan: Plan,
    file: Path | None,
    *,
    auto: bool = False,
    sweep: str | None = None,
) -> None:
    """Run, print the tables, and write every figure to ``file`` if given. ``auto`` tunes the tree
    of every mode; ``sweep`` instead runs the paper's grid of k, delta and temperature
    ("relaxation") or all modes over ``TEMPERATURES`` ("temperature")."""
    if sweep:
        variants = _grid(options) if sweep == "relaxation" else _over_temperature(options)
        variants = {label: pipeline.tuner.choose(v) if auto else v for label, v in variants.items()}
    else:
        variants = _variants(pipeline, options, modes, auto)
    for variant in variants.values():
        pipeline.warm_up(variant)
    rounds = _share(plan.rounds())
    runs: list[dict] = []
    for prompt, seed, repeat in tqdm(rounds, unit="round", leave=False, disable=None):
        for label, variant in variants.items():
            chosen = replace(variant, seed=seed)
            trace = pipeline.new_trace(prompt, chosen)
            for _ in pipeline.stream(prompt, chosen, trace):
                pass
            pipeline.finish(trace)
            runs.append({"variant": label, "repeat": repeat, **figures(trace)})
    runs = _gather(runs)
    if runs is None:
        return
    costs = asdict(pipeline.tuner.costs(options)) if pipeline.decoder.drafter else None
    if sweep:
        print(sweep_tables(runs) if sweep == "relaxation" else temperature_table(runs))
    else:
        streaming = streaming_seconds(pipeline.decoder.target, pipeline.dtype)
        print(tables(runs, costs, streaming))
    if file:
        content = {"options": options.to_dict(), "costs": costs, "runs": runs}
        file.write_text(json.dumps(content, indent=1) + "\n")


def _variants(pipeline, options, modes, auto) -> dict[str, DecodeOptions]:
    """Label -> options; AR first, tuned lossless baselines last."""
    variants = {}
    for mode in dict.fromkeys(["ar", *modes]):
        chosen = replace(options, mode=mode)
        variants[mode] = pipeline.tuner.choose(chosen) if auto else chosen
    for mode in TUNED if pipeline.decoder.drafter else ():
        chosen = pipeline.tuner.choose(replace(options, mode=mode))
        if chosen.tree.nodes > 1 and chosen not in variants.values():
            variants[f"{mode}, tuned tree"] = chosen
    return variants


def _grid(options: DecodeOptions) -> dict[str, DecodeOptions]:
    """AR and EAGLE-2 once per temperature, LANTERN over the whole grid."""
    variants = {}
    for temperature in SWEEP_TEMPERATURE:
        at = replace(options, temperature=temperature)
        for mode in ("ar", "eagle2"):
            variants[f"{mode}/{temperature:g}"] = replace(at, mode=mode)
        for k in SWEEP_K:
            for delta in SWEEP_DELTA:
                label = f"lantern/{temperature:g}/{k}/{delta:g}"
                variants[label] = replace(at, mode="lantern", k=k, delta=delta)
    return variants


def _over_temperature(options: DecodeOptions) -> dict[str, DecodeOptions]:
    return {
        f"{mode}/{t:g}": replace(options, mode=mode, temperature=t)
        for t in TEMPERATURES
        for mode in ALL_MODES
    }


def figures(trace: DecodeTrace) -> dict:
    """What the tables need of one run, and its tokens."""
    return {
        **trace.options,
        "model": trace.model,
        "prompt": trace.prompt,
        "seconds": trace.seconds,
        "seconds_by_phase": trace.seconds_by_phase,
        "steps": trace.steps,
        "tokens": trace.tokens,
        "mean_accepted_length": trace.mean_accepted_length,
        "accepted_lengths": trace.accepted_lengths,
        "relaxed_share": trace.relaxed_share,
        "environment": trace.environment,
    }


# -- several processes: accelerate launch -m lantern bench ----------------------------------------


def _share(rounds: list) -> list:
    """This process's part of the rounds."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return rounds
    from accelerate import PartialState

    with PartialState().split_between_processes(rounds) as mine:
        return list(mine)


def _gather(runs: list[dict]) -> list[dict] | None:
    """All processes' runs on the first of them, None on the others."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return runs
    from accelerate import PartialState
    from accelerate.utils import gather_object

    everything = gather_object(runs)
    return everything if PartialState().is_main_process else None
