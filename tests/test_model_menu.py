"""Several models in one app: loading in turn, freeing, defaults, what an absent model says."""

import threading
import time
import weakref
from types import SimpleNamespace

import gradio as gr
import pytest
from test_app import finish, make_view
from tiny_models import write_class_model

from app.i18n import say
from app.jobs import DONE, FAILED, LOADING, STOPPED
from app.params import SWITCHES, RunParams, draws_classes, problem
from app.studio import Studio
from app.tabs import compare_run, model_menu
from app.tabs.model_menu import with_thing
from lantern.checkpoints import MODELS
from lantern.config import ALL_MODES
from lantern.pipeline import ModelInfo, Pipeline, model_info

CLASS, DRAFTED, LARGE = "llamagen-b-256", "llamagen-l-256", "llamagen-b-384"
ABSENT = "llamagen-l-384"
OPTIONS = dict(seed=7, k=20, delta=0.2, temperature=1.0, cfg=2.0, top_k=0, top_p=1.0, nodes=6,
               depth=2, branch=2, rule="tvd", factor=2.0, pick="first",
               growth="dynamic", coupled=False, auto=False)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A models folder with a class-conditional model without a drafter and two with."""
    root = tmp_path_factory.mktemp("models")
    write_class_model(root, CLASS)
    write_class_model(root, DRAFTED, drafter=True)
    write_class_model(root, LARGE, drafter=True)
    return root


@pytest.fixture(autouse=True)
def models(folder, monkeypatch):
    monkeypatch.setenv("LANTERN_MODELS", str(folder))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def studio():
    return Studio(CLASS)


def params(model=CLASS, prompt="macaw", **changes) -> RunParams:
    return RunParams.from_values(*({"model": model, "prompt": prompt} | OPTIONS | changes).values())


def outputs(components, values) -> dict:
    """What a handler returned, by component, without what stays as it is."""
    pairs = zip(components, values, strict=True)
    return {name: value for name, value in pairs if value != gr.skip()}


def test_values_name_a_model_that_is_here():
    assert problem("model", CLASS) is None and draws_classes(CLASS)
    assert problem("model", "emoji-128") is None and not draws_classes("emoji-128")
    for value in (None, 5, ["emoji-128"], "warp"):
        assert problem("model", value).startswith("Choose a model: emoji-128")
        assert not draws_classes(value)
    message = problem("model", ABSENT)
    assert message.startswith(f"Model {ABSENT} is not here") and "c2i_L_384.pt" in message
    assert f"python -m lantern download {ABSENT}" in message


def test_two_visitors_choose_different_models_and_are_served_in_turn(studio):
    jobs = [studio.submit(params(), "a"), studio.submit(params(DRAFTED), "b"),
            studio.submit(params(prompt="volcano"), "a")]  # fmt: skip
    for job in jobs:
        assert finish(job, 60).state == DONE, job.message
        assert {lane.trace.model for lane in job.lanes.values()} == {job.model}
    assert list(jobs[0].lanes) == list(jobs[2].lanes) == ["ar"]
    assert list(jobs[1].lanes) == ["ar", "eagle2", "lantern"]
    assert jobs[0].lanes["ar"].image.size == (256, 256)
    assert jobs[0].lanes["ar"].trace.tokens != jobs[2].lanes["ar"].trace.tokens


def test_switching_frees_the_model_before(studio):
    old = weakref.ref(studio.pipeline.decoder.target)
    finish(studio.submit(params(), "a"))
    job = finish(studio.load(DRAFTED, "a"))
    assert job.state == DONE and not job.lanes and studio.pipeline.name == DRAFTED
    assert old() is None
    assert studio.vocabulary == {CLASS: 256, DRAFTED: 256}


def test_options_come_from_the_model_of_the_job(studio, monkeypatch):
    """Nothing of the model that is loaded when the run is submitted may leak into it."""
    assert studio.pipeline.name == CLASS
    seen = []
    monkeypatch.setattr(Pipeline, "options", lambda self, **changes: seen.append(self.name)
                        or self.info.options(**changes))  # fmt: skip
    finish(studio.submit(params(DRAFTED), "a"), 60)
    assert set(seen) == {DRAFTED}


def test_every_part_is_reported_while_it_loads(studio):
    job, seen = studio.load("emoji-128", "a"), []
    while not job.over:
        job.wait(job.version, 0.01)
        seen.append((job.state, job.message))
    loading = {message for state, message in seen if state == LOADING}
    assert loading and all(text.startswith("Loading emoji-128: ") for text in loading)


def test_a_broken_model_is_one_sentence_and_the_next_run_works(studio, folder):
    weights = folder / DRAFTED / "c2i_L_256.pt"
    good = weights.read_bytes()
    try:
        weights.write_bytes(good[:1000])
        job = finish(studio.submit(params(DRAFTED), "a"))
        assert job.state == FAILED and "c2i_L_256.pt is damaged" in job.message
        assert job.message.startswith("LlamaGen-L 256 px could not be loaded: ")
        assert job.message.count("\n") == 0 and studio.pipeline is None
    finally:
        weights.write_bytes(good)
    assert finish(studio.submit(params(), "b")).state == DONE


def test_a_model_that_vanished_leaves_the_loaded_one(studio, folder):
    weights = folder / DRAFTED / "c2i_L_256.pt"
    weights.rename(weights.with_suffix(".away"))
    try:
        job = finish(studio.load(DRAFTED, "a"))
        assert job.state == FAILED and "python -m lantern download" in job.message
        assert studio.pipeline.name == CLASS
    finally:
        weights.with_suffix(".away").rename(weights)


def test_prompts_are_checked_as_far_as_possible(studio):
    assert studio.prompt_problem("emoji-128", "cat " * 80) is None  # its encoder is not loaded
    assert "Write what to draw" in studio.prompt_problem("emoji-128", " ")
    assert "too long" in studio.prompt_problem("emoji-128", "x" * 2001)
    assert "Choose a class" in studio.prompt_problem(CLASS, "")
    assert "Choose a class" in studio.prompt_problem(CLASS, None)
    assert "not one of the model's 1000 classes" in studio.prompt_problem(CLASS, "xyzzy")
    job = finish(studio.submit(params("emoji-128", "cat " * 80), "a"))
    assert job.state == FAILED and job.message.startswith("The prompt is too long")
    assert studio.prompt_problem("emoji-128", "cat " * 80) == job.message


class SlowLoad:
    """Pipeline.load that waits at its second part until it is let on."""

    def __init__(self):
        self.reached, self.go = threading.Event(), threading.Event()
        self.loads = []

    def __call__(self, name, progress):
        self.loads.append(name)
        if len(self.loads) > 1:
            self.reached.set()
            assert self.go.wait(20)
        return Pipeline.load(name, progress=progress)


@pytest.fixture
def slow():
    return SlowLoad()


def test_run_pressed_while_its_model_loads_goes_on_with_that_load(slow):
    studio = Studio(CLASS, load=slow)
    loading = studio.load(DRAFTED, "a")
    assert slow.reached.wait(20) and studio.loading_for("a") and not studio.loading_for("b")
    job = studio.submit(params(DRAFTED), "a")
    assert loading.replaced and not loading.cancel.is_set()
    slow.go.set()
    assert finish(job, 60).state == DONE and loading.state == DONE
    assert slow.loads == [CLASS, DRAFTED]


def test_another_choice_breaks_off_the_load_before(slow):
    studio = Studio(CLASS, load=slow)
    first = studio.load(DRAFTED, "a")
    assert slow.reached.wait(20)
    second = studio.load("emoji-128", "a")
    third = studio.load(CLASS, "a")
    slow.go.set()
    assert finish(third).state == DONE and studio.pipeline.name == CLASS
    assert finish(first).state == finish(second).state == STOPPED
    assert "emoji-128" not in slow.loads
    other = studio.load(DRAFTED, "b")  # of another visitor: not touched
    studio.load(CLASS, "a")
    assert finish(other).state == DONE


# -- what the page shows ------------------------------------------------------------------------


@pytest.fixture
def controls():
    others = ("model", "prompt", "seed", *SWITCHES)
    names = [name for name in RunParams.names() if name not in others]
    return SimpleNamespace(
        note="note", prompt="prompt", picker="picker", things="things", examples="examples",
        options={name: f"slider {name}" for name in names},
    )  # fmt: skip


def test_an_absent_model_changes_only_the_note(studio, controls):
    changes = model_menu._selected(studio, controls, make_view(), ABSENT)
    assert list(changes) == ["note"]
    note = changes["note"]
    assert note.visible and problem("model", ABSENT) in note.value


def test_choosing_a_model_sets_its_defaults_and_examples(studio, controls):
    view = make_view()
    changes = model_menu._selected(studio, controls, view, CLASS)
    defaults = MODELS[CLASS].info["defaults"]
    for name in ("k", "delta", "temperature", "cfg", "top_p", "nodes", "depth", "branch", "rule"):
        assert changes[f"slider {name}"] == defaults[name]
    top_k = changes["slider top_k"]
    assert (top_k.value, top_k.maximum) == (2000, 256)  # loaded, so its vocabulary is known
    assert not changes["prompt"].visible and changes["picker"]["visible"]
    assert changes["picker"]["value"] == "golden retriever"
    assert changes["prompt"].value == "golden retriever"  # the value that counts
    assert ["volcano"] in changes["examples"]["samples"]
    for mode in ALL_MODES[1:]:
        card = changes[f"card {mode}"]
        assert "This model has no drafter yet; train one with" in card
        assert f"--model {CLASS}" in card
    assert "one token a pass" in changes["card ar"] and changes["image ar"] is None

    changes = model_menu._selected(studio, controls, view, "emoji-128")
    assert changes["prompt"].visible and not changes["picker"]["visible"]
    assert changes["slider top_k"].maximum == 16384  # not loaded yet
    assert "no drafter" not in changes["card lantern"]


def test_loading_shows_progress_and_ends_ready(studio):
    view = make_view()
    shown = list(model_menu._load(studio, view, "slider top_k", DRAFTED, "a"))
    assert "Loading LlamaGen-L 256 px" in shown[0]["status"]
    assert all("Loading" in shown[0][f"card {mode}"] for mode in ("ar", "lantern"))
    assert say("text.ready") in shown[-1]["status"]
    assert "Loading" not in shown[-1]["card ar"] and shown[-1]["slider top_k"].maximum == 256


def test_a_tab_closed_while_loading_breaks_off_the_load(slow):
    studio = Studio(CLASS, load=slow)
    handler = model_menu._load(studio, make_view(), "slider top_k", DRAFTED, "a")
    next(handler)
    assert slow.reached.wait(20)
    handler.close()
    slow.go.set()
    assert finish(studio.load(CLASS, "b")).state == DONE
    assert studio.pipeline.name == CLASS and DRAFTED not in studio.vocabulary


def test_a_run_without_a_drafter_fills_one_lane(studio):
    view = make_view()
    values = [CLASS, "macaw", *OPTIONS.values()]
    shown = [outputs(view.outputs, v) for v in compare_run.run(studio, view, values, "a")]
    last = shown[-1]
    assert "to decode" in last["card ar"] and last["image ar"].size == (256, 256)
    assert "no drafter" in last["card eagle2"] and "image eagle2" not in last
    assert last["histogram"] == compare_run.empty_histogram() and "in AR alone" in last["status"]
    assert [lane["mode"] for lane in last["map"]["lanes"]] == ["ar"]
    assert not shown[0]["menu"].interactive and last["menu"].interactive


def test_larger_grids_have_maps_and_histograms(studio):
    view = make_view()
    values = [LARGE, "macaw", *OPTIONS.values()]
    shown = [outputs(view.outputs, v) for v in compare_run.run(studio, view, values, "a")]
    assert any("Loading LlamaGen-B 384 px" in s.get("card lantern", "") for s in shown)
    last = shown[-1]
    lanes = last["map"]["lanes"]
    assert len(lanes) == 3 and all(lane["grid"] == 24 for lane in lanes)
    assert all(len(lane["tokens"]["kind"]) == 576 for lane in lanes)
    assert last["histogram"].startswith("<svg") and last["image lantern"].size == (384, 384)


def test_the_page_builds_for_every_kind_of_model(studio):
    from app.ui import build_demo

    config = build_demo(studio).get_config_file()
    parts = {c["props"].get("elem_id"): c["props"] for c in config["components"]}
    labels = [label for label, _ in parts["lt-model"]["choices"]]
    assert len(labels) == len(MODELS) and "LlamaGen-L 384 px (not downloaded)" in labels
    assert "LlamaGen-B 256 px" in labels and parts["lt-model"]["value"] == CLASS
    assert parts["lt-class"]["visible"] and not parts["lt-prompt"]["visible"]
    assert parts["lt-top_k"]["maximum"] == 256 and len(parts["lt-class"]["choices"]) == 1000
    assert "no drafter" in parts["lt-card-lantern"]["value"]


def test_previews_take_a_fifth_of_the_time_at_most(studio, monkeypatch):
    monkeypatch.setattr("app.studio.PREVIEW_SECONDS", 0.0)
    image, drawn = studio.pipeline.image, []

    def slow_image(tokens):
        if len(tokens) < 256:
            drawn.append(time.monotonic())
            time.sleep(0.05)
        return image(tokens)

    monkeypatch.setattr(studio.pipeline, "image", slow_image)
    finish(studio.submit(params(), "a"), 60)
    assert all(b - a > 0.24 for a, b in zip(drawn[1:], drawn[2:], strict=False))


@pytest.mark.parametrize(("prompt", "thing"), [
    ("a red apple on the grass", "red apple"), ("two puppies", "dog"),
    ("A Puppy in the snow", "dog"), ("hotdog", None), ("hot dog at night", "hot dog"),
    ("dogs on the sand", "dog"), ("a bulldozer", None), ("", None),
])  # fmt: skip
def test_what_a_prompt_names(prompt, thing):
    assert model_info("emoji-128").thing_in(prompt) == thing


def test_seeds_belong_to_examples():
    info = ModelInfo("tiny", {}, ("a cat", "a dog"), (3, 0))
    assert info.seed_of("a dog") == 0 and info.seed_of("a cow") is None
    assert ModelInfo("tiny", {}, ("a cat",)).seed_of("a cat") is None
    for seeds in ((3,), (3, -1), (3, "0"), (3, 2**60)):
        with pytest.raises(ValueError, match="seeds must be"):
            ModelInfo("tiny", {}, ("a cat", "a dog"), seeds).check()


@pytest.mark.parametrize(("prompt", "thing", "changed"), [
    ("a red apple on the grass", "rocket", "rocket on the grass"),
    ("penguin in the snow, 3D style", "cat", "cat in the snow, 3D style"),
    ("a quark", "cat", "cat on the grass"), ("", "cat", "cat on the grass"),
])  # fmt: skip
def test_a_thing_takes_the_place_of_another(prompt, thing, changed):
    assert with_thing(model_info("emoji-128"), prompt, thing) == changed
