"""PagePart: a component of our own, made of NAME.html, NAME.css and NAME.js beside this file."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

from app import i18n

HERE = Path(__file__).parent


class PagePart(gr.HTML):
    """The template is constant and all text is set as text content, since Gradio interprets values
    in templates as markup. ``texts``: prefix of the part's texts; ``scripts``: further .js files
    that stand before its own."""

    def __init__(self, name: str, texts: str, scripts: tuple[str, ...] = (), **kwargs):
        code = [(HERE / f"{part}.js").read_text(encoding="utf-8") for part in (*scripts, name)]
        super().__init__(
            value=None,
            html_template=(HERE / f"{name}.html").read_text(encoding="utf-8"),
            css_template=(HERE / f"{name}.css").read_text(encoding="utf-8"),
            js_on_load="\n".join([i18n.script(texts), *code]),
            **kwargs,
        )

    def postprocess(self, value):
        return value

    def preprocess(self, payload):
        return payload

    def api_info(self) -> dict:
        return {"type": "object"}
