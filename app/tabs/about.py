"""How it works: the three modes and the controls, in plain words."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

from app.i18n import language
from app.page import Page
from app.studio import Studio


def build(studio: Studio, page: Page) -> None:
    """Static text: about.md, about.zh.md."""
    shown = gr.Markdown(_text("en"), elem_classes=["lt-prose", "lt-about"])
    page.text(shown, "text.about", lambda _: _text(language.get()))


def _text(language: str) -> str:
    name = "about.md" if language == "en" else f"about.{language}.md"
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
