"""The Sweep tab: a grid of pictures over k, delta and temperature."""

from __future__ import annotations

import base64
import dataclasses
import html
import logging
from functools import partial

import gradio as gr

from app.components.sweep_grid import SweepGrid
from app.i18n import label, language_of, say, speaking, spoken
from app.jobs import FAILED, QUEUED, STOPPED, QueueFull
from app.page import Page, refusal
from app.params import RunParams, sentence_case
from app.studio import Studio
from app.sweep import checked_cells, plan_of, run, to_csv
from app.sweep_figures import heat_maps
from app.tabs.compare_run import POLL_SECONDS, in_line, status_line
from lantern.pipeline import model_info

log = logging.getLogger("lantern.sweep")


def build(studio: Studio, page: Page) -> None:
    """Values to sweep, then the grid."""
    page.text(gr.Markdown(say("text.sweep"), elem_classes="lt-prose"), "text.sweep")
    with gr.Row(elem_classes="lt-sweep-inputs"):
        ks = gr.Textbox("100, 300, 1000", label="k", elem_id="lt-sweep-k", min_width=150)
        deltas = gr.Textbox("0.1, 0.2, 0.4", label="delta", elem_id="lt-sweep-delta", min_width=150)
        temperature = model_info(studio.model).options().temperature
        taus = gr.Textbox(
            f"{temperature:g}",
            label=label("sweep.temperature"),
            elem_id="lt-sweep-tau",
            min_width=120,
        )
        seeds = gr.Slider(
            1, 4, value=1, step=1, label=label("sweep.seeds"), elem_id="lt-sweep-seeds",
            min_width=150, buttons=[],
        )  # fmt: skip
    with gr.Row(elem_classes="lt-buttons"):
        start = gr.Button(
            label("sweep.run"), variant="primary", elem_id="lt-sweep-run", min_width=120
        )
        stop = gr.Button(label("stop"), variant="stop", interactive=False, elem_id="lt-sweep-stop")
    status = gr.HTML(status_line(say("text.sweep.ready")), elem_id="lt-sweep-status")
    page.text(status, "text.sweep.ready", status_line)
    grid = SweepGrid(export_sweep, elem_id="lt-sweep", elem_classes="lt-panel lt-low")
    chosen = list(page.inputs.values())
    outputs = [grid, status, start, stop]

    def sweep(request: gr.Request, ks, deltas, temperatures, seeds, *values):
        """Draw one prompt with LANTERN at every k, delta and temperature, and with AR."""
        with speaking(language_of(request)):
            try:
                plan = plan_of(RunParams.from_values(*values), ks, deltas, temperatures, seeds)
                job = studio.submit_work(
                    plan.base.model,
                    request.session_hash or "api",
                    partial(run, plan=plan),
                    images=plan.images + plan.baselines,
                )
            except (ValueError, QueueFull) as error:
                raise refusal(say("sweeping.title"), str(error)) from None
        about = {"params": dataclasses.asdict(plan.base)}
        yield from spoken(language_of(request), _follow(studio, job, about))

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
            with speaking(language_of(request)):
                return gr.Button(say("run.stopping"), interactive=False)
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
        yield (None, status_line(say("run.starting"), "busy"), *_buttons(running=True))
        while not job.over:
            version = job.wait(version, POLL_SECONDS)
            text = say("run.drawing")
            if job.state == QUEUED:
                text = in_line(studio.ahead_of(job))
            elif job.message:
                text = html.escape(job.message)
            fresh = job.result is not shown and job.result is not None
            shown = job.result
            value = job.result | {"about": about} if fresh else gr.skip()
            # The buttons each time: a tab that is just being built loses what comes too early.
            stopping = job.cancel.is_set()
            yield value, status_line(text, "busy"), *_buttons(running=True, stopping=stopping)
        value = job.result | {"about": about} if job.result else gr.skip()
        if job.state == FAILED:
            line = status_line(html.escape(job.message), "bad")
        elif job.state == STOPPED:
            text = "sweeping.stopped" if job.result else "sweeping.stopped.before"
            line = status_line(say(text), "stopped")
        else:
            line = status_line(say("sweeping.done"), "done")
        yield value, line, *_buttons(running=False)
    except Exception:
        # The visitor must be able to press Sweep again, whatever broke on the way to the page.
        log.exception("showing a sweep failed")
        line = status_line(say("run.broke"), "bad")
        yield gr.skip(), line, *_buttons(running=False)
    finally:
        job.cancel.set()


def _buttons(running: bool, stopping: bool = False) -> tuple[gr.Button, gr.Button]:
    """Sweep and Stop."""
    text = say("run.stopping" if stopping else "page.stop")
    return gr.Button(interactive=not running), gr.Button(text, interactive=running and not stopping)


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
