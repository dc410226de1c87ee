"""What a drafter is worth: test accuracy on held-out samples and MAL through the real decoder."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lantern.config import DecodeOptions, DrafterConfig
from lantern.decode import Decoder
from lantern.models.drafter import Drafter
from lantern.models.llamagen import Transformer
from lantern.runtime import pack
from lantern.training.drafter import agreement
from lantern.training.sampling import decoding_copy
from lantern.training.shards import Shard

CASES = tuple((mode, tau) for mode in ("eagle2", "lantern") for tau in (0.0, 1.0))
ACCURACY_SAMPLES = 256


def random_drafter(config: DrafterConfig, target: Transformer, seed: int = 0) -> Drafter:
    """An untrained drafter: every weight random, on the target's device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Drafter(config, target.config).to(target.embedding.weight.device)


def measure(
    target: Transformer,
    drafter: Drafter,
    codes: Tensor,
    neighbours: Tensor,
    held_out: Shard,
    options: DecodeOptions,
    prompts: int,
) -> dict:
    """``test_accuracy``: share of held-out tokens whose most likely value under CFG drafter and
    target agree on; ``mal``: {mode/temperature: mean accepted length} over ``prompts`` held-out
    captions, {} for none. ``target`` and ``drafter`` in fp32."""
    figures = agreement(drafter, target, held_out, options.cfg, ACCURACY_SAMPLES)
    mal = {}
    if prompts:
        target, drafter = decoding_copy(target), decoding_copy(drafter)
        device, prefix = target.embedding.weight.device, target.config.prefix
        pack(target, drafter)
        decoder = Decoder(target, drafter, codes, neighbours)
        batch = held_out.batch(torch.arange(min(prompts, len(held_out))), prefix).to(device)
        for mode, tau in CASES:
            lengths = []
            for seed, (caption, valid) in enumerate(zip(batch.captions, batch.valid, strict=True)):
                chosen = replace(options, mode=mode, temperature=tau, seed=seed)
                events = decoder.stream(caption, valid, chosen)
                lengths += [event.accepted_length for event in events]
            mal[f"{mode}/{tau:g}"] = round(sum(lengths) / len(lengths), 4)
    return {"test_accuracy": round(figures["agreement"], 4), "mal": mal}


def table(rows: dict[str, dict]) -> str:
    """Markdown of what ``measure`` found, a drafter a row."""
    cases = list(next(iter(rows.values()))["mal"])
    heads = [f"MAL {mode}, temperature {tau}" for mode, tau in (c.split("/") for c in cases)]
    lines = [
        "| " + " | ".join(["drafter", "test accuracy", *heads]) + " |",
        "|---" * (2 + len(heads)) + "|",
    ]
    for name, figures in rows.items():
        cells = [name, f"{100 * figures['test_accuracy']:.1f} %"]
        cells += [f"{figures['mal'][case]:.2f}" for case in cases]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
