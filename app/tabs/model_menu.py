"""The model menu of the Compare tab, and what changes with the model: prompt or class picker,
examples, defaults and ranges of the sliders, cards of lanes the model cannot fill."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

import gradio as gr

from app.i18n import label, language_of, say, speaking, spoken
from app.jobs import FAILED, QUEUED, QueueFull
from app.params import draws_classes, problem
from app.share import from_query, query_of
from app.studio import Studio
from app.tabs.compare_run import POLL_SECONDS, View, idle, in_order, lane_notes, status_line
from lantern import checkpoints
from lantern.models.text import class_names
from lantern.pipeline import ModelInfo, model_info


@dataclass
class ModelControls:
    """The menu and what it changes; ``options`` are the decode controls by name."""

    menu: gr.Dropdown
    note: gr.HTML
    prompt: gr.Textbox
    picker: gr.Dropdown
    things: gr.Dropdown
    seed: gr.Number
    options: dict
    reset: gr.Button
    examples: gr.Dataset


def _choices() -> list[tuple[str, str]]:
    """Every model's title, with a word if its files are not here, and name."""
    return [
        (
            f"{known.title} {say('run.absent')}" if checkpoints.unavailable(name) else known.title,
            name,
        )
        for name, known in checkpoints.MODELS.items()
    ]


def menu(studio: Studio) -> tuple[gr.Dropdown, gr.HTML]:
    """The menu and the line below it."""
    return (
        gr.Dropdown(_choices(), value=studio.model, label=label("model"), elem_id="lt-model"),
        gr.HTML("", visible=False, elem_id="lt-model-note"),
    )


def prompt_or_class(studio: Studio) -> tuple[gr.Textbox, gr.Dropdown]:
    """Prompt box and class picker, of which the model decides the visible one. The value that
    counts is always the prompt's."""
    example = model_info(studio.model).examples[0]
    by_class = draws_classes(studio.model)
    prompt = gr.Textbox(
        value=example,
        label=label("prompt"),
        placeholder="a red apple on the grass",
        lines=1,
        max_lines=3,
        max_length=2000,
        visible=not by_class,
        elem_id="lt-prompt",
    )
    picker = gr.Dropdown(
        class_names(),
        value=example if by_class else None,
        label=label("class"),
        visible=by_class,
        elem_id="lt-class",
    )
    # In the browser alone, so that Run pressed right after a choice already has it.
    picker.input(None, picker, prompt, js="name => name ?? ''", api_visibility="private")
    return prompt, picker


def things(studio: Studio) -> gr.Dropdown:
    """Everything the model was taught; a choice takes the place of what the prompt names."""
    info = model_info(studio.model)
    return gr.Dropdown(
        _things(info), value=None, label=label("things"), visible=bool(info.things),
        elem_id="lt-things",
    )  # fmt: skip


def _things(info: ModelInfo) -> list[tuple[str, str]]:
    """(name with other words, name) of every thing."""
    return [
        (f"{name} ({', '.join(others)})" if others else name, name)
        for name, others in info.things.items()
    ]


def with_thing(info: ModelInfo, prompt: str, thing: str) -> str:
    """The prompt with ``thing`` in place of what it names; a plain prompt if it names nothing."""
    old = info.thing_in(prompt)
    words = sorted((old, *info.things[old]), key=len, reverse=True) if old else []
    for word in words:
        changed, count = re.subn(
            rf"\b(an? )?{re.escape(word)}\b", thing, prompt, count=1, flags=re.IGNORECASE
        )
        if count:
            return changed
    return f"{thing} on the grass"


def examples(studio: Studio) -> gr.Dataset:
    """Example prompts or classes; unlike gr.Examples they can change."""
    return gr.Dataset(
        components=["textbox"],
        samples=[[example] for example in model_info(studio.model).examples],
        label=label("examples"),
        samples_per_page=12,
        layout="gallery",
        elem_id="lt-examples",
    )


def wire(studio: Studio, controls: ModelControls, view: View) -> None:
    """Choosing a model sets up its controls at once and then loads it."""
    selected = [
        controls.note, controls.prompt, controls.picker, controls.things, controls.examples,
        *controls.options.values(), *view.lanes, view.status,
    ]  # fmt: skip

    def select(model: str, request: gr.Request):
        # A link that names this model also brought settings for it.
        linked = from_query(query_of(request.headers.get("referer", "")))
        if linked.get("model") != model:
            linked = {}
        with speaking(language_of(request)):
            return in_order(selected, _selected(studio, controls, view, model, linked))

    top_k = controls.options["top_k"]
    loaded = [view.status, *view.cards.values(), top_k]

    def load(model: str, request: gr.Request):
        # Outputs of a generator that yields nothing would be emptied.
        yield in_order(loaded, {})
        if problem("model", model) is None:
            steps = _load(studio, view, top_k, model, request.session_hash or "api")
            for changes in spoken(language_of(request), steps):
                yield in_order(loaded, changes)

    # Not ``input``, which Gradio also sends when the menu only loses the focus.
    controls.menu.change(
        select,
        controls.menu,
        selected,
        queue=False,
        show_progress="hidden",
        trigger_mode="multiple",
        api_visibility="private",
    ).then(
        load,
        controls.menu,
        loaded,
        show_progress="hidden",
        trigger_mode="multiple",
        concurrency_id="load",
        concurrency_limit=32,
        api_visibility="private",
    )

    options = list(controls.options.values())
    controls.reset.click(
        lambda model: in_order(options, _defaults(studio, controls, model)),
        controls.menu,
        options,
        queue=False,
        show_progress="hidden",
        api_visibility="private",
    )

    def put(thing: str, prompt: str, model: str):
        if problem("model", model) or thing not in model_info(model).things:
            return gr.skip()
        return with_thing(model_info(model), prompt or "", thing)

    controls.things.input(
        put, [controls.things, controls.prompt, controls.menu], controls.prompt, queue=False,
        show_progress="hidden", api_visibility="private",
    )  # fmt: skip

    def pick(sample: list, model: str):
        example, by_class = sample[0], sample[0] in class_names()
        seed = None if problem("model", model) else model_info(model).seed_of(example)
        return (
            example,
            gr.update(value=example) if by_class else gr.skip(),
            gr.skip() if seed is None else seed,
        )

    controls.examples.click(
        pick,
        [controls.examples, controls.menu],
        [controls.prompt, controls.picker, controls.seed],
        queue=False,
        show_progress="hidden",
        api_visibility="private",
    )


def wire_link(studio: Studio, controls: ModelControls, others: dict) -> None:
    """Settings in the page's address take effect when it opens; ``others``: controls beside the
    model's own, by name."""
    outputs = [
        controls.menu, controls.prompt, controls.picker, *controls.options.values(),
        *others.values(),
    ]  # fmt: skip

    at_start = _choices()

    def open_link(request: gr.Request):
        linked = from_query(dict(request.query_params))
        model = linked.pop("model", studio.model)
        changes = {others[name]: linked[name] for name in others if name in linked}
        with speaking(language_of(request)):
            choices = _choices()  # a model may have been downloaded since the start
        if choices != at_start:
            changes[controls.menu] = gr.Dropdown(choices)
        if model != studio.model:  # the rest follows its change
            changes[controls.menu] = gr.Dropdown(choices, value=model)
            return in_order(outputs, changes)
        return in_order(outputs, changes | _linked(controls, model, linked))

    gr.context.Context.root_block.load(
        open_link, None, outputs, queue=False, show_progress="hidden", api_visibility="private"
    )


def _linked(controls: ModelControls, model: str, linked: dict) -> dict:
    """Prompt and decode controls as a link sets them."""
    changes = {
        control: linked[name] for name, control in controls.options.items() if name in linked
    }
    if "prompt" in linked:
        changes[controls.prompt] = linked["prompt"]
        if draws_classes(model) and linked["prompt"] in class_names():
            changes[controls.picker] = linked["prompt"]
    return changes


def _selected(
    studio: Studio, controls: ModelControls, view: View, model: str, linked: dict | None = None
) -> dict:
    """What changes at once; for a model that is not here only the note. ``linked``: settings from
    the page's address, in place of the model's own."""
    message = problem("model", model)
    if message:
        note = f'<div class="lt-model-note">{html.escape(message)}</div>'
        return {controls.note: gr.HTML(note, visible=True)}
    linked = linked or {}
    changes = {controls.note: gr.HTML(visible=False)} | _defaults(studio, controls, model)
    if len(changes) == 1:
        return changes  # loading it, which comes next, says what is wrong
    info, by_class = model_info(model), draws_classes(model)
    prompts = info.examples
    changes |= {
        controls.prompt: gr.Textbox(prompts[0], visible=not by_class),
        controls.picker: gr.update(value=prompts[0], visible=True)
        if by_class
        else gr.update(visible=False),
        controls.things: gr.update(choices=_things(info), value=None, visible=bool(info.things)),
        controls.examples: gr.update(samples=[[prompt] for prompt in prompts]),
    }
    if "prompt" in linked:
        changes[controls.prompt] = gr.Textbox(linked["prompt"], visible=not by_class)
        if by_class and linked["prompt"] in class_names():
            changes[controls.picker] = gr.update(value=linked["prompt"], visible=True)
    changes |= {c: linked[name] for name, c in controls.options.items() if name in linked}
    title = checkpoints.entry(model).title
    return (
        changes
        | idle(view, model)
        | {view.status: status_line(say("run.loading.title", title=title), "busy")}
    )


def _defaults(studio: Studio, controls: ModelControls, model: str) -> dict:
    """The decode controls as they suit a model; {} if it is not here or does not say."""
    try:
        values = model_info(model).options().to_dict()
    except (ValueError, OSError):
        return {}
    changes = {control: values[name] for name, control in controls.options.items()}
    top_k = gr.Slider(value=values["top_k"], maximum=studio.codes(model))
    changes[controls.options["top_k"]] = top_k
    return changes


def _load(studio: Studio, view: View, top_k: gr.Slider, model: str, owner: str):
    """Changes while the model is being loaded; ends silently when the visitor asks for more."""
    try:
        job = studio.load(model, owner)
    except QueueFull:
        yield {view.status: status_line(say("run.loading.full"))}
        return
    version, shown = -1, ""
    try:
        while not job.over and not job.replaced:
            version = job.wait(version, POLL_SECONDS)
            text = job.message if not job.over else ""
            if job.state == QUEUED:
                waits = say("run.loading.line") if studio.ahead_of(job) else ""
                text = studio.loading_for(owner) or waits
            if text and text != shown:
                shown = text
                yield {view.status: status_line(text, "busy")} | lane_notes(view, model, text)
        if job.replaced:
            return
        failed = job.state == FAILED
        status = (
            status_line(html.escape(job.message), "bad")
            if failed
            else status_line(say("text.ready"))
        )
        changes = {view.status: status} | lane_notes(view, model)
        if model in studio.vocabulary:
            changes[top_k] = gr.Slider(maximum=studio.vocabulary[model])
        yield changes
    finally:
        # May run on the server's event loop: nothing but a flag. What replaced this load may be
        # waiting for it.
        if not job.replaced:
            job.cancel.set()
