"""Prompt -> trace -> image: everything a caller needs, behind one object."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from lantern import checkpoints
from lantern.config import (
    MODES,
    DecodeOptions,
    DrafterConfig,
    ModelConfig,
    TreeShape,
    VQConfig,
    config_from_dict,
    read_json,
)
from lantern.decode import Decoder
from lantern.models.drafter import Drafter
from lantern.models.llamagen import Transformer, left_pad
from lantern.models.text import TextEncoder
from lantern.models.vq import VQModel, to_uint8
from lantern.neighbours import cached_table
from lantern.runtime import Stopwatch, describe, pack_linears, pick_device
from lantern.trace import DecodeTrace, StepEvent


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
        """The model's defaults with ``changes``; nodes, depth and branch go to the tree."""
        values = self.defaults | {k: v for k, v in changes.items() if v is not None}
        tree = {name: values.pop(name) for name in ("nodes", "depth", "branch") if name in values}
        return DecodeOptions(**values, tree=TreeShape(**tree))


class Pipeline:
    """A loaded model. Use ``load``; ``generate`` for whole images, ``stream`` to watch."""

    def __init__(
        self, name: str, info: ModelInfo, text: TextEncoder, decoder: Decoder, vq: VQModel
    ):
        self.name, self.info = name, info
        self.text, self.decoder, self.vq = text, decoder, vq
        self._warm: set[TreeShape] = set()
        self.device = decoder.target.embedding.weight.device

    @classmethod
    def load(cls, name: str = "emoji-128", device: str = "auto") -> Pipeline:
        """Load a registered model. FileNotFoundError or ValueError say what is missing or wrong."""
        where = pick_device(device)
        folder = checkpoints.folder_of(name)
        missing = checkpoints.missing_files(name)
        if missing:
            raise FileNotFoundError(
                f"model {name} is incomplete: {folder / missing[0]} is missing"
                + (f" and {len(missing) - 1} more files" if len(missing) > 1 else "")
                + "; restore them with git checkout."
            )
        info = config_from_dict(ModelInfo, read_json(folder / "model.json"), where="model.json")
        info.check()
        target_config = _config(ModelConfig, folder / "target")
        target = _module(Transformer(target_config), folder / "target", where)
        drafter_config = _config(DrafterConfig, folder / "drafter")
        drafter = _module(Drafter(drafter_config, target_config), folder / "drafter", where)
        vq = _module(VQModel(_config(VQConfig, folder / "tokenizer")), folder / "tokenizer", where)
        if vq.config.codebook_size != target_config.vocab_size:
            raise ValueError(
                f"{name}: the tokenizer has {vq.config.codebook_size} codes but the target "
                f"{target_config.vocab_size}; they do not belong together."
            )
        codes = vq.quantize.codes
        table = cached_table(codes, folder).to(where)
        text = TextEncoder(folder / "text", target_config.prefix, where)
        pack_linears(target), pack_linears(drafter)
        return cls(name, info, text, Decoder(target, drafter, codes, table), vq)

    @property
    def grid(self) -> int:
        return self.decoder.target.config.grid

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
        for mode in MODES:
            stream = self.stream("warm-up", replace(options, mode=mode))
            for _ in range(3):
                next(stream)
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
        caption, valid = left_pad(self.text.encode([prompt])[0], self.text.limit)
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
        mode="ar", seed=7."""
        options = options or self.options(**changes)
        trace = self.new_trace(prompt, options)
        for event in self.stream(prompt, options, trace):
            if on_step:
                on_step(event)
        return trace, self.finish(trace)

    def finish(self, trace: DecodeTrace) -> Image.Image:
        """Decode a complete trace's tokens to its image, with VQ time and image hash noted."""
        watch = Stopwatch(self.device)
        watch.start()
        image = self.image(trace.tokens)
        trace.extra_seconds["vq"] = watch.lap()
        trace.image_sha256 = hashlib.sha256(image.tobytes()).hexdigest()
        return image

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


def load(name: str = "emoji-128", device: str = "auto") -> Pipeline:
    """Load a model by its registry name."""
    return Pipeline.load(name, device)


def _config(cls, folder: Path):
    return config_from_dict(
        cls, read_json(folder / "config.json"), where=str(folder / "config.json")
    )


def _module(module, folder: Path, device: torch.device):
    checkpoints.load_weights(module, folder / "model.safetensors")
    return module.eval().requires_grad_(False).to(device)
