"""Figures of a codebook: where its codes lie, and how far from one of them."""

from __future__ import annotations

import io

import numpy as np
from matplotlib.figure import Figure

from app.figures import FAINT, INK, LOCK, themed
from app.i18n import say

NEAR, HERE = "#040404", "#030303"  # placeholders: the lanes' amber and blue


def codebook(plane: np.ndarray, far: np.ndarray, code: int, near: list[int]) -> str:
    """SVG: all codes on their two principal components ``plane`` [V, 2], ``near`` ones marked; and
    a histogram of the distances ``far`` [V] from ``code``, with that of the last near one."""
    out = io.StringIO()
    with LOCK:
        figure = Figure(figsize=(6.4, 2.9), layout="constrained", dpi=110)
        left, right = figure.subplots(1, 2)
        left.scatter(*plane.T, s=2, color="#8a8a8a", linewidths=0, rasterized=True)
        left.scatter(
            *plane[near].T, s=9, color=NEAR, marker="D", label=say("figure.near", count=len(near))
        )
        left.scatter(
            *plane[[code]].T, s=60, color=HERE, marker="*", label=say("figure.code", code=code)
        )
        left.set_title(say("figure.components"), color=INK, fontsize=9)
        others = np.delete(far, code)
        right.hist(others, bins=60, color="#8a8a8a")
        end = say("figure.end", count=len(near))
        right.axvline(far[near[-1]], color=NEAR, linewidth=2, label=end)
        right.set_title(say("figure.distance", count=len(others)), color=INK, fontsize=9)
        right.set_xlim(left=0)
        for axes in (left, right):
            axes.tick_params(colors=INK, labelsize=7)
            for side, spine in axes.spines.items():
                spine.set_color(FAINT)
                spine.set_visible(side in ("left", "bottom"))
            axes.legend(frameon=False, labelcolor=INK, fontsize=7.5, loc="upper left")
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return themed(out.getvalue(), say("figure.where", code=code))
