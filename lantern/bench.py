"""Benchmark: prompts x seeds x modes, interleaved, against AR in the same run.

Prints Markdown. Ratios are per (prompt, seed, repeat) and then summarised by their median, so slow
moments of the machine hit both sides of a ratio.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import median

from tqdm import tqdm

from lantern.config import DecodeOptions
from lantern.pipeline import Pipeline
from lantern.runtime import peak_memory
from lantern.trace import PHASES, DecodeTrace


def run_bench(
    pipeline: Pipeline,
    options: DecodeOptions,
    modes: list[str],
    prompts: list[str] | None,
    seeds: int,
    repeats: int,
    file: Path | None,
) -> None:
    """Run, print the table, and write every figure to ``file`` if given."""
    prompts = list(dict.fromkeys(prompts or pipeline.info.examples[:4]))
    for prompt in prompts:
        pipeline.text.check(prompt)
    pipeline.warm_up(options)
    runs: list[dict] = []
    jobs = [(p, s, r) for r in range(repeats) for p in prompts for s in range(seeds)]
    for prompt, seed, repeat in tqdm(jobs, unit="round", leave=False, disable=None):
        for mode in modes:
            chosen = replace(options, mode=mode, seed=seed)
            trace = pipeline.new_trace(prompt, chosen)
            for _ in pipeline.stream(prompt, chosen, trace):
                pass
            pipeline.finish(trace)
            runs.append(_figures(trace, repeat))
    print(to_markdown(pipeline, options, runs))
    if file:
        file.write_text(json.dumps({"options": options.to_dict(), "runs": runs}, indent=1) + "\n")


def _figures(trace: DecodeTrace, repeat: int) -> dict:
    return {
        "mode": trace.mode,
        "prompt": trace.prompt,
        "seed": trace.options["seed"],
        "repeat": repeat,
        "seconds": trace.seconds,
        "seconds_by_phase": trace.seconds_by_phase,
        "steps": trace.steps,
        "tokens": trace.tokens,
        "mean_accepted_length": trace.mean_accepted_length,
        "relaxed_share": trace.relaxed_share,
        "environment": trace.environment,
    }


def to_markdown(pipeline: Pipeline, options: DecodeOptions, runs: list[dict]) -> str:
    """The table for the README: one row a mode, with hardware and settings above it."""
    where = runs[0]["environment"]
    tree = options.tree
    lines = [
        f"{pipeline.name} on {where['hardware']} ({where['device']}, {where['threads']} threads, "
        f"{where['dtype']}, torch {where['torch']}); {len(runs)} runs; k {options.k}, delta "
        f"{options.delta}, temperature {options.temperature}, CFG {options.cfg}, top-k "
        f"{options.top_k}, tree {tree.nodes} nodes x depth {tree.depth} x branch {tree.branch}; "
        f"peak memory {peak_memory(where['device']):.2f} GiB.",
        "",
        "| mode | decode s (min-max) | speed-up over AR (min-max) | passes | MAL | relaxed | "
        "tokens = AR's | " + " | ".join(f"{p} s" for p in PHASES) + " |",
        "|---|---|---|---|---|---|---|" + "---|" * len(PHASES),
    ]
    baseline = {_key(r): r for r in runs if r["mode"] == "ar"}
    for mode in dict.fromkeys(r["mode"] for r in runs):
        mine = [r for r in runs if r["mode"] == mode]
        pairs = [(baseline[_key(r)], r) for r in mine if _key(r) in baseline]
        ratios = [ar["seconds"] / r["seconds"] for ar, r in pairs]
        same = sum(ar["tokens"] == r["tokens"] for ar, r in pairs)
        cells = [
            mode,
            _spread([r["seconds"] for r in mine]),
            _spread(ratios) if ratios else "-",
            f"{median(r['steps'] for r in mine):.0f}",
            f"{median(r['mean_accepted_length'] for r in mine):.2f}",
            f"{100 * median(r['relaxed_share'] for r in mine):.0f} %",
            f"{same}/{len(pairs)}" if pairs else "-",
            *(f"{median(r['seconds_by_phase'][p] for r in mine):.3f}" for p in PHASES),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _key(run: dict) -> tuple:
    return run["prompt"], run["seed"], run["repeat"]


def _spread(values: list[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"
