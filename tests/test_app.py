"""The app without a browser: validation, the studio's line, sentences and figures."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_decoder import make_caption, make_decoder

from app.jobs import DONE, FAILED, MEASURING, STOPPED, QueueFull
from app.params import BOUNDS, RunParams, problem
from app.studio import Studio
from app.summary import lane_card
from app.tabs import compare_run
from lantern.config import ALL_MODES, MODES, TreeShape
from lantern.pipeline import ModelInfo
from lantern.trace import DecodeTrace

GOOD = ("emoji-128", "a cat", 7, 100, 0.2, 1.0, 2.0, 0, 1.0, 8, 3, 3, "tvd",
        2.0, "first", "dynamic", False, False)  # fmt: skip


class SmallPipeline:
    """A real decoder on a tiny random model behind the pipeline's interface; ``pause`` slows each
    step, ``fail`` breaks the next run."""

    grid = 4
    vocab_size = 64
    pause = 0.0
    fail = False
    modes = ALL_MODES

    def __init__(self, name="emoji-128"):
        self.name = name
        self.decoder = make_decoder()
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self.info = ModelInfo("tiny", {"top_k": 0}, ("a cat",))
        self.text = self
        self.running, self.most = 0, 0

    def check(self, prompt):
        if len(prompt) > 100:
            raise ValueError("the prompt is too long; shorten it.")
        return prompt

    def options(self, **changes):
        return self.info.options(**changes)

    def new_trace(self, prompt, options):
        return DecodeTrace("tiny", prompt, options.to_dict(), 4, {"device": "cpu", "dtype": "f"})

    def stream(self, prompt, options, trace=None):
        if self.fail:
            raise RuntimeError("out of memory")
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            for event in self.decoder.stream(*make_caption(), options):
                time.sleep(self.pause)
                if trace is not None:
                    trace.events.append(event)
                yield event
        finally:
            self.running -= 1

    def warm_up(self, options=None, check=lambda: None):
        check()

    def forget(self):
        self.decoder.forget()

    def image(self, tokens):
        return Image.fromarray(np.full((8, 8, 3), len(tokens), np.uint8))

    def finish(self, trace):
        trace.extra_seconds = {"text": 0.0, "vq": 0.0}
        return self.image(trace.tokens)


def load_small(name, progress):
    """Stands in for Pipeline.load."""
    for part in ("drafter", "tokenizer"):
        progress(part)
    return SmallPipeline(name)


@pytest.fixture
def studio():
    return Studio(load=load_small)


def finish(job, seconds=20):
    end = time.monotonic() + seconds
    while not job.over and time.monotonic() < end:
        job.wait(job.version, 0.1)
    assert job.over
    return job


def params(**changes) -> RunParams:
    values = dict(zip(RunParams.names(), GOOD, strict=True)) | changes
    return RunParams.from_values(*values.values())


def test_good_values_have_no_problem():
    assert all(problem(n, v) is None for n, v in zip(RunParams.names(), GOOD, strict=True))
    assert params(k=100.0).k == 100 and isinstance(params(k=100.0).k, int)


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("value", [None, "7", float("nan"), float("inf"), -1, 1e12, True, [1]])
def test_bad_numbers_are_answered_with_the_range(name, value):
    message = problem(name, value)
    assert message and "number from" in message
    with pytest.raises(ValueError):
        params(**{name: value})


@pytest.mark.parametrize("prompt", ["", "  \n", None, 5])
def test_empty_prompts_are_answered_with_an_example(prompt):
    assert "red apple" in problem("prompt", prompt)


def test_fractions_are_refused_where_a_whole_number_is_needed():
    assert problem("k", 1.5) and problem("seed", 0.1) and problem("delta", 0.35) is None


@pytest.mark.parametrize("name, words", [
    ("rule", "Choose a rule: tvd, jsd, multiplicative."),
    ("pick", "Choose a pick: first, nearest."),
    ("growth", "Choose a tree growth: dynamic, static."),
    ("coupled", "coupled must be true or false."), ("auto", "auto must be true or false."),
])  # fmt: skip
@pytest.mark.parametrize("value", ["warp", None, 1, ["tvd"], {}])
def test_bad_choices_are_answered_with_the_good_ones(name, words, value):
    assert problem(name, value) == words
    with pytest.raises(ValueError, match=words[:12]):
        params(**{name: value})


def test_the_coupled_lanes_and_the_tuned_tree_are_not_decode_options():
    chosen = params(coupled=True, auto=True, rule="jsd", pick="nearest", growth="static")
    assert chosen.modes == ALL_MODES and params().modes == MODES
    changes = chosen.decode_changes()
    assert not {"coupled", "auto", "model", "prompt"} & set(changes)
    assert (changes["rule"], changes["pick"], changes["growth"]) == ("jsd", "nearest", "static")


def test_a_run_draws_three_lanes(studio):
    job = finish(studio.submit(params(), "a"))
    assert job.state == DONE and list(job.lanes) == ["ar", "eagle2", "lantern"]
    assert all(lane.finished and lane.trace.complete for lane in job.lanes.values())
    assert job.lanes["eagle2"].trace.tokens == job.lanes["ar"].trace.tokens


def test_coupled_drafting_adds_two_lanes(studio):
    job = finish(studio.submit(params(coupled=True), "a"))
    assert job.state == DONE and tuple(job.lanes) == ALL_MODES
    tokens = {mode: lane.trace.tokens for mode, lane in job.lanes.items()}
    assert tokens["eagle2-coupled"] == tokens["eagle2"] == tokens["ar"]
    assert all(lane.finished for lane in job.lanes.values())
    assert not any(lane.trace.options["auto_tree"] for lane in job.lanes.values())


def test_tuned_lanes_have_trees_of_their_own_and_teach_the_tuner(studio, monkeypatch):
    size = {"eagle2": 3, "lantern": 6, "eagle2-coupled": 8, "lantern-coupled": 12}
    seen = []
    monkeypatch.setattr(studio._tuner, "observe", seen.append)

    def choose(options):
        return replace(
            options, tree=TreeShape(size.get(options.mode, 1), 2, 2, options.tree.growth)
        )

    monkeypatch.setattr(studio._tuner, "choose", choose)
    job = finish(studio.submit(params(coupled=True, auto=True, growth="static"), "a"))
    assert job.state == DONE, job.message
    for mode, nodes in size.items():
        trace = job.lanes[mode].trace
        assert (trace.options["nodes"], trace.options["growth"]) == (nodes, "static")
        assert f"tree {nodes} × 2 × 2" in lane_card(mode, trace, None)
    assert "no tree" in lane_card("ar", job.lanes["ar"].trace, None)
    assert [trace.mode for trace in seen] == ["ar", *size]
    finish(studio.submit(params(), "a"))
    assert [trace.mode for trace in seen[5:]] == ["ar", "eagle2", "lantern"]


def test_measuring_is_announced_works_and_can_be_stopped(studio, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    studio.pipeline.pause = 0.05
    job = studio.submit(params(auto=True), "a")
    while job.state != MEASURING:
        job.wait(job.version, 0.1)
    view, shown = make_view(), {}
    changes = compare_run._progress(studio, view, job, shown)
    assert "Measuring this device …" in changes["status"] and "Measuring" in changes["card ar"]
    studio.stop("a")
    began = time.monotonic()
    assert finish(job).state == STOPPED and not job.lanes and time.monotonic() - began < 2
    studio.pipeline.pause = 0.0
    job = finish(studio.submit(params(auto=True), "a"), 60)
    assert job.state == DONE and list(tmp_path.rglob("costs-*.json"))
    assert job.lanes["eagle2"].trace.tokens == job.lanes["ar"].trace.tokens


def test_stop_stops_within_a_step_and_the_next_run_is_untouched(studio):
    alone = finish(studio.submit(params(seed=3), "b")).lanes["lantern"].trace.tokens
    studio.pipeline.pause = 0.05
    job = studio.submit(params(), "a")
    while not job.lanes or len(job.lanes["ar"].trace.events) < 3:
        time.sleep(0.01)
    assert studio.stop("a") and not studio.stop("nobody")
    count = len(job.lanes["ar"].trace.events)
    finish(job)
    assert job.state == STOPPED and list(job.lanes) == ["ar"]
    assert len(job.lanes["ar"].trace.events) <= count + 2
    assert job.lanes["ar"].image is not None
    studio.pipeline.pause = 0.0
    assert finish(studio.submit(params(seed=3), "b")).lanes["lantern"].trace.tokens == alone


def test_runs_wait_in_line_and_never_overlap(studio):
    studio.pipeline.pause = 0.01
    jobs = [studio.submit(params(seed=i), str(i)) for i in range(4)]
    assert [studio.ahead_of(job) for job in jobs[1:]] in ([1, 2, 3], [0, 1, 2])
    for job in jobs:
        finish(job)
    assert studio.pipeline.most == 1
    again = finish(studio.submit(params(seed=2), "x"))
    assert again.lanes["lantern"].trace.tokens == jobs[2].lanes["lantern"].trace.tokens


def test_a_queued_run_can_be_stopped(studio):
    studio.pipeline.pause = 0.02
    first = studio.submit(params(), "a")
    while first.state != "running":
        time.sleep(0.01)
    for _ in range(30):  # more than the line holds: stopped runs free their places at once
        second = studio.submit(params(), "b")
        studio.stop("b")
        assert second.state == STOPPED and not second.lanes and studio.ahead_of(second) == 0
    assert not first.over and finish(first).state == DONE


def test_a_closed_tab_frees_its_place_in_line(studio):
    studio.pipeline.pause = 0.02
    first = studio.submit(params(), "a")
    gone = [studio.submit(params(), str(i)) for i in range(15)]
    for job in gone:
        job.cancel.set()  # all a closing handler may do
    last = studio.submit(params(), "c")
    assert studio.ahead_of(last) <= 1
    for job in (first, last):
        assert finish(job).state == DONE
    assert all(job.state == STOPPED and not job.lanes for job in gone)


def test_a_run_that_takes_too_long_is_ended(studio, monkeypatch):
    monkeypatch.setattr("app.studio.MAX_SECONDS", 0.2)
    studio.pipeline.pause = 0.05
    job = finish(studio.submit(params(), "a"))
    assert job.state == STOPPED and "A run may take" in job.message


def test_stopping_after_the_last_token_keeps_the_run_done(studio):
    finishing = studio.pipeline.finish

    def finish_and_stop(trace):
        if trace.mode == "lantern":
            studio.stop("a")
        return finishing(trace)

    studio.pipeline.finish = finish_and_stop
    assert finish(studio.submit(params(), "a")).state == DONE


def test_every_control_reaches_the_decoder(studio):
    chosen = dict(seed=11, k=5, delta=0.35, temperature=0.8, cfg=3.5, top_k=40, top_p=0.9, nodes=6,
                  depth=2, branch=4, rule="multiplicative", factor=3.5, pick="nearest",
                  growth="static")  # fmt: skip
    job = finish(studio.submit(params(**chosen), "a"))
    for lane in job.lanes.values():
        assert {name: lane.trace.options[name] for name in chosen} == chosen


def test_a_full_line_is_answered(studio):
    studio.pipeline.pause = 0.05
    with pytest.raises(QueueFull, match="try again"):
        for i in range(40):
            studio.submit(params(), str(i))
    for i in range(40):
        studio.stop(str(i))


def test_a_failed_run_does_not_end_the_studio(studio):
    studio.pipeline.fail = True
    job = finish(studio.submit(params(), "a"))
    assert job.state == FAILED and "out of memory" in job.message
    studio.pipeline.fail = False
    assert finish(studio.submit(params(), "a")).state == DONE


def test_prompts_the_model_cannot_take_never_enter_the_line(studio):
    with pytest.raises(ValueError, match="too long"):
        studio.submit(params(prompt="x" * 200), "a")


def make_view() -> compare_run.View:
    """Stands for the page: what matters is which component gets what."""
    return compare_run.View(
        {mode: f"image {mode}" for mode in ALL_MODES},
        {mode: f"card {mode}" for mode in ALL_MODES},
        "histogram", "map", "sentence", "status", "menu", "run", "stop", "recordings",
    )  # fmt: skip


def test_closing_a_handler_from_another_thread_only_sets_a_flag(studio):
    jobs, submit = [], studio.submit
    studio.submit = lambda *a: jobs.append(submit(*a)) or jobs[-1]
    studio.pipeline.pause = 0.05
    handler = compare_run.run(studio, make_view(), GOOD, "a")
    assert len(next(handler)) == len(make_view().outputs)
    (job,) = jobs
    while "ar" not in job.lanes or not job.lanes["ar"].trace.events:
        time.sleep(0.01)
    next(handler)
    took = []

    def close():
        began = time.monotonic()
        handler.close()
        took.append(time.monotonic() - began)

    thread = threading.Thread(target=close)
    thread.start()
    thread.join(5)
    assert took and took[0] < 0.2
    assert finish(job).state == STOPPED
    assert len(job.lanes["ar"].trace.tokens) < 16


def test_a_five_lane_run_fills_the_page(studio):
    view, values = make_view(), list(GOOD)
    values[RunParams.names().index("coupled")] = True
    *_, last = compare_run.run(studio, view, values, "a")
    last = dict(zip(view.outputs, last, strict=True))
    assert [lane["mode"] for lane in last["map"]["lanes"]] == list(ALL_MODES)
    assert "all five lanes" in last["status"] and "Coupled" in last["sentence"]
    assert all(f"var(--lt-{mode})" in last["histogram"] for mode in ALL_MODES[1:])
    assert all("the speed of AR" in last[f"card {mode}"] for mode in ALL_MODES[1:])
