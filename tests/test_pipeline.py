"""The shipped model through the public doors: Python, command line, README."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import lantern
from lantern.__main__ import main
from lantern.pipeline import BLANK, Pipeline
from lantern.trace import DecodeTrace

ROOT = Path(__file__).parent.parent
PROMPT = "a red apple on the grass"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One image per mode from the command line: {mode: (trace values, image path)}."""
    folder = tmp_path_factory.mktemp("runs")
    results = {}
    for mode in ("ar", "eagle2", "lantern"):
        trace, image = folder / f"{mode}.json", folder / f"{mode}.png"
        command = ["generate", PROMPT, "--mode", mode, "--seed", "7", "--threads", "1"]
        assert main([*command, "--json", str(trace), "--out", str(image)]) == 0
        results[mode] = json.loads(trace.read_text()), image
    return results


def test_traces_have_the_promised_keys(runs):
    for mode, (values, _) in runs.items():
        assert values["mode"] == mode and values["seed"] == 7 and values["prompt"] == PROMPT
        assert len(values["tokens"]) == 256 and all(0 <= t < 4096 for t in values["tokens"])
        assert values["steps"] == len(values["events"])
        assert values["mean_accepted_length"] == pytest.approx(256 / values["steps"])
        assert set(values["seconds_by_phase"]) == {
            "text", "prefill", "draft", "verify", "accept", "vq",
        }  # fmt: skip
        decode = [values["seconds_by_phase"][p] for p in ("prefill", "draft", "verify", "accept")]
        assert values["seconds"] == pytest.approx(sum(decode)) and values["seconds"] > 0
        for name in ("k", "delta", "temperature", "cfg", "top_k", "top_p", "nodes", "depth",
                     "branch", "rule", "model", "grid", "environment", "image_sha256"):  # fmt: skip
            assert name in values
        assert json.loads(DecodeTrace.from_dict(values).to_json()) == values


def test_eagle2_equals_ar_and_lantern_is_faster_in_passes(runs):
    ar, eagle, relaxed = (runs[mode][0] for mode in ("ar", "eagle2", "lantern"))
    assert ar["steps"] == 256 and ar["mean_accepted_length"] == 1.0
    assert eagle["tokens"] == ar["tokens"] and eagle["image_sha256"] == ar["image_sha256"]
    assert relaxed["steps"] < eagle["steps"] < 256
    assert 0 < relaxed["relaxed_share"] < 1 and eagle["relaxed_share"] == ar["relaxed_share"] == 0


def test_images_are_pictures(runs):
    for _, path in runs.values():
        with Image.open(path) as image:
            assert image.format == "PNG" and image.size == (128, 128) and image.mode == "RGB"
            assert np.asarray(image).std() > 10


def test_partial_image_leaves_the_rest_blank():
    pipeline = lantern.load()
    pixels = np.asarray(pipeline.image([5] * 40))  # two rows and a half of 16
    assert (pixels[24:] == BLANK).all() and (pixels[16:24, 64:] == BLANK).all()
    assert not (pixels[:16] == BLANK).all()


@pytest.mark.parametrize("arguments, words", [
    (["generate", ""], ["prompt is empty"]),
    (["generate", "   "], ["prompt is empty"]),
    (["generate", "cat " * 60], ["too long", "24"]),
    (["generate", "cat " * 30000], ["too long"]),
    (["generate", "cat", "--k", "-1"], ["k must be", "-1"]),
    (["generate", "cat", "--k", "5000"], ["k must be", "5000"]),
    (["generate", "cat", "--delta", "1.5"], ["delta must be", "1.5"]),
    (["generate", "cat", "--delta", "nan"], ["delta"]),
    (["generate", "cat", "--temperature", "-1"], ["temperature must be"]),
    (["generate", "cat", "--cfg", "inf"], ["cfg"]),
    (["generate", "cat", "--seed", "-3"], ["seed must be", "-3"]),
    (["generate", "cat", "--seed", "x"], ["seed", "'x'"]),
    (["generate", "cat", "--mode", "warp"], ["mode", "'warp'"]),
    (["generate", "cat", "--rule", "warp"], ["rule", "'warp'"]),
    (["generate", "cat", "--model", "warp"], ["unknown model 'warp'"]),
    (["generate", "cat", "--nodes", "0"], ["nodes must be"]),
    (["generate", "cat", "--nodes", "99"], ["nodes must be", "64"]),
    (["generate", "cat", "--device", "warp"], ["device", "'warp'"]),
    (["generate", "cat", "--threads", "0"], ["threads", "0"]),
    (["generate", "cat", "--out", "/no/such/folder/x.png"], ["cannot write"]),
    (["bench", "--modes", "ar,warp"], ["unknown mode 'warp'"]),
    (["generate", "cat", "--out", "x" * 300 + ".png"], ["cannot write", "too long"]),
    (["bench", "--prompts", "/no/such/file"], ["/no/such/file", "one prompt a line"]),
    (["bench", "--prompts", "/"], ["cannot read /"]),
    (["bench", "--modes", ""], ["unknown mode ''"]),
    (["bench", "--seeds", "99999999999999999999"], ["--seeds must be from 1 to"]),
    (["scaling", "--nodes", "0"], ["nodes must be from 1"]),
    (["scaling", "--threads", "-1"], ["threads must be from 1"]),
    (["models", "--model-dir", "/no/such/folder"], ["is not a folder"]),
    (["warp"], ["warp"]),
])  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if arguments[0] == "generate" and "--out" not in arguments:
        arguments = [*arguments, "--out", "image.png", "--json", "trace.json"]
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    assert code == 2
    assert captured.err.count("\n") == 1 and "Traceback" not in captured.err
    for word in words:
        assert word in captured.err
    assert not list(tmp_path.iterdir()), "something was written"


def test_models_lists_what_is_there(capsys):
    assert main(["models"]) == 0
    out = capsys.readouterr().out
    assert "emoji-128" in out and "present" in out and "licence" in out


def test_readme_example_runs(tmp_path):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    assert len(example.strip().splitlines()) <= 6
    script = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{example}"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    assert any(file.suffix == ".png" for file in tmp_path.iterdir())


def test_readme_front_matter_agrees_with_the_pins():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    front = dict(re.findall(r"^(\w+): *\"?([^\"\n]*)\"?$", text.split("---")[1], flags=re.M))
    requirements = (ROOT / "requirements.txt").read_text()
    assert f"gradio=={front['sdk_version']}\n" in requirements
    assert front["sdk"] == "gradio" and front["python_version"] == "3.12"
    assert (ROOT / front["app_file"]).is_file()
    assert "torch>=2.8,<2.14" in requirements


def test_shipped_folder_is_small_enough():
    files = [f for f in (ROOT / "checkpoints" / "emoji-128").rglob("*") if f.is_file()]
    files = [f for f in files if not f.name.startswith("neighbours-")]
    assert sum(f.stat().st_size for f in files) <= 120 * 2**20
    assert max(f.stat().st_size for f in files) <= 60 * 2**20


@pytest.mark.parametrize("options", [
    ["--k", "5000"], ["--delta", "2"], ["--nodes", "0"], ["--rule", "odd"], ["--pick", "last"],
    ["--temperature", "nan"], ["--tree", "bonsai"], ["--seed", "-1"],
])  # fmt: skip
def test_wrong_options_are_answered_before_a_model_is_loaded(options, monkeypatch, capsys):
    monkeypatch.setattr(Pipeline, "load", lambda *_, **__: pytest.fail("a model was loaded"))
    assert main(["generate", "a cat", *options]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_reader_that_has_seen_enough_is_no_error():
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m lantern models | head -1"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.startswith("emoji-128:") and not done.stderr
