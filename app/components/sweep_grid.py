"""SweepGrid: pictures and figures of a sweep while it grows."""

from __future__ import annotations

from collections.abc import Callable

from app.components.page_part import PagePart


class SweepGrid(PagePart):
    """Its value is what ``app.sweep.run`` publishes. A cell that is clicked sends ``select`` with
    k, delta and temperature. ``export_sweep``: server function for CSV and PNG."""

    def __init__(self, export_sweep: Callable, **kwargs):
        super().__init__("sweep_grid", texts="sweep.", server_functions=[export_sweep], **kwargs)
