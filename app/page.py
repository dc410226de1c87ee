"""What the tabs of one page know of each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import gradio as gr
from gradio.components import Component

from app.i18n import labels_of, language_of, needs_labels, say, speaking
from app.params import sentence_case


@dataclass
class Page:
    """``tabs``: to switch between; ``inputs``: the Compare tab's controls by the name of the
    parameter, in RunParams' order; ``runs``: the component that holds the run on show;
    ``texts``: what is to be said in the visitor's language."""

    tabs: gr.Tabs
    texts: list[tuple[Component, str, Callable]] = field(default_factory=list)
    inputs: dict[str, Component] = field(default_factory=dict)
    runs: Component | None = None

    def text(self, component: Component, key: str, shape: Callable[[str], str] = str) -> None:
        """Remember that ``component`` shows ``shape(say(key))`` until something else is shown."""
        self.texts.append((component, key, shape))

    def translate(self) -> None:
        """When the page opens, say what was remembered in the visitor's language."""
        blocks = gr.context.Context.root_block
        labelled = [block for block in blocks.blocks.values() if labels_of(block)]

        def speak(request: gr.Request):
            with speaking(language_of(request)):
                texts = [shape(say(key)) for _, key, shape in self.texts]
                labels = [gr.update(**labels_of(block)) for block in labelled]
            # They are English already, and the browser has other labels by itself.
            stay = language_of(request) == "en"
            return [
                *([gr.skip()] * len(texts) if stay else texts),
                *(labels if needs_labels(request) else [gr.skip()] * len(labels)),
            ]

        blocks.load(
            speak, None, [*(component for component, _, _ in self.texts), *labelled], queue=False,
            show_progress="hidden", api_visibility="private",
        )  # fmt: skip


def refusal(title: str, text: str) -> gr.Error:
    """What a handler raises when it cannot do what was asked: one sentence, no traceback."""
    return gr.Error(sentence_case(text), title=title, print_exception=False)


def hint(text: str) -> str:
    """HTML of what stands in an empty panel."""
    return f'<div class="lt-hint">{text}</div>'
