"""Sweeps: what is drawn, what is measured, what is refused."""

import base64
import csv
import io

import pytest
from PIL import Image
from test_app import finish, load_small, params

from app.jobs import DONE, FAILED, STOPPED
from app.payload import from_data_url
from app.studio import Studio
from app.sweep import COLUMNS, MAX_IMAGES, numbers, plan_of, run
from app.tabs.sweep import export_sweep
from lantern.config import MAX_SEED


@pytest.fixture
def studio():
    studio = Studio(load=load_small)
    decoder, pipeline = studio.pipeline.decoder, studio.pipeline

    def generate(prompt, options, on_step=None):
        trace = pipeline.new_trace(prompt, options)
        for event in pipeline.stream(prompt, options, trace):
            if on_step:
                on_step(event)
        return trace, pipeline.finish(trace)

    pipeline.generate = generate
    assert decoder is not None
    return studio


def sweep(studio, **changes):
    words = {"ks": "4, 8", "deltas": "0, 0.4", "temperatures": "1", "seeds": 2} | changes
    plan = plan_of(params(), **words)
    return studio.submit_work(
        plan.base.model, "a", lambda pipeline, job: run(pipeline, job, plan)
    ), plan


def test_every_cell_is_drawn_and_compared_with_ar(studio):
    job, plan = sweep(studio)
    assert finish(job).state == DONE
    result = job.result
    assert result["done"] == result["total"] == plan.images + 2
    cells = {(c["k"], c["delta"]): c for c in result["cells"]}
    assert set(cells) == {(4, 0.0), (4, 0.4), (8, 0.0), (8, 0.4)}
    for (_, delta), cell in cells.items():
        assert cell["seeds"] == 2 and from_data_url(cell["image"]).size == (8, 8)
        if delta == 0:  # the exact rule: AR's very tokens
            assert cell["tokens_differing"] == 0 == cell["relaxed"] == cell["pixel_distance"]
    assert cells[8, 0.4]["mal"] >= cells[8, 0.0]["mal"] >= 1
    assert [ar["temperature"] for ar in result["ar"]] == [1.0]


def test_temperatures_have_baselines_of_their_own(studio):
    job, _ = sweep(studio, temperatures="0, 1", ks="8", deltas="0", seeds=1)
    assert finish(job).state == DONE and len(job.result["ar"]) == 2
    assert all(cell["tokens_differing"] == 0 for cell in job.result["cells"])


def test_what_was_drawn_stays_after_stop(studio):
    studio.pipeline.pause = 0.01
    job, _ = sweep(studio, ks="4 8 16", deltas="0.1 0.2 0.4", seeds=1)
    while not job.result or len(job.result["cells"]) < 2:
        job.wait(job.version, 0.05)
    studio.stop("a")
    assert finish(job).state == STOPPED
    assert 2 <= len(job.result["cells"]) < 9 and job.result["done"] < job.result["total"]


def test_a_prompt_the_model_cannot_take_is_a_sentence(studio):
    plan = plan_of(params(prompt="x" * 200), "4", "0", "1", 1)
    job = studio.submit_work("emoji-128", "a", lambda pipeline, job: run(pipeline, job, plan))
    assert finish(job).state == FAILED and "too long" in job.message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ks": ""}, "at least one value"),
        ({"ks": "a, b"}, "not a value of k"),
        ({"ks": "4.5"}, "k must be a whole number"),
        ({"deltas": "2"}, "delta must be"),
        ({"deltas": "nan"}, "delta must be"),
        ({"temperatures": None}, "Write values of temperature"),
        ({"ks": "1," * 300}, "Write values of k"),
        ({"seeds": 0}, "number of seeds"),
        ({"seeds": 2.5}, "number of seeds"),
        ({"seeds": True}, "number of seeds"),
        ({"seeds": "many"}, "number of seeds"),
        ({"seeds": float("inf")}, "number of seeds"),
        ({"seeds": float("nan")}, "number of seeds"),
        ({"ks": "1 2 3 4 5", "deltas": "0 .1 .2 .3 .4", "seeds": 4}, f"more than {MAX_IMAGES}"),
    ],
)
def test_plans_are_checked(changes, words):
    given = {"ks": "4", "deltas": "0.1", "temperatures": "1", "seeds": 1} | changes
    with pytest.raises(ValueError, match=words):
        plan_of(params(), **given)


def test_seeds_end_where_seeds_end():
    last = params(seed=MAX_SEED)
    assert plan_of(last, "4", "0.1", "1", 1).images == 1
    with pytest.raises(ValueError, match="choose a lower seed"):
        plan_of(last, "4", "0.1", "1", 2)


def test_values_are_read_kindly():
    assert numbers("k", " 100; 300,300 ,1000") == (100, 300, 1000)


CELL = dict(zip(COLUMNS, (1, 100, 0.2, 2, 1.5, 1.2, 0.3, 0.8, 0.05), strict=True))


def test_tables_and_figures(studio):
    cells = [CELL, CELL | {"k": 1000, "mal": 1.75}]
    url = export_sweep({"cells": cells, "format": "csv"})["url"]
    text = base64.b64decode(url.partition(",")[2]).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["mal"] for row in rows] == ["1.5", "1.75"] and rows[0]["k"] == "100"
    url = export_sweep({"cells": cells, "format": "png"})["url"]
    with Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) as image:
        assert image.format == "PNG" and image.width > 1000


@pytest.mark.parametrize(
    "question",
    [None, {}, {"cells": []}, {"cells": [1], "format": "csv"}, {"cells": [CELL], "format": "exe"},
     {"cells": [CELL | {"k": "x"}], "format": "png"}, {"cells": [CELL] * 99, "format": "csv"}],
)  # fmt: skip
def test_odd_requests_are_answered_in_words(question):
    assert export_sweep(question)["error"]
