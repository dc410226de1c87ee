"""Colours, type and spacing."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

CSS_FILE = Path(__file__).with_name("style.css")


def theme() -> gr.themes.Base:
    """Warm lantern light on calm greys; only fonts every machine has."""
    return gr.themes.Base(
        primary_hue=gr.themes.colors.amber,
        secondary_hue=gr.themes.colors.sky,
        neutral_hue=gr.themes.colors.stone,
        font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
        font_mono=["ui-monospace", "Menlo", "Consolas", "monospace"],
        radius_size=gr.themes.sizes.radius_md,
        spacing_size=gr.themes.sizes.spacing_sm,
        text_size=gr.themes.sizes.text_md,
    ).set(
        body_background_fill="#faf8f5",
        body_background_fill_dark="#14120f",
        block_background_fill="#ffffff",
        block_background_fill_dark="#1e1b17",
        block_border_width="1px",
        block_shadow="none",
        block_label_background_fill="#f5f0e8",
        block_label_background_fill_dark="#2b261f",
        block_label_text_color="#44403c",
        block_label_text_color_dark="#e7e5e4",
        block_title_text_color="#292524",
        block_title_text_color_dark="#e7e5e4",
        block_info_text_color="#57534e",
        block_info_text_color_dark="#c4bfb9",
        body_text_color_subdued="#57534e",
        body_text_color_subdued_dark="#c4bfb9",
        input_placeholder_color="#6b655f",
        input_placeholder_color_dark="#a8a29e",
        button_primary_background_fill="#92400e",
        button_primary_background_fill_hover="#78350f",
        button_primary_background_fill_dark="#fbbf24",
        button_primary_background_fill_hover_dark="#fcd34d",
        button_primary_text_color="#ffffff",
        button_primary_text_color_dark="#1c1917",
        button_primary_text_color_hover_dark="#1c1917",
        button_cancel_background_fill="#e7e5e4",
        button_cancel_background_fill_dark="#3a342c",
        button_cancel_text_color="#7f1d1d",
        button_cancel_text_color_dark="#fecaca",
    )
