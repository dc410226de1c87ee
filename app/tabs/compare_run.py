"""A Compare run on the page: the studio's snapshots of a job become updates of components."""

from __future__ import annotations

import dataclasses
import html
import logging
from dataclasses import dataclass

import gradio as gr

from app.components.token_map import TokenMap
from app.figures import accepted_length_histogram
from app.params import RunParams
from app.payload import Run, signed, to_payload
from app.recorded import Recording
from app.studio import (
    DONE,
    FAILED,
    LOADING,
    MEASURING,
    QUEUED,
    RUNNING,
    STOPPED,
    Job,
    QueueFull,
    Studio,
)
from app.summary import TITLES, empty_card, lane_card, no_drafter_card, sentence
from lantern import checkpoints

log = logging.getLogger("lantern.compare")

POLL_SECONDS = 0.3
EMPTY_HISTOGRAM = (
    '<div class="lt-hint">Accepted lengths of EAGLE-2 and LANTERN appear here after a run.</div>'
)
READY = "Ready. Press Run."


@dataclass
class View:
    """Components a run writes to, in output order."""

    images: dict[str, gr.Image]
    cards: dict[str, gr.HTML]
    histogram: gr.HTML
    token_map: TokenMap
    sentence: gr.HTML
    status: gr.HTML
    menu: gr.Dropdown
    run: gr.Button
    stop: gr.Button

    @property
    def lanes(self) -> list:
        """What shows results."""
        return [
            *self.images.values(), *self.cards.values(), self.histogram, self.token_map,
            self.sentence,
        ]  # fmt: skip

    @property
    def outputs(self) -> list:
        return [*self.lanes, self.status, self.menu, self.run, self.stop]


def in_order(components: list, changes: dict) -> list:
    """Changes by component -> values in the order of ``components``; everything else stays."""
    return [changes.get(component, gr.skip()) for component in components]


def status_line(text: str, kind: str = "") -> str:
    """The status line; ``text`` is HTML."""
    return f'<div class="lt-status {kind}" role="status">{text}</div>'


def lane_notes(view: View, model: str, loading: str = "") -> dict:
    """Cards of empty lanes: what is being loaded or measured, or that the model cannot fill the
    lane."""
    drafts = checkpoints.find(model, "drafter") is not None
    return {
        card: empty_card(mode, loading) if drafts or mode == "ar" else no_drafter_card(mode, model)
        for mode, card in view.cards.items()
    }


def idle(view: View, model: str) -> dict:
    """All lanes as they are before a run of this model."""
    changes = dict.fromkeys(view.images.values()) | lane_notes(view, model)
    return changes | {view.histogram: EMPTY_HISTOGRAM, view.token_map: None, view.sentence: ""}


def run(studio: Studio, view: View, values, owner: str):
    """Submit a job and turn its snapshots into output updates."""
    params = RunParams.from_values(*values)
    try:
        job = studio.submit(params, owner)
    except QueueFull as error:
        raise gr.Error(str(error), title="Busy", print_exception=False) from None
    version, shown = -1, {}
    try:
        began = idle(view, job.model) | _controls(view, running=True)
        yield in_order(view.outputs, began | {view.status: status_line("Starting …")})
        while not job.over:
            version = job.wait(version, POLL_SECONDS)
            yield in_order(view.outputs, _progress(studio, view, job, shown))
        yield in_order(view.outputs, _final(view, job))
    except Exception:
        # The visitor must be able to press Run again, whatever broke on the way to the page.
        log.exception("showing a run failed")
        text = "Something went wrong while showing this run. Please run it again."
        changes = _controls(view, running=False) | {view.status: status_line(text, "bad")}
        yield in_order(view.outputs, changes)
    finally:
        # Runs on the server's event loop when the visitor leaves: nothing but a flag.
        job.cancel.set()


def _controls(view: View, running: bool) -> dict:
    """Menu and buttons during a run and between runs."""
    return {
        view.menu: gr.Dropdown(interactive=not running),
        view.run: gr.Button("Run", interactive=not running),
        view.stop: gr.Button("Stop", interactive=running),
    }


def _progress(studio: Studio, view: View, job: Job, shown: dict) -> dict:
    """Updates of lanes that changed since ``shown``, and the status line."""
    changes: dict = {}
    text = loading = ""
    if job.state == QUEUED:
        loading = studio.loading_for(job.owner)
        ahead = studio.ahead_of(job)
        runs = "1 run is" if ahead == 1 else f"{ahead} runs are"
        text = loading or (f"In line: {runs} ahead of yours." if ahead else "Starting …")
    elif job.state in (LOADING, MEASURING):
        text = loading = job.message
    if loading != shown.get("loading", ""):
        shown["loading"] = loading
        changes |= lane_notes(view, job.model, loading)
    for mode, lane in list(job.lanes.items()):
        baseline = job.lanes["ar"].trace
        count, image = len(lane.trace.tokens), lane.image
        if image is not None and shown.get(mode) is not image:
            shown[mode] = image
            changes[view.images[mode]] = image
            changes[view.cards[mode]] = lane_card(mode, lane.trace, baseline)
        if not lane.finished and job.state == RUNNING:
            text = f"{TITLES[mode]} is drawing: {count} of {lane.trace.grid**2} tokens"
    if text and shown.get("status") != text:
        shown["status"] = text
        changes[view.status] = status_line(text, "busy")
    return changes


def _final(view: View, job: Job) -> dict:
    """Everything that needs the whole run."""
    changes: dict = lane_notes(view, job.model)
    traces = {mode: lane.trace for mode, lane in job.lanes.items()}
    params = dataclasses.asdict(job.params) if job.params else None
    for mode, lane in job.lanes.items():
        if lane.image is not None:
            changes[view.images[mode]] = signed(lane.image, params, mode)
        changes[view.cards[mode]] = lane_card(mode, lane.trace, traces["ar"])
    finished = {mode: lane for mode, lane in job.lanes.items() if lane.finished}
    if "lantern" in finished or job.state == DONE:
        run = Run(
            {mode: lane.trace for mode, lane in finished.items()},
            {mode: lane.image for mode, lane in finished.items()},
        )
        changes |= figures(view, run, params)
    changes[view.status] = _final_status(job, traces)
    return changes | _controls(view, running=False)


def figures(view: View, run: Run, params: dict | None, recorded: dict | None = None) -> dict:
    """Histogram, map (which hands the run to the other parts) and sentence of complete lanes."""
    drafted = {mode: trace for mode, trace in run.traces.items() if mode != "ar"}
    return {
        view.histogram: accepted_length_histogram(drafted) if drafted else EMPTY_HISTOGRAM,
        view.token_map: to_payload(run, params, recorded),
        view.sentence: sentence(run.traces),
    }


def pictures_of(recording: Recording) -> dict:
    """The images of a recording by mode, with what reproduces them inside."""
    images = recording.run.images.items()
    return {mode: signed(image, recording.params, mode) for mode, image in images}


def shown(view: View, recording: Recording, note: str) -> dict:
    """A recording on the page, in place of a run."""
    run = recording.run
    changes = dict.fromkeys(view.images.values())
    for mode, picture in pictures_of(recording).items():
        changes[view.images[mode]] = picture
        changes[view.cards[mode]] = lane_card(mode, run.traces[mode], run.traces["ar"])
    changes[view.status] = status_line(f"{READY} Shown: {html.escape(note)}", "recorded")
    return changes | figures(view, run, recording.params, recording.about)


def _final_status(job: Job, traces: dict) -> str:
    if job.state == FAILED:
        return status_line(html.escape(job.message), "bad")
    if job.state == STOPPED:
        if not traces:
            return status_line("Stopped before the run began.", "stopped")
        mode = list(traces)[-1]
        count, total = len(traces[mode].tokens), traces[mode].grid ** 2
        return status_line(
            f"{job.message}Stopped in {TITLES[mode]} at token {count} of {total}.", "stopped"
        )
    if list(traces) == ["ar"]:
        return status_line("Done, in AR alone: this model has no drafter.", "done")
    lanes = {3: "three", 5: "five"}[len(traces)]
    return status_line(f"Done. Same seed, same luck in all {lanes} lanes.", "done")
