"""Command line: python -m lantern COMMAND. Parses and validates; the work is done elsewhere.

Bad input is answered by one line on stderr and exit code 2, and nothing is written.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from pathlib import Path

from lantern.config import ALL_MODES, MODES
from lantern.training.commands import add_commands


class Parser(argparse.ArgumentParser):
    """argparse that answers bad input in one line."""

    def error(self, message: str):
        self.exit(2, f"{self.prog}: {message} (see --help)\n")


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m lantern", description="Draw images with AR, EAGLE-2, LANTERN.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)

    p = commands.add_parser("generate", help="draw one image")
    p.add_argument("prompt", help="what to draw; a class name for class-conditional models")
    add_model(p)
    p.add_argument("--mode", choices=ALL_MODES, default="lantern")
    p.add_argument("--seed", type=int, default=0)
    add_decoding(p)
    p.add_argument("--out", type=Path, help="write the image here (PNG)")
    p.add_argument("--json", type=Path, help="write the trace here")
    p.set_defaults(run=generate)

    p = commands.add_parser("bench", help="time the modes against each other")
    add_model(p)
    p.add_argument("--modes", help=f"comma-separated; default: {','.join(MODES)}")
    p.add_argument("--prompts", type=Path, help="text file, one prompt a line")
    p.add_argument("--seeds", type=int, default=2)
    p.add_argument("--repeats", type=int, default=2)
    p.add_argument(
        "--sweep", choices=("relaxation", "temperature"),
        help="the paper's grid of k, delta and temperature; or every mode by temperature",
    )  # fmt: skip
    add_decoding(p)
    p.add_argument("--json", type=Path, help="write all figures here")
    p.set_defaults(run=bench)

    p = commands.add_parser("profile", help="what a step spends its time on, by operation")
    add_model(p)
    p.add_argument("--modes", help=f"comma-separated; default: {','.join(MODES)}")
    p.add_argument("--prompt", help="default: the model's first example")
    add_decoding(p)
    p.set_defaults(run=profile)

    p = commands.add_parser("scaling", help="cost of a step by length of the image, random weights")
    p.add_argument("--width", type=int, default=384)
    p.add_argument("--layers", type=int, default=10)
    p.add_argument("--heads", type=int, default=6)
    p.add_argument("--nodes", type=int, default=16, help="nodes of the tree that is verified")
    _hardware(p)
    p.set_defaults(run=scaling)

    p = commands.add_parser("models", help="list the models, where they are and what is missing")
    _model_dir(p)
    p.set_defaults(run=models)

    p = commands.add_parser("download", help="fetch a model's files from the hub")
    p.add_argument("name")
    _model_dir(p)
    p.set_defaults(run=download)

    p = commands.add_parser("check", help="load a model, draw one image, report what it costs")
    p.add_argument("name")
    _model_dir(p)
    _hardware(p)
    p.set_defaults(run=check)

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
    p.add_argument("--nodes", type=_nodes, help="draft tree nodes, root included, or auto")
    p.add_argument("--depth", type=int, help="draft tree depth")
    p.add_argument("--branch", type=int, help="candidates per tree level")
    p.add_argument("--tree", dest="growth", help="dynamic (by confidence) or static (one shape)")
    p.add_argument("--rule", help="how the budget is measured: tvd, jsd or multiplicative")
    p.add_argument("--factor", type=float, help="budget of the multiplicative rule, at least 1")
    p.add_argument("--pick", help="which covering child is taken: first or nearest")
    _hardware(p)


def _nodes(text: str) -> int | str:
    try:
        return text if text == "auto" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be auto or a whole number, not {text!r}") from None


def add_model(p: argparse.ArgumentParser) -> None:
    p.add_argument("--model", default="emoji-128", help="see python -m lantern models")
    _model_dir(p)


def _model_dir(p: argparse.ArgumentParser) -> None:
    p.add_argument("--model-dir", type=Path, help="folder that holds models, <folder>/<model>/...")


def _hardware(p: argparse.ArgumentParser) -> None:
    p.add_argument("--device", default="auto", help="auto, cpu or cuda")
    p.add_argument(
        "--dtype", choices=("fp32", "bf16", "int8"),
        help="default: bf16 on cuda, else fp32; int8: faster on a CPU, images change a little",
    )  # fmt: skip
    p.add_argument("--threads", type=int, help="CPU threads")
    p.add_argument(
        "--no-graphs", dest="graphs", action="store_false",
        help="on a GPU, run steps one by one instead of replaying them as CUDA graphs",
    )  # fmt: skip


MOST_RUNS = 10_000
DECODING = (
    "k", "delta", "temperature", "cfg", "top_k", "top_p", "nodes", "depth", "branch", "growth",
    "rule", "factor", "pick",
)  # fmt: skip


def _writable(*paths: Path | None) -> None:
    """Refuse output paths that cannot be written before any work is done: each is tried."""
    given = [path.absolute() for path in paths if path]
    for path in given:
        try:
            new = not path.exists()
            with path.open("ab"):
                pass
            if new:
                path.unlink()
        except OSError as error:
            raise ValueError(
                f"cannot write {path} ({error.strerror}); choose a file in a folder of yours."
            ) from None
    if len(set(given)) < len(given):
        raise ValueError(f"--out and --json name the same file, {given[0]}.")


def _pipeline(args, name: str):
    """The model on the wished device, with a progress bar over its parts."""
    from tqdm import tqdm

    from lantern.pipeline import Pipeline
    from lantern.runtime import pick_device, pick_dtype, set_threads

    _check_threads(args)
    _check_folder(args)
    set_threads(args.threads)
    dtype = pick_dtype(args.dtype, pick_device(args.device))
    with tqdm(total=5, desc=f"loading {name}", leave=False, disable=None) as bar:

        def progress(what: str) -> None:
            bar.update()
            bar.set_postfix_str(what)

        return Pipeline.load(
            name, args.device, dtype=dtype, model_dir=args.model_dir, graphs=args.graphs,
            progress=progress,
        )  # fmt: skip


def _check_threads(args) -> None:
    if args.threads is not None and not 1 <= args.threads <= 256:
        raise ValueError(f"threads must be from 1 to 256, not {args.threads}.")


def _check_folder(args) -> None:
    if args.model_dir and not args.model_dir.is_dir():
        raise ValueError(f"--model-dir {args.model_dir} is not a folder.")


def _load(args):
    """Pipeline and validated options. What the options say is wrong without any model is said
    before one is loaded."""
    from lantern import checkpoints
    from lantern.acceptance import rule_for
    from lantern.pipeline import model_info

    changes = {name: getattr(args, name) for name in (*DECODING, "mode", "seed") if name in args}
    if args.nodes == "auto":
        changes["nodes"] = None
    missing = checkpoints.unavailable(args.model, args.model_dir)
    if missing:
        raise FileNotFoundError(missing)
    rule_for(model_info(args.model, args.model_dir).options(**changes))
    pipeline = _pipeline(args, args.model)
    options = pipeline.options(**changes)
    return pipeline, options


def generate(args) -> None:
    from tqdm import tqdm

    _writable(args.out, args.json)
    pipeline, options = _load(args)
    pipeline.text.check(args.prompt)
    pipeline.warm_up(options)
    auto = {"nodes": "auto"} if args.nodes == "auto" else {}
    with tqdm(total=pipeline.grid**2, unit="token", leave=False, disable=None) as bar:
        trace, image = pipeline.generate(
            args.prompt, options, on_step=lambda event: bar.update(event.accepted_length), **auto
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
    from lantern.bench import Plan, run_bench

    _writable(args.json)
    if args.sweep and args.modes:
        raise ValueError(f"--sweep {args.sweep} has modes of its own; leave --modes out.")
    modes = _modes(args.modes)
    for name in ("seeds", "repeats"):
        if not 1 <= getattr(args, name) <= MOST_RUNS:
            raise ValueError(f"--{name} must be from 1 to {MOST_RUNS}.")
    prompts = None
    if args.prompts:
        try:
            lines = args.prompts.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            raise ValueError(f"{args.prompts} is not UTF-8 text.") from None
        except OSError as error:
            raise ValueError(
                f"cannot read {args.prompts} ({error.strerror}); give --prompts a text file, one "
                "prompt a line."
            ) from None
        prompts = [line.strip() for line in lines if line.strip()]
        if not prompts:
            raise ValueError(f"{args.prompts} holds no prompt; write one a line.")
    pipeline, options = _load(args)
    prompts = dict.fromkeys(prompts or pipeline.info.examples[:4])
    for prompt in prompts:
        pipeline.text.check(prompt)
    _can(pipeline, modes)
    run_bench(
        pipeline, options, modes, Plan(tuple(prompts), args.seeds, args.repeats), args.json,
        auto=args.nodes == "auto", sweep=args.sweep,
    )  # fmt: skip


def _modes(text: str | None) -> list[str]:
    """Modes in a comma-separated list, the three standard ones if there is none."""
    modes = list(MODES) if text is None else [mode.strip() for mode in text.split(",")]
    unknown = [mode for mode in modes if mode not in ALL_MODES]
    if unknown:
        raise ValueError(f"unknown mode {unknown[0]!r}; known are {', '.join(ALL_MODES)}.")
    return modes


def _can(pipeline, modes: list[str]) -> None:
    unable = [mode for mode in modes if mode not in pipeline.modes]
    if unable:
        raise ValueError(f"{pipeline.name} has no drafter, so it cannot run {unable[0]}; use ar.")


def profile(args) -> None:
    from lantern.profile import report

    modes = _modes(args.modes)
    pipeline, options = _load(args)
    _can(pipeline, modes)
    pipeline.warm_up(options)
    print(report(pipeline, args.prompt or pipeline.info.examples[0], options, modes))


def scaling(args) -> None:
    from lantern.runtime import pick_device, pick_dtype, set_threads
    from lantern.scaling import report

    device = pick_device(args.device)
    _check_threads(args)
    set_threads(args.threads)
    print(
        report(
            args.width, args.layers, args.heads, args.nodes, device, pick_dtype(args.dtype, device)
        )
    )


def models(args) -> None:
    from lantern import checkpoints

    _check_folder(args)
    for name, entry in checkpoints.MODELS.items():
        print(f"{name}: {entry.summary}")
        problem = checkpoints.unavailable(name, args.model_dir)
        print(f"  {problem or 'present'}")
        for part in entry.parts:
            print(f"  {part}: {_where(checkpoints, name, part, args.model_dir)}")
        print(f"  licence: {entry.licence}")


def _where(checkpoints, name: str, part: str, model_dir: Path | None) -> str:
    """One line about a part: its folder and size, or where it would come from."""
    found = checkpoints.find(name, part, model_dir)
    source = checkpoints.entry(name).parts[part][0]
    if source.layout == "classes":
        return "ImageNet class names, built in"
    if found:
        size = sum(path.stat().st_size for path in found.paths)
        return f"{found.folder} ({size / 1e9:.2f} GB)"
    absent = ", ".join(checkpoints.missing(name, part, model_dir))
    if source.repo:
        return f"missing {absent}; from {source.repo} ({source.gigabytes:.1f} GB)"
    if part in checkpoints.entry(name).optional:
        return f"none; train one with python -m lantern train-drafter --model {name}"
    return f"missing {absent}; ships with this repository"


def download(args) -> None:
    from lantern import checkpoints

    checkpoints.download(args.name, args.model_dir)
    print(checkpoints.unavailable(args.name, args.model_dir) or f"{args.name} is complete.")


def check(args) -> None:
    from lantern.check import report

    print(report(_pipeline(args, args.name)))


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    for name, value in vars(args).items():
        if isinstance(value, float) and not math.isfinite(value):
            print(f"lantern: --{name} must be a number, not {value}.", file=sys.stderr)
            return 2
    try:
        args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, head for example, has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  nothing more can be said to it
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
