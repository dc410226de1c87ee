"""TokenMap: the image with a mark on every token. Fed with ``app.summary.map_data`` of
each lane to choose from."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

HERE = Path(__file__).parent


class TokenMap(gr.HTML):
    """Canvas over the picture. The template is constant and all text is set as text content, since
    template values would be interpreted as HTML."""

    def __init__(self, **kwargs):
        super().__init__(
            value=None,
            html_template=(HERE / "token_map.html").read_text(encoding="utf-8"),
            css_template=(HERE / "token_map.css").read_text(encoding="utf-8"),
            js_on_load=(HERE / "token_map.js").read_text(encoding="utf-8"),
            **kwargs,
        )

    def postprocess(self, value: dict | None) -> dict | None:
        return value

    def api_info(self) -> dict:
        return {"type": "object"}
