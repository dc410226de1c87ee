"""Tour: what the page shows, in three steps."""

from __future__ import annotations

from app.components.page_part import PagePart


class Tour(PagePart):
    """A link that opens a box beside one part of the page after the other. It has no value."""

    def __init__(self, **kwargs):
        super().__init__("tour", texts="tour.", **kwargs)
