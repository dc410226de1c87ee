"""Figures as SVG text, drawn by matplotlib's object API and recoloured by CSS.

Colours are written as placeholders and replaced by CSS variables, so one figure fits the light
and the dark theme.
"""

from __future__ import annotations

import io
import re
import threading
import warnings

import matplotlib
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple

from app.i18n import say, speaking
from app.summary import TITLES
from lantern.trace import DecodeTrace

# matplotlib keeps global settings and is not thread-safe; handlers run in many threads.
LOCK = threading.Lock()
matplotlib.rcParams["svg.fonttype"] = "none"
matplotlib.rcParams["font.family"] = ["DejaVu Sans"]
# Its glyphs are only measured, not drawn: text stays text, and the browser has the others.
warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)

INK, FAINT = "#010101", "#020202"
# Mode -> colour, hatch of the bars and style of the mean's line: any one of them tells lanes apart.
LANES = {
    "eagle2": ("#030303", None, "--"),
    "lantern": ("#040404", "////", "-"),
    "eagle2-coupled": ("#050505", "...", ":"),
    "lantern-coupled": ("#060606", "xxxx", "-."),
}
# On paper and in animations.
PRINT = {
    "ar": "#57534e",
    "eagle2": "#0369a1",
    "lantern": "#b45309",
    "eagle2-coupled": "#0f766e",
    "lantern-coupled": "#a21caf",
}
_CSS = {
    INK: "currentColor",
    FAINT: "var(--border-color-primary)",
} | {colour: f"var(--lt-{mode})" for mode, (colour, _, _) in LANES.items()}


def accepted_length_histogram(traces: dict[str, DecodeTrace]) -> str:
    """Share of target passes by accepted length, drafting modes side by side, means marked."""
    out = io.StringIO()
    with LOCK:
        figure = _histogram(traces, {mode: colour for mode, (colour, _, _) in LANES.items()}, INK)
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return themed(out.getvalue(), say("figure.lengths"))


def histogram_file(traces: dict[str, DecodeTrace], kind: str) -> bytes:
    """The same for a paper: "pdf" or "svg", on white, in English."""
    out = io.BytesIO()
    with LOCK, speaking("en"):
        figure = _histogram(traces, PRINT, "black")
        figure.savefig(out, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return out.getvalue()


def _histogram(traces: dict[str, DecodeTrace], colours: dict[str, str], ink: str) -> Figure:
    longest = max(max(trace.accepted_lengths) for trace in traces.values())
    lengths = range(1, longest + 1)
    figure = Figure(figsize=(5.2, 2.7), layout="constrained")
    axes = figure.add_subplot()
    lanes = [mode for mode in LANES if mode in traces]
    top = max(100 * max(t.accepted_lengths.values()) / t.steps for t in traces.values())
    keys, labels = [], []
    for place, mode in enumerate(lanes):
        _, hatch, style = LANES[mode]
        trace, colour = traces[mode], colours[mode]
        mean = trace.mean_accepted_length
        offset = 0.8 * ((place + 0.5) / len(lanes) - 0.5)
        shares = [100 * trace.accepted_lengths.get(n, 0) / trace.steps for n in lengths]
        bars = axes.bar(
            [length + offset for length in lengths], shares, 0.76 / len(lanes), color=colour,
            hatch=hatch, edgecolor=ink, linewidth=0.6,
        )  # fmt: skip
        line = axes.vlines(mean, 0, 1.05 * top, color=colour, linewidth=2, linestyle=style)
        keys.append((bars, line))
        labels.append(say("figure.mean", lane=TITLES[mode], mean=f"{mean:.2f}"))
    axes.set_xlim(0.4, longest + 0.6)
    axes.set_ylim(0, top * (1.42 if len(lanes) > 2 else 1.24))  # room for the legend
    axes.set_xticks(list(lengths))
    axes.set_yticks([tick for tick in axes.get_yticks() if tick <= 100])
    axes.set_xlabel(say("figure.committed"), color=ink)
    axes.set_ylabel(say("figure.share"), color=ink)
    axes.tick_params(colors=ink)
    for side, spine in axes.spines.items():
        spine.set_color(FAINT if ink == INK else ink)
        spine.set_visible(side in ("left", "bottom"))
    axes.legend(
        keys, labels, frameon=False, labelcolor=ink, loc="upper center", ncols=2,
        fontsize="small", handlelength=3.2, handler_map={tuple: HandlerTuple(ndivide=None)},
    )  # fmt: skip
    return figure


def themed(svg: str, title: str) -> str:
    """An SVG with CSS colours for the placeholders, as wide as its place, named ``title``."""
    svg = svg[svg.index("<svg") :]
    for colour, css in _CSS.items():
        svg = svg.replace(colour, css)
    svg = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', 'width="100%"', svg, count=1)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    return svg.replace("<svg", f'<svg class="lt-figure" role="img" aria-label="{title}"', 1)
