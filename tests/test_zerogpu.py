"""A dry run as a ZeroGPU Space: the package itself, its environment, and a lender of GPUs."""

import json
import pickle
import threading
import time
from collections import Counter
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlparse

import gradio as gr
import pytest
from app_process import serve
from gradio_client import Client
from PIL import Image
from soak import SMALL, cases
from tiny_models import write_class_model
from visitors import DONE_WORDS, Visitor, run_to_the_end

from app import inspection, zerogpu
from app.payload import Run
from app.tabs import ambiguity, codebook

TINY = "llamagen-b-256"


class Lender(ThreadingHTTPServer):
    """Answers as Hugging Face's scheduler does; ``left`` is the quota in seconds."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Desk)
        self.left, self.asked = 1000.0, []
        self.calls = Counter()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Desk(BaseHTTPRequestHandler):
    def do_POST(self):
        call, query = urlparse(self.path).path, parse_qs(urlparse(self.path).query)
        self.server.calls[call] += 1
        code, answer = 200, {}
        if call == "/schedule":
            seconds = float(query["durationSeconds"][0])
            self.server.asked.append(seconds)
            answer = {"idle": True, "nvidiaIndex": 0, "nvidiaUUID": "none", "allowToken": "t"}
            if seconds > self.server.left:
                code, answer = 429, {"left": int(self.server.left), "wait": 3600}
        body = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def lender():
    with Lender() as lender:
        yield lender
        lender.shutdown()


@pytest.fixture(scope="module")
def space(lender, tmp_path_factory):
    models = tmp_path_factory.mktemp("models")
    write_class_model(models, TINY, drafter=True)
    environment = {
        "SPACES_ZERO_GPU": "true", "SPACES_ZERO_DEVICE_API_URL": lender.address,
        "LANTERN_MODEL": TINY, "LANTERN_MODELS": str(models), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    with serve(script="tests/zerogpu_app.py", **environment) as (address, _):
        assert lender.calls["/startup-report"] == 1
        yield address, models


def choices() -> dict:
    return next(iter(cases(TINY, ["macaw"], **SMALL)))


def drawn(address: str, values: dict) -> tuple[str, list[str]]:
    """The last status of a run and checksums of its images."""
    visitor = Visitor(address)
    try:
        return run_to_the_end(visitor, values)[:2]
    finally:
        visitor.close()


def test_a_run_on_a_borrowed_gpu_equals_one_of_our_own(space, lender):
    address, models = space
    values = choices()
    before = lender.calls["/release"]
    status, borrowed = drawn(address, values)
    assert DONE_WORDS in status
    with serve(LANTERN_MODEL=TINY, LANTERN_MODELS=str(models)) as (own, _):
        status, pictures = drawn(own, values)
    assert DONE_WORDS in status
    assert borrowed == pictures and len(borrowed) == 3
    assert lender.calls["/allow"] >= 1 and lender.calls["/release"] == before + 1
    # What was asked for, with the package's factor for the GPU it expects.
    assert 10 <= lender.asked[-1] <= 1.5 * zerogpu.MAX_SECONDS


def test_without_quota_the_page_says_so_and_goes_on(space, lender):
    address, _ = space
    lender.left = 0
    status, pictures = drawn(address, choices())
    assert "Hugging Face lends no GPU right now" in status and "recorded runs" in status
    lender.left = 1000
    assert DONE_WORDS in drawn(address, choices())[0]


def test_stop_reaches_the_fork(space, lender):
    address, _ = space
    before = lender.calls["/release"]
    visitor = Visitor(address)
    visitor.join(choices())
    stopped = False
    for message in visitor.messages():
        if not stopped and "is drawing" in json.dumps(message):
            visitor.stop()
            stopped = True
        if message["msg"] == "process_completed":
            assert "Stopped in" in json.dumps(message)
            break
    visitor.close()
    end = time.monotonic() + 10
    while lender.calls["/release"] == before and time.monotonic() < end:
        time.sleep(0.1)
    assert lender.calls["/release"] == before + 1


def test_a_sweep_travels_too(space, lender):
    address, _ = space
    values = [v for name, v in choices().items() if name != "model"]
    client = Client(address, verbose=False)
    grid = client.predict("5", "0.2", "1", 1, TINY, *values, api_name="/sweep")[0]
    assert grid["done"] == grid["total"] == 2
    assert lender.asked[-1] > zerogpu.START_SECONDS


def test_every_question_can_be_pickled():
    """Functions of modules and what they are given; closures could not travel."""
    for work in (
        partial(inspection._look, question={}, prompt="", tokens=[], position=0, refused=[]),
        partial(inspection._measure, question={}, prompt="", tokens=[]),
        partial(ambiguity._work, run=Run({}, {})),
        partial(codebook._show, make=partial(codebook.neighbours_page, code=1)),
        partial(codebook._show, make=partial(codebook._replaced, picture=Image.new("L", (1, 1)))),
    ):
        again = pickle.loads(pickle.dumps(work))
        assert again.func is work.func and again.keywords.keys() == work.keywords.keys()


def test_what_is_asked_for_grows_with_the_work():
    order = partial(zerogpu.Order, TINY, None, None, "en")
    little, much = zerogpu.seconds_needed(order(2560)), zerogpu.seconds_needed(order(25600))
    assert zerogpu.START_SECONDS < little < much
    assert zerogpu.seconds_needed(order(10**9)) == zerogpu.MAX_SECONDS


def test_only_refused_loans_are_told_as_such():
    assert zerogpu.refusal(gr.Error("Over.", title="ZeroGPU quota exceeded")) == "Over"
    assert zerogpu.refusal(gr.Error("Over.", title="Busy")) is None
    assert zerogpu.refusal(ValueError("Over.")) is None
