"""Heat-maps of a sweep for slides and papers."""

from __future__ import annotations

import io

from matplotlib.figure import Figure

from app.figures import LOCK

TITLES = {
    "mal": "tokens a pass (MAL)",
    "speedup": "speed, AR = 1",
    "relaxed": "relaxed share",
    "tokens_differing": "tokens unlike AR's",
}


def heat_maps(cells: list[dict]) -> bytes:
    """PNG: one row of heat-maps (k x delta) a temperature, values written in."""
    temperatures = sorted({cell["temperature"] for cell in cells})
    ks = sorted({cell["k"] for cell in cells})
    deltas = sorted({cell["delta"] for cell in cells})
    with LOCK:
        size = (3.1 * len(TITLES), 0.7 + (0.9 + 0.45 * len(ks)) * len(temperatures))
        figure = Figure(figsize=size, layout="constrained", dpi=160)
        grid = figure.subplots(len(temperatures), len(TITLES), squeeze=False)
        for row, temperature in zip(grid, temperatures, strict=True):
            here = {(c["k"], c["delta"]): c for c in cells if c["temperature"] == temperature}
            for axes, (name, title) in zip(row, TITLES.items(), strict=True):
                values = [
                    [here.get((k, d), {}).get(name, float("nan")) for d in deltas] for k in ks
                ]
                axes.imshow(values, cmap="YlOrBr", aspect="auto", alpha=0.75)
                for y, line in enumerate(values):
                    for x, value in enumerate(line):
                        text = "–" if value != value else f"{value:.2f}"
                        axes.text(x, y, text, ha="center", va="center", fontsize=9)
                axes.set_xticks(range(len(deltas)), [f"{d:g}" for d in deltas])
                axes.set_yticks(range(len(ks)), [f"{k:g}" for k in ks])
                axes.set_xlabel("delta", fontsize=8)
                axes.set_ylabel("k", fontsize=8)
                axes.tick_params(labelsize=8)
                axes.set_title(f"{title}, temperature {temperature:g}", fontsize=9)
        out = io.BytesIO()
        figure.savefig(out, format="png")
    return out.getvalue()
