"""SharePanel: link, zip, restoring from a picture, and the log of runs in the browser."""

from __future__ import annotations

from collections.abc import Callable

from app.components.page_part import PagePart


class SharePanel(PagePart):
    """Fed by the token map in the browser. ``bundle``: server function that packs a run
    (app.export). Pictures to restore from are read in the browser and never uploaded."""

    def __init__(self, bundle: Callable, **kwargs):
        super().__init__("share", texts="share.", server_functions=[bundle], **kwargs)
