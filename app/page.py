"""What the tabs of one page know of each other."""

from __future__ import annotations

from dataclasses import dataclass, field

import gradio as gr
from gradio.components import Component


@dataclass
class Page:
    """``tabs``: to switch between; ``inputs``: the Compare tab's controls by the name of the
    parameter, in RunParams' order; ``runs``: the component that holds the run on show."""

    tabs: gr.Tabs
    inputs: dict[str, Component] = field(default_factory=dict)
    runs: Component | None = None
