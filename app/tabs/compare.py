"""The Compare tab: one prompt, three lanes, and what the difference was."""

from __future__ import annotations

import base64
import html
import io
import logging
import random
from dataclasses import dataclass

import gradio as gr

from app.components.token_map import TokenMap
from app.figures import accepted_length_histogram
from app.params import BOUNDS, RunParams, problem
from app.studio import FAILED, QUEUED, RUNNING, STOPPED, Job, QueueFull, Studio
from app.summary import TITLES, lane_card, map_data, sentence
from lantern.acceptance import RULES
from lantern.config import MAX_SEED, MODES

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
    run: gr.Button
    stop: gr.Button

    @property
    def outputs(self) -> list:
        return [
            *self.images.values(), *self.cards.values(), self.histogram, self.token_map,
            self.sentence, self.status, self.run, self.stop,
        ]  # fmt: skip


def build(studio: Studio) -> None:
    """Controls on the left, lanes and figures on the right."""
    with gr.Row(elem_classes="lt-compare"):
        with gr.Column(scale=0, min_width=310, elem_classes="lt-controls"):
            inputs, run, stop, dice, status = _controls(studio)
        with gr.Column(scale=1, min_width=340):
            view = _results(run, stop, status)
    _wire(studio, inputs, view, dice)


def _controls(studio: Studio):
    info = studio.pipeline.info
    defaults = studio.pipeline.options().to_dict()

    def slider(name: str, label: str, step: float, high=None):
        bound = BOUNDS[name]
        return gr.Slider(
            bound.low,
            bound.high if high is None else high,
            value=defaults[name],
            step=step,
            label=label,
            buttons=["reset"],
            elem_id=f"lt-{name}",
        )

    prompt = gr.Textbox(
        value=info.examples[0],
        label="Prompt",
        placeholder="a red apple on the grass",
        lines=1,
        max_lines=3,
        max_length=2000,
        elem_id="lt-prompt",
    )
    with gr.Row(elem_classes="lt-buttons"):
        run = gr.Button("Run", variant="primary", elem_id="lt-run", min_width=120)
        stop = gr.Button("Stop", variant="stop", interactive=False, elem_id="lt-stop", min_width=80)
    status = gr.HTML(_status(READY), elem_id="lt-status")
    with gr.Row(elem_classes="lt-seed"):
        seed = gr.Number(
            value=7, label="Seed", precision=0, minimum=0, maximum=MAX_SEED, elem_id="lt-seed",
            min_width=120,
        )  # fmt: skip
        dice = gr.Button("New seed", elem_id="lt-dice", min_width=110, size="sm")
    k = slider("k", "k (neighbours)", 1)
    delta = slider("delta", "delta (borrowed)", 0.01)
    temperature = slider("temperature", "temperature", 0.05)
    cfg = slider("cfg", "CFG (guidance)", 0.1, high=10)
    with gr.Accordion("More", open=False, elem_id="lt-more"):
        top_k = slider("top_k", "top-k (0 = off)", 1, high=4096)
        top_p = slider("top_p", "top-p (1 = off)", 0.01)
        nodes = slider("nodes", "tree nodes", 1)
        depth = slider("depth", "tree depth", 1)
        branch = slider("branch", "guesses a level", 1)
        rule = gr.Dropdown(
            list(RULES), value=defaults["rule"], label="rule", elem_id="lt-rule",
            info="how the borrowed probability is measured",
        )  # fmt: skip
    gr.Examples(
        [[example] for example in info.examples],
        inputs=[prompt],
        label="Examples",
        examples_per_page=12,
        api_visibility="private",
    )
    inputs = [prompt, seed, k, delta, temperature, cfg, top_k, top_p, nodes, depth, branch, rule]
    return inputs, run, stop, dice, status


def _results(run: gr.Button, stop: gr.Button, status: gr.HTML) -> View:
    images, cards = {}, {}
    with gr.Row(equal_height=True, elem_classes="lt-lanes"):
        for mode in MODES:
            with gr.Column(min_width=200, elem_classes=["lt-lane", f"lt-lane-{mode}"]):
                images[mode] = gr.Image(
                    label=TITLES[mode],
                    format="png",
                    interactive=False,
                    height=256,
                    buttons=["download", "fullscreen"],
                    alt_text=f"Image drawn by {TITLES[mode]}",
                    elem_id=f"lt-image-{mode}",
                    elem_classes="lt-image",
                )
                cards[mode] = gr.HTML(lane_card(mode, None, None), elem_id=f"lt-card-{mode}")
    summary = gr.HTML("", elem_id="lt-sentence")
    with gr.Row(elem_classes="lt-figures"):
        with gr.Column(min_width=320):
            histogram = gr.HTML(EMPTY_HISTOGRAM, elem_id="lt-histogram", elem_classes="lt-panel")
        with gr.Column(min_width=320):
            token_map = TokenMap(elem_id="lt-map", elem_classes="lt-panel")
    return View(images, cards, histogram, token_map, summary, status, run, stop)


def _wire(studio: Studio, inputs: list, view: View, dice: gr.Button) -> None:
    names = RunParams.names()

    def validate(*values):
        checks = []
        for name, value in zip(names, values, strict=True):
            message = problem(name, value)
            if name == "prompt" and message is None:
                message = _prompt_problem(studio, value)
            checks.append(gr.validate(message is None, message or ""))
        return checks

    def compare(
        prompt, seed, k, delta, temperature, cfg, top_k, top_p, nodes, depth, branch, rule,
        request: gr.Request,
    ):  # fmt: skip
        """Draw one prompt in AR, EAGLE-2 and LANTERN mode and compare them."""
        values = (
            prompt, seed, k, delta, temperature, cfg, top_k, top_p, nodes, depth, branch, rule,
        )  # fmt: skip
        yield from _run(studio, view, values, request.session_hash or "api")

    # Many handlers may wait at once; the studio's single worker decides who runs.
    gr.on(
        [view.run.click, inputs[0].submit],
        compare,
        inputs,
        view.outputs,
        api_name="compare",
        show_progress="hidden",
        concurrency_id="compare",
        concurrency_limit=32,
        trigger_mode="once",
        validator=validate,
        # Raw values: Gradio's own preprocessing would answer None or "7" with a Python error.
        preprocess=False,
    )

    def stop(request: gr.Request):
        if studio.stop(request.session_hash or "api"):
            return gr.Button("Stopping…", interactive=False)
        return gr.skip()

    view.stop.click(stop, None, view.stop, queue=False, api_visibility="private")
    dice.click(
        lambda: random.SystemRandom().randrange(100_000),
        None,
        inputs[names.index("seed")],
        queue=False,
        show_progress="hidden",
        api_visibility="private",
    )


def _prompt_problem(studio: Studio, prompt: str) -> str | None:
    try:
        studio.pipeline.text.check(prompt)
    except ValueError as error:
        return _sentence_case(str(error))
    return None


def _sentence_case(text: str) -> str:
    return text[:1].upper() + text[1:]


def _status(text: str, kind: str = "") -> str:
    return f'<div class="lt-status {kind}" role="status">{text}</div>'


def _run(studio: Studio, view: View, values, owner: str):
    """Submit a job and turn its snapshots into output updates."""
    params = RunParams.from_values(*values)
    try:
        job = studio.submit(params, owner)
    except QueueFull as error:
        raise gr.Error(str(error), title="Busy", print_exception=False) from None
    version, shown = -1, {}
    try:
        yield _cleared(view)
        while not job.over:
            version = job.wait(version, POLL_SECONDS)
            yield _outputs(view, _progress(studio, view, job, shown))
        yield _outputs(view, _final(view, job))
    except Exception:
        # The visitor must be able to press Run again, whatever broke on the way to the page.
        log.exception("showing a run failed")
        text = "Something went wrong while showing this run. Please run it again."
        yield _outputs(view, _buttons(view) | {view.status: _status(text, "bad")})
    finally:
        # Runs on the server's event loop when the visitor leaves: nothing but a flag.
        job.cancel.set()


def _outputs(view: View, changes: dict) -> list:
    """Changes by component -> values in output order; everything else stays."""
    return [changes.get(component, gr.skip()) for component in view.outputs]


def _cleared(view: View) -> list:
    changes = dict.fromkeys(view.images.values())
    changes |= {card: lane_card(mode, None, None) for mode, card in view.cards.items()}
    changes |= {view.histogram: EMPTY_HISTOGRAM, view.token_map: None, view.sentence: ""}
    changes |= {view.run: gr.Button("Run", interactive=False)}
    changes |= {view.stop: gr.Button("Stop", interactive=True)}
    return _outputs(view, changes | {view.status: _status("Starting …")})


def _progress(studio: Studio, view: View, job: Job, shown: dict) -> dict:
    """Updates of lanes that changed since ``shown``, and the status line."""
    changes: dict = {}
    text = ""
    if job.state == QUEUED:
        ahead = studio.ahead_of(job)
        runs = "1 run is" if ahead == 1 else f"{ahead} runs are"
        text = f"In line: {runs} ahead of yours." if ahead else "Starting …"
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
        changes[view.status] = _status(text, "busy")
    return changes


def _buttons(view: View) -> dict:
    """Both buttons as they are between runs."""
    return {
        view.run: gr.Button("Run", interactive=True),
        view.stop: gr.Button("Stop", interactive=False),
    }


def _final(view: View, job: Job) -> dict:
    """Everything that needs the whole run."""
    changes: dict = {}
    traces = {mode: lane.trace for mode, lane in job.lanes.items()}
    for mode, lane in job.lanes.items():
        if lane.image is not None:
            changes[view.images[mode]] = lane.image
        changes[view.cards[mode]] = lane_card(mode, lane.trace, traces["ar"])
    finished = {mode for mode, lane in job.lanes.items() if lane.finished}
    if {"eagle2", "lantern"} <= finished:
        changes[view.histogram] = accepted_length_histogram(
            {mode: traces[mode] for mode in ("eagle2", "lantern")}
        )
        lane = job.lanes["lantern"]
        changes[view.token_map] = map_data(lane.trace, _data_url(lane.image))
        changes[view.sentence] = sentence(traces)
    changes[view.status] = _final_status(job, traces)
    return changes | _buttons(view)


def _final_status(job: Job, traces: dict) -> str:
    if job.state == FAILED:
        return _status(html.escape(job.message), "bad")
    if job.state == STOPPED:
        if not traces:
            return _status("Stopped before the run began.", "stopped")
        mode = list(traces)[-1]
        count, total = len(traces[mode].tokens), traces[mode].grid ** 2
        return _status(
            f"{job.message}Stopped in {TITLES[mode]} at token {count} of {total}.", "stopped"
        )
    return _status("Done. Same seed, same luck in all three lanes.", "done")


def _data_url(image) -> str:
    out = io.BytesIO()
    image.save(out, format="PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
