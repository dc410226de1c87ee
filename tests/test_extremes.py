"""Numbers at their ends and beyond: decoded or refused, and lossless wherever decoded."""

import itertools
import json

import pytest
import torch
from tiny_decoder import TINY, decode, make_caption, make_decoder, tokens_of

from lantern.config import ALL_MODES, MODES, TreeShape
from lantern.decode import DecodeError
from lantern.trace import DecodeTrace

LOSSLESS = ("eagle2", "eagle2-coupled")


def figures(events) -> list[float]:
    """Every float of the tokens' records."""
    return [
        value
        for event in events
        for token in event.tokens
        for value in (token.margin, token.p_choice, token.p_token, token.relaxed_mass,
                      token.distance)
    ]  # fmt: skip


@pytest.mark.parametrize("temperature", [0, 0.01, 1.0, 10.0])
@pytest.mark.parametrize("cfg", [0, 1, 20])
def test_ends_of_temperature_and_guidance(decoder, temperature, cfg):
    ar = decode(decoder, temperature=temperature, cfg=cfg)
    for mode in ALL_MODES[1:]:
        events = decode(decoder, mode, temperature=temperature, cfg=cfg)
        assert all(abs(value) < float("inf") for value in figures(events))
        if mode in LOSSLESS:
            assert tokens_of(events) == tokens_of(ar)


@pytest.mark.parametrize("filters", [
    {"top_k": 1}, {"top_k": 2}, {"top_k": 64}, {"top_k": 10**9}, {"top_p": 1e-9}, {"top_p": 0.999},
    {"top_k": 1, "top_p": 1e-9},
])  # fmt: skip
def test_ends_of_filters(decoder, filters):
    ar = tokens_of(decode(decoder, **filters))
    for mode in LOSSLESS:
        assert tokens_of(decode(decoder, mode, **filters)) == ar
    if filters.get("top_k") == 1:  # one token left: nothing to draw
        assert ar == tokens_of(decode(decoder, seed=99, **filters))


@pytest.mark.parametrize("tree", [
    TreeShape(1, 1, 1), TreeShape(2, 1, 1), TreeShape(64, 16, 1), TreeShape(64, 1, 32),
    TreeShape(64, 10, 16), TreeShape(64, 5, 10, "static"), TreeShape(2, 16, 32, "static"),
])  # fmt: skip
def test_smallest_and_largest_trees(decoder, tree):
    ar = tokens_of(decode(decoder))
    for mode in ALL_MODES[1:]:
        tokens = tokens_of(decode(decoder, mode, tree=tree))
        assert len(tokens) == TINY.image_tokens
        assert tokens == ar or mode not in LOSSLESS


@pytest.mark.parametrize("changes", [
    {"k": 1000, "delta": 1.0}, {"k": 1, "delta": 1.0}, {"k": 1000, "delta": 1e-300},
    {"k": 1000, "rule": "jsd", "delta": 1.0}, {"rule": "multiplicative", "factor": 1000.0},
    {"k": 1000, "delta": 1.0, "pick": "nearest"}, {"k": 1000, "delta": 1.0, "temperature": 0},
])  # fmt: skip
def test_ends_of_relaxation(decoder, changes):
    for mode in ("lantern", "lantern-coupled"):
        events = decode(decoder, mode, **changes)
        assert len(tokens_of(events)) == TINY.image_tokens
        assert all(abs(value) < float("inf") for value in figures(events))


@pytest.mark.parametrize(
    "changes", [{"k": 0}, {"delta": 0}, {"rule": "multiplicative", "factor": 1}]
)
def test_no_relaxation_is_lossless(decoder, changes):
    for mode in ("lantern", "lantern-coupled"):
        assert tokens_of(decode(decoder, mode, **changes)) == tokens_of(decode(decoder))


@pytest.mark.parametrize("pieces", [1, TINY.prefix])
def test_shortest_prompt_and_one_that_fills_the_window(decoder, pieces):
    caption = make_caption(3, pieces)
    ar = tokens_of(decode(decoder, caption=caption))
    assert all(tokens_of(decode(decoder, mode, caption=caption)) == ar for mode in LOSSLESS)


# -- numbers that are none -----------------------------------------------------------------------


@pytest.fixture
def spoil(decoder, monkeypatch):
    """Puts ``value`` into one logit of the target's n-th pass."""

    def change(value: float, at_pass: int):
        count, plain = itertools.count(), decoder.target.logits

        def logits(hidden):
            out = plain(hidden)
            if next(count) == at_pass:
                out[0, 0, 5] = value
            return out

        monkeypatch.setattr(decoder.target, "logits", logits)

    return change


@pytest.mark.parametrize("at_pass", [0, 2])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_refused(decoder, spoil, mode, value, at_pass):
    spoil(value, at_pass)
    with pytest.raises(DecodeError, match="not numbers"):
        decode(decoder, mode)


def test_a_token_that_cannot_be_is_never_drawn(decoder, spoil):
    spoil(-float("inf"), 2)
    tokens = tokens_of(decode(decoder))
    assert len(tokens) == TINY.image_tokens and tokens[2] != 5


def test_the_run_after_a_refused_one_is_untouched(decoder, spoil, monkeypatch):
    clean = {mode: tokens_of(decode(decoder, mode)) for mode in ALL_MODES}
    with monkeypatch.context():
        spoil(float("nan"), 2)
        with pytest.raises(DecodeError):
            decode(decoder, "lantern")
    monkeypatch.undo()
    assert {mode: tokens_of(decode(decoder, mode)) for mode in ALL_MODES} == clean


@pytest.mark.parametrize("mode", LOSSLESS)
@pytest.mark.parametrize("tree", [TreeShape(8, 3, 3), TreeShape(8, 3, 3, "static")])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_a_drafter_gone_mad_costs_speed_not_tokens(decoder, mode, tree, value):
    ar = tokens_of(decode(decoder))
    weight = decoder.drafter.fc.weight.data
    weight[:, ::2] = value
    assert tokens_of(decode(decoder, mode, tree=tree)) == ar


@pytest.mark.parametrize("share", [0.3, 0.6, 1.0])
def test_candidates_that_are_no_numbers(decoder, monkeypatch, share):
    """Children of NaN among finite ones would come before their parents."""
    plain, generator = decoder.drafter.logits, torch.Generator().manual_seed(0)

    def logits(out, target):
        values = plain(out, target)
        broken = torch.rand(values.shape[1], generator=generator) < share
        return values.masked_fill(broken[None, :, None], float("nan"))

    monkeypatch.setattr(decoder.drafter, "logits", logits)
    for seed in range(4):
        ar = tokens_of(decode(decoder, seed=seed))
        for mode in LOSSLESS:
            events = decode(decoder, mode, seed=seed)
            assert tokens_of(events) == ar
            for event in events:
                parents = [event.nodes[node.parent] for node in event.nodes[1:]]
                assert all(p.depth + 1 == n.depth
                           for p, n in zip(parents, event.nodes[1:], strict=True))  # fmt: skip


def test_a_drafter_of_another_model_is_lossless_too(decoder):
    other = make_decoder(seed=9).drafter
    ar = tokens_of(decode(decoder))
    decoder.drafter = other
    assert all(tokens_of(decode(decoder, mode)) == ar for mode in LOSSLESS)


@pytest.mark.parametrize("mode", ALL_MODES)
def test_traces_are_plain_json(decoder, mode):
    """No NaN and no infinity, which JSON does not have, even where only one token is left."""
    for changes in ({"top_k": 1}, {"top_p": 1e-9}, {"temperature": 0}, {"cfg": 20}):
        events = decode(decoder, mode, **changes)
        trace = DecodeTrace("tiny", "a cat", {"mode": mode}, TINY.grid, {}, events)
        json.loads(trace.to_json(), parse_constant=pytest.fail)
