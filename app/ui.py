"""build_demo: layout and wiring of the whole page."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

from app.components.tour import Tour
from app.i18n import browser_texts, label, say
from app.page import Page
from app.studio import Studio
from app.tabs import TABS
from app.theme import CSS_FILE, theme

STAGE = Path(__file__).with_name("stage.js")


def build_demo(studio: Studio) -> gr.Blocks:
    """The page around a studio; call ``launch(**launch_options())`` on it."""
    with gr.Blocks(
        title=say("text.title"), fill_width=True, analytics_enabled=False, delete_cache=(300, 3600)
    ) as demo:
        with gr.Row(elem_classes="lt-top"):
            heading = gr.Markdown(_heading(say("text.tagline")), elem_classes="lt-title")
            Tour(elem_id="lt-tour")
        with gr.Tabs() as tabs:
            page = Page(tabs)
            page.text(heading, "text.tagline", _heading)
            for name, build in TABS:
                with gr.Tab(label(f"tab.{name}"), id=name):
                    build(studio, page)
        page.translate()
    # The studio's own line is the one that counts and says so; Gradio's only has to be longer.
    return demo.queue(max_size=64, default_concurrency_limit=32)


def _heading(tagline: str) -> str:
    return f"# {say('text.title')}\n{tagline}"


def launch_options() -> dict:
    """Arguments of ``launch`` that every way of starting the app shares."""
    return {
        "i18n": browser_texts(),
        "theme": theme(),
        "css_paths": [CSS_FILE],
        "js": STAGE.read_text(encoding="utf-8"),
        "footer_links": ["api", "settings"],
        "run_history": False,
        "enable_monitoring": False,
        "ssr_mode": False,
        "show_error": True,
        "max_file_size": "5mb",
    }
