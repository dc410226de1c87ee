"""Inspector: the passes of a lane with their draft trees, and single tokens from inside."""

from __future__ import annotations

from collections.abc import Callable

from app.components.page_part import PagePart


class Inspector(PagePart):
    """Fed by the token map in the browser. ``look``: server function that asks the model about one
    token (app.inspection)."""

    def __init__(self, look: Callable, **kwargs):
        super().__init__(
            "inspector", texts="look.", scripts=("draft_tree",), server_functions=[look], **kwargs
        )
