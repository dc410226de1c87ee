"""CFG, filters and the Gumbel table."""

import torch
from chi_square import chi_square_ok

from lantern.sampling import choose, guide, gumbel_table, process


def test_guide_mixes_the_rows():
    logits = torch.tensor([[[2.0, 0.0]], [[1.0, 1.0]]])
    assert guide(logits, 0).tolist() == [[1.0, 1.0]]
    assert guide(logits, 1).tolist() == [[2.0, 0.0]]
    assert guide(logits, 3).tolist() == [[4.0, -2.0]]


def test_filters():
    z = torch.tensor([[0.0, 3.0, 1.0, 1.0]])
    assert process(z, 1, 0, 1.0).equal(z)
    assert process(z, 0, 1, 0.1).equal(z), "greedy decoding filters nothing"
    assert process(z, 2, 0, 1.0).equal(z / 2)
    # the second largest is tied: both stay
    assert process(z, 1, 2, 1.0).isinf().tolist() == [[True, False, False, False]]
    # p(1) = .78: alone enough for .5, not for .8
    assert process(z, 1, 0, 0.5).isinf().tolist() == [[True, False, True, True]]
    assert process(z, 1, 0, 0.8).isinf().sum() == 2
    assert process(z, 1, 99, 1.0).equal(z)


def test_noise_depends_on_the_seed_alone_and_vanishes_at_zero():
    once, again = gumbel_table(3, 4, 10, 1.0, "cpu"), gumbel_table(3, 4, 10, 0.3, "cpu")
    assert once.equal(again) and once.isfinite().all()
    assert not once.equal(gumbel_table(4, 4, 10, 1.0, "cpu"))
    assert not gumbel_table(3, 4, 10, 0.0, "cpu").any()


def test_choices_follow_the_softmax():
    z = torch.tensor([[1.0, 0.0, -1.0, 2.0, 0.5]])
    noise = gumbel_table(1, 20_000, 5, 1.0, "cpu")
    choices, margins = choose(z.expand(20_000, -1), noise)
    assert (margins >= 0).all()
    observed = torch.bincount(choices, minlength=5).float()
    assert chi_square_ok(observed, z.softmax(-1)[0] * 20_000)
    assert not chi_square_ok(observed, z.flip(1).softmax(-1)[0] * 20_000)
