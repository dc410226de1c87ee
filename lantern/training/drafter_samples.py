"""What a drafter is trained on: rendered scenes, captioned images or the target's own images.

Everything is encoded once and kept as shards; the folder's name says what they were made from, so
that other data or another target never meets old shards.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lantern.config import MAX_SEED, DecodeOptions
from lantern.models.llamagen import Transformer
from lantern.models.text import ClassNames, TextEncoder
from lantern.models.vq import VQModel
from lantern.training import images
from lantern.training.art import read_concepts
from lantern.training.data import sample_captions
from lantern.training.sampling import sample_shard, sampling_copy
from lantern.training.shards import Mixture, Shard, Shards, fingerprint

if TYPE_CHECKING:
    from accelerate import Accelerator

    from lantern.training.drafter_command import Place

HELD_OUT = 0.05
# From this many prompts on, some are held out; with fewer, all are drawn again with other seeds.
MANY_PROMPTS = 20
# Samples in a shard: what an interruption loses at most.
SHARD = 1000
Source = tuple[list, list, Callable[[list], Shard], str]


@dataclass(frozen=True)
class Encoders:
    """The model's parts that make samples, on one device."""

    target: Transformer
    vq: VQModel
    text: TextEncoder | ClassNames


def collect(
    args,
    place: Place,
    encoders: Encoders,
    options: DecodeOptions,
    examples: list[images.Example],
    folder: Path,
    accelerator: Accelerator,
    scene_shards: Callable[[argparse.Namespace], tuple[Shards, Shard]],
) -> tuple[Shards | Mixture, Shard]:
    """Training samples, encoded, and the held-out ones. Processes share the work. ValueError for
    bad images, captions and prompts, before anything is written."""
    source = None
    if args.data:
        source = _from_images(args, place, encoders, examples)
    elif args.samples:
        source = _from_target(args, place, encoders, options)
    scenes = None
    if source is None or args.scenes:
        here = argparse.Namespace(**vars(args) | {"model_dir": place.folder})
        with accelerator.main_process_first():
            scenes, held_out = scene_shards(here)
        if accelerator.num_processes > 1:  # otherwise made when they are needed
            _make_all(scenes, accelerator)
        if source is None:
            return scenes, held_out
    train, held, make, key = source
    cache = folder / f"samples-{key}"
    with accelerator.main_process_first():
        held_out = Shards.of(cache / "held-out", held, make, len(held)).get(0)
    shards = Shards.of(cache, train, make, min(SHARD, args.shard_size))
    _make_all(shards, accelerator)
    shards.make = None  # nothing is left to make: the encoders' memory can go
    return (Mixture(shards, scenes, args.scenes) if scenes else shards), held_out


def _make_all(shards: Shards, accelerator: Accelerator) -> None:
    with accelerator.split_between_processes(list(range(shards.count))) as mine:
        for number in mine:
            shards.ensure(number)
    accelerator.wait_for_everyone()


def _from_images(args, place: Place, encoders: Encoders, examples: list) -> Source:
    if len(examples) < 2:
        raise ValueError(f"{args.data} holds one image; at least two are needed, one is held out.")
    pixels = place.entry.pixels
    examples = images.check_examples(examples, encoders.text, pixels)
    stamps = [(str(f), f.stat().st_size, f.stat().st_mtime_ns, c) for f, c in examples]
    held, train = _split(examples, args.seed)

    def make(chosen: list) -> Shard:
        return images.image_shard(encoders.vq, encoders.text, chosen, pixels)

    key = fingerprint(place.stamp("tokenizer", "text"), stamps, args.seed)
    return train, held, make, key


def _from_target(args, place: Place, encoders: Encoders, options: DecodeOptions) -> Source:
    held, train = _own_samples(args, place, encoders.text)
    fast = []  # the copy that draws, made when it is first needed

    def make(chosen: list) -> Shard:
        if not fast:
            fast.append(sampling_copy(encoders.target))
        return sample_shard(fast[0], encoders.text, chosen, options, args.sample_batch)

    key = fingerprint(place.stamp("target", "text"), options.to_dict(), held, train)
    return train, held, make, key


def _read_prompts(args, place: Place, text) -> tuple[list[str], list[str]]:
    """Prompts to draw for training and for the held-out samples."""
    if args.prompts:
        try:
            lines = args.prompts.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{args.prompts} is missing; give --prompts a text file, one prompt a line."
            ) from None
        except UnicodeDecodeError:
            raise ValueError(f"{args.prompts} is not UTF-8 text.") from None
        prompts = []
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    prompts.append(text.check(line))
                except ValueError as error:
                    raise ValueError(f"{args.prompts}, line {number}: {error}") from None
        if not prompts:
            raise ValueError(f"{args.prompts} holds no prompt; write one a line.")
    elif place.name == "emoji-128":
        concepts = read_concepts(core_only=args.core)
        return tuple(
            sample_captions(concepts, args.samples, args.seed, held_out) for held_out in (0, 1)
        )
    else:
        prompts = list(text.names if place.entry.by_class else place.entry.info["examples"])
    if len(prompts) < MANY_PROMPTS:
        return prompts, prompts
    held, train = _split(list(dict.fromkeys(prompts)), args.seed)
    return train, held


def _split(items: list, seed: int) -> tuple[list, list]:
    """5 % of the items, at least one, and the others, both in random order."""
    items = random.Random(seed).sample(items, len(items))
    count = max(1, round(HELD_OUT * len(items)))
    return items[:count], items[count:]


def _own_samples(args, place: Place, text) -> tuple[list, list]:
    """(prompt, seed) of the held-out images and of the training images."""
    train, held = _read_prompts(args, place, text)
    count = max(1, round(HELD_OUT * args.samples))
    items = [
        (prompts[i % len(prompts)], (args.seed * 1_000_003 + number) % (MAX_SEED + 1))
        for prompts, numbers in (
            (held, range(count)),
            (train, range(count, args.samples)),
        )
        for i, number in enumerate(numbers)
    ]
    return items[:count], items[count:]
