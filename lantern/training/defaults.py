"""python -m lantern choose-defaults: CFG, temperature, top-p by what the judge sees in pictures.

The target draws the held-out captions in batches, in AR mode; the modes differ from it only by
what relaxation costs, which ``evaluate`` measures.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from lantern import checkpoints, formats
from lantern.models.text import TextEncoder
from lantern.pipeline import Pipeline
from lantern.training import judge
from lantern.training.evaluate import Examiner
from lantern.training.sampling import sample_shard, sampling_copy

CFGS = (2.0, 3.0)
TEMPERATURES = (0.8, 1.0)
TOP_PS = (1.0, 0.9)


def choose_defaults(
    examiner: Examiner, pipeline: Pipeline, model_dir: Path, batch: int = 25
) -> str:
    """Judge accuracy, Frechet distance, precision and recall over a grid, as a Markdown table."""
    name = pipeline.name
    target = formats.load_target(
        checkpoints.find(name, "target", model_dir), checkpoints.entry(name).grid
    )
    text = TextEncoder(checkpoints.find(name, "text", model_dir).folder, target.config.prefix)
    target = sampling_copy(target)
    labels = judge.Labels(*torch.tensor([labels for _, labels in examiner.cases]).T)
    items = [(caption, seed) for seed, (caption, _) in enumerate(examiner.cases)]
    lines = [
        f"{len(items)} images each.",
        "",
        "| CFG | temperature | top-p | concept top-1 / top-5 | style | background | Frechet | "
        "precision | recall |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for cfg in CFGS:
        for temperature in TEMPERATURES:
            for top_p in TOP_PS:
                options = replace(
                    pipeline.options(), mode="ar", cfg=cfg, temperature=temperature, top_p=top_p
                )
                tokens = sample_shard(target, text, items, options, batch).tokens.long()
                grid = tokens.view(-1, pipeline.grid, pipeline.grid)
                with torch.inference_mode():
                    images = torch.cat([pipeline.vq.decode(part) for part in grid.split(16)])
                f = examiner.figures(images.clamp(-1, 1), labels)
                lines.append(
                    f"| {cfg:g} | {temperature:g} | {top_p:g} | {f['concept_top1']:.0%} / "
                    f"{f['concept_top5']:.0%} | {f['style']:.0%} | {f['background']:.0%} | "
                    f"{f['frechet']:.1f} | {f['precision']:.2f} | {f['recall']:.2f} |"
                )
    return "\n".join(lines)
