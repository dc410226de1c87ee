"""python -m lantern train-report: the curves of every training run, as one Markdown page."""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.figure import Figure

# Metric pairs that share an axis; everything else a run logs gets an axis of its own.
TOGETHER = {"held_out": "loss", "psnr": "train_psnr"}


def read_log(file: Path) -> list[dict]:
    """Lines of a log.jsonl; a half-written last line is left out."""
    lines = []
    for text in file.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return [line for line in lines if "minutes" in line]


def metrics(log: list[dict]) -> dict[str, list[str]]:
    """Axis title -> metrics drawn on it, in order of appearance."""
    names = dict.fromkeys(name for line in log for name in line)
    axes: dict[str, list[str]] = {}
    for name in names:
        if name in ("step", "minutes") or not any(
            isinstance(line.get(name), int | float) for line in log
        ):
            continue
        axes.setdefault(TOGETHER.get(name, name), []).append(name)
    return axes


def draw(log: list[dict], title: str) -> Figure:
    """One small plot per axis over training minutes."""
    axes = metrics(log)
    figure = Figure(figsize=(4.2 * max(1, len(axes)), 3), layout="constrained")
    for place, (label, names) in enumerate(axes.items(), start=1):
        plot = figure.add_subplot(1, len(axes), place)
        for name in names:
            points = [(line["minutes"], line[name]) for line in log if name in line]
            dense = len(points) > 60
            plot.plot(*zip(*points, strict=True), "-" if dense else ".-", label=name, lw=1)
        plot.set(xlabel="training minutes", title=f"{title}: {label}")
        plot.grid(alpha=0.3)
        if len(names) > 1:
            plot.legend(frameon=False)
    return figure


def write_report(runs: Path, out: Path) -> Path:
    """Curves of all runs below ``runs`` as PNG files and a page ``report.md`` in ``out``.

    ValueError if there is no run.
    """
    logs = {f.parent.name: read_log(f) for f in sorted(runs.glob("*/log.jsonl"))}
    logs = {name: log for name, log in logs.items() if log}
    if not logs:
        raise ValueError(f"{runs} holds no run with a log.jsonl; train something first.")
    out.mkdir(parents=True, exist_ok=True)
    page = ["# Training report", ""]
    for name, log in logs.items():
        draw(log, name).savefig(out / f"{name}.png", dpi=110)
        last = {k: v for line in log for k, v in line.items()}
        config = runs / name / "config.json"
        page += [
            f"## {name}",
            "",
            f"{last['step']} updates in {last['minutes']:.0f} minutes; last values: "
            + ", ".join(f"{k} {v}" for k, v in last.items() if k not in ("step", "minutes")),
            "",
            f"![{name}]({name}.png)",
            "",
        ]
        if config.exists():
            page += ["```json", config.read_text().strip(), "```", ""]
    file = out / "report.md"
    file.write_text("\n".join(page), encoding="utf-8")
    return file
