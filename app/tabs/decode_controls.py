"""The decode controls of the Compare tab: sliders, the switch for the coupled lanes, and "More"."""

from __future__ import annotations

from dataclasses import dataclass

import gradio as gr

from app.params import BOUNDS, CHOICES, RunParams

UNUSED_DELTA = "not used by the multiplicative rule; see factor under More"


@dataclass
class DecodeControls:
    """``options``: what a model has defaults for, by name and in RunParams' order; ``switches``:
    what remains as the visitor set it, likewise."""

    options: dict
    switches: dict


def build(defaults: dict, codes: int) -> DecodeControls:
    """Lay out the controls; ``codes``: the model's vocabulary."""
    made: dict = {}

    def slider(name: str, label: str, step: float, high=None, **more) -> None:
        bound = BOUNDS[name]
        made[name] = gr.Slider(
            bound.low,
            bound.high if high is None else high,
            value=defaults[name],
            step=step,
            label=label,
            buttons=[],  # Gradio's reset knows only the defaults of the first model
            elem_id=f"lt-{name}",
            **more,
        )

    def dropdown(name: str, label: str, info: str) -> None:
        made[name] = gr.Dropdown(
            list(CHOICES[name][1]),
            value=defaults[name],
            label=label,
            info=info,
            elem_id=f"lt-{name}",
        )

    by_factor = defaults["rule"] == "multiplicative"
    slider("k", "k (neighbours)", 1)
    slider(
        "delta",
        "delta (borrowed)",
        0.01,
        interactive=not by_factor,
        info=UNUSED_DELTA if by_factor else None,
    )
    slider("temperature", "temperature", 0.05)
    slider("cfg", "CFG (guidance)", 0.1, high=10)
    coupled = gr.Checkbox(
        label="Add coupled drafting",
        info="the drafter guesses with the same noise the target draws with; still lossless",
        elem_id="lt-coupled",
    )
    with gr.Accordion("More", open=False, elem_id="lt-more"):
        dropdown("rule", "rule", "how the borrowed probability is measured")
        slider("factor", "factor", 0.1, high=20, visible=by_factor,
               info="a guess may become so many times as likely; 1 is exact")  # fmt: skip
        dropdown("pick", "pick", "which of several guesses that pass: first drafted, or nearest")
        auto = gr.Checkbox(
            label="Tune tree to this device",
            info="each lane gets the tree with the most expected tokens per second",
            elem_id="lt-auto",
        )
        slider("nodes", "tree nodes", 1)
        slider("depth", "tree depth", 1)
        slider("branch", "guesses a level", 1)
        dropdown(
            "growth", "tree growth", "dynamic follows the drafter's confidence, static does not"
        )
        slider("top_k", "top-k (0 = off)", 1, high=codes)
        slider("top_p", "top-p (1 = off)", 0.01)
    order = RunParams.names()
    controls = DecodeControls(
        {name: made[name] for name in sorted(made, key=order.index)},
        {"coupled": coupled, "auto": auto},
    )
    _wire(controls)
    return controls


def _wire(controls: DecodeControls) -> None:
    """What one choice makes of other controls."""
    options, auto = controls.options, controls.switches["auto"]
    quick = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}

    def budget(rule: str):
        by_factor = rule == "multiplicative"
        delta = gr.update(interactive=not by_factor, info=UNUSED_DELTA if by_factor else "")
        return gr.update(visible=by_factor), delta

    # Also when the rule comes with another model.
    options["rule"].change(budget, options["rule"], [options["factor"], options["delta"]], **quick)

    size = [options[name] for name in ("nodes", "depth", "branch")]
    auto.change(lambda on: [gr.update(interactive=not on)] * 3, auto, size, **quick)
