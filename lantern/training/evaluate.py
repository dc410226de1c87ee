"""Measure the gates of a trained model with fixed held-out scenes, captions and seeds.

Writes one JSON of figures and prints them as Markdown for the model card.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from lantern.ambiguity import ambiguity
from lantern.config import DecodeOptions
from lantern.pipeline import Pipeline
from lantern.trace import DecodeTrace
from lantern.training import data, judge
from lantern.training.art import STYLES, Art, Concept
from lantern.training.distribution import frechet_distance, precision_recall
from lantern.training.drafter import agreement
from lantern.training.shards import Shard
from lantern.training.tokenizer import held_out_scenes, psnr, to_tensor

SEED = 424_243
GRID_K = (100, 1000)
GRID_DELTA = (0.1, 0.2, 0.4)
MODES = ("ar", "eagle2", "lantern", "eagle2-coupled", "lantern-coupled")
# What gate 4 compares, at temperature 1 whatever the model's own is: row -> options.
PAIR = {
    "eagle2, tau 1": {"mode": "eagle2"},
    "lantern, tau 1, k 1000, delta .2": {"mode": "lantern", "k": 1000, "delta": 0.2},
}
# The paper's ablation, and which of several covering children is taken: name -> options.
RULES = {
    **{f"tvd {d:g}": {"rule": "tvd", "delta": d} for d in (0.1, 0.2, 0.4)},
    **{f"jsd {d:g}": {"rule": "jsd", "delta": d} for d in (0.05, 0.1, 0.2)},
    **{
        f"multiplicative, factor {f:g}": {"rule": "multiplicative", "factor": f}
        for f in (1.5, 2, 4)
    },
    **{f"tvd {d:g}, nearest": {"rule": "tvd", "delta": d, "pick": "nearest"} for d in (0.2, 0.4)},
}


def held_out_captions(concepts: list[Concept], count: int) -> list[tuple[str, judge.Labels]]:
    """``count`` captions over (concept, background) pairs that training never saw, shuffled with
    a fixed seed, with the labels an image of each should get."""
    cases = [
        (data.canonical_caption(c.name, b, s), (i, STYLES.index(s), data.BACKGROUNDS.index(b)))
        for i, c in enumerate(concepts)
        for b in data.BACKGROUNDS
        for s in STYLES
        if data.is_held_out(c.name, b)
    ]
    order = np.random.default_rng(SEED).permutation(len(cases))
    return [cases[i] for i in order[:count]]


def tokenizer_quality(
    pipeline: Pipeline, art: Art, concepts: list[Concept], count: int = 192
) -> dict[str, float]:
    """PSNR in dB on held-out scenes of the taught concepts."""
    scenes = held_out_scenes(art, concepts, count)
    with torch.inference_mode():
        codes = pipeline.vq.encode(scenes)
        value = psnr(pipeline.vq.decode(codes), scenes)
    return {"psnr_db": value}


def codes_alive(pipeline: Pipeline, art: Art) -> float:
    """Share of the codebook that one scene of every drawing uses: all that the tokenizer saw, not
    only the concepts the target was taught."""
    rng = np.random.default_rng(SEED)
    seen = torch.zeros(pipeline.vq.config.codebook_size, dtype=torch.bool)
    for drawings in torch.arange(len(art.labels)).split(32):
        scenes = [
            data.render(
                art,
                data.SceneSpec(drawing, str(rng.choice(data.BACKGROUNDS)), False, seed=drawing),
            )
            for drawing in drawings.tolist()
        ]
        with torch.inference_mode():
            seen[pipeline.vq.encode(to_tensor(scenes)).flatten()] = True
    return float(seen.float().mean())


def mean_ambiguity(
    pipeline: Pipeline, traces: list[DecodeTrace], options: DecodeOptions
) -> dict[str, float]:
    """Means over all tokens of all images; entropy in nats."""
    found = [ambiguity(pipeline, t.prompt, t.tokens, options) for t in traces]
    return {
        "top1": float(torch.cat([a.top1 for a in found]).mean()),
        "top10": float(torch.cat([a.top10 for a in found]).mean()),
        "entropy_nats": float(torch.cat([a.entropy for a in found]).mean()),
    }


def generate_all(
    pipeline: Pipeline, options: DecodeOptions, cases: list, first_seed: int = 0
) -> tuple[Tensor, judge.Labels, list[DecodeTrace]]:
    """Draw every caption, seed = its number; images [N, 3, 128, 128] in [-1, 1]."""
    traces, images = [], []
    for seed, (caption, _) in enumerate(tqdm(cases, desc=options.mode, disable=None), first_seed):
        trace, image = pipeline.generate(caption, replace(options, seed=seed))
        traces.append(trace)
        images.append(np.asarray(image))
    labels = judge.Labels(*torch.tensor([labels for _, labels in cases]).T)
    return to_tensor(images), labels, traces


class Examiner:
    """Draws the held-out captions with given options and measures the pictures."""

    def __init__(self, pipeline: Pipeline, art: Art, concepts, judge_model, cases, jitter):
        self.pipeline, self.judge, self.cases = pipeline, judge_model, cases
        rng = np.random.default_rng(SEED + 1)
        # One scene a caption, so that the Frechet distance compares sets of equal size.
        scenes = [self._scene(art, concepts, labels, rng, jitter) for _, labels in cases]
        self.real = self.features(to_tensor(scenes))

    @staticmethod
    def _scene(art: Art, concepts, labels, rng, jitter) -> np.ndarray:
        concept, style, background = labels
        drawing = art.index[concepts[concept].label, STYLES[style]]
        mirror = concepts[concept].name not in data.NO_MIRROR and bool(rng.random() < 0.5)
        seed = int(rng.integers(2**62))
        name = data.BACKGROUNDS[background]
        return data.render(art, data.SceneSpec(drawing, name, mirror, seed, jitter))

    def features(self, images: Tensor) -> Tensor:
        """The judge's features [N, d] of images [N, 3, 128, 128]."""
        with torch.inference_mode():
            return torch.cat([self.judge.features(part) for part in images.split(32)])

    def figures(self, pictures: Tensor, labels: judge.Labels) -> dict[str, float]:
        """Judge accuracy, Frechet distance, precision and recall of pictures of the captions."""
        features = self.features(pictures)
        precision, recall = precision_recall(self.real, features)
        return judge.accuracy(self.judge, pictures, labels) | {
            "frechet": frechet_distance(self.real, features),
            "precision": precision,
            "recall": recall,
        }

    def measure(self, options: DecodeOptions) -> tuple[dict, list[DecodeTrace]]:
        """Draw all captions: ``figures``, MAL and relaxed share, and the traces."""
        pictures, labels, traces = generate_all(self.pipeline, options, self.cases)
        figures = self.figures(pictures, labels) | {
            "mal": float(np.mean([t.mean_accepted_length for t in traces])),
            "relaxed_share": float(np.mean([t.relaxed_share for t in traces])),
        }
        return figures, traces


def compare_rules(examiner: Examiner, options: DecodeOptions) -> str:
    """LANTERN by rule and budget: what it gains and how far its pictures are from AR's, as the
    Frechet distance to AR's pictures of the same captions with other seeds. Markdown."""
    count = len(examiner.cases)
    ar = replace(options, mode="ar")
    others, _, traces = generate_all(examiner.pipeline, ar, examiner.cases, first_seed=count)
    others = examiner.features(others)
    where = traces[0].environment
    lines = [
        f"{count} images a row, k {options.k}, temperature {options.temperature:g}, CFG "
        f"{options.cfg:g}, tree {options.tree.nodes}x{options.tree.depth}x{options.tree.branch}; "
        f"{where['hardware']}, {where['dtype']}, torch {where['torch']}.",
        "",
        "| rule and budget | MAL | relaxed | Frechet distance to AR's pictures |",
        "|---|---|---|---|",
    ]
    rows = {"AR itself": {"mode": "ar"}, "EAGLE-2": {"mode": "eagle2"}, **RULES}
    for name, changes in rows.items():
        chosen = replace(options, **{"mode": "lantern"} | changes)
        pictures, _, traces = generate_all(examiner.pipeline, chosen, examiner.cases)
        length = float(np.mean([t.mean_accepted_length for t in traces]))
        share = float(np.mean([t.relaxed_share for t in traces]))
        distance = frechet_distance(others, examiner.features(pictures))
        lines.append(f"| {name} | {length:.2f} | {share:.0%} | {distance:.1f} |")
    return "\n".join(lines)


def evaluate(
    pipeline: Pipeline,
    art: Art,
    concepts: list[Concept],
    judge_model: judge.Judge,
    held_out: Shard,
    images: int,
    out: Path,
    jitter: data.Jitter,
    grid: bool = False,
) -> dict:
    """All gates, over ``grid`` also LANTERN at several k and delta; writes ``evaluation.json`` to
    ``out`` and returns the figures."""
    options = pipeline.options()
    cases = held_out_captions(concepts, images)
    examiner = Examiner(pipeline, art, concepts, judge_model, cases, jitter)
    scenes, scene_labels = judge.sample(art, concepts, np.random.default_rng(SEED), 200)
    figures: dict = {
        "images": len(cases),
        "options": options.to_dict(),
        "tokenizer": tokenizer_quality(pipeline, art, concepts)
        | {"codes_alive": codes_alive(pipeline, art)},
        "judge_on_scenes": judge.accuracy(judge_model, scenes, scene_labels),
        "drafter": agreement(
            pipeline.decoder.drafter, pipeline.decoder.target, held_out, options.cfg
        ),
        "modes": {},
    }
    for mode in MODES:
        figures["modes"][mode], traces = examiner.measure(replace(options, mode=mode))
        if mode == "ar":
            figures["ambiguity"] = mean_ambiguity(pipeline, traces, options)
            figures["environment"] = traces[0].environment
    cells = [(k, d) for k in GRID_K for d in GRID_DELTA] if grid else []
    for k, delta in cells:
        chosen = replace(options, mode="lantern", k=k, delta=delta)
        figures["modes"][f"lantern k {k}, delta {delta:g}"], _ = examiner.measure(chosen)
    for name, changes in PAIR.items():
        chosen = replace(options, temperature=1.0, **changes)
        figures["modes"][name], _ = examiner.measure(chosen)
    out.mkdir(parents=True, exist_ok=True)
    (out / "evaluation.json").write_text(json.dumps(figures, indent=2) + "\n")
    return figures


def gates(figures: dict) -> list[tuple[str, str, str, bool]]:
    """(gate, wanted, measured, holds) rows."""
    ar, lantern = figures["modes"]["ar"], figures["modes"]["lantern"]
    exact, relaxed = (figures["modes"][name]["mal"] for name in PAIR)
    tokenizer, doubt = figures["tokenizer"], figures["ambiguity"]
    gain = relaxed / exact
    loss = ar["concept_top1"] - lantern["concept_top1"]
    return [
        ("1 PSNR", ">= 27 dB", f"{tokenizer['psnr_db']:.2f} dB", tokenizer["psnr_db"] >= 27),
        _share_row("1 codes alive", 1.0, tokenizer["codes_alive"]),
        _share_row("2 background", 0.95, ar["background"]),
        _share_row("2 concept top-1", 0.6, ar["concept_top1"]),
        _share_row("2 concept top-5", 0.8, ar["concept_top5"]),
        ("3 top-1", ".15 to .50", f"{doubt['top1']:.3f}", 0.15 <= doubt["top1"] <= 0.5),
        ("3 top-10", ".40 to .80", f"{doubt['top10']:.3f}", 0.4 <= doubt["top10"] <= 0.8),
        _share_row("4 drafter agreement with CFG", 0.5, figures["drafter"]["agreement"]),
        ("4 MAL lantern / eagle2 (tau 1, k 1000, delta .2)", ">= 1.3", f"{gain:.2f}", gain >= 1.3),
        ("5 concept lost by relaxing", "<= 5 points", f"{100 * loss:.1f}", loss <= 0.05),
    ]


def _share_row(name: str, wanted: float, value: float) -> tuple[str, str, str, bool]:
    return name, f">= {100 * wanted:.0f} %", f"{100 * value:.1f} %", value >= wanted


def to_markdown(figures: dict) -> str:
    """The gates, then every mode's figures, as tables."""
    where = figures["environment"]
    lines = [
        f"{figures['images']} images a mode on held-out pairs; {where['hardware']}, "
        f"{where['dtype']}, torch {where['torch']}.",
        "",
        "| gate | wanted | measured | holds |",
        "|---|---|---|---|",
    ]
    lines += [f"| {g} | {w} | {m} | {'yes' if ok else 'no'} |" for g, w, m, ok in gates(figures)]
    lines += [
        "",
        "| mode | concept top-1 / top-5 | style | background | Frechet | precision | recall | MAL "
        "| relaxed |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {mode} | {f['concept_top1']:.0%} / {f['concept_top5']:.0%} | {f['style']:.0%} | "
        f"{f['background']:.0%} | {f['frechet']:.1f} | {f['precision']:.2f} | {f['recall']:.2f} | "
        f"{f['mal']:.2f} | {f['relaxed_share']:.0%} |"
        for mode, f in figures["modes"].items()
    ]
    return "\n".join(lines)


def sample_grid(pipeline: Pipeline, prompts: list[str], seeds: int, scale: int = 1) -> Image.Image:
    """Unselected samples, a prompt a row and a seed a column, in AR mode."""
    side = pipeline.pixels * scale
    sheet = Image.new("RGB", (side * seeds, side * len(prompts)))
    for row, prompt in enumerate(tqdm(prompts, disable=None)):
        for column in range(seeds):
            _, image = pipeline.generate(prompt, mode="ar", seed=column)
            sheet.paste(image.resize((side, side), Image.LANCZOS), (column * side, row * side))
    return sheet
