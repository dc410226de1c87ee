"""Traces as columns."""

import json
from dataclasses import replace

import pytest
from tiny_decoder import decode, make_decoder

from lantern.columns import from_columns, to_columns
from lantern.config import ALL_MODES, DecodeOptions
from lantern.trace import DecodeTrace


@pytest.fixture(scope="module", params=ALL_MODES)
def trace(request) -> DecodeTrace:
    options = replace(DecodeOptions(mode=request.param), seed=2)
    return DecodeTrace(
        "tiny", "a cat", options.to_dict(), 4, {"device": "cpu"},
        decode(make_decoder(), request.param), {"text": 0.01, "vq": 0.02}, "ab",
    )  # fmt: skip


def test_columns_come_back_as_the_trace(trace):
    columns = to_columns(trace)
    again = from_columns(json.loads(json.dumps(columns, allow_nan=False)))
    assert to_columns(again) == columns
    assert again.tokens == trace.tokens and again.kinds == trace.kinds
    assert again.steps == trace.steps and again.accepted_lengths == trace.accepted_lengths
    assert again.seconds == pytest.approx(trace.seconds, rel=1e-3)
    assert [[n.parent for n in e.nodes] for e in again.events] == [
        [n.parent for n in e.nodes] for e in trace.events
    ]
    assert again.options == trace.options and again.seconds_by_phase["vq"] == 0.02


def test_columns_are_small(trace):
    assert len(json.dumps(to_columns(trace))) < 0.4 * len(trace.to_json())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda v: v.pop("tokens"),
        lambda v: v["tokens"]["token"].pop(),
        lambda v: v["tokens"].update(kind="x" * 16),
        lambda v: v["tokens"]["token"].__setitem__(0, "<script>"),
        lambda v: v["tokens"]["rank"].__setitem__(0, -5),
        lambda v: v["steps"]["length"].append(1),
        lambda v: v["nodes"]["count"].__setitem__(0, 99),
        lambda v: v.update(options=7),
        lambda v: v.update(grid=None),
        lambda v: v["tokens"]["margin"].__setitem__(1, "wide"),
        lambda v: v["steps"].update(seconds=[]),
    ],
)  # fmt: skip
def test_anything_else_is_refused_in_a_sentence(trace, spoil):
    values = to_columns(trace)
    spoil(values)
    with pytest.raises(ValueError, match="not a run of this program"):
        from_columns(values)


@pytest.mark.parametrize("values", [None, [], "x", {}, {"tokens": {}, "steps": {}, "nodes": {}}])
def test_nothing_is_refused_too(values):
    with pytest.raises(ValueError, match="not a run of this program"):
        from_columns(values)
