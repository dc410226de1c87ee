"""Steps of fixed shape draw what plain steps draw; captured as CUDA graphs, where there are any."""

import threading

import pytest
import torch
from tiny_decoder import TINY, decode, make_caption, make_decoder, tokens_of

from lantern.config import ALL_MODES, DecodeOptions, TreeShape
from lantern.decode import DecodeError
from lantern.graphs import KEPT, Graphs

TREES = [TreeShape(1, 1, 1), TreeShape(2, 1, 1), TreeShape(5, 4, 1), TreeShape(8, 3, 3),
         TreeShape(64, 8, 6), TreeShape(7, 3, 2, "static"), TreeShape(64, 8, 6, "static"),
         TreeShape(9, 16, 2)]  # fmt: skip


@pytest.fixture
def fixed(decoder):
    """The same weights behind fixed shapes."""
    other = make_decoder()
    other.graphs = Graphs(capture=False)
    return other


def shape_of(events) -> list:
    """What happened in every pass, rounding aside."""
    return [
        (e.step, e.start, [(t.position, t.token, t.kind, t.choice, t.depth) for t in e.tokens])
        for e in events
    ]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("tree", TREES, ids=str)
@pytest.mark.parametrize("mode", ALL_MODES)
def test_same_passes_as_plain_steps(decoder, fixed, mode, tree, temperature):
    for seed in range(3):
        options = dict(tree=tree, temperature=temperature, seed=seed, delta=0.3)
        plain = decode(decoder, mode, **options)
        assert shape_of(decode(fixed, mode, **options)) == shape_of(plain)


@pytest.mark.parametrize("changes", [
    {"top_k": 5}, {"top_p": 0.7, "cfg": 0.0}, {"rule": "jsd"}, {"pick": "nearest", "delta": 0.8},
    {"rule": "multiplicative", "factor": 4.0}, {"k": 63, "delta": 1.0},
])  # fmt: skip
def test_same_passes_under_every_rule_and_filter(decoder, fixed, changes):
    for mode in ("eagle2", "lantern", "lantern-coupled"):
        plain = decode(decoder, mode, **changes)
        assert shape_of(decode(fixed, mode, **changes)) == shape_of(plain)


def test_trees_are_those_of_plain_steps_inside_the_image(decoder, fixed):
    """Tokens, parents and what was accepted of every node; none beyond the last token."""
    for mode in ("eagle2", "lantern-coupled"):
        tree = TreeShape(12, 5, 4)
        plain, other = decode(decoder, mode, tree=tree), decode(fixed, mode, tree=tree)
        for left, right in zip(plain, other, strict=True):
            root = right.start - 1
            assert all(root + n.depth < TINY.image_tokens for n in right.nodes)
            if root + tree.depth < TINY.image_tokens:
                columns = [[(n.token, n.parent, n.depth, n.accepted) for n in event.nodes]
                           for event in (left, right)]  # fmt: skip
                assert columns[0] == columns[1]


def test_images_follow_each_other_in_the_same_buffers(decoder, fixed):
    captions = [make_caption(seed, pieces) for seed, pieces in ((1, 2), (2, 6), (3, 4), (1, 2))]
    for seed, caption in enumerate(captions):
        for mode in ("ar", "lantern"):
            plain = decode(decoder, mode, caption=caption, seed=seed)
            assert shape_of(decode(fixed, mode, caption=caption, seed=seed)) == shape_of(plain)
    assert len(fixed.graphs._free) == 2, "one request a mode served them all"


def test_a_stopped_image_leaves_nothing_behind(decoder, fixed):
    options = DecodeOptions(mode="lantern", top_k=0, k=8, tree=TreeShape(8, 3, 3), seed=5)
    stream = fixed.stream(*make_caption(2), options)
    for _ in range(3):
        next(stream)
    stream.close()
    assert shape_of(decode(fixed, "lantern")) == shape_of(decode(decoder, "lantern"))


def test_numbers_that_are_none_do_not_outlive_their_image(decoder, fixed):
    """A layer breaks in the middle: NaN lies in slots that the next image hides, not overwrites."""
    options = DecodeOptions(mode="eagle2", top_k=0, k=8, tree=TreeShape(8, 3, 3))
    stream = fixed.stream(*make_caption(), options)
    for _ in range(3):
        next(stream)
    for layer in fixed.target.layers:
        layer.attention.qkv.weight.data.fill_(float("nan"))
    with pytest.raises(DecodeError):
        list(stream)
    fixed.target.load_state_dict(decoder.target.state_dict())
    assert shape_of(decode(fixed, "eagle2")) == shape_of(decode(decoder, "eagle2"))


def test_two_threads_have_buffers_of_their_own(fixed):
    alone = [tokens_of(decode(fixed, "lantern", seed=seed)) for seed in range(4)]
    together = [None] * 4

    def work(seed):
        together[seed] = tokens_of(decode(fixed, "lantern", seed=seed))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_few_requests_are_kept(fixed):
    for step in range(2 * KEPT):
        decode(fixed, "eagle2", cfg=1 + step / 10)
    assert len(fixed.graphs._free) == KEPT
    fixed.forget()
    assert not fixed.graphs._free


# -- on a GPU ------------------------------------------------------------------------------------

cuda = pytest.mark.cuda


def on_gpu():
    """A plain decoder and one with graphs on the GPU; the test ends early without one."""
    made = []
    for _ in range(2):
        decoder = make_decoder()
        for name in ("target", "drafter"):
            getattr(decoder, name).cuda()
        decoder.codes, decoder.neighbours = decoder.codes.cuda(), decoder.neighbours.cuda()
        made.append(decoder)
    made[1].graphs = Graphs()
    return made


@cuda
@pytest.mark.parametrize("mode", ALL_MODES)
def test_captured_steps_draw_what_plain_steps_draw(mode):
    plain, graphs = on_gpu()
    caption = tuple(value.cuda() for value in make_caption())
    for seed in range(3):
        options = dict(caption=caption, seed=seed, tree=TreeShape(12, 4, 3))
        assert shape_of(decode(graphs, mode, **options)) == shape_of(decode(plain, mode, **options))


@cuda
def test_no_step_waits_for_the_device_but_once():
    _, graphs = on_gpu()
    caption = tuple(value.cuda() for value in make_caption())
    options = DecodeOptions(mode="lantern", top_k=0, k=8, tree=TreeShape(8, 3, 3))
    list(graphs.stream(*caption, options))  # captured
    stream = graphs.stream(*caption, options)
    next(stream)
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert len(list(stream)) > 1
    finally:
        torch.cuda.set_sync_debug_mode("default")
