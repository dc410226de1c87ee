"""Prompt -> trace -> image: everything a caller needs, behind one object."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from lantern import checkpoints, formats
from lantern.config import (
    ALL_MODES,
    DecodeOptions,
    TreeShape,
    config_from_dict,
    read_json,
)
from lantern.decode import Decoder
from lantern.models.text import ClassNames, TextEncoder
from lantern.models.vq import VQModel, to_uint8
from lantern.neighbours import cached_table
from lantern.runtime import Stopwatch, default_dtype, describe, pack, pick_device
from lantern.trace import DecodeTrace, StepEvent
from lantern.tuning import Tuner

TREE = tuple(field.name for field in fields(TreeShape))


@dataclass(frozen=True)
class ModelInfo:
    """model.json: how a model presents itself. ``defaults`` are decode options that suit it."""

    title: str
    defaults: dict
    examples: tuple[str, ...] = ()

    def check(self) -> None:
        """ValueError if a default is unknown or out of range, or there is no example."""
        known = DecodeOptions().to_dict()
        unknown = sorted(set(self.defaults) - set(known))
        if unknown:
            raise ValueError(f"model.json: unknown defaults {', '.join(unknown)}.")
        if not self.examples:
            raise ValueError("model.json: examples must hold at least one prompt.")
        self.options()

    def options(self, **changes) -> DecodeOptions:
        """The model's defaults with ``changes``; what belongs to the tree goes there."""
        values = self.defaults | {k: v for k, v in changes.items() if v is not None}
        tree = {name: values.pop(name) for name in TREE if name in values}
        return DecodeOptions(**values, tree=TreeShape(**tree))


def model_info(name: str, model_dir: Path | None = None) -> ModelInfo:
    """How a model presents itself, without loading it; errors as in ``Pipeline.load``."""
    known = checkpoints.entry(name)
    if known.info:
        info = config_from_dict(ModelInfo, known.info, where=name)
    else:
        values = read_json(checkpoints.folder_of(name, model_dir) / "model.json")
        info = config_from_dict(ModelInfo, values, where="model.json")
    info.check()
    return info


class Pipeline:
    """A loaded model. Use ``load``; ``generate`` for whole images, ``stream`` to watch."""

    def __init__(
        self,
        name: str,
        info: ModelInfo,
        text: TextEncoder | ClassNames,
        decoder: Decoder,
        vq: VQModel,
    ):
        self.name, self.info = name, info
        self.text, self.decoder, self.vq = text, decoder, vq
        self._warm: set[TreeShape] = set()
        self.tuner = Tuner(self)
        self.device = decoder.target.embedding.weight.device

    @classmethod
    def load(
        cls,
        name: str = "emoji-128",
        device: str = "auto",
        *,
        dtype: torch.dtype | None = None,
        model_dir: Path | None = None,
        progress: Callable[[str], None] = lambda what: None,
    ) -> Pipeline:
        """Load a registered model, bf16 on a GPU and fp32 on a CPU unless ``dtype`` is given.

        ``progress`` is told what is being loaded. FileNotFoundError or ValueError say what is
        missing or wrong.
        """
        where = pick_device(device)
        dtype = dtype or default_dtype(where)
        known = checkpoints.entry(name)
        problem = checkpoints.unavailable(name, model_dir)
        if problem:
            raise FileNotFoundError(problem)
        info = model_info(name, model_dir)
        parts = {part: checkpoints.find(name, part, model_dir) for part in known.parts}
        progress("target")
        target = formats.load_target(parts["target"], known.grid, dtype).to(where)
        config = target.config
        progress("drafter")
        drafter = None
        if parts["drafter"]:
            drafter = formats.load_drafter(parts["drafter"], config, dtype).to(where)
        progress("tokenizer")
        vq = formats.load_vq(parts["tokenizer"]).to(where)
        if vq.config.codebook_size != config.vocab_size:
            raise ValueError(
                f"{name}: the tokenizer has {vq.config.codebook_size} codes but the target "
                f"{config.vocab_size}; they do not belong together."
            )
        progress("neighbour table")
        codes = vq.quantize.codes
        table = cached_table(codes, parts["tokenizer"].folder).to(where)
        progress("text encoder")
        if known.by_class:
            text = ClassNames(config.classes, where)
        else:
            text = TextEncoder(parts["text"].folder, config.prefix, where, dtype)
            if text.width != config.caption_dim:
                raise ValueError(
                    f"{name}: the text encoder's vectors have {text.width} values but the target "
                    f"takes {config.caption_dim}; they do not belong together."
                )
        pack(target, drafter)
        return cls(name, info, text, Decoder(target, drafter, codes, table), vq)

    @property
    def modes(self) -> tuple[str, ...]:
        """What this model can do: without a drafter only AR."""
        return ALL_MODES if self.decoder.drafter else ("ar",)

    @property
    def grid(self) -> int:
        return self.decoder.target.config.grid

    @property
    def vocab_size(self) -> int:
        """How many codes there are to choose from."""
        return self.decoder.target.config.vocab_size

    @property
    def pixels(self) -> int:
        """Side of the image in pixels."""
        return self.grid * self.vq.config.downsample

    def options(self, **changes) -> DecodeOptions:
        """This model's default options with ``changes``."""
        return self.info.options(**changes)

    def warm_up(self, options: DecodeOptions | None = None) -> None:
        """A few steps of every mode, so that no measured run pays for the first use of a shape.
        Does nothing for a tree shape that was warmed up before."""
        options = options or self.options()
        if options.tree in self._warm:
            return
        for mode in self.modes[:3]:
            stream = self.stream(self.info.examples[0], replace(options, mode=mode))
            for _ in range(3):
                next(stream, None)  # a small image may be complete sooner
            stream.close()
        self.image([0])
        self._warm.add(options.tree)

    def stream(
        self, prompt: str, options: DecodeOptions, trace: DecodeTrace | None = None
    ) -> Iterator[StepEvent]:
        """Decode step by step. Events are appended to ``trace`` (see ``new_trace``) if given.

        ValueError if the prompt is empty or too long.
        """
        prompt = self.text.check(prompt)
        watch = Stopwatch(self.device)
        watch.start()
        caption, valid = self.text.condition(prompt)
        text_seconds = watch.lap()
        if trace is not None:
            trace.extra_seconds["text"] = text_seconds
        for event in self.decoder.stream(caption, valid, options):
            if trace is not None:
                trace.events.append(event)
            yield event

    def new_trace(self, prompt: str, options: DecodeOptions) -> DecodeTrace:
        """An empty trace for one run."""
        dtype = self.decoder.target.embedding.weight.dtype
        return DecodeTrace(
            self.name, prompt, options.to_dict(), self.grid, describe(self.device, dtype)
        )

    def generate(
        self,
        prompt: str,
        options: DecodeOptions | None = None,
        *,
        on_step: Callable[[StepEvent], None] | None = None,
        **changes,
    ) -> tuple[DecodeTrace, Image.Image]:
        """Draw one image: (trace, PIL image). ``changes`` alter the default options, for example
        mode="ar", seed=7; nodes="auto" chooses the fastest draft tree for this device."""
        auto = changes.get("nodes") == "auto"
        if auto:
            del changes["nodes"]
        options = options or self.options(**changes)
        if auto:
            options = self.tuner.choose(options)
        trace = self.new_trace(prompt, options)
        trace.options["auto_tree"] = auto
        for event in self.stream(prompt, options, trace):
            if on_step:
                on_step(event)
        self.tuner.observe(trace)
        return trace, self.finish(trace)

    def finish(self, trace: DecodeTrace) -> Image.Image:
        """Decode a complete trace's tokens to its image, with VQ time and image hash noted."""
        watch = Stopwatch(self.device)
        watch.start()
        image = self.image(trace.tokens)
        trace.extra_seconds["vq"] = watch.lap()
        trace.image_sha256 = hashlib.sha256(image.tobytes()).hexdigest()
        return image

    def forget(self) -> None:
        """Drop buffers kept for later runs: the next one starts as in a fresh process."""
        self.decoder.caches.clear()

    @torch.inference_mode()
    def image(self, tokens: list[int] | Tensor) -> Image.Image:
        """Tokens (at most grid x grid; missing ones stay blank) -> RGB image."""
        tokens = torch.as_tensor(tokens, dtype=torch.long, device=self.device)
        count = self.grid**2
        grid = torch.zeros(count, dtype=torch.long, device=self.device)
        grid[: len(tokens)] = tokens
        pixels = to_uint8(self.vq.decode(grid.view(1, self.grid, self.grid)))[0].cpu().numpy()
        if len(tokens) < count:
            side = self.vq.config.downsample
            pixels = pixels.copy()
            for cell in range(len(tokens), count):
                y, x = cell // self.grid * side, cell % self.grid * side
                pixels[y : y + side, x : x + side] = BLANK
        return Image.fromarray(pixels)


# Colour of cells that are not drawn yet.
BLANK = (128, 128, 128)


def load(name: str = "emoji-128", device: str = "auto", **options) -> Pipeline:
    """Load a model by its registry name; options as in ``Pipeline.load``."""
    return Pipeline.load(name, device, **options)
