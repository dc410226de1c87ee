"""Drafter: forward passes, cached and over trees, and every recorded draft tree."""

import pytest
import torch

from lantern.cache import KVCache
from parity.recorded import (
    assert_close,
    caption,
    drafter,
    hf_target,
    new_request,
    tensors,
    values,
)

CASES = values("drafter/topk_index")


@pytest.mark.parametrize("prompt", ["p0", "p1"])
@pytest.mark.parametrize("variant", ["a", "b"])
@torch.inference_mode()
def test_forward(variant, prompt):
    io, module = tensors("drafter/forward"), drafter(variant)[0]
    hidden, ids, wanted, tree_tokens, parents = (
        io[f"{variant}.{prompt}.{name}"]
        for name in ("hidden_in", "input_ids", "out_all", "tree.tokens", "tree.level2_parents")
    )

    def embed(tokens):
        return module.embed(tokens, hf_target())

    def new_cache():
        return KVCache(module.config.layers, 2, module.config.heads, 162, 16)

    future = torch.ones(150, 150, dtype=torch.bool).triu(1)
    mask = torch.zeros(150, 150).masked_fill(future, -torch.inf)
    assert_close(module(embed(ids), hidden, slice(0, 150), mask, new_cache(), 0), wanted)
    # In two pieces, as the decoder feeds it: the condition's rows, then those of image tokens.
    cache = new_cache()
    for rows in (slice(0, 120), slice(120, 150)):
        out = module(
            embed(ids[:, rows]), hidden[:, rows], rows, mask[rows, : rows.stop], cache, rows.start
        )
        assert_close(out, wanted[:, rows])
    # Two drafted levels on top; a level's nodes share one position and see only their ancestors.
    feature, position, seen = wanted[:, -1:].expand(-1, 6, -1), 150, torch.eye(6).bool()
    for level, start in ((1, 150), (2, 156)):
        mask = torch.zeros(6, start + 6)
        mask[:, 150:].masked_fill_(~seen, -torch.inf)
        tokens = tree_tokens[6 * (level - 1) : 6 * level].expand(2, -1)
        positions = torch.full((6,), position)
        out = module(embed(tokens), feature, positions, mask, cache, start)
        recorded = io[f"{variant}.{prompt}.tree.level{level}_out"]
        assert_close(out, recorded)
        # Going on from the recorded features keeps the random layers of b from amplifying noise.
        feature, position = recorded[:, parents], position + 1
        seen = torch.cat([seen[parents], torch.eye(6).bool()], dim=1)


def test_rotary_tables():
    rope = tensors("drafter/rope")
    small, large = (torch.view_as_real(drafter(x)[0].rotation) for x in ("a", "b"))
    # The official tables end in 20 zero rows for drafts past the image, which we never feed.
    recorded = rope["freqs_cis_t2i"]
    assert_close(small, recorded[:-20], 5e-6)
    assert recorded[-20:].eq(0).all() and len(recorded) == len(small) + 20
    first, last = rope["freqs_cis_t2i2_first200_and_last40"].split([200, 40])
    assert_close(large[:200], first, 5e-6)
    assert_close(large[-20:], last[:20], 5e-6)


def draft(case: dict):
    """Yields (call, root position, tree) of every recorded call, drawn by one request."""
    context = tensors("drafter/topk")
    hidden = context[f"ctx{case['context']}.target_hidden"]
    tokens = context[f"ctx{case['context']}.tokens"]
    ids = torch.cat([torch.zeros(120, dtype=torch.long), tokens])
    shape, chosen = case["settings"], case["processor"] or {"temperature": 0, "top_k": 0}
    request = new_request(
        hf_target(), caption(0), with_drafter=True, cfg=case["cfg"], **chosen,
        # Their depth does not count the first level.
        tree=(shape["total_token"], shape["depth"] + 1, shape["top_k"]),
    )  # fmt: skip
    for number, call in enumerate(case["calls"]):
        first, count, end = (
            call["first_new_hidden_row"], call["n_hidden"], call["input_ids_len"],
        )  # fmt: skip
        request.root, request.position = int(ids[end - 1]), end - 1 - 120
        with torch.inference_mode():
            # Row j pairs the hidden state of slot j with the token behind it.
            new = ids[first + 1 : first + 1 + count]
            request.draft.extend(new, hidden[:, first : first + count])
            yield f"{case['case']}.call{number}", request.position, request._tree()
        assert request.draft.cache.length == call["kv_len_after"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_draft_trees(case):
    # Where both filters are on, the official code applies top-p first and ours top-k, as in target
    # sampling: scores move by up to 0.1, which changes none of the recorded trees.
    filters = case["processor"] or {"top_p": 1}
    tolerance = 1e-4 if filters["top_p"] == 1 else 0.1
    io = tensors("drafter/topk")
    for key, position, tree in draft(case):
        tokens, parents, depth, mask, list_tokens, scores, chosen = (
            io[f"{key}.{name}"]
            for name in ("draft_tokens", "parent_node_of_selected", "tree_position_ids",
                         "tree_mask", "node_token_list", "node_score_list",
                         "selected_flat_index")
        )  # fmt: skip
        if position == 254:
            # One token is left to draw, so ours drafts one level; theirs goes past the image.
            width = case["settings"]["top_k"]
            assert tree.depth.tolist() == [0] + [1] * width
            assert tree.tokens[1:].equal(list_tokens[:width])
            assert_close(tree.score[1:], scores[:width], tolerance)
            continue
        assert tree.tokens.equal(tokens[0])
        assert tree.parent[1:].equal(parents)
        assert tree.depth.equal(depth)
        assert tree.ancestors.equal(mask[0, 0].bool())
        assert_close(tree.score[1:], scores[chosen], tolerance)


def test_all_trees_are_covered():
    assert sum(len(case["calls"]) for case in CASES) == 89
