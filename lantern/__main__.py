"""Command line: python -m lantern COMMAND. Parses and validates; the work is done elsewhere.

Bad input is answered by one line on stderr and exit code 2, and nothing is written.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from pathlib import Path

from lantern.config import MODES
from lantern.training.commands import add_commands


class Parser(argparse.ArgumentParser):
    """argparse that answers bad input in one line."""

    def error(self, message: str):
        self.exit(2, f"{self.prog}: {message} (see --help)\n")


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m lantern", description="Draw images with AR, EAGLE-2, LANTERN.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)

    p = commands.add_parser("generate", help="draw one image")
    p.add_argument("prompt")
    p.add_argument("--model", default="emoji-128")
    p.add_argument("--mode", choices=MODES, default="lantern")
    p.add_argument("--seed", type=int, default=0)
    add_decoding(p)
    p.add_argument("--out", type=Path, help="write the image here (PNG)")
    p.add_argument("--json", type=Path, help="write the trace here")
    p.set_defaults(run=generate)

    p = commands.add_parser("bench", help="time the modes against each other")
    p.add_argument("--model", default="emoji-128")
    p.add_argument("--modes", default=",".join(MODES), help="comma-separated")
    p.add_argument("--prompts", type=Path, help="text file, one prompt a line")
    p.add_argument("--seeds", type=int, default=2)
    p.add_argument("--repeats", type=int, default=2)
    add_decoding(p)
    p.add_argument("--json", type=Path, help="write all figures here")
    p.set_defaults(run=bench)

    p = commands.add_parser("models", help="list the models, where they are and what is missing")
    p.set_defaults(run=models)

    add_commands(commands)
    return parser


def add_decoding(p: argparse.ArgumentParser) -> None:
    """Options that change how tokens are chosen; unset ones take the model's defaults."""
    p.add_argument("--k", type=int, help="neighbours looked at by LANTERN")
    p.add_argument("--delta", type=float, help="probability LANTERN may borrow from neighbours")
    p.add_argument("--temperature", type=float, help="0 is greedy")
    p.add_argument("--cfg", type=float, help="classifier-free guidance scale")
    p.add_argument("--top-k", type=int, help="0 switches the filter off")
    p.add_argument("--top-p", type=float, help="1 switches the filter off")
    p.add_argument("--nodes", type=int, help="draft tree nodes, root included")
    p.add_argument("--depth", type=int, help="draft tree depth")
    p.add_argument("--branch", type=int, help="candidates per tree level")
    p.add_argument("--rule", help="how the relaxation budget is measured: tvd")
    p.add_argument("--device", default="auto", help="auto, cpu or cuda")
    p.add_argument("--threads", type=int, help="CPU threads")


DECODING = (
    "k", "delta", "temperature", "cfg", "top_k", "top_p", "nodes", "depth", "branch", "rule",
)  # fmt: skip


def _writable(*paths: Path | None) -> None:
    """Refuse output paths that cannot be written before any work is done."""
    given = [path.absolute() for path in paths if path]
    for path in given:
        if path.is_dir() or not path.parent.is_dir():
            raise ValueError(f"cannot write {path}: the folder does not exist or it is a folder.")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ValueError(f"cannot write {path}: permission denied.")
    if len(set(given)) < len(given):
        raise ValueError(f"--out and --json name the same file, {given[0]}.")


def _load(args):
    """Pipeline and validated options."""
    from lantern.acceptance import rule_for
    from lantern.pipeline import Pipeline
    from lantern.runtime import set_threads

    if args.threads is not None and not 1 <= args.threads <= 256:
        raise ValueError(f"threads must be from 1 to 256, not {args.threads}.")
    set_threads(args.threads)
    pipeline = Pipeline.load(args.model, args.device)
    changes = {name: getattr(args, name) for name in DECODING}
    options = pipeline.options(**changes)
    rule_for(options)
    return pipeline, options


def generate(args) -> None:
    from dataclasses import replace

    from tqdm import tqdm

    _writable(args.out, args.json)
    pipeline, options = _load(args)
    options = replace(options, mode=args.mode, seed=args.seed)
    pipeline.text.check(args.prompt)
    pipeline.warm_up(options)
    with tqdm(total=pipeline.grid**2, unit="token", leave=False, disable=None) as bar:
        trace, image = pipeline.generate(
            args.prompt, options, on_step=lambda event: bar.update(event.accepted_length)
        )
    if args.out:
        image.save(args.out, format="PNG")
    if args.json:
        args.json.write_text(trace.to_json() + "\n", encoding="utf-8")
    print(
        f"{args.mode}: {len(trace.tokens)} tokens in {trace.steps} target passes, "
        f"{trace.seconds:.2f} s, mean accepted length {trace.mean_accepted_length:.2f}, "
        f"{100 * trace.relaxed_share:.0f} % relaxed"
    )


def bench(args) -> None:
    from lantern.bench import run_bench

    _writable(args.json)
    modes = args.modes.split(",")
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown or args.seeds < 1 or args.repeats < 1:
        raise ValueError(
            f"unknown mode {unknown[0]!r}; known are {', '.join(MODES)}."
            if unknown
            else "--seeds and --repeats must be at least 1."
        )
    prompts = None
    if args.prompts:
        try:
            lines = args.prompts.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            raise ValueError(f"{args.prompts} is not UTF-8 text.") from None
        prompts = [line.strip() for line in lines if line.strip()]
        if not prompts:
            raise ValueError(f"{args.prompts} holds no prompt; write one a line.")
    pipeline, options = _load(args)
    run_bench(pipeline, options, modes, prompts, args.seeds, args.repeats, args.json)


def models(args) -> None:
    from lantern import checkpoints

    for name, entry in checkpoints.MODELS.items():
        missing = checkpoints.missing_files(name)
        state = f"missing {', '.join(map(str, missing))}" if missing else "present"
        print(f"{name}: {entry.summary}")
        print(f"  {state}; {checkpoints.folder_of(name)}")
        print(f"  from: {entry.source}\n  licence: {entry.licence}")


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    for name, value in vars(args).items():
        if isinstance(value, float) and not math.isfinite(value):
            print(f"lantern: --{name} must be a number, not {value}.", file=sys.stderr)
            return 2
    try:
        args.run(args)
    except (ValueError, FileNotFoundError, RuntimeError, OSError) as error:
        message = " ".join(str(error).split())
        print(f"lantern: {message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("lantern: stopped.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
