"""Sweeps: one prompt over values of k, delta and temperature, each cell drawn by LANTERN and
compared with AR on the same seeds."""

from __future__ import annotations

import csv
import io
import itertools
import math
from dataclasses import dataclass, replace
from statistics import mean

import numpy as np
from PIL import Image

from app.i18n import say
from app.jobs import Job
from app.params import BOUNDS, RunParams, problem
from app.payload import data_url
from lantern.columns import short
from lantern.config import MAX_SEED
from lantern.pipeline import Pipeline

MAX_IMAGES = 48  # LANTERN images of one sweep, so that others get their turn
MAX_SEEDS = 4
METRICS = ("mal", "speedup", "relaxed", "tokens_differing", "pixel_distance")


@dataclass(frozen=True)
class Plan:
    """What is drawn: every (temperature, k, delta) with every seed from ``base.seed`` on."""

    base: RunParams
    ks: tuple[int, ...]
    deltas: tuple[float, ...]
    temperatures: tuple[float, ...]
    seeds: int

    @property
    def cells(self) -> list[tuple[float, int, float]]:
        return list(itertools.product(self.temperatures, self.ks, self.deltas))

    @property
    def images(self) -> int:
        return len(self.cells) * self.seeds

    @property
    def baselines(self) -> int:
        """How many AR images they are compared with."""
        return len(self.temperatures) * self.seeds

    def check(self) -> None:
        """ValueError if it is too much or has nothing."""
        if not self.cells:
            raise ValueError(say("sweeping.nothing"))
        if isinstance(self.seeds, bool) or self.seeds not in range(1, MAX_SEEDS + 1):
            raise ValueError(say("sweeping.seeds", most=MAX_SEEDS))
        if self.base.seed + self.seeds - 1 > MAX_SEED:
            raise ValueError(say("sweeping.last", most=MAX_SEED - self.seeds + 1))
        if self.images > MAX_IMAGES:
            raise ValueError(say("sweeping.many", images=self.images, most=MAX_IMAGES))


def numbers(name: str, text) -> tuple:
    """The values in "0.1, 0.2, 0.4" for a parameter; ValueError with the range if one is wrong."""
    if not isinstance(text, str) or len(text) > 400:
        raise ValueError(say("sweeping.write", name=name))
    values = []
    for word in text.replace(";", ",").replace(" ", ",").split(","):
        if not word:
            continue
        try:
            value = float(word)
        except ValueError:
            raise ValueError(say("sweeping.word", word=repr(word[:20]), name=name)) from None
        message = problem(name, value)
        if message:
            raise ValueError(message)
        value = int(value) if BOUNDS[name].whole else value
        if value not in values:
            values.append(value)
    return tuple(values)


def run(pipeline: Pipeline, job: Job, plan: Plan) -> None:
    """Work for the studio: draw the plan, publishing ``{"done", "total", "cells", "ar"}`` after
    every image; raises Stopped through ``job.check``."""
    base, cells = plan.base, []
    baselines: dict[tuple[float, int], tuple] = {}
    total = plan.images + plan.baselines
    done = 0

    def draw(mode: str, seed: int, **changes):
        nonlocal done
        values = base.decode_changes() | changes | {"seed": seed, "mode": mode}
        options = pipeline.options(**values)
        trace, image = pipeline.generate(base.prompt, options, on_step=lambda event: job.check())
        done += 1
        return trace, image

    pipeline.text.check(base.prompt)
    pipeline.warm_up(pipeline.options(**base.decode_changes()))
    for temperature, k, delta in plan.cells:
        rows, picture = [], None
        for seed in range(base.seed, base.seed + plan.seeds):
            if (temperature, seed) not in baselines:
                baselines[temperature, seed] = draw("ar", seed, temperature=temperature)
            ar, ar_image = baselines[temperature, seed]
            trace, image = draw("lantern", seed, temperature=temperature, k=k, delta=delta)
            picture = picture or image
            rows.append(_compare(ar, ar_image, trace, image))
            cell = {"temperature": temperature, "k": k, "delta": delta, "seeds": len(rows)}
            cell |= {name: short(mean(row[name] for row in rows)) for name in METRICS}
            cell["image"] = data_url(picture)
            shown = [*cells, cell]
            first = {t: data_url(i) for (t, s), (_, i) in baselines.items() if s == base.seed}
            ar_images = [{"temperature": t, "image": url} for t, url in first.items()]
            job.update(result={"done": done, "total": total, "cells": shown, "ar": ar_images})
        cells = shown


def _compare(ar, ar_image: Image.Image, trace, image: Image.Image) -> dict[str, float]:
    differing = mean(a != b for a, b in zip(ar.tokens, trace.tokens, strict=True))
    pixels = np.abs(np.asarray(ar_image, float) - np.asarray(image, float)).mean() / 255
    return {
        "mal": trace.mean_accepted_length,
        "speedup": ar.seconds / trace.seconds,
        "relaxed": trace.relaxed_share,
        "tokens_differing": differing,
        "pixel_distance": float(pixels),
    }


COLUMNS = ("temperature", "k", "delta", "seeds", *METRICS)


def checked_cells(value) -> list[dict]:
    """Figures of cells that came back from a page. ValueError if they are none."""
    if not isinstance(value, list) or not 0 < len(value) <= MAX_IMAGES:
        raise ValueError("there is no finished cell yet.")
    cells = []
    for cell in value:
        try:
            cells.append({name: float(cell[name]) for name in COLUMNS})
        except (KeyError, TypeError, ValueError):
            raise ValueError("this is not a sweep of this page.") from None
    return cells


def to_csv(cells: list[dict]) -> str:
    """One line a cell, means over its seeds."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(COLUMNS)
    table.writerows([f"{cell[name]:g}" for name in COLUMNS] for cell in cells)
    return out.getvalue()


def plan_of(base: RunParams, ks, deltas, temperatures, seeds) -> Plan:
    """A checked plan from what a visitor wrote; ValueError in words."""
    whole = (
        isinstance(seeds, int | float)
        and not isinstance(seeds, bool)
        and math.isfinite(seeds)
        and seeds == int(seeds)
    )
    plan = Plan(
        replace(base, coupled=False, auto=False), numbers("k", ks), numbers("delta", deltas),
        numbers("temperature", temperatures), int(seeds) if whole else 0,
    )  # fmt: skip
    plan.check()
    return plan
