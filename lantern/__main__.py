"""Command line: python -m lantern COMMAND. Parses and validates; the work is done elsewhere."""

from __future__ import annotations

import argparse
from pathlib import Path

def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m lantern")
    commands = parser.add_subparsers(dest="command", required=True)
    p = commands.add_parser("build-data")
    p.add_argument("--art", type=Path, default=Path("data/art.npz"))
    p = commands.add_parser("train-tokenizer")
    p.add_argument("--art", type=Path, default=Path("data/art.npz"))
    p.add_argument("--run", type=Path, default=Path("runs/tokenizer"))
    p.add_argument("--out", type=Path, default=Path("checkpoints/emoji-128/tokenizer"))
    p.add_argument("--steps", type=int)
    p.add_argument("--minutes", type=float)
    p.add_argument("--threads", type=int, default=1)
    a = parser.parse_args(argv)
    import torch
    from lantern.training.art import build_art, load_art
    if a.command == "build-data":
        build_art(a.art)
        return
    from lantern.training.loop import Budget
    from lantern.training.tokenizer import train_tokenizer
    torch.set_num_threads(a.threads)
    train_tokenizer(load_art(a.art), a.run, a.out, Budget(a.steps, a.minutes))

main()
