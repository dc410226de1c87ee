"""Metrics of a hand-made run, and the JSON round trip."""

import json

import pytest

from lantern.trace import EXACT, RELAXED, TARGET, DecodeTrace, NodeEvent, StepEvent, TokenEvent


def token(position, token, kind=TARGET, choice=None, **more):
    values = dict(
        margin=0.5, p_choice=0.25, p_token=0.25, relaxed_mass=0.0, rank=0, distance=0.0, depth=0
    )
    return TokenEvent(position, token, kind, token if choice is None else choice, **values | more)


def hand_made(mode="lantern") -> DecodeTrace:
    """A 2 x 2 image in three passes: 1, 2 and 1 tokens, the second pass relaxed."""
    trace = DecodeTrace(
        "emoji-128", "a cat", {"mode": mode, "seed": 3, "k": 5}, 2, {"device": "cpu"}
    )
    trace.extra_seconds = {"text": 0.5, "vq": 0.25}
    nodes = (NodeEvent(1, 0, 0, 0.0, False), NodeEvent(9, 0, 1, -0.7, True))
    relaxed = token(1, 9, RELAXED, choice=4, rank=2, distance=0.3, relaxed_mass=0.1, depth=1)
    trace.events = [
        StepEvent(0, 0, (token(0, 1),), (), {"prefill": 1.0}),
        StepEvent(
            1, 1, (relaxed, token(2, 7)), nodes, {"draft": 0.5, "verify": 1.0, "accept": 0.5}
        ),
        StepEvent(2, 3, (token(3, 8, EXACT),), (), {"draft": 0.0, "verify": 1.0, "accept": 0.0}),
    ]
    return trace


def test_metrics():
    trace = hand_made()
    assert trace.tokens == [1, 9, 7, 8]
    assert trace.complete and trace.steps == 3
    assert trace.mean_accepted_length == pytest.approx(4 / 3)
    assert trace.relaxed_share == 0.25
    assert trace.accepted_lengths == {1: 2, 2: 1}
    assert trace.kinds == {TARGET: 2, RELAXED: 1, EXACT: 1}
    assert trace.seconds_by_phase == {
        "text": 0.5, "prefill": 1.0, "draft": 0.5, "verify": 2.0, "accept": 0.5, "vq": 0.25,
    }  # fmt: skip
    assert trace.seconds == 4.0  # text and vq apart
    assert trace.tokens_per_second == 1.0


def test_json_round_trip_and_stable_keys():
    trace = hand_made()
    values = json.loads(trace.to_json())
    for name in ("mode", "seed", "tokens", "steps", "mean_accepted_length", "relaxed_share",
                 "seconds", "seconds_by_phase", "events"):  # fmt: skip
        assert name in values
    assert values["events"][1]["accepted_length"] == 2
    assert DecodeTrace.from_json(trace.to_json()) == trace


def test_first_difference():
    one, other = hand_made(), hand_made()
    assert one.first_difference(other) is None
    other.events = other.events[:1]
    assert one.first_difference(other) is None
    other.events = [StepEvent(0, 0, (token(0, 1), token(1, 5)), (), {})]
    assert one.first_difference(other) == 1


def test_empty_trace_has_no_numbers_to_divide():
    trace = DecodeTrace("m", "p", {"mode": "ar"}, 2, {})
    assert (trace.steps, trace.mean_accepted_length, trace.relaxed_share) == (0, 0.0, 0.0)
    assert not trace.complete


@pytest.mark.parametrize("text", ["{}", '{"model": 1}'])
def test_foreign_json_is_refused(text):
    with pytest.raises(ValueError, match="not a trace"):
        DecodeTrace.from_json(text)
