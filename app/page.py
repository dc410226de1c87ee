"""What the tabs of one page know of each other."""

from __future__ import annotations

from dataclasses import dataclass, field

import gradio as gr
from gradio.components import Component

from app.params import sentence_case


@dataclass
class Page:
    """``tabs``: to switch between; ``inputs``: the Compare tab's controls by the name of the
    parameter, in RunParams' order; ``runs``: the component that holds the run on show."""

    tabs: gr.Tabs
    inputs: dict[str, Component] = field(default_factory=dict)
    runs: Component | None = None


def refusal(title: str, text: str) -> gr.Error:
    """What a handler raises when it cannot do what was asked: one sentence, no traceback."""
    return gr.Error(sentence_case(text), title=title, print_exception=False)
