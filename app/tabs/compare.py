"""The Compare tab: one prompt, three or five lanes, and what the difference was; the layout."""

from __future__ import annotations

import random

import gradio as gr

from app.animation import animate
from app.components.inspector import Inspector
from app.components.race import Race
from app.components.share_panel import SharePanel
from app.components.token_map import TokenMap
from app.export import bundle
from app.inspection import server_functions
from app.page import Page
from app.params import RunParams, problem
from app.recorded import MODEL, Recording, fingerprint, label, recordings
from app.studio import Studio
from app.summary import TITLES, empty_card
from app.tabs import decode_controls, model_menu
from app.tabs.compare_run import (
    EMPTY_HISTOGRAM,
    READY,
    View,
    in_order,
    lane_notes,
    pictures_of,
    run,
    shown,
    status_line,
)
from app.tabs.model_menu import ModelControls
from lantern.config import ALL_MODES, COUPLED, MAX_SEED
from lantern.pipeline import model_info


def build(studio: Studio, page: Page) -> None:
    """Controls on the left, lanes and figures on the right."""
    records = recordings()
    # Something to see before the first run, and where no model can run.
    first = next(iter(records.values()), None) if studio.model == MODEL else None
    with gr.Row(elem_classes="lt-compare"):
        with gr.Column(scale=0, min_width=310, elem_classes="lt-controls"):
            controls, switches, seed, run_button, stop, dice, status = _controls(studio)
            player = gr.Dropdown(
                list(records), value=None, label="Recorded runs", elem_id="lt-recordings",
                visible=bool(records),
            )  # fmt: skip
            SharePanel(bundle, elem_id="lt-share", elem_classes="lt-panel lt-low")
        with gr.Column(scale=1, min_width=340):
            view = _results(studio, status, controls.menu, run_button, stop, first)
    inputs = [
        controls.menu, controls.prompt, seed, *controls.options.values(), *switches.values()
    ]  # fmt: skip
    page.inputs = dict(zip(RunParams.names(), inputs, strict=True))
    page.runs = view.token_map
    model_menu.wire(studio, controls, view)
    _wire(studio, inputs, view, dice)
    _wire_recordings(view, player, switches["coupled"], records)
    model_menu.wire_link(studio, controls, {"seed": seed} | switches)
    if first:
        for component, value in shown(view, first, label(first, fingerprint())).items():
            if component not in view.images.values():
                component.value = component.postprocess(value)


def _controls(studio: Studio):
    menu, note = model_menu.menu(studio)
    prompt, picker = model_menu.prompt_or_class(studio)
    with gr.Row(elem_classes="lt-buttons"):
        run_button = gr.Button("Run", variant="primary", elem_id="lt-run", min_width=120)
        stop = gr.Button("Stop", variant="stop", interactive=False, elem_id="lt-stop", min_width=80)
    status = gr.HTML(status_line(READY), elem_id="lt-status")
    with gr.Row(elem_classes="lt-seed"):
        seed = gr.Number(
            value=7, label="Seed", precision=0, minimum=0, maximum=MAX_SEED, elem_id="lt-seed",
            min_width=120,
        )  # fmt: skip
        with gr.Column(min_width=110):
            dice = gr.Button("New seed", elem_id="lt-dice", size="sm")
            reset = gr.Button("Model defaults", elem_id="lt-reset", size="sm")
    defaults = model_info(studio.model).options().to_dict()
    decode = decode_controls.build(defaults, studio.vocabulary[studio.model])
    examples = model_menu.examples(studio)
    controls = ModelControls(menu, note, prompt, picker, decode.options, reset, examples)
    return controls, decode.switches, seed, run_button, stop, dice, status


def _results(
    studio: Studio, status: gr.HTML, menu: gr.Dropdown, run_button: gr.Button, stop: gr.Button,
    first: Recording | None,
) -> View:  # fmt: skip
    images, cards = {}, {}
    pictures = pictures_of(first) if first else {}
    with gr.Row(equal_height=True, elem_classes="lt-lanes"):
        for mode in ALL_MODES:
            # Style alone hides the lanes that are not asked for: at once, and without a moment in
            # which a run could write into lanes that are not on the page yet.
            added = ["lt-added"] if mode in COUPLED else []
            with gr.Column(min_width=200, elem_classes=["lt-lane", f"lt-lane-{mode}", *added]):
                images[mode] = gr.Image(
                    pictures.get(mode),
                    label=TITLES[mode],
                    format="png",
                    interactive=False,
                    height=256,
                    buttons=["download", "fullscreen"],
                    alt_text=f"Image drawn by {TITLES[mode]}",
                    elem_id=f"lt-image-{mode}",
                    elem_classes="lt-image",
                )
                cards[mode] = gr.HTML(empty_card(mode), elem_id=f"lt-card-{mode}")
    summary = gr.HTML("", elem_id="lt-sentence")
    with gr.Row(equal_height=True, elem_classes="lt-figures"):
        with gr.Column(min_width=320):
            histogram = gr.HTML(EMPTY_HISTOGRAM, elem_id="lt-histogram", elem_classes="lt-panel")
        with gr.Column(min_width=320):
            measure, look = server_functions(studio)
            token_map = TokenMap(measure, elem_id="lt-map", elem_classes="lt-panel")
    Race(animate, elem_id="lt-race", elem_classes="lt-panel lt-low")
    Inspector(look, elem_id="lt-look", elem_classes="lt-panel lt-low")
    view = View(images, cards, histogram, token_map, summary, status, menu, run_button, stop)
    for card, text in lane_notes(view, studio.model).items():
        card.value = text
    return view


def _wire(studio: Studio, inputs: list, view: View, dice: gr.Button) -> None:
    names = RunParams.names()

    def validate(*values):
        given = dict(zip(names, values, strict=True))
        problems = {name: problem(name, value) for name, value in given.items()}
        # Which prompts there are depends on the model, so a wrong model hides a wrong prompt.
        problems["prompt"] = (
            None if problems["model"] else studio.prompt_problem(given["model"], given["prompt"])
        )
        return [gr.validate(message is None, message or "") for message in problems.values()]

    def compare(
        model, prompt, seed, k, delta, temperature, cfg, top_k, top_p, nodes, depth, branch, rule,
        factor, pick, growth, coupled, auto, request: gr.Request,
    ):  # fmt: skip
        """Draw one prompt in AR, EAGLE-2 and LANTERN mode, with ``coupled`` also in the two coupled
        ones, and compare them. Models that draw classes take the name of a class as the prompt."""
        values = (
            model, prompt, seed, k, delta, temperature, cfg, top_k, top_p, nodes, depth, branch,
            rule, factor, pick, growth, coupled, auto,
        )  # fmt: skip
        yield from run(studio, view, values, request.session_hash or "api")

    # Many handlers may wait at once; the studio's single worker decides who runs.
    gr.on(
        [view.run.click, inputs[names.index("prompt")].submit],
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


def _wire_recordings(
    view: View, player: gr.Dropdown, coupled: gr.Checkbox, records: dict[str, Recording]
) -> None:
    weights = fingerprint()
    outputs = [*view.lanes, view.status, coupled]

    def play(title: str):
        if title not in records:
            return in_order(outputs, {})
        recording = records[title]
        changes = shown(view, recording, label(recording, weights))
        return in_order(outputs, changes | {coupled: recording.params["coupled"]})

    player.input(
        play, player, outputs, queue=False, show_progress="hidden", api_visibility="private"
    )
