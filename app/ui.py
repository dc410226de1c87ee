"""build_demo: layout and wiring of the whole page."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

from app.components.tour import Tour
from app.page import Page
from app.studio import Studio
from app.tabs import TABS
from app.theme import CSS_FILE, theme

STAGE = Path(__file__).with_name("stage.js")
TITLE = "LANTERN: relaxed speculative decoding for images"
TAGLINE = (
    "One prompt drawn three times by one model: token by token, with exact drafts, and with drafts "
    "that near neighbours may stand in for."
)


def build_demo(studio: Studio) -> gr.Blocks:
    """The page around a studio; call ``launch(**launch_options())`` on it."""
    with gr.Blocks(
        title=TITLE, fill_width=True, analytics_enabled=False, delete_cache=(300, 3600)
    ) as demo:
        gr.Markdown(f"# {TITLE}\n{TAGLINE}", elem_classes="lt-title")
        Tour(elem_id="lt-tour")
        with gr.Tabs() as tabs:
            page = Page(tabs)
            for name, title, build in TABS:
                with gr.Tab(title, id=name):
                    build(studio, page)
    # The studio's own line is the one that counts and says so; Gradio's only has to be longer.
    return demo.queue(max_size=64, default_concurrency_limit=32)


def launch_options() -> dict:
    """Arguments of ``launch`` that every way of starting the app shares."""
    return {
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
