"""TokenMap: the image with a mark on every token. Its value is the whole run (app.payload), which
it hands to the other parts of the page."""

from __future__ import annotations

from collections.abc import Callable

from app.components.page_part import PagePart


class TokenMap(PagePart):
    """Canvas over the picture. ``measure``: server function for the layer that needs the model."""

    def __init__(self, measure: Callable, **kwargs):
        super().__init__("token_map", texts="map.", server_functions=[measure], **kwargs)
