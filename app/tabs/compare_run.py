"""A Compare run on the page: the studio's snapshots of a job become updates of components."""

from __future__ import annotations

import dataclasses
import html
import logging
from dataclasses import dataclass

import gradio as gr

from app.components.token_map import TokenMap
from app.figures import accepted_length_histogram
from app.i18n import say
from app.jobs import (
    DONE,
    FAILED,
    LOADING,
    MEASURING,
    QUEUED,
    RUNNING,
    STOPPED,
    Job,
    QueueFull,
)
from app.page import refusal
from app.params import RunParams
from app.payload import Run, signed, to_payload
from app.recorded import Recording
from app.studio import Studio
from app.summary import TITLES, empty_card, lane_card, no_drafter_card, sentence
from lantern import checkpoints
from lantern.pipeline import model_info

log = logging.getLogger("lantern.compare")

POLL_SECONDS = 0.3


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
    recordings: gr.Dropdown

    @property
    def lanes(self) -> list:
        """What shows results."""
        return [
            *self.images.values(), *self.cards.values(), self.histogram, self.token_map,
            self.sentence,
        ]  # fmt: skip

    @property
    def outputs(self) -> list:
        return [*self.lanes, self.status, self.menu, self.run, self.stop, self.recordings]


def empty_histogram() -> str:
    """What stands in the histogram's place before a run."""
    return f'<div class="lt-hint">{say("text.histogram.hint")}</div>'


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
    return changes | {view.histogram: empty_histogram(), view.token_map: None, view.sentence: ""}


def run(studio: Studio, view: View, values, owner: str):
    """Submit a job and turn its snapshots into output updates."""
    try:
        job = studio.submit(RunParams.from_values(*values), owner)
    except QueueFull as error:
        raise refusal(say("run.busy.title"), str(error)) from None
    except ValueError as error:  # calls that went past the validator
        raise refusal(say("run.refused.title"), str(error)) from None
    version, shown = -1, {}
    try:
        began = idle(view, job.model) | _controls(view, running=True)
        yield in_order(view.outputs, began | {view.status: status_line(say("run.starting"))})
        while not job.over:
            version = job.wait(version, POLL_SECONDS)
            yield in_order(view.outputs, _progress(studio, view, job, shown))
        yield in_order(view.outputs, _final(view, job))
    except Exception:
        # The visitor must be able to press Run again, whatever broke on the way to the page.
        log.exception("showing a run failed")
        changes = _controls(view, running=False)
        changes[view.status] = status_line(say("run.broke"), "bad")
        yield in_order(view.outputs, changes)
    finally:
        # Runs on the server's event loop when the visitor leaves: nothing but a flag.
        job.cancel.set()


def _controls(view: View, running: bool) -> dict:
    """Menus and buttons during a run and between runs."""
    return {
        view.menu: gr.Dropdown(interactive=not running),
        view.run: gr.Button(interactive=not running),
        view.stop: gr.Button(say("page.stop"), interactive=running),
        view.recordings: gr.Dropdown(interactive=not running),
    }


def _progress(studio: Studio, view: View, job: Job, shown: dict) -> dict:
    """Updates of lanes that changed since ``shown``, and the status line."""
    changes: dict = {}
    text = loading = ""
    if job.state == QUEUED:
        loading = studio.loading_for(job.owner)
        ahead = studio.ahead_of(job)
        text = loading or in_line(ahead)
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
            total = lane.trace.grid**2
            text = say("run.lane", lane=TITLES[mode], count=count, total=total)
    if text and shown.get("status") != text:
        shown["status"] = text
        changes[view.status] = status_line(text, "busy")
    return changes


def in_line(ahead: int) -> str:
    """A visitor's place in the line."""
    if not ahead:
        return say("run.starting")
    return say("run.line.one" if ahead == 1 else "run.line.many", count=ahead)


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
        view.histogram: accepted_length_histogram(drafted) if drafted else empty_histogram(),
        view.token_map: to_payload(run, params, recorded),
        view.sentence: sentence(run.traces) + _unknown(params),
    }


def _unknown(params: dict | None) -> str:
    """A hint if the model was never taught what the prompt asks for; it draws something anyway."""
    info = model_info(params["model"]) if params else None
    if not info or not info.things or info.thing_in(params["prompt"]):
        return ""
    return f'<p class="lt-hint">{say("said.unknown", count=len(info.things))}</p>'


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
    changes[view.status] = status_line(html.escape(say("run.shown", note=note)), "recorded")
    return changes | figures(view, run, recording.params, recording.about)


def _final_status(job: Job, traces: dict) -> str:
    if job.state == FAILED:
        return status_line(html.escape(job.message), "bad")
    if job.state == STOPPED:
        if not traces:
            return status_line(say("run.stopped.before"), "stopped")
        mode = list(traces)[-1]
        count, total = len(traces[mode].tokens), traces[mode].grid ** 2
        text = say("run.stopped", lane=TITLES[mode], count=count, total=total)
        return status_line(job.message + text, "stopped")
    if list(traces) == ["ar"]:
        return status_line(say("run.done.ar"), "done")
    return status_line(say({3: "run.done.three", 5: "run.done.five"}[len(traces)]), "done")
