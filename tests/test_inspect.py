"""The inspector's facts agree with what the decode loop recorded."""

from dataclasses import replace

import pytest
import torch
from tiny_models import write_stage

from lantern.ambiguity import ambiguity, target_logits
from lantern.inspect import inspect_token
from lantern.pipeline import Pipeline
from lantern.sampling import gumbel_table

PROMPT = "a red apple"


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_stage(folder)
    return Pipeline.load("llamagen-stage1", "cpu", model_dir=folder)


@pytest.fixture(scope="module", params=[1.0, 0.0])
def run(request, pipeline):
    options = pipeline.options(
        mode="lantern-coupled", seed=4, k=40, delta=0.4, temperature=request.param, top_k=0,
        nodes=8, depth=3, branch=3, cfg=2.0,
    )  # fmt: skip
    trace, _ = pipeline.generate(PROMPT, options)
    return options, trace


def test_one_dense_pass_finds_every_choice_of_the_decode_loop(pipeline, run):
    options, trace = run
    z = target_logits(pipeline, PROMPT, trace.tokens, options)
    noise = gumbel_table(options.seed, *z.shape, options.temperature, z.device)
    near_ties = sum(t.margin < 1e-4 for t in trace.token_events)
    wrong = (z + noise).argmax(-1) != torch.tensor([t.choice for t in trace.token_events])
    assert len(z) == 256 and int(wrong.sum()) <= near_ties


def test_ambiguity_is_that_of_the_distributions(pipeline, run):
    options, trace = run
    found = ambiguity(pipeline, PROMPT, trace.tokens, options)
    probs = target_logits(pipeline, PROMPT, trace.tokens, options).softmax(-1)
    assert torch.allclose(found.top1, probs.max(-1).values)
    assert (found.top10 >= found.top1).all() and (found.top10 <= 1 + 1e-5).all()
    expected = torch.distributions.Categorical(probs).entropy()
    assert torch.allclose(found.entropy, expected, atol=1e-4)


@pytest.mark.parametrize("kind", ["exact", "relaxed", "target"])
def test_tokens_of_every_kind(pipeline, run, kind):
    options, trace = run
    events = [(e, t) for e in trace.events for t in e.tokens if t.kind == kind and e.nodes]
    assert events or not options.temperature  # greedy, a random model keeps to few kinds
    for step, token in events[len(events) // 3 :][:2]:
        refused = []
        if kind != "target":
            (node,) = [
                i for i, n in enumerate(step.nodes)
                if n.accepted and n.depth == token.depth
            ]  # fmt: skip
            before = [n for n in step.nodes[1:node] if n.parent == step.nodes[node].parent]
            refused = [n.token for n in before if n.depth == token.depth]
        found = inspect_token(pipeline, PROMPT, options, trace.tokens, token.position, refused)
        assert found.choice == token.choice or token.margin < 1e-4
        assert found.p_token == pytest.approx(token.p_token, abs=1e-4)
        likely = [c.p for c in found.likeliest]
        assert likely == sorted(likely, reverse=True)
        assert {found.token, found.choice} <= {c.code for c in found.likeliest}
        assert set(found.pictures) >= {n.code for n in found.nearest} | {found.token, found.choice}
        running = [n.running for n in found.nearest[:12]]
        assert running == sorted(running) and [n.rank for n in found.nearest[:12]] == [
            *range(1, 13)
        ]
        for near in found.nearest:
            assert near.member == (near.running <= options.delta)
        if kind == "relaxed" and options.temperature:
            by_code = {n.code: n for n in found.nearest}
            assert by_code[found.choice].member and by_code[found.choice].rank == token.rank
            assert by_code[found.choice].distance == pytest.approx(token.distance, abs=1e-4)


def test_pictures_show_the_swap_and_nothing_else_nearby(pipeline, run):
    options, trace = run
    found = inspect_token(pipeline, PROMPT, options, trace.tokens, 17)
    sizes = {picture.size for picture in found.pictures.values()}
    assert sizes == {(5 * 16, 5 * 16)}  # row 1, column 1: cut off at the edge
    assert len({picture.tobytes() for picture in found.pictures.values()}) > 1


def test_the_exact_modes_have_neighbours_but_none_may_stand_in(pipeline, run):
    options, trace = run
    found = inspect_token(pipeline, PROMPT, replace(options, mode="eagle2"), trace.tokens, 30)
    assert found.nearest and not any(n.member for n in found.nearest) and found.members == 0


@pytest.mark.parametrize(
    ("tokens", "position", "refused", "words"),
    [
        ([1] * 255, 0, [], "256 tokens"),
        ([1] * 256, 256, [], "256 tokens"),
        ([1] * 256, -1, [], "256 tokens"),
        ([999_999] + [1] * 255, 3, [], "codes from 0"),
        ([1] * 256, 3, [-4], "codes from 0"),
    ],
)
def test_other_images_are_refused(pipeline, run, tokens, position, refused, words):
    with pytest.raises(ValueError, match=words):
        inspect_token(pipeline, PROMPT, run[0], tokens, position, refused)
