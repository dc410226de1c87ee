"""Figures of a codebook: where its codes lie, and how far from one of them."""

from __future__ import annotations

import io

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from app.figures import FAINT, INK, LOCK, themed
from app.i18n import say

NEAR, HERE = "#040404", "#030303"  # placeholders: the lanes' amber and blue


def codebook(plane: np.ndarray, far: np.ndarray, code: int, near: list[int]) -> str:
    """Two SVGs: all codes on their two principal components ``plane`` [V, 2], ``near`` ones marked;
    and a histogram of the distances ``far`` [V] from ``code``, with that of the last near one."""
    with LOCK:
        figure, axes = _axes()
        axes.scatter(*plane.T, s=2, color="#8a8a8a", linewidths=0, rasterized=True)
        axes.scatter(
            *plane[near].T, s=9, color=NEAR, marker="D", label=say("figure.near", count=len(near))
        )
        axes.scatter(
            *plane[[code]].T, s=60, color=HERE, marker="*", label=say("figure.code", code=code)
        )
        places = _finish(figure, axes, say("figure.components"))
        figure, axes = _axes()
        others = np.delete(far, code)
        axes.hist(others, bins=60, color="#8a8a8a")
        end = say("figure.end", count=len(near))
        axes.axvline(far[near[-1]], color=NEAR, linewidth=2, label=end)
        axes.set_xlim(left=0)
        title = say("figure.distance", count=len(others))
        distances = _finish(figure, axes, title)
    where = say("figure.where", code=code)
    figures = themed(places, where) + themed(distances, f"{where}: {title}")
    return f'<div class="lt-two">{figures}</div>'


def _axes() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(3.6, 3.0), layout="constrained", dpi=110)
    return figure, figure.add_subplot()


def _finish(figure: Figure, axes: Axes, title: str) -> str:
    """The SVG, with its title and the legend above the data instead of on them."""
    axes.set_title(title, color=INK, fontsize=10, pad=24)
    axes.tick_params(colors=INK, labelsize=8)
    for side, spine in axes.spines.items():
        spine.set_color(FAINT)
        spine.set_visible(side in ("left", "bottom"))
    axes.legend(frameon=False, labelcolor=INK, fontsize=8.5, loc="lower center", ncols=2,
                bbox_to_anchor=(0.5, 0.98), handletextpad=0.4, columnspacing=1.2)  # fmt: skip
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return out.getvalue()
