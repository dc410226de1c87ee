"""python -m lantern check: what a model consists of and what one image costs in every mode."""

from __future__ import annotations

from dataclasses import asdict, replace

from torch import nn

from lantern.pipeline import Pipeline
from lantern.runtime import describe, peak_memory


def report(pipeline: Pipeline) -> str:
    """Draw the first example in every mode the model has; a few lines of text."""
    decoder, vq = pipeline.decoder, pipeline.vq
    where = describe(pipeline.device, pipeline.dtype)
    lines = [
        f"{pipeline.name} on {where['hardware']} ({where['device']}, {where['dtype']}, "
        f"{where['threads']} threads, torch {where['torch']})",
        f"target: {_shape(decoder.target)}",
        f"drafter: {_shape(decoder.drafter) if decoder.drafter else 'none'}",
        f"tokenizer: {_shape(vq)}",
        f"neighbours: {tuple(decoder.neighbours.shape)}",
    ]
    pipeline.warm_up()
    prompt = pipeline.info.examples[0]
    for mode in pipeline.modes:
        trace, image = pipeline.generate(prompt, replace(pipeline.options(), mode=mode))
        phases = ", ".join(f"{name} {s:.2f}" for name, s in trace.seconds_by_phase.items())
        lines.append(
            f"{mode}: {image.width} x {image.height} px, {len(trace.tokens)} tokens in "
            f"{trace.steps} passes, {trace.seconds:.2f} s ({phases}), "
            f"MAL {trace.mean_accepted_length:.2f}"
        )
    lines.append(f"peak memory: {peak_memory(where['device']):.2f} GiB")
    return "\n".join(lines)


def _shape(module: nn.Module) -> str:
    return ", ".join(f"{k} {v}" for k, v in asdict(module.config).items())
