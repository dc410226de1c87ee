"""How it works: the three modes and the controls, in plain words."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

from app.page import Page
from app.studio import Studio

TEXT = Path(__file__).with_name("about.md").read_text(encoding="utf-8")


def build(studio: Studio, page: Page) -> None:
    """Static text."""
    gr.Markdown(TEXT, elem_classes="lt-prose")
