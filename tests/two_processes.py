"""Trains a tiny drafter; run by accelerate launch in as many processes as it is told.

Usage: two_processes.py FOLDER STEPS BATCH. Every process writes its weights to FOLDER/rank-N.pt.
"""

import sys
from pathlib import Path

import torch
from test_training import tiny_shard
from tiny_decoder import TINY, make_decoder

from lantern.training import drafter
from lantern.training.drafter_command import make_accelerator
from lantern.training.loop import Budget
from lantern.training.shards import Shards


def train(folder: Path, steps: int, batch: int) -> None:
    torch.set_num_threads(1)
    accelerator = make_accelerator()
    decoder = make_decoder(config=TINY)
    shards = Shards(folder / "shards", lambda size, _: tiny_shard(size), 1, 64)
    with accelerator.main_process_first():
        shards.ensure(0)
    run = drafter.train_drafter(
        shards, tiny_shard(8), decoder.target, folder / "run", folder / "drafter",
        Budget(steps=steps), config=decoder.drafter.config, accelerator=accelerator,
        batch_size=batch, lr=3e-3,
    )  # fmt: skip
    weights = torch.nn.utils.parameters_to_vector(run.parameters).detach().clone()
    torch.save(weights, folder / f"rank-{accelerator.process_index}.pt")
    accelerator.end_training()


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
