"""The Sweep tab: a grid of pictures over k, delta and temperature."""

from __future__ import annotations

import base64
import dataclasses
import html

import gradio as gr

from app.components.sweep_grid import SweepGrid
from app.page import Page, refusal
from app.params import RunParams, sentence_case
from app.studio import FAILED, QUEUED, STOPPED, QueueFull, Studio
from app.sweep import checked_cells, plan_of, run, to_csv
from app.sweep_figures import heat_maps
from app.tabs.compare_run import POLL_SECONDS, status_line

ABOUT = (
    "LANTERN over a grid of k and delta, each cell against AR on the same seeds. Model, prompt, "
    "CFG, filters and draft tree are those of the Compare tab; a click on a cell takes it there."
)


def build(studio: Studio, page: Page) -> None:
    """Values to sweep, then the grid."""
    gr.Markdown(ABOUT, elem_classes="lt-prose")
    with gr.Row(elem_classes="lt-sweep-inputs"):
        ks = gr.Textbox("100, 300, 1000", label="k", elem_id="lt-sweep-k", min_width=150)
        deltas = gr.Textbox("0.1, 0.2, 0.4", label="delta", elem_id="lt-sweep-delta", min_width=150)
        taus = gr.Textbox("1", label="temperature", elem_id="lt-sweep-tau", min_width=120)
        seeds = gr.Slider(1, 4, value=1, step=1, label="seeds a cell", elem_id="lt-sweep-seeds",
                          min_width=150, buttons=[])  # fmt: skip
    with gr.Row(elem_classes="lt-buttons"):
        start = gr.Button("Sweep", variant="primary", elem_id="lt-sweep-run", min_width=120)
        stop = gr.Button("Stop", variant="stop", interactive=False, elem_id="lt-sweep-stop")
    status = gr.HTML(status_line("Ready. Press Sweep."), elem_id="lt-sweep-status")
    grid = SweepGrid(export_sweep, elem_id="lt-sweep", elem_classes="lt-panel lt-low")
    chosen = list(page.inputs.values())
    outputs = [grid, status, start, stop]

    def sweep(request: gr.Request, ks, deltas, temperatures, seeds, *values):
        """Draw one prompt with LANTERN at every k, delta and temperature, and with AR."""
        try:
            plan = plan_of(RunParams.from_values(*values), ks, deltas, temperatures, seeds)
            job = studio.submit_work(
                plan.base.model,
                request.session_hash or "api",
                lambda pipeline, job: run(pipeline, job, plan),
            )
        except (ValueError, QueueFull) as error:
            raise refusal("Sweep", str(error)) from None
        about = {"params": dataclasses.asdict(plan.base)}
        yield from _follow(studio, job, about)

    gr.on(
        [start.click],
        sweep,
        [ks, deltas, taus, seeds, *chosen],
        outputs,
        api_name="sweep",
        show_progress="hidden",
        concurrency_id="sweep",
        concurrency_limit=32,
        trigger_mode="once",
        preprocess=False,
    )

    def stop_it(request: gr.Request):
        if studio.stop(request.session_hash or "api"):
            return gr.Button("Stopping…", interactive=False)
        return gr.skip()

    stop.click(stop_it, None, stop, queue=False, api_visibility="private")

    names = ("k", "delta", "temperature")

    def take(event: gr.EventData):
        return [gr.Tabs(selected="compare"), *(getattr(event, name) for name in names)]

    grid.select(
        take, None, [page.tabs, *(page.inputs[name] for name in names)], queue=False,
        show_progress="hidden", api_visibility="private",
    )  # fmt: skip


def _follow(studio: Studio, job, about: dict):
    """Updates of grid, status and buttons while a sweep runs; what is done stays."""
    version, shown = -1, None
    try:
        yield (
            None,
            status_line("Starting …", "busy"),
            gr.Button(interactive=False),
            gr.Button("Stop", interactive=True),
        )
        while not job.over:
            version = job.wait(version, POLL_SECONDS)
            text = "Drawing …"
            if job.state == QUEUED:
                ahead = studio.ahead_of(job)
                text = f"In line: {ahead} ahead of yours." if ahead else "Starting …"
            elif job.message:
                text = html.escape(job.message)
            fresh = job.result is not shown and job.result is not None
            shown = job.result
            value = job.result | {"about": about} if fresh else gr.skip()
            yield value, status_line(text, "busy"), gr.skip(), gr.skip()
        value = job.result | {"about": about} if job.result else gr.skip()
        if job.state == FAILED:
            line = status_line(html.escape(job.message), "bad")
        elif job.state == STOPPED:
            line = status_line("Stopped. What was drawn stays.", "stopped")
        else:
            line = status_line("Done.", "done")
        yield value, line, gr.Button(interactive=True), gr.Button("Stop", interactive=False)
    finally:
        job.cancel.set()


def export_sweep(question: dict) -> dict:
    """Server function: ``{"cells": [..], "format": "csv" | "png"}`` -> ``{"url": data URL}`` or
    ``{"error": sentence}``."""
    try:
        cells = checked_cells(question.get("cells") if isinstance(question, dict) else None)
        kind = question.get("format")
        if kind == "csv":
            return {"url": _url("text/csv", to_csv(cells).encode())}
        if kind == "png":
            return {"url": _url("image/png", heat_maps(cells))}
        raise ValueError("choose a format: csv, png.")
    except ValueError as error:
        return {"error": sentence_case(str(error))}


def _url(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
