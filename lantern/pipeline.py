"""Prompt -> trace -> image: everything a caller needs, behind one object."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from lantern import checkpoints, checksums, formats
from lantern.config import (
    ALL_MODES,
    MAX_SEED,
    DecodeOptions,
    TreeShape,
    config_from_dict,
    read_json,
)
from lantern.decode import Decoder
from lantern.graphs import Graphs
from lantern.models.text import ClassNames, TextEncoder
from lantern.models.vq import VQModel, to_uint8
from lantern.neighbours import cached_table
from lantern.runtime import (
    Stopwatch,
    check_dtype,
    default_dtype,
    describe,
    pack,
    pick_device,
    set_threads,
)
from lantern.trace import DecodeTrace, StepEvent
from lantern.tuning import Tuner

TREE = tuple(field.name for field in fields(TreeShape))


@dataclass(frozen=True)
class ModelInfo:
    """model.json: how a model presents itself. ``defaults`` are decode options that suit it;
    ``seeds``: one for each example that shows it well, or none; ``things``: everything it was
    taught to draw, name -> other words for it; empty if it was taught on whatever images there
    are."""

    title: str
    defaults: dict
    examples: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    things: dict = field(default_factory=dict)

    def check(self) -> None:
        """ValueError if a default is unknown or out of range, or there is no example."""
        known = DecodeOptions().to_dict()
        unknown = sorted(set(self.defaults) - set(known))
        if unknown:
            raise ValueError(f"unknown defaults {', '.join(unknown)}.")
        if not self.examples:
            raise ValueError("examples must hold at least one prompt.")
        if self.seeds and len(self.seeds) != len(self.examples):
            raise ValueError("seeds must be as many as examples, or none.")
        if not all(type(seed) is int and 0 <= seed <= MAX_SEED for seed in self.seeds):
            raise ValueError(f"seeds must be whole numbers from 0 to {MAX_SEED}.")
        if not all(isinstance(words, list) for words in self.things.values()):
            raise ValueError("things must map names to lists of other words.")
        self.options()

    def seed_of(self, prompt: str) -> int | None:
        """The seed that belongs to an example; None for any other prompt."""
        return dict(zip(self.examples, self.seeds, strict=False)).get(prompt)

    def thing_in(self, prompt: str) -> str | None:
        """The taught thing that a prompt names, in whatever word; None if there is none. The
        longest word wins: a hot dog is no dog."""
        words = [(word, name) for name, others in self.things.items() for word in (name, *others)]
        for word, name in sorted(words, key=lambda pair: -len(pair[0])):
            many = re.escape(word.removesuffix("y")) + "ies" if word.endswith("y") else ""
            forms = rf"\b({re.escape(word)}(s|es)?{'|' + many if many else ''})\b"
            if re.search(forms, prompt, re.IGNORECASE):
                return name
        return None

    def options(self, **changes) -> DecodeOptions:
        """The model's defaults with ``changes``; what belongs to the tree goes there."""
        values = self.defaults | {k: v for k, v in changes.items() if v is not None}
        tree = {name: values.pop(name) for name in TREE if name in values}
        return DecodeOptions(**values, tree=TreeShape(**tree))


def model_info(name: str, model_dir: Path | None = None) -> ModelInfo:
    """How a model presents itself, without loading it; errors as in ``Pipeline.load``."""
    known = checkpoints.entry(name)
    file = checkpoints.folder_of(name, model_dir) / "model.json"
    info = config_from_dict(ModelInfo, known.info or read_json(file), where=str(file))
    try:
        info.check()
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
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
        dtype: torch.dtype | None = None,
    ):
        self.name, self.info = name, info
        self.text, self.decoder, self.vq = text, decoder, vq
        self._warm: set[TreeShape] = set()
        self.tuner = Tuner(self)
        self.device = decoder.target.embedding.weight.device
        # What target and drafter multiply in.
        self.dtype = dtype or decoder.target.embedding.weight.dtype

    @classmethod
    def load(
        cls,
        name: str = "emoji-128",
        device: str = "auto",
        *,
        dtype: torch.dtype | None = None,
        model_dir: Path | None = None,
        graphs: bool = True,
        progress: Callable[[str], None] = lambda what: None,
    ) -> Pipeline:
        """Load a registered model, bf16 on a GPU and fp32 on a CPU unless ``dtype`` is given; int8
        (CPU only) is faster and draws slightly different images.

        ``graphs``: on a GPU, replay steps as CUDA graphs. ``progress`` is told what is being
        loaded. FileNotFoundError or ValueError say what is missing or wrong.
        """
        where = pick_device(device)
        computed = dtype or default_dtype(where)
        check_dtype(computed, where)
        dtype = torch.float32 if computed == torch.int8 else computed
        known = checkpoints.entry(name)
        problem = checkpoints.unavailable(name, model_dir)
        if problem:
            raise FileNotFoundError(problem)
        checksums.verify(checkpoints.folder_of(name, model_dir))
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
        pack(target, drafter, computed)
        decoder = Decoder(target, drafter, codes, table)
        if graphs and where.type == "cuda":
            decoder.graphs = Graphs()
        return cls(name, info, text, decoder, vq, computed)

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

    def warm_up(
        self, options: DecodeOptions | None = None, check: Callable[[], None] = lambda: None
    ) -> None:
        """A few steps of every mode, so that no measured run pays for the first use of a shape.
        Does nothing for a tree shape that was warmed up before. ``check`` is called before every
        step and may end the warm-up by raising."""
        options = options or self.options()
        if options.tree in self._warm:
            return
        for mode in self.modes[:3]:
            stream = self.stream(self.info.examples[0], replace(options, mode=mode))
            try:
                for _ in range(3):
                    check()
                    next(stream, None)  # a small image may be complete sooner
            finally:
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
        where = describe(self.device, self.dtype)
        return DecodeTrace(self.name, prompt, options.to_dict(), self.grid, where)

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
            self.warm_up(options)
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
        self.decoder.forget()

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


def load(
    name: str = "emoji-128", device: str = "auto", threads: int | None = None, **options
) -> Pipeline:
    """Load a model by its registry name; options as in ``Pipeline.load``. ``threads``: CPU threads
    of this process from now on, by default as many as the command line and the demo use, so that
    all three draw the same LANTERN image (``runtime.set_threads``)."""
    set_threads(threads)
    return Pipeline.load(name, device, **options)
