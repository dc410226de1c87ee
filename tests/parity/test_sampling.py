"""Temperature and filters on recorded logits (rows 0 and 1 hold ties)."""

import pytest
import torch

from lantern.sampling import process
from parity.recorded import assert_close, tensors, values

CASES = values("target_hf/logits_processing")
IO = "target_hf/logits_processing"


def name_of(case: dict) -> str:
    return f"T{case['temperature']}-k{case['top_k']}-p{case['top_p']}"


@pytest.mark.parametrize("case", [c for c in CASES if c["temperature"] > 0], ids=name_of)
def test_probabilities(case):
    io, settings = tensors(IO), [case[x] for x in ("temperature", "top_k", "top_p")]
    probs = process(io["logits"], *settings).softmax(-1)
    recorded = io[f"base_probs_{case['case']}"]
    assert probs.gt(0).equal(recorded > 0)
    assert probs.gt(0).sum(-1).tolist() == case["base_support"]
    assert_close(probs, recorded, 1e-6)


@pytest.mark.parametrize("case", [c for c in CASES if c["temperature"] == 0], ids=name_of)
def test_greedy(case):
    # The official base code divides by 1e-5 and draws, so exact ties fall at random; ours is the
    # plain argmax, which is one of the tokens it may draw.
    io = tensors(IO)
    z = process(io["logits"], 0.0, case["top_k"], case["top_p"])
    assert z.equal(io["logits"])
    best = z.argmax(-1, keepdim=True)
    recorded = io[f"base_probs_{case['case']}"]
    assert recorded.gather(1, best).gt(0.4).all()
    assert recorded.gt(0).sum(-1).tolist() == case["base_support"]


@pytest.mark.parametrize("number", [4, 5])
def test_order_of_filters(number):
    # The official EAGLE code filters by top-p first, its base code by top-k first. Ours follows
    # base in every mode, so that AR and EAGLE-2 sample one distribution.
    io, case = tensors(IO), CASES[number]
    temperature, top_k, top_p = (case[x] for x in ("temperature", "top_k", "top_p"))
    ours = process(io["logits"], temperature, top_k, top_p).softmax(-1)
    swapped = process(process(io["logits"], temperature, 0, top_p), 1.0, top_k, 1.0).softmax(-1)
    recorded = io[f"ea_probs_{number}"]
    assert_close(swapped[2:], recorded[2:], 1e-6)
    # In the rows with ties it keeps other ones of equally likely tokens at the cut of top-p.
    assert_close(swapped.sort(-1).values, recorded.sort(-1).values, 1e-6)
    assert (ours - swapped).abs().max() > 1e-3
    assert torch.all(ours.gt(0).sum(-1) <= swapped.gt(0).sum(-1))
