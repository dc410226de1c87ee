"""Starting under odd circumstances, ending within seconds, what is logged."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from app_process import ROOT, serve
from soak import cases
from test_app import finish, load_small, params
from tiny_models import write_class_model
from visitors import Visitor

from app.jobs import record_of
from app.studio import Studio

TINY = "llamagen-b-256"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    write_class_model(root, TINY, drafter=True)
    return str(root)


def end_of(process, seconds: float = 240) -> tuple[int, str]:
    out, err = process.communicate(timeout=seconds)
    return process.returncode, err


def start(*arguments: str, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "app.py", *arguments], cwd=ROOT, text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1"} | environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_a_busy_port_is_one_sentence(models):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, error = end_of(start("--port", port, LANTERN_MODEL=TINY, LANTERN_MODELS=models))
    assert code == 2 and "Traceback" not in error
    assert port in error.splitlines()[-1]


def test_what_cannot_be_started_is_one_sentence(models):
    here = {"LANTERN_MODEL": TINY, "LANTERN_MODELS": models}
    for process, words in [
        (start("--no-such", **here), "--no-such"),
        (start("--port", "99999999", **here), "from 0 to 65535"),
        (start(LANTERN_MODEL="warp"), "unknown model 'warp'"),
    ]:
        code, error = end_of(process)
        assert code == 2 and words in error and "Traceback" not in error


def test_a_terminated_app_ends_within_five_seconds(models, tmp_path):
    """In the middle of a run, and without leaving temporary files."""
    environment = {"LANTERN_MODEL": TINY, "LANTERN_MODELS": models, "TMPDIR": str(tmp_path)}
    with serve(**environment) as (address, process):
        visitor = Visitor(address)
        visitor.join(cases(TINY, ["macaw"])[0] | {"nodes": 64, "depth": 10, "branch": 16})
        time.sleep(1.0)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.wait(10)
        assert time.monotonic() - began < 5
        visitor.close()
    assert not list(tmp_path.glob("lantern-*"))


def test_one_line_of_json_a_run_and_no_prompt_in_it(monkeypatch, caplog):
    caplog.set_level("INFO", "lantern")
    studio = Studio(load=load_small)
    finish(studio.submit(params(prompt="a secret cat"), "me"))
    for _ in range(50):
        lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("{")]
        if lines:
            break
        time.sleep(0.05)
    record = json.loads(lines[-1])
    assert record["job"] == "run" and record["outcome"] == "done"
    assert record["lanes"]["lantern"]["tokens"] == 16 and record["seconds"] >= 0
    assert "secret" not in caplog.text
    monkeypatch.setenv("LANTERN_LOG_PROMPTS", "1")
    job = finish(studio.submit(params(prompt="a secret cat"), "me"))
    assert json.loads(record_of(job, 1.0))["prompt"] == "a secret cat"


def test_a_folder_that_cannot_be_written_is_no_obstacle(tmp_path, monkeypatch):
    """The neighbour table is then kept in memory only, measurements are taken again."""
    from lantern.pipeline import Pipeline

    root = tmp_path / "models"
    write_class_model(root, TINY, drafter=True)

    def denied(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("lantern.neighbours.save_file", denied)
    monkeypatch.setattr("pathlib.Path.mkdir", denied)
    pipeline = Pipeline.load(TINY, "cpu", model_dir=root)
    trace, _ = pipeline.generate("macaw", mode="lantern", nodes="auto")
    assert trace.complete
