"""Recorded runs: shown at first load and whenever no model can run, always labelled as recordings.

``python -m app.recorded`` (``make recorded``) makes them anew on this machine with the shipped
model, and the animation in the README of the first one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import sys
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from app.animation import render
from app.i18n import say
from app.params import RunParams
from app.payload import Run, from_payload, to_payload
from lantern import checkpoints

log = logging.getLogger("lantern.recorded")

ASSETS = Path(__file__).parent.parent / "assets"
FOLDER = ASSETS / "recorded"
MODEL = "emoji-128"


@dataclass(frozen=True)
class Recording:
    """A run from a file. ``params`` reproduce it; ``about``: hardware, device, dtype, torch, date
    and ``weights``, the fingerprint of the model it was made with."""

    title: str
    params: dict
    about: dict
    run: Run


def recordings(folder: Path = FOLDER) -> dict[str, Recording]:
    """All recordings by title, in the order of their files. Broken ones are left out and logged."""
    found = {}
    for file in sorted(folder.glob("*.json")):
        try:
            recording = _read(file)
        except (ValueError, KeyError, TypeError, OSError) as error:
            log.warning("recording %s is left out: %s", file.name, error)
            continue
        found[recording.title] = recording
    return found


def _read(file: Path) -> Recording:
    values = json.loads(file.read_text(encoding="utf-8"))
    names = ("hardware", "device", "dtype", "torch", "date", "weights")
    about = {name: str(values["recorded"][name]) for name in names}
    params = values["params"]
    RunParams.from_values(*(params[name] for name in RunParams.names()))
    return Recording(str(params["prompt"]), params, about, from_payload(values))


def fingerprint(model: str = MODEL) -> str:
    """Twelve hex digits of the weights that draw: target, drafter and tokenizer; "unreadable" if
    one cannot be read."""
    digest = hashlib.sha256()
    for part in ("target", "drafter", "tokenizer"):
        found = checkpoints.find(model, part)
        for path in found.paths if found else ():
            try:
                digest.update(path.read_bytes())
            except OSError:  # loading it says what is wrong with it
                return "unreadable"
    return digest.hexdigest()[:12]


def label(recording: Recording, weights: str) -> str:
    """What the page says beside a recording; ``weights``: fingerprint of the model that is here."""
    about = recording.about
    same = about["weights"] == weights
    return say("run.recorded" if same else "run.recorded.other", **about)


def record(pipeline, prompt: str, seed: int, coupled: bool = False) -> dict:
    """Draw one prompt in the standard modes, one after the other, with ``coupled`` also in the
    coupled ones: the payload of a recording."""
    options = pipeline.options().to_dict()
    chosen = {name: options.get(name) for name in RunParams.names()}
    chosen |= {"model": pipeline.name, "prompt": prompt, "seed": seed}
    params = RunParams(**chosen | {"coupled": coupled, "auto": False})
    traces, images = {}, {}
    for mode in params.modes:
        options = pipeline.options(mode=mode, **params.decode_changes())
        pipeline.warm_up(options)
        traces[mode], images[mode] = pipeline.generate(prompt, options)
    environment = traces["ar"].environment
    about = {name: environment[name] for name in ("hardware", "device", "dtype", "torch")}
    about |= {"date": date.today().isoformat(), "weights": fingerprint(pipeline.name)}
    return to_payload(Run(traces, images), asdict(params), about)


def main(argv: list[str] | None = None) -> int:
    """Write recordings of the model's examples and the README's animation."""
    import lantern

    parser = argparse.ArgumentParser(prog="python -m app.recorded", description=__doc__)
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--count", type=int, default=4, help="how many of the examples")
    parser.add_argument("--animation", type=Path, default=ASSETS / "race.webp")
    args = parser.parse_args(argv)
    pipeline = lantern.load(MODEL)
    args.out.mkdir(parents=True, exist_ok=True)
    for old in args.out.glob("*.json"):
        old.unlink()
    for number, prompt in enumerate(pipeline.info.examples[: args.count]):
        last = number == args.count - 1  # shows the coupled lanes too
        payload = record(pipeline, prompt, pipeline.info.seed_of(prompt) or 0, coupled=last)
        file = args.out / f"{number:02d}.json"
        file.write_text(json.dumps(payload, separators=(",", ":")) + "\n")
        print(f"{file}: {prompt}, {file.stat().st_size / 1024:.0f} KiB")
        if number == 0:
            args.animation.write_bytes(render(from_payload(payload), "webp", width=960))
    return 0


if __name__ == "__main__":
    sys.exit(main())
