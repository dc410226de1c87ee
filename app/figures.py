"""Figures as SVG text, drawn by matplotlib's object API and recoloured by CSS.

Colours are written as placeholders and replaced by CSS variables, so one figure fits the light
and the dark theme.
"""

from __future__ import annotations

import io
import re
import threading

import matplotlib
from matplotlib.figure import Figure

from lantern.trace import DecodeTrace

# matplotlib keeps global settings and is not thread-safe; handlers run in many threads.
_LOCK = threading.Lock()
matplotlib.rcParams["svg.fonttype"] = "none"
matplotlib.rcParams["font.family"] = ["DejaVu Sans"]

INK, FAINT = "#010101", "#020202"
LANES = {
    "eagle2": ("EAGLE-2", "#030303", None),
    "lantern": ("LANTERN", "#040404", "////"),
}
_CSS = {
    INK: "currentColor",
    FAINT: "var(--border-color-primary)",
    "#030303": "var(--lt-eagle2)",
    "#040404": "var(--lt-lantern)",
}


def accepted_length_histogram(traces: dict[str, DecodeTrace]) -> str:
    """Share of target passes by accepted length, EAGLE-2 and LANTERN side by side, means marked."""
    longest = max(max(trace.accepted_lengths) for trace in traces.values())
    lengths = range(1, longest + 1)
    with _LOCK:
        figure = Figure(figsize=(5.2, 2.7), layout="constrained")
        axes = figure.add_subplot()
        top = 0.0
        for offset, mode in ((-0.2, "eagle2"), (0.2, "lantern")):
            name, colour, hatch = LANES[mode]
            trace = traces[mode]
            label = f"{name}, mean {trace.mean_accepted_length:.2f}"
            counts = [trace.accepted_lengths.get(length, 0) for length in lengths]
            shares = [100 * count / trace.steps for count in counts]
            top = max(top, *shares)
            axes.bar(
                [length + offset for length in lengths], shares, 0.38, color=colour, hatch=hatch,
                edgecolor=INK, linewidth=0.6, label=label,
            )  # fmt: skip
        for mode, style in (("eagle2", "--"), ("lantern", "-")):
            mean, colour = traces[mode].mean_accepted_length, LANES[mode][1]
            axes.vlines(mean, 0, 1.05 * top, color=colour, linewidth=2, linestyle=style)
        axes.set_xlim(0.4, longest + 0.6)
        axes.set_ylim(0, top * 1.22)  # room for the legend above the bars
        axes.set_xticks(list(lengths))
        axes.set_xlabel("tokens committed by one target pass", color=INK)
        axes.set_ylabel("% of passes", color=INK)
        axes.tick_params(colors=INK)
        for side, spine in axes.spines.items():
            spine.set_color(FAINT)
            spine.set_visible(side in ("left", "bottom"))
        axes.legend(frameon=False, labelcolor=INK, loc="upper center", ncols=2)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return _themed(out.getvalue(), "Histogram of accepted lengths")


def _themed(svg: str, title: str) -> str:
    svg = svg[svg.index("<svg") :]
    for colour, css in _CSS.items():
        svg = svg.replace(colour, css)
    svg = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', 'width="100%"', svg, count=1)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    return svg.replace("<svg", f'<svg class="lt-figure" role="img" aria-label="{title}"', 1)
