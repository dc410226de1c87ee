"""The Compare tab: one prompt, three or five lanes, and what the difference was; the layout."""

from __future__ import annotations

import html
import random

import gradio as gr

from app.animation import animate
from app.components.inspector import Inspector
from app.components.race import Race
from app.components.share_panel import SharePanel
from app.components.token_map import TokenMap
from app.export import bundle
from app.i18n import label, language_of, say, speaking, spoken
from app.inspection import server_functions
from app.page import Page
from app.params import RunParams, problem
from app.recorded import MODEL, Recording, fingerprint, recordings
from app.recorded import label as named
from app.studio import Studio
from app.summary import TITLES, empty_card
from app.tabs import decode_controls, model_menu
from app.tabs.compare_run import (
    View,
    empty_histogram,
    idle,
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
    own = studio.model == MODEL or studio.problem
    first = next(iter(records.values()), None) if own else None
    with gr.Row(elem_classes="lt-compare"):
        with gr.Column(scale=0, min_width=310, elem_classes="lt-controls"):
            controls, switches, run_button, stop, dice, status = _controls(studio)
            player = gr.Dropdown(
                list(records), value=None, label=label("recordings"), elem_id="lt-recordings",
                visible=bool(records),
            )  # fmt: skip
            SharePanel(bundle, elem_id="lt-share", elem_classes="lt-panel lt-low")
        with gr.Column(scale=1, min_width=340):
            view = _results(studio, status, controls.menu, run_button, stop, player, first)
    inputs = [
        controls.menu, controls.prompt, controls.seed, *controls.options.values(),
        *switches.values(),
    ]  # fmt: skip
    page.inputs = dict(zip(RunParams.names(), inputs, strict=True))
    page.runs = view.token_map
    model_menu.wire(studio, controls, view)
    _wire(studio, inputs, view, dice)
    _wire_recordings(view, player, page.inputs, records)
    model_menu.wire_link(studio, controls, {"seed": controls.seed} | switches)
    if first:
        for component, value in shown(view, first, named(first, fingerprint())).items():
            if component not in view.images.values():
                component.value = component.postprocess(value)
    _speak(studio, view, first)
    if studio.problem:
        status.value = status_line(
            html.escape(f"{studio.problem} {say('text.recordings_remain')}"), "bad"
        )


def _speak(studio: Studio, view: View, first: Recording | None) -> None:
    """When the page opens, what it shows is said in the visitor's language."""
    outputs = [*view.lanes, view.status]
    weights = fingerprint()

    def speak(request: gr.Request):
        spoken_here = language_of(request)
        if spoken_here == "en":
            return in_order(outputs, {})
        with speaking(spoken_here):
            changes = idle(view, studio.model) | {view.status: status_line(say("text.ready"))}
            if first:
                changes |= shown(view, first, named(first, weights))
            if studio.problem:
                problem = f"{studio.problem} {say('text.recordings_remain')}"
                changes[view.status] = status_line(html.escape(problem), "bad")
            for mode, image in view.images.items():
                alt = say("text.alt", lane=TITLES[mode])
                changes[image] = gr.Image(changes[image], alt_text=alt)
            return in_order(outputs, changes)

    gr.context.Context.root_block.load(
        speak, None, outputs, queue=False, show_progress="hidden", api_visibility="private"
    )


def _controls(studio: Studio):
    info = model_info(studio.model)
    menu, note = model_menu.menu(studio)
    prompt, picker = model_menu.prompt_or_class(studio)
    things = model_menu.things(studio)
    with gr.Row(elem_classes="lt-buttons"):
        run_button = gr.Button(label("run"), variant="primary", elem_id="lt-run", min_width=120)
        stop = gr.Button(
            label("stop"), variant="stop", interactive=False, elem_id="lt-stop", min_width=80
        )
    status = gr.HTML(status_line(say("text.ready")), elem_id="lt-status")
    with gr.Row(elem_classes="lt-seed"):
        seed = gr.Number(
            value=info.seed_of(info.examples[0]) or 0, label=label("seed"), precision=0,
            minimum=0, maximum=MAX_SEED, elem_id="lt-seed", min_width=120,
        )  # fmt: skip
        with gr.Column(min_width=110):
            dice = gr.Button(label("dice"), elem_id="lt-dice", size="sm")
            reset = gr.Button(label("reset"), elem_id="lt-reset", size="sm")
    defaults = info.options().to_dict()
    decode = decode_controls.build(defaults, studio.codes(studio.model))
    examples = model_menu.examples(studio)
    controls = ModelControls(
        menu, note, prompt, picker, things, seed, decode.options, reset, examples
    )
    return controls, decode.switches, run_button, stop, dice, status


def _results(
    studio: Studio, status: gr.HTML, menu: gr.Dropdown, run_button: gr.Button, stop: gr.Button,
    player: gr.Dropdown, first: Recording | None,
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
                    alt_text=say("text.alt", lane=TITLES[mode]),
                    elem_id=f"lt-image-{mode}",
                    elem_classes="lt-image",
                )
                cards[mode] = gr.HTML(empty_card(mode), elem_id=f"lt-card-{mode}")
    summary = gr.HTML("", elem_id="lt-sentence")
    with gr.Row(equal_height=True, elem_classes="lt-figures"):
        with gr.Column(min_width=320):
            histogram = gr.HTML(empty_histogram(), elem_id="lt-histogram", elem_classes="lt-panel")
        with gr.Column(min_width=320):
            measure, look = server_functions(studio)
            token_map = TokenMap(measure, elem_id="lt-map", elem_classes="lt-panel")
    Race(animate, elem_id="lt-race", elem_classes="lt-panel lt-low")
    Inspector(look, elem_id="lt-look", elem_classes="lt-panel lt-low")
    view = View(
        images, cards, histogram, token_map, summary, status, menu, run_button, stop, player
    )
    for card, text in lane_notes(view, studio.model).items():
        card.value = text
    return view


def _wire(studio: Studio, inputs: list, view: View, dice: gr.Button) -> None:
    names = RunParams.names()

    def validate(request: gr.Request, *values):
        given = dict(zip(names, values, strict=True))
        with speaking(language_of(request)):
            problems = {name: problem(name, value) for name, value in given.items()}
            # Which prompts there are depends on the model: a wrong model hides a wrong prompt.
            problems["prompt"] = (
                None
                if problems["model"]
                else studio.prompt_problem(given["model"], given["prompt"])
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
        steps = run(studio, view, values, request.session_hash or "api")
        yield from spoken(language_of(request), steps)

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
            with speaking(language_of(request)):
                return gr.Button(say("run.stopping"), interactive=False)
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
    view: View, player: gr.Dropdown, inputs: dict, records: dict[str, Recording]
) -> None:
    """A recording is shown with its settings in the controls, so that Run draws it again; with
    another model in the menu, whose controls have other ranges, only the lanes are shown."""
    weights = fingerprint()
    settings = {name: control for name, control in inputs.items() if name != "model"}
    outputs = [*view.lanes, view.status, *settings.values()]

    def play(title: str, model: str, request: gr.Request):
        if title not in records:
            return in_order(outputs, {})
        recording = records[title]
        with speaking(language_of(request)):
            changes = shown(view, recording, named(recording, weights))
        names = settings if model == recording.params["model"] else ["coupled"]
        return in_order(
            outputs, changes | {settings[name]: recording.params[name] for name in names}
        )

    player.input(
        play, [player, inputs["model"]], outputs, queue=False, show_progress="hidden",
        api_visibility="private",
    )  # fmt: skip
