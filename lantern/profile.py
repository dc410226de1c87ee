"""What a decode step spends its time on, operation by operation (torch.profiler)."""

from __future__ import annotations

from dataclasses import replace

from torch.profiler import ProfilerActivity, profile

from lantern.config import DecodeOptions
from lantern.pipeline import Pipeline
from lantern.runtime import describe

SKIPPED, STEPS = 10, 40
ROWS = 12


def report(pipeline: Pipeline, prompt: str, options: DecodeOptions, modes: list[str]) -> str:
    """Markdown: for every mode the operations that cost most in ``STEPS`` steps near the start of
    an image. Profiling itself slows a step down: shares are to be read, not sums. ValueError if the
    prompt is refused."""
    where, tree = describe(pipeline.device, pipeline.dtype), options.tree
    lines = [
        f"{pipeline.name} on {where['hardware']} ({where['device']}, {where['dtype']}, "
        f"{where['threads']} threads, torch {where['torch']}); means of up to {STEPS} steps, "
        f"tree {tree.nodes}x{tree.depth}x{tree.branch}."
    ]
    for mode in modes:
        lines += ["", *_table(pipeline, prompt, replace(options, mode=mode))]
    return "\n".join(lines)


def _table(pipeline: Pipeline, prompt: str, options: DecodeOptions) -> list[str]:
    on_gpu = pipeline.device.type == "cuda"
    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu
    stream = pipeline.stream(prompt, options)
    try:
        for _ in range(SKIPPED):
            next(stream, None)
        with profile(activities=kinds) as recorded:
            steps = sum(next(stream, None) is not None for _ in range(STEPS))
    finally:
        stream.close()
    if not steps:
        raise ValueError(
            f"the image is complete after {SKIPPED} steps; choose a larger image or a smaller tree."
        )
    operations = recorded.key_averages()

    def spent(operation) -> float:
        return operation.self_device_time_total if on_gpu else operation.self_cpu_time_total

    whole = sum(map(spent, operations))
    most = sorted(operations, key=spent, reverse=True)[:ROWS]
    rows = [(o.key, o.count, spent(o)) for o in most]
    calls, time = sum(o.count for o in operations), sum(spent for _, _, spent in rows)
    rows.append(("all others", calls - sum(count for _, count, _ in rows), whole - time))
    rows.append(("**together**", calls, whole))
    return [
        f"| {options.mode} | calls a step | ms a step | share |",
        "|---|---|---|---|",
        *(
            f"| {name} | {count / steps:.0f} | {time / steps / 1e3:.2f} | {time / whole:.0%} |"
            for name, count, time in rows
        ),
    ]
