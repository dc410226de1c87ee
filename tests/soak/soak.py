"""Load the real app with visitors who do what visitors do: python tests/soak/soak.py.

``--minutes 10 --clients 8`` on the shipped model is the long form (``make soak``); test_soak.py
runs a short one on a tiny model. Every finished run is compared with the same run made alone.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

from app_process import serve
from visitors import Tally, Visitor, behave, crowd, run_to_the_end

from app.params import RunParams
from lantern.pipeline import model_info

SMALL = {"nodes": 6, "depth": 3, "branch": 2}  # a tree for tests of other things than trees
SETTLE = 0.25  # share of the time after which memory should not grow any more


def cases(model: str, prompts: list[str], **tree: int) -> list[dict]:
    """Inputs of a few different runs on a model, by name; ``tree`` instead of its own."""
    options = model_info(model).options().to_dict()
    values = {name: options.get(name) for name in RunParams.names()}
    values |= {"model": model, "coupled": False, "auto": False} | tree
    changes = [{}, {"temperature": 0.0}, {"nodes": 12, "depth": 4, "branch": 4}, {"k": 50}]
    return [
        values | {"prompt": prompt, "seed": i} | changes[i % len(changes)]
        for i, prompt in enumerate(prompts)
    ]


def resident(pid: int) -> float:
    """Resident memory of a process in MiB (Linux)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def folder_size(folder: Path) -> tuple[int, float]:
    """Number of files below a folder and their size in MiB."""
    sizes = []
    for file in folder.rglob("*"):
        try:
            sizes += [file.stat().st_size] if file.is_file() else []
        except FileNotFoundError:
            pass  # the app cleans up meanwhile
    return len(sizes), sum(sizes) / 2**20


def soak(runs: list[dict], seconds: float, clients: int, seed: int, **environment: str) -> dict:
    """Start the app, load it for ``seconds``, and return figures; ``wrong`` lists every promise
    that was broken."""
    with tempfile.TemporaryDirectory() as temporary:
        files = Path(temporary)
        with serve(GRADIO_TEMP_DIR=temporary, **environment) as (address, process):
            alone = [run_to_the_end(Visitor(address), values)[1] for values in runs]
            tally, memory = Tally(), []
            crowd(address, runs[0], tally)
            end = time.monotonic() + seconds
            threads = [
                threading.Thread(target=behave, args=(address, runs, alone, end, seed + i, tally))
                for i in range(clients)
            ]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                memory.append(resident(process.pid))
                time.sleep(min(1.0, seconds / 20))
                if time.monotonic() > end + 300:
                    tally.complain("a visitor hung for 300 s after the end")
                    break
            if run_to_the_end(Visitor(address), runs[0])[1] != alone[0]:
                tally.complain("the run after all others differs from the first")
            memory.append(resident(process.pid))
            count, size = folder_size(files)
    settled = memory[int(SETTLE * len(memory)) :]
    return {
        "seconds": seconds,
        "clients": clients,
        "outcomes": dict(tally.outcomes),
        "median wait s": round(median(tally.waits), 1) if tally.waits else None,
        "longest wait s": round(max(tally.waits, default=0.0), 1),
        "memory MiB": {
            "first": round(memory[0]),
            "settled": round(settled[0]),
            "most": round(max(memory)),
            "last": round(memory[-1]),
        },
        "temporary files": {"count": count, "MiB": round(size, 1)},
        "wrong": tally.wrong,
    }


def to_markdown(figures: dict, model: str) -> str:
    """The report of a soak."""
    memory, files = figures["memory MiB"], figures["temporary files"]
    lines = [
        f"{figures['clients']} visitors at once on {model} for {figures['seconds']:g} seconds.",
        "",
        "| what | times |",
        "|---|---|",
        *(f"| {what} | {n} |" for what, n in sorted(figures["outcomes"].items())),
        f"| **broken promises** | {len(figures['wrong'])} |",
        "",
        f"Wait for a result: median {figures['median wait s']} s, longest "
        f"{figures['longest wait s']} s. Memory of the app: {memory['first']} MiB at the start, "
        f"{memory['settled']} after a quarter of the time, {memory['last']} at the end, "
        f"{memory['most']} at most. Temporary files: {files['count']}, {files['MiB']} MiB.",
        *(f"* {text}" for text in figures["wrong"]),
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="emoji-128")
    args = parser.parse_args()
    examples = model_info(args.model).examples
    runs = cases(args.model, [examples[i % len(examples)] for i in range(6)])
    figures = soak(runs, 60 * args.minutes, args.clients, args.seed, LANTERN_MODEL=args.model)
    print(to_markdown(figures, args.model))
    return 1 if figures["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
