"""Runs as the page keeps them, and the questions that come back."""

import asyncio
import copy
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image
from test_app import load_small
from tiny_decoder import decode, make_decoder

from app.inspection import answer, server_functions
from app.payload import Run, data_url, from_data_url, from_payload, to_payload
from app.studio import Studio
from lantern.config import MODES, DecodeOptions
from lantern.trace import DecodeTrace


def in_a_loop(coroutine):
    """Its result, from a loop in a thread of its own: Playwright keeps one in the main thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def lane(mode: str) -> DecodeTrace:
    options = DecodeOptions(mode=mode).to_dict()
    return DecodeTrace("tiny", "a <b>cat</b>", options, 4, {"device": "cpu"},
                       decode(make_decoder(), mode), {"text": 0.1})  # fmt: skip


@pytest.fixture
def payload() -> dict:
    images = {mode: Image.new("RGB", (8, 8), (40 * i, 9, 9)) for i, mode in enumerate(MODES)}
    run = Run({mode: lane(mode) for mode in MODES}, images)
    return json.loads(json.dumps(to_payload(run, {"seed": 7})))


def test_a_run_comes_back(payload):
    run = from_payload(payload)
    assert list(run.traces) == list(MODES)
    assert run.traces["lantern"].tokens == lane("lantern").tokens
    assert run.images["eagle2"].getpixel((0, 0)) == (40, 9, 9)
    assert payload["params"] == {"seed": 7} and payload["recorded"] is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda v: v.update(lanes=[]),
        lambda v: v.update(lanes=None),
        lambda v: v["lanes"][0].update(mode="../x"),
        lambda v: v["lanes"][0].update(mode="eagle2"),
        lambda v: v["lanes"][0].update(image="data:image/svg+xml;base64,AAAA"),
        lambda v: v["lanes"][0].update(image="data:image/png;base64,AAAA"),
        lambda v: v["lanes"][0].update(image=data_url(Image.new("RGB", (2000, 1)))),
        lambda v: v["lanes"][0].update(image=5),
        lambda v: v["lanes"][0].update(grid=5),
        lambda v: v["lanes"][0].update(tokens={}),
    ],
)  # fmt: skip
def test_anything_else_is_refused(payload, spoil):
    value = copy.deepcopy(payload)
    spoil(value)
    with pytest.raises(ValueError, match="of this page"):
        from_payload(value)


@pytest.mark.parametrize("value", [None, 7, [], "x", {}, {"lanes": "abc"}, {"lanes": [1]}])
def test_nonsense_is_refused(value):
    with pytest.raises(ValueError, match="of this page"):
        from_payload(value)


def test_pictures_are_decoded_anew():
    image = Image.new("RGBA", (3, 2), (1, 2, 3, 255))
    assert from_data_url(data_url(image)).mode == "RGB"


GOOD = {"model": "emoji-128", "prompt": "a cat", "tokens": [1, 2, 3], "position": 1,
        "refused": [], "options": {"mode": "lantern"}, "asker": "me"}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "no such"}, "Choose a model"),
        ({"prompt": ""}, "Write what to draw"),
        ({"prompt": 7}, "Write what to draw"),
        ({"tokens": []}, "not about an image"),
        ({"tokens": "123"}, "not about an image"),
        ({"tokens": [1.5]}, "whole numbers"),
        ({"tokens": [1] * 100_000}, "not about an image"),
        ({"position": "x"}, "whole numbers"),
        ({"refused": None}, "not about an image"),
        ({"options": 3}, "how the image was drawn"),
        ({"options": {"mode": "none"}}, "Mode must be one of"),
        ({"options": {"temperature": "hot"}}, "Temperature must be"),
        ({"tokens": [1, 2, 3]}, "16 tokens"),
    ],
)
def test_odd_questions_are_answered_in_words(changes, words):
    _, look = server_functions(Studio(load=load_small))
    found = in_a_loop(look(GOOD | changes))
    assert words in found["error"], found


def test_questions_wait_in_the_line_and_are_limited_per_page():
    studio = Studio(load=load_small)

    async def ask(owner):
        return await answer(studio, "emoji-128", owner, lambda p, job: job.update(result={"a": 1}))

    async def many():
        return await asyncio.gather(*(ask("look one") for _ in range(6)), ask("look two"))

    results = in_a_loop(many())
    assert results[-1] == {"a": 1} and results[0] == {"a": 1}
    refused = [r["error"] for r in results if "error" in r]
    assert all("in line already" in text for text in refused)


def test_a_question_nobody_waits_for_is_given_up(monkeypatch):
    monkeypatch.setattr("app.inspection.MAX_SECONDS", 0.1)
    studio = Studio(load=load_small)
    studio.pipeline.pause = 0.05

    def slow(pipeline, job):
        while True:
            job.check()

    found = in_a_loop(answer(studio, "emoji-128", "look", slow))
    assert "try again" in found["error"]
    assert in_a_loop(answer(studio, "emoji-128", "look", lambda p, j: j.update(result={}))) == {}
