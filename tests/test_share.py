"""Links, zips and pictures that carry their settings."""

import base64
import csv
import io
import json
import zipfile

import pytest
from PIL import Image
from test_app import GOOD, params

from app.export import archive, bundle, png
from app.params import BOUNDS, RunParams
from app.payload import signed
from app.recorded import FOLDER, recordings
from app.share import from_query, query_of, to_query
from lantern.trace import DecodeTrace


def test_a_link_brings_everything_back():
    chosen = dict(zip(RunParams.names(), GOOD, strict=True)) | {"prompt": "a cat & 50 % <b>é</b>"}
    query = query_of("http://host:7860/some/path?" + to_query(chosen))
    assert from_query(query) == chosen
    assert query["p"] == chosen["prompt"] and query["s"] == "7"


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"k": "99999"}, {"k": 1000}),
        ({"delta": "-3"}, {"delta": 0.0}),
        ({"temperature": "0.001"}, {"temperature": 0.01}),
        ({"nodes": "3.4"}, {"nodes": 3}),
        ({"cfg": "nan"}, {}),
        ({"cfg": "1e999"}, {}),
        ({"seed": "seven"}, {}),
        ({"s": "12"}, {"seed": 12}),
        ({"rule": "none"}, {}),
        ({"coupled": "perhaps"}, {}),
        ({"coupled": "True"}, {"coupled": True}),
        ({"model": "../../etc/passwd"}, {}),
        ({"p": "   "}, {}),
        ({"p": "x" * 9000}, {"prompt": "x" * 2000}),
        ({"unknown": "1", "__theme": "dark"}, {}),
        ({"k": None}, {}),
    ],
)
def test_links_are_clamped(query, found):
    assert from_query(query) == found


def test_every_number_survives_its_ends():
    for name, bound in BOUNDS.items():
        for end in (bound.low, bound.high):
            assert from_query({name: repr(float(end))}) == {name: end}


@pytest.mark.parametrize("address", ["", "no address", "http://[broken", "?a"])
def test_odd_addresses_have_no_settings(address):
    assert from_query(query_of(address)) == {}


@pytest.fixture(scope="module")
def recording():
    return next(iter(recordings().values()))


def test_the_zip_holds_everything(recording):
    run = recording.run
    with zipfile.ZipFile(io.BytesIO(archive(run, recording.params))) as file:
        assert file.testzip() is None
        names = set(file.namelist())
        assert {f"{mode}.{kind}" for mode in run.traces for kind in ("png", "json")} <= names
        for mode, trace in run.traces.items():
            again = DecodeTrace.from_json(file.read(f"{mode}.json").decode())
            assert again.tokens == trace.tokens
            with Image.open(io.BytesIO(file.read(f"{mode}.png"))) as image:
                assert image.size == (128, 128)
                kept = json.loads(image.text["lantern"])
                assert kept["mode"] == mode and kept["prompt"] == recording.title
        rows = list(csv.DictReader(io.StringIO(file.read("accepted-lengths.csv").decode())))
        passes = sum(int(row["passes"]) for row in rows if row["mode"] == "lantern")
        assert passes == run.traces["lantern"].steps
        tokens = list(csv.DictReader(io.StringIO(file.read("tokens.csv").decode())))
        assert len(tokens) == 256 * len(run.traces)
        assert file.read("accepted-lengths.pdf").startswith(b"%PDF")
        assert b"<svg" in file.read("accepted-lengths.svg")


def test_the_page_gets_it_as_a_link():
    payload = json.loads(sorted(FOLDER.glob("*.json"))[0].read_text())
    url = bundle({"run": payload})["url"]
    content = base64.b64decode(url.removeprefix("data:application/zip;base64,"))
    assert zipfile.is_zipfile(io.BytesIO(content))


@pytest.mark.parametrize("question", [None, {}, {"run": []}, {"run": {"lanes": [{}]}}])
def test_odd_requests_are_answered_in_words(question):
    assert "run of this page" in bundle(question)["error"]


def test_pictures_carry_their_settings():
    image = signed(Image.new("RGB", (4, 4)), {"prompt": "ein Käfer 🐞"}, "ar")
    with Image.open(io.BytesIO(png(image))) as again:
        assert json.loads(again.text["lantern"]) == {"prompt": "ein Käfer 🐞", "mode": "ar"}
    assert params().prompt == "a cat"
