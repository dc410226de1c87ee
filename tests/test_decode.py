"""The loop's promises: losslessness, correct caches, no draft past the end, isolation."""

import gc
import threading

import pytest
import torch
from tiny_decoder import TINY, decode, make_caption, make_decoder, tokens_of

from lantern.config import TreeShape
from lantern.decode import DecodeError
from lantern.drafting import static_paths
from lantern.models.llamagen import prefix_mask
from lantern.trace import RELAXED

TREES = [TreeShape(1, 1, 1), TreeShape(2, 1, 1), TreeShape(5, 4, 1), TreeShape(8, 3, 3)]
TREES += [TreeShape(20, 5, 4), TreeShape(64, 8, 6)]
TREES += [TreeShape(7, 3, 2, "static"), TreeShape(64, 8, 6, "static")]


def perfect(decoder):
    """Replace the drafter by one that knows the target: its prediction is the target's own hidden
    state, recomputed from the tokens it was fed."""
    target = decoder.target

    class Oracle(torch.nn.Module):
        config = decoder.drafter.config
        layers = decoder.drafter.layers

        def __init__(self):
            super().__init__()
            self.rows = {}

        def embed(self, tokens, target):
            return target.embedding(tokens)

        def logits(self, out, target):
            return target.logits(out)

        def forward(self, embedded, hidden, positions, mask, cache, start):
            # Keep the embedded token of each slot; follow the mask to find each row's history.
            out = []
            t = embedded.shape[1]
            for j in range(t):
                self.rows[start + j] = embedded[:, j]
                length = start + t
                seen = torch.zeros(length) if mask is None else mask[j]
                slots = [s for s in range(length) if seen[s] == 0 and s >= TINY.prefix - 1]
                x = torch.stack([*self.prefix.unbind(1), *(self.rows[s] for s in slots)], 1)
                n, p = x.shape[1], TINY.prefix
                full = torch.full((1, 1, n, n), -torch.inf).triu(1)
                full[..., :p, :p] = self.prefix_mask
                full[..., p:, :p].masked_fill_(~self.valid, -torch.inf)
                out.append(target(x, slice(0, n), full)[:, -1])
            return torch.stack(out, 1)

    oracle = Oracle()
    caption, valid = make_caption()
    oracle.prefix, oracle.valid = target.prefix(caption), valid
    oracle.prefix_mask = prefix_mask(valid, target.config)[0, 0]
    decoder.drafter = oracle
    return decoder


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("tree", TREES, ids=str)
@pytest.mark.parametrize("mode", ["eagle2", "eagle2-coupled"])
def test_eagle2_draws_ars_tokens(decoder, temperature, tree, mode):
    for seed in range(3):
        ar = decode(decoder, "ar", seed=seed, temperature=temperature)
        eagle = decode(decoder, mode, seed=seed, temperature=temperature, tree=tree)
        assert tokens_of(eagle) == tokens_of(ar)
        assert len(tokens_of(ar)) == len(ar) == TINY.image_tokens


@pytest.mark.parametrize(
    "top_k, top_p, cfg", [(5, 1.0, 2.0), (0, 0.7, 0.0), (1, 1.0, 7.5), (9, 0.5, 1.0)]
)
@pytest.mark.parametrize("mode", ["eagle2", "eagle2-coupled"])
def test_eagle2_is_lossless_under_filters(decoder, top_k, top_p, cfg, mode):
    options = dict(top_k=top_k, top_p=top_p, cfg=cfg, seed=3)
    ar, eagle = decode(decoder, "ar", **options), decode(decoder, mode, **options)
    assert tokens_of(eagle) == tokens_of(ar)


def test_coupled_drafts_of_a_perfect_drafter_are_always_right(decoder):
    """With the target's own distribution and noise the first guess is the target's choice, however
    flat the distribution; without the noise it seldom is."""
    perfect(decoder)
    chain = TreeShape(5, 4, 1)
    for seed in range(3):
        options = dict(tree=chain, seed=seed, temperature=1.0)
        coupled = decode(decoder, "eagle2-coupled", **options)
        assert all(len(event.tokens) == 5 for event in coupled[1:-1])
        assert len(decode(decoder, "eagle2", **options)) > len(coupled)


def test_coupled_is_plain_at_temperature_0(decoder):
    for plain in ("eagle2", "lantern"):
        events = [decode(decoder, mode, temperature=0.0) for mode in (plain, f"{plain}-coupled")]
        assert [e.nodes for e in events[0]] == [e.nodes for e in events[1]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_perfect_drafter_at_greedy_accepts_everything(temperature):
    decoder = perfect(make_decoder())
    ar = decode(decoder, "ar", temperature=temperature)
    eagle = decode(decoder, "eagle2", temperature=temperature, tree=TreeShape(5, 4, 1))
    assert tokens_of(eagle) == tokens_of(ar)
    if temperature == 0:
        # prefill 1 token, then 4 drafted + 1 own per pass until 16 are there
        assert [len(e.tokens) for e in eagle] == [1, 5, 5, 5]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("k, delta", [(0, 0.4), (8, 0.0)])
def test_lantern_without_room_is_exact(decoder, temperature, k, delta):
    for seed in range(4):
        options = dict(seed=seed, temperature=temperature)
        ar = decode(decoder, "ar", **options)
        lantern = decode(decoder, "lantern", k=k, delta=delta, **options)
        assert tokens_of(lantern) == tokens_of(ar)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_lantern_follows_ar_until_its_first_relaxed_token(temperature):
    relaxed_runs = 0
    for seed in range(12):
        decoder = make_decoder(seed, sharpness=2.0)
        options = dict(seed=seed, temperature=temperature)
        ar = tokens_of(decode(decoder, "ar", **options))
        events = [
            t for e in decode(decoder, "lantern", k=30, delta=0.5, **options) for t in e.tokens
        ]
        first = next((t.position for t in events if t.kind == RELAXED), len(ar))
        assert [t.token for t in events[:first]] == ar[:first]
        if first < len(ar):
            relaxed_runs += 1
            token = events[first]
            assert token.choice == ar[first] != token.token
            assert token.relaxed_mass <= 0.5 + 1e-5 and token.distance > 0
            if token.rank:
                assert decoder.neighbours[token.token, token.rank - 1] == token.choice
            else:  # greedy: the neighbours outvote the argmax without holding it
                assert temperature == 0
                assert token.p_token + token.relaxed_mass >= token.p_choice - 1e-6
    assert relaxed_runs >= 3, "the test never saw a relaxed token"


@pytest.mark.parametrize("top_k", [0, 1, 3])
@pytest.mark.parametrize("mode", ["eagle2", "lantern"])
@pytest.mark.parametrize("tree", TREES, ids=str)
def test_no_draft_past_the_last_token_and_every_tree_is_sound(decoder, mode, tree, top_k):
    last = TINY.image_tokens - 1
    position = -1
    for event in decode(decoder, mode, tree=tree, delta=0.5, top_k=top_k):
        for node in event.nodes:
            assert position + node.depth <= last
            if node.depth:
                assert event.nodes[node.parent].depth == node.depth - 1
        assert [t.position for t in event.tokens] == list(
            range(event.start, event.start + len(event.tokens))
        )
        assert event.start == position + 1
        position = event.tokens[-1].position
        assert position <= last
    assert position == last


@pytest.mark.parametrize("growth", ["dynamic", "static"])
def test_tree_pass_equals_dense_passes(decoder, growth):
    """Hidden states of every node equal those of its path fed as a plain sequence."""
    caption, valid = make_caption()
    from lantern.config import DecodeOptions
    from lantern.decode import Request

    options = DecodeOptions(mode="eagle2", top_k=0, tree=TreeShape(20, 4, 3, growth))
    with torch.inference_mode():
        request = Request(decoder, caption, valid, options)
        history = tokens_of([request.prefill()])
        for _ in range(4):
            history += tokens_of([request.step()])
        tree = request._tree()
        hidden = request._verify(tree)
        for node in range(len(tree)):
            path = tree.ancestors[node].nonzero()[:, 0]
            sequence = torch.tensor(history[:-1] + tree.tokens[path].tolist())
            dense = dense_hidden(decoder.target, caption, valid, sequence)
            torch.testing.assert_close(hidden[:, node], dense[:, -1], atol=2e-5, rtol=1e-4)


def dense_hidden(target, caption, valid, tokens):
    """Teacher-forced forward without a cache: hidden [2, P + T, W]."""
    p, t = len(valid), len(tokens)
    mask = torch.full((1, 1, p + t, p + t), -torch.inf).triu(1)
    mask[..., :p, :p] = prefix_mask(valid, TINY)
    mask[..., p:, :p].masked_fill_(~valid, -torch.inf)
    x = torch.cat([target.prefix(caption), target.embedding(tokens).expand(2, -1, -1)], 1)
    return target(x, slice(0, p + t), mask)


@pytest.mark.parametrize("mode", ["eagle2", "lantern"])
def test_cache_after_commits_equals_a_fresh_prefill(decoder, mode):
    from lantern.cache import KVCache
    from lantern.config import DecodeOptions
    from lantern.decode import Request

    caption, valid = make_caption()
    options = DecodeOptions(mode=mode, top_k=0, k=20, delta=0.5, tree=TreeShape(20, 4, 3))
    with torch.inference_mode():
        request = Request(decoder, caption, valid, options)
        tokens = tokens_of([request.prefill()])
        while request.position < request.last - 2:
            tokens += tokens_of([request.step()])
        length = request.cache.length
        assert length == TINY.prefix + len(tokens) - 1  # the root is not in the cache yet
        fresh = KVCache(TINY.layers, 2, TINY.heads, length, TINY.head_dim)
        p, sequence = TINY.prefix, torch.tensor(tokens[:-1])
        mask = torch.full((1, 1, length, length), -torch.inf).triu(1)
        mask[..., :p, :p] = prefix_mask(valid, TINY)
        mask[..., p:, :p].masked_fill_(~valid, -torch.inf)
        embedded = decoder.target.embedding(sequence).expand(2, -1, -1)
        x = torch.cat([decoder.target.prefix(caption), embedded], 1)
        decoder.target(x, slice(0, length), mask, fresh, 0)
        torch.testing.assert_close(
            request.cache.kv[..., :length, :], fresh.kv, atol=2e-5, rtol=1e-4
        )


def test_same_seed_same_tokens_other_seed_other_tokens(decoder):
    once, again = (tokens_of(decode(decoder, "lantern", seed=5)) for _ in range(2))
    assert once == again
    assert once != tokens_of(decode(decoder, "lantern", seed=6))


def test_two_threads_do_not_disturb_each_other(decoder):
    jobs = [("ar", 1), ("eagle2", 2), ("lantern", 3), ("lantern", 4)]
    alone = [tokens_of(decode(decoder, mode, seed=seed)) for mode, seed in jobs]
    results = [None] * len(jobs)

    def work(i):
        results[i] = [tokens_of(decode(decoder, jobs[i][0], seed=jobs[i][1])) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[tokens] * 5 for tokens in alone]


def test_interleaved_streams_do_not_disturb_each_other(decoder):
    from lantern.config import DecodeOptions

    options = [DecodeOptions(mode="lantern", top_k=0, seed=s) for s in (1, 2)]
    alone = [list(decoder.stream(*make_caption(), o)) for o in options]
    together = list(zip(*(decoder.stream(*make_caption(), o) for o in options), strict=False))
    for i in range(2):
        pairs = [events[i] for events in together]
        assert tokens_of(pairs) == tokens_of(alone[i])[: len(tokens_of(pairs))]
    assert not torch.is_inference_mode_enabled()


def test_broken_logits_are_reported(decoder):
    decoder.target.head.weight.data[3] = torch.nan
    with pytest.raises(DecodeError, match="not numbers"):
        decode(decoder, "ar")


def test_missing_parts_are_named(decoder):
    decoder.neighbours = None
    with pytest.raises(ValueError, match="neighbour table"):
        decode(decoder, "lantern")
    decoder.drafter = None
    with pytest.raises(ValueError, match="drafter"):
        decode(decoder, "eagle2")
    decode(decoder, "ar")


def test_static_tree_has_one_shape_and_follows_the_drafter(decoder):
    """Its shape is the same in every step; each node is the drafter's guess of that rank given its
    path, scored as in a dynamic tree that contains it."""
    shape = TreeShape(10, 3, 3, "static")
    paths = static_paths(10, 3, 3)
    assert len(paths) == 10 and paths[0] == () and (0, 0, 0) in paths
    assert all(path[:-1] in paths for path in paths[1:])
    events = decode(decoder, "eagle2", tree=shape, seed=1)
    whole = decode(decoder, "eagle2", tree=TreeShape(40, 3, 3), seed=1)
    assert tokens_of(events) == tokens_of(whole)
    shapes = {tuple((n.parent, n.depth) for n in e.nodes) for e in events[1:-3]}
    assert len(shapes) == 1
    by_start = {event.start: event for event in whole[1:]}
    compared = 0
    for event in events[1:]:
        if event.start not in by_start:
            continue
        scores = {_tokens_to(by_start[event.start], i): n.score
                  for i, n in enumerate(by_start[event.start].nodes)}  # fmt: skip
        for i, node in enumerate(event.nodes):
            path = _tokens_to(event, i)
            if path in scores:
                assert node.score == pytest.approx(scores[path], abs=1e-4)
                compared += 1
    assert compared > 50


def _tokens_to(event, node: int) -> tuple[int, ...]:
    path = ()
    while True:
        path = (event.nodes[node].token, *path)
        if node == 0:
            return path
        node = event.nodes[node].parent


def test_a_tree_of_the_root_alone_is_ar_whatever_the_rule(decoder):
    ar = decode(decoder, "ar", seed=2)
    for pick in ("first", "nearest"):
        events = decode(decoder, "lantern", seed=2, pick=pick, delta=0.5, tree=TreeShape(1, 1, 1))
        assert tokens_of(events) == tokens_of(ar)


def test_fifty_runs_do_not_grow(decoder):
    """Every tensor that is alive after ten runs was alive before them, or took another's place."""

    def alive() -> tuple[int, int]:
        gc.collect()
        tensors = [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor)]
        return len(tensors), sum(t.nbytes for t in tensors)

    def ten_runs(seed: int) -> None:
        for mode in ("ar", "eagle2", "lantern", "eagle2-coupled", "lantern-coupled"):
            for tree in (TreeShape(8, 3, 3), TreeShape(5, 2, 2, "static")):
                decode(decoder, mode, seed=seed, tree=tree)

    ten_runs(0)
    before = alive()
    for seed in range(1, 6):
        ten_runs(seed)
    assert alive() == before
