"""The decode controls of the Compare tab: sliders, the switch for the coupled lanes, and "More"."""

from __future__ import annotations

from dataclasses import dataclass

import gradio as gr

from app.i18n import label, language_of, say, speaking
from app.params import BOUNDS, CHOICES, RunParams


@dataclass
class DecodeControls:
    """``options``: what a model has defaults for, by name and in RunParams' order; ``switches``:
    what remains as the visitor set it, likewise."""

    options: dict
    switches: dict


def build(defaults: dict, codes: int) -> DecodeControls:
    """Lay out the controls; ``codes``: the model's vocabulary."""
    made: dict = {}

    def slider(name: str, step: float, high=None, **more) -> None:
        bound = BOUNDS[name]
        made[name] = gr.Slider(
            bound.low,
            bound.high if high is None else high,
            value=defaults[name],
            step=step,
            label=label(name),
            buttons=[],  # Gradio's reset knows only the defaults of the first model
            elem_id=f"lt-{name}",
            **more,
        )

    def dropdown(name: str) -> None:
        made[name] = gr.Dropdown(
            list(CHOICES[name][1]),
            value=defaults[name],
            label=label(name),
            info=label(f"{name}.info"),
            elem_id=f"lt-{name}",
        )

    by_factor = defaults["rule"] == "multiplicative"
    slider("k", 1)
    slider(
        "delta",
        0.01,
        interactive=not by_factor,
        info=say("text.unused_delta") if by_factor else None,
    )
    slider("temperature", 0.05)
    slider("cfg", 0.1, high=10)
    coupled = gr.Checkbox(
        label=label("coupled"),
        info=label("coupled.info"),
        elem_id="lt-coupled",
    )
    with gr.Accordion(label("more"), open=False, elem_id="lt-more"):
        dropdown("rule")
        slider("factor", 0.1, high=20, visible=by_factor,
               info=label("factor.info"))  # fmt: skip
        dropdown("pick")
        auto = gr.Checkbox(
            label=label("auto"),
            info=label("auto.info"),
            elem_id="lt-auto",
        )
        slider("nodes", 1)
        slider("depth", 1)
        slider("branch", 1)
        dropdown("growth")
        slider("top_k", 1, high=codes)
        slider("top_p", 0.01)
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

    def budget(rule: str, request: gr.Request):
        by_factor = rule == "multiplicative"
        with speaking(language_of(request)):
            info = say("text.unused_delta") if by_factor else ""
        delta = gr.update(interactive=not by_factor, info=info)
        return gr.update(visible=by_factor), delta

    # Also when the rule comes with another model.
    options["rule"].change(budget, options["rule"], [options["factor"], options["delta"]], **quick)

    size = [options[name] for name in ("nodes", "depth", "branch")]
    auto.change(lambda on: [gr.update(interactive=not on)] * 3, auto, size, **quick)
