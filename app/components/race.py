"""Race: the lanes of a run replayed on one clock."""

from __future__ import annotations

from collections.abc import Callable

from app.components.page_part import PagePart


class Race(PagePart):
    """Fed by the token map in the browser. ``animate``: server function that makes a file of it
    (app.animation)."""

    def __init__(self, animate: Callable, **kwargs):
        super().__init__("race", texts="race.", server_functions=[animate], **kwargs)
