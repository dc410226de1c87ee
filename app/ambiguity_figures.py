"""How sure the target is along an image: curves over its tokens and maps over its cells."""

from __future__ import annotations

import io

import numpy as np
from matplotlib.figure import Figure

from app.figures import FAINT, INK, LOCK, themed
from app.i18n import say
from lantern.ambiguity import PAPER, Ambiguity

# Line, colour placeholder (blue and amber of the lanes), style.
CURVES = {"top1": ("#030303", "-"), "top10": ("#040404", "--")}
MAPS = ("top1", "top10", "entropy")
WINDOW = 16


def smooth(values: np.ndarray, window: int = WINDOW) -> np.ndarray:
    """Mean over the ``window`` values around each one; fewer at the ends."""
    ones = np.ones(min(window, len(values)))
    return np.convolve(values, ones, "same") / np.convolve(np.ones(len(values)), ones, "same")


def curves(found: Ambiguity) -> str:
    """SVG: probabilities of the likeliest and the ten likeliest tokens, in drawing order, with the
    paper's means."""
    out = io.StringIO()
    with LOCK:
        figure = Figure(figsize=(5.4, 3.0), layout="constrained")
        axes = figure.add_subplot()
        for name, (colour, style) in CURVES.items():
            values = getattr(found, name).numpy()
            axes.plot(values, color=colour, linewidth=0.5, alpha=0.35)
            title, mean = say("figure." + name), f"{values.mean():.3f}"
            label = say("figure.mean", lane=title, mean=mean)
            axes.plot(smooth(values), color=colour, linewidth=2, linestyle=style, label=label)
            mean = PAPER["LlamaGen"][list(CURVES).index(name)]
            axes.axhline(mean, color=colour, linewidth=1, linestyle=":")
            axes.text(len(values), mean, f" {mean:.3f}", color=INK, va="center", fontsize=8)
        axes.set_ylim(0, 1.02)
        axes.set_xlim(0, len(values))
        axes.set_xlabel(say("figure.order"), color=INK)
        axes.set_ylabel(say("figure.probability"), color=INK)
        axes.tick_params(colors=INK)
        for side, spine in axes.spines.items():
            spine.set_color(FAINT)
            spine.set_visible(side in ("left", "bottom"))
        axes.legend(frameon=False, labelcolor=INK, loc="lower center", ncols=2,
                    bbox_to_anchor=(0.5, 1.0), fontsize="small")  # fmt: skip
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return themed(out.getvalue(), say("figure.curves"))


def maps(found: Ambiguity, grid: int) -> str:
    """SVG: the same, and the entropy, as maps over the image's cells."""
    out = io.StringIO()
    with LOCK:
        figure = Figure(figsize=(5.4, 2.0), layout="constrained")
        for axes, name in zip(figure.subplots(1, len(MAPS)), MAPS, strict=True):
            values = np.full(grid * grid, np.nan)
            measured = getattr(found, name).numpy()
            values[: len(measured)] = measured
            top = max(1.0, float(measured.max())) if name == "entropy" else 1.0
            picture = axes.imshow(values.reshape(grid, grid), cmap="YlOrBr", vmin=0, vmax=top)
            axes.set_title(say("figure." + name), color=INK, fontsize=9)
            axes.set_axis_off()
            bar = figure.colorbar(picture, ax=axes, shrink=0.8)
            bar.ax.tick_params(colors=INK, labelsize=8)
            bar.outline.set_edgecolor(FAINT)
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return themed(out.getvalue(), say("figure.maps"))
