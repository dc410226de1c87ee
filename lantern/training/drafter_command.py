"""python -m lantern train-drafter: a drafter for any registered target, on one or many processes.

Samples come from rendered scenes (emoji-128), from a folder of captioned images or from the target
itself. Everything the user can get wrong is checked before anything is written.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from lantern import checkpoints
from lantern.checkpoints import Found
from lantern.config import DecodeOptions, config_from_dict, read_json

WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def add_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--model", help="a registered model (default: emoji-128 in --model-dir)")
    p.add_argument("--data", type=Path, help="folder of images, each with its caption in a .txt")
    p.add_argument("--samples", type=int, help="train on this many images of the target's own")
    p.add_argument("--prompts", type=Path, help="what --samples draws, one prompt a line")
    p.add_argument(
        "--scenes", type=float, default=0.0, help="share of rendered scenes beside --samples"
    )
    p.add_argument("--sample-batch", type=int, default=32, help="images drawn at once")
    p.add_argument("--lr", type=float, help="default 1e-3, for the paper's models 1e-4")
    p.add_argument("--batch", type=int, default=4, help="samples an update, in each process")
    p.add_argument("--cfg", type=float, help="default: the model's own")
    p.add_argument(
        "--drop", type=float, help="train without CFG, this share of the captions left out"
    )
    p.add_argument("--init", type=Path, help="start from the drafter in this folder")
    p.add_argument("--out", type=Path, help="folder of the drafter (default: the model's)")
    p.add_argument(
        "--report-prompts", type=int, default=3, help="held-out captions for the report, 0 for none"
    )


@dataclass(frozen=True)
class Place:
    """Where a model lies: its name, its own folder and the files of its parts."""

    name: str
    folder: Path
    parts: dict[str, Found]

    @property
    def entry(self) -> checkpoints.ModelEntry:
        return checkpoints.entry(self.name)

    def stamp(self, *parts: str) -> list:
        """Size and time of the parts' files: changes when one is replaced."""
        files = [path for part in parts for path in self.parts[part].paths]
        return [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in files]


def check_arguments(args) -> None:
    """ValueError for options that do not go together or are out of range."""
    own = args.samples is not None
    scenes = args.model in (None, "emoji-128") and (not own or args.scenes > 0)
    wrong = (
        (args.data and own, "--data and --samples exclude each other; give one of them."),
        (args.prompts and not own, "--prompts says what --samples draws; give --samples N too."),
        (own and args.samples < 2, f"--samples must be at least 2, not {args.samples}."),
        (not 0 <= args.scenes < 1, f"--scenes must be from 0 to below 1, not {args.scenes}."),
        (
            args.scenes and not (own and scenes),
            "--scenes mixes emoji-128's rendered scenes into its --samples; leave it out.",
        ),
        (
            not (args.data or own or scenes),
            f"nothing to train {args.model} on; give --data FOLDER or --samples N.",
        ),
        (
            args.drop is not None and not 0 <= args.drop <= 1,
            f"--drop must be from 0 to 1, not {args.drop}.",
        ),
        (args.lr is not None and args.lr <= 0, f"--lr must be above 0, not {args.lr}."),
        (args.report_prompts < 0, "--report-prompts must be at least 0."),
    )
    for name in ("batch", "sample_batch", "shard_size", "shards", "threads"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1.")
    for problem, message in wrong:
        if problem:
            raise ValueError(message)


def find_model(args, default: Path) -> Place:
    """The model that is trained for; FileNotFoundError says how to get it."""
    needed = ("target", "tokenizer", "text")
    name = args.model or "emoji-128"
    known = checkpoints.entry(name)
    if args.model:
        problem = checkpoints.unavailable(name, args.model_dir, optional=("drafter",))
        if problem:
            raise FileNotFoundError(problem)
        folder = checkpoints.folder_of(name, args.model_dir)
        return Place(name, folder, {p: checkpoints.find(name, p, args.model_dir) for p in needed})
    folder = args.model_dir or default
    parts = {part: checkpoints.in_folder(name, part, folder) for part in known.parts}
    absent = [path for part in needed for path in parts[part].paths if not path.is_file()]
    if absent:
        raise FileNotFoundError(f"{absent[0]} is missing; train or restore that part first.")
    return Place(name, folder, parts)


def output_folder(args, place: Place) -> Path:
    """Where the drafter goes; ValueError if a published one is in its way."""
    out = args.out or place.folder / "drafter"
    if (out / "pytorch_model.bin").exists():
        raise ValueError(
            f"{out} holds another drafter, pytorch_model.bin; move it away or give --out FOLDER."
        )
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is not a folder.")
    if args.init and not any((args.init / f).is_file() for f in WEIGHTS):
        raise FileNotFoundError(f"--init {args.init} holds no drafter ({' or '.join(WEIGHTS)}).")
    return out


def model_options(args, place: Place) -> DecodeOptions:
    """The model's default options with the wished CFG."""
    from lantern.pipeline import ModelInfo

    values = place.entry.info
    file = place.folder / "model.json"
    if not values and not file.exists():  # a new model that nobody has described yet
        return DecodeOptions(**({} if args.cfg is None else {"cfg": args.cfg}))
    info = config_from_dict(ModelInfo, values or read_json(file), where=str(file))
    return info.options(cfg=args.cfg)


def make_accelerator():
    """The engine of distributed training; RuntimeError if it is not installed."""
    import warnings

    import torch

    try:
        from accelerate import Accelerator
        from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs
    except ImportError:
        raise RuntimeError(
            "train-drafter needs accelerate; install it with pip install -r requirements-train.txt."
        ) from None
    # torch has a new name for the option that accelerate passes on.
    warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
    return Accelerator(
        cpu=not torch.cuda.is_available(),
        mixed_precision="no",  # the loss chooses its own precision
        kwargs_handlers=[
            # The rotary tables never change, and gloo does not send complex numbers.
            DistributedDataParallelKwargs(broadcast_buffers=False),
            # Encoding and the report take one process longer than the others would wait.
            InitProcessGroupKwargs(timeout=timedelta(days=1)),
        ],
    )


def run(args, default: Path, scene_shards) -> None:
    """Train, save and report. ``default`` is the folder of emoji-128; ``scene_shards``(args) gives
    training shards and the held-out shard of rendered scenes."""
    check_arguments(args)
    import torch

    from lantern import formats
    from lantern.config import DrafterConfig
    from lantern.models.text import ClassNames, TextEncoder
    from lantern.neighbours import cached_table
    from lantern.runtime import default_dtype, release_memory
    from lantern.training import drafter, drafter_report, images
    from lantern.training.drafter_samples import Encoders, collect
    from lantern.training.loop import Budget

    budget = Budget(args.steps, args.minutes)
    torch.set_num_threads(args.threads)
    place = find_model(args, default)
    out = output_folder(args, place)
    options = model_options(args, place)
    examples = images.read_folder(args.data) if args.data else []
    accelerator = make_accelerator()
    device = accelerator.device
    target = formats.load_target(place.parts["target"], place.entry.grid).to(device)
    vq = formats.load_vq(place.parts["tokenizer"]).to(device)
    if place.entry.by_class:
        text = ClassNames(target.config.classes, device)
    else:
        prefix, dtype = target.config.prefix, default_dtype(device)
        text = TextEncoder(place.parts["text"].folder, prefix, device, dtype)
    folder = args.folder or Path("runs") / (f"drafter-{args.model}" if args.model else "drafter")
    samples, held_out = collect(
        args, place, Encoders(target, vq, text), options, examples, folder, accelerator,
        scene_shards,
    )  # fmt: skip
    codes, neighbours = vq.quantize.codes, None
    if args.report_prompts and accelerator.is_main_process:
        neighbours = cached_table(codes, place.parts["tokenizer"].folder).to(device)
    del vq, text
    release_memory()

    published = place.parts["target"].source.layout != "native"
    config = DrafterConfig(
        heads=target.config.heads, mlp_width=target.config.mlp_width, own_embedding=published
    )
    finished = drafter.train_drafter(
        samples, held_out, target, folder, out, budget,
        config=config, accelerator=accelerator, cfg=options.cfg, drop=args.drop,
        batch_size=args.batch, lr=args.lr or (1e-4 if published else 1e-3), seed=args.seed,
        init=args.init,
    )  # fmt: skip
    if accelerator.is_main_process:
        rest = (codes, neighbours, held_out, options, args.report_prompts)
        untrained = drafter_report.random_drafter(config, target, args.seed)
        rows = {"random": drafter_report.measure(target, untrained, *rest)}
        with finished.averaged() as trained:
            rows["trained"] = drafter_report.measure(target, trained, *rest)
        for name, figures in rows.items():
            finished.log({"drafter": name, **figures})
        print(drafter_report.table(rows))
        print(f"saved in {out}")
    accelerator.end_training()
