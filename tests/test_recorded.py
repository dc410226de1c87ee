"""Recordings and the animation made of them."""

import base64
import io
import json
import shutil

import pytest
from PIL import Image

from app.animation import FRAMES, animate, render
from app.recorded import FOLDER, MODEL, fingerprint, label, main, recordings
from lantern.config import ALL_MODES, MODES
from lantern.pipeline import model_info


@pytest.fixture(scope="module")
def shipped():
    return recordings()


def test_shipped_recordings_are_whole_and_small(shipped):
    files = list(FOLDER.glob("*.json"))
    assert len(shipped) == len(files) >= 3
    assert sum(file.stat().st_size for file in files) < 1.5e6
    for recording in shipped.values():
        traces = recording.run.traces
        assert set(traces) >= set(MODES) and all(t.complete for t in traces.values())
        assert traces["eagle2"].tokens == traces["ar"].tokens
        assert traces["lantern"].steps < traces["ar"].steps
    assert set(list(shipped.values())[-1].run.traces) == set(ALL_MODES)


def test_recordings_of_other_weights_say_so(shipped):
    recording = next(iter(shipped.values()))
    own = label(recording, recording.about["weights"])
    assert recording.about["hardware"] in own and recording.about["date"] in own
    assert "other weights" in label(recording, "0" * 12) and "other weights" not in own
    assert len(fingerprint()) == 12


@pytest.mark.parametrize("spoil", ["", "{", "[]", '{"recorded": {}}', "null"])
def test_broken_recordings_are_left_out(tmp_path, shipped, spoil, caplog):
    good = sorted(FOLDER.glob("*.json"))[0]
    shutil.copy(good, tmp_path / "00.json")
    (tmp_path / "01.json").write_text(spoil)
    values = json.loads(good.read_text())
    values["lanes"][0]["tokens"]["token"][0] = "<img>"
    (tmp_path / "02.json").write_text(json.dumps(values))
    assert list(recordings(tmp_path)) == list(shipped)[:1]
    assert "01.json is left out" in caplog.text and "02.json is left out" in caplog.text


def test_recordings_are_made_by_the_command(tmp_path):
    assert main(["--out", str(tmp_path / "r"), "--count", "1",
                 "--animation", str(tmp_path / "race.webp")]) == 0  # fmt: skip
    (made,) = recordings(tmp_path / "r").values()
    assert made.about["weights"] == fingerprint()
    assert made.params["seed"] == model_info(MODEL).seeds[0]
    with Image.open(tmp_path / "race.webp") as image:
        assert image.n_frames == FRAMES + 1


def test_lanes_fill_in_at_their_own_speed(shipped):
    run = next(iter(shipped.values())).run
    with Image.open(io.BytesIO(render(run, "gif", width=480))) as image:
        image.seek(image.n_frames // 2)
        half = image.convert("RGB")
        image.seek(image.n_frames - 1)
        last = image.convert("RGB")
    side = (480 - 16 * 4) // 3
    blank = []
    for place in range(3):
        left = 16 + place * (side + 16)
        box = (left, 54, left + side, 54 + side)
        pixels = list(half.crop(box).getdata())
        blank.append(sum(max(p) - min(p) < 9 and 110 < p[0] < 146 for p in pixels) / len(pixels))
        assert last.crop(box).tobytes() != half.crop(box).tobytes() or blank[-1] < 0.1
    seconds = [trace.seconds for trace in run.traces.values()]
    slowest, fastest = seconds.index(max(seconds)), seconds.index(min(seconds))
    assert blank[slowest] > blank[fastest] and blank[slowest] > 0.3


@pytest.mark.parametrize("question", [None, 3, {}, {"format": "exe"}, {"format": "gif", "run": {}}])
def test_odd_requests_are_answered_in_words(question):
    assert animate(question)["error"]


def test_the_answer_is_a_picture(shipped):
    payload = json.loads(sorted(FOLDER.glob("*.json"))[0].read_text())
    url = animate({"format": "webp", "run": payload})["url"]
    content = base64.b64decode(url.removeprefix("data:image/webp;base64,"))
    with Image.open(io.BytesIO(content)) as image:
        assert image.format == "WEBP" and image.is_animated
