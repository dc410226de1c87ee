"""One worker owns the model: nothing that happens to one run shows in the next."""

import time

import pytest
import torch
from test_app import finish, load_small, params

from app.i18n import say
from app.jobs import DONE, FAILED, STOPPED, QueueFull
from app.studio import MAX_PER_VISITOR, Studio


@pytest.fixture
def studio():
    return Studio(load=load_small)


def decisions(job) -> dict[str, list]:
    """Everything a run decided, to the last bit."""
    return {
        mode: [
            (t.token, t.margin, t.p_choice, t.p_token) for e in lane.trace.events for t in e.tokens
        ]
        for mode, lane in job.lanes.items()
    }


@pytest.fixture(scope="module")
def alone():
    """What a fresh process draws."""
    return decisions(finish(Studio(load=load_small).submit(params(seed=5, coupled=True), "b")))


def break_forward(monkeypatch, studio, error, after: int):
    """The target's forward pass raises after some calls, once."""
    target = studio.pipeline.decoder.target
    forward, calls = target.forward, [0]

    def broken(*arguments, **options):
        calls[0] += 1
        if calls[0] == after:
            raise error
        return forward(*arguments, **options)

    monkeypatch.setattr(target, "forward", broken)


ERRORS = {
    "exception": (RuntimeError("a layer broke\nwith details"), "a layer broke. Please"),
    "gpu memory": (torch.OutOfMemoryError("CUDA out of memory"), say("run.memory")),
    "cpu memory": (
        RuntimeError("[enforce fail] can't allocate memory: 9 bytes"),
        say("run.memory"),
    ),
    "memory": (MemoryError(), say("run.memory")),
    "nameless": (RuntimeError(""), "RuntimeError"),
}


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("after", [1, 9, 30])  # in the prefill, in AR, in a later lane
def test_after_a_fault_the_next_run_is_a_fresh_one(studio, alone, monkeypatch, kind, after):
    error, words = ERRORS[kind]
    with monkeypatch.context() as patch:
        break_forward(patch, studio, error, after)
        job = finish(studio.submit(params(), "a"))
    assert job.state == FAILED and words in job.message and "\n" not in job.message
    assert decisions(finish(studio.submit(params(seed=5, coupled=True), "b"))) == alone


def test_after_numbers_went_wrong_the_next_run_is_a_fresh_one(studio, alone):
    # Buffers are used again, so what a broken run left in them must never be read.
    weight = studio.pipeline.decoder.target.layers[0].mlp.down.weight
    kept = weight.data.clone()
    weight.data.fill_(torch.nan)
    assert finish(studio.submit(params(), "a")).state == FAILED
    weight.data.copy_(kept)
    assert decisions(finish(studio.submit(params(seed=5, coupled=True), "b"))) == alone


@pytest.mark.parametrize("events", [1, 6, 18])
def test_after_stop_the_next_run_is_a_fresh_one(studio, alone, events):
    studio.pipeline.pause = 0.01
    job = studio.submit(params(nodes=20, depth=5, branch=6), "a")
    while sum(len(lane.trace.events) for lane in list(job.lanes.values())) < events:
        time.sleep(0.002)
    studio.stop("a")
    assert finish(job).state == STOPPED
    studio.pipeline.pause = 0.0
    assert decisions(finish(studio.submit(params(seed=5, coupled=True), "b"))) == alone


def test_one_visitor_cannot_fill_the_line(studio):
    studio.pipeline.pause = 0.05
    jobs = [studio.submit(params(), "greedy") for _ in range(MAX_PER_VISITOR)]
    with pytest.raises(QueueFull, match="of your runs are in line"):
        studio.submit(params(), "greedy")
    with pytest.raises(QueueFull, match="of your runs are in line"):
        studio.submit_work("emoji-128", "greedy", lambda pipeline, job: None)
    other = studio.submit(params(), "other")
    assert not other.over
    studio.stop("greedy")
    for job in jobs:
        assert finish(job).state == STOPPED
    studio.pipeline.pause = 0.0
    assert finish(studio.submit(params(), "greedy")).state == DONE and finish(other).state == DONE


def test_runs_start_in_the_order_they_came(studio):
    studio.pipeline.pause = 0.005
    started = []
    stream = studio.pipeline.stream

    def noted(prompt, options, trace=None):
        if options.mode == "ar":
            started.append(options.seed)
        return stream(prompt, options, trace)

    studio.pipeline.stream = noted
    jobs = [studio.submit(params(seed=i), f"visitor {i % 4}") for i in range(8)]
    for job in jobs:
        finish(job)
    assert started == list(range(8))
