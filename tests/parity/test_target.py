"""Targets, transformers-style and original: hidden states, logits, caches, trees, masks."""

import pytest
import torch

from lantern.cache import KVCache
from lantern.config import ModelConfig
from lantern.decode import Decoder
from lantern.models.llamagen import condition_mask, left_pad, prefix_mask, rotary_table
from lantern.sampling import guide
from parity.recorded import (
    assert_close,
    caption,
    feed,
    hf_target,
    new_request,
    original_target,
    tensors,
    tree_of,
)

IO = "target_hf/io"


@torch.inference_mode()
def prefill(target, condition):
    """Hidden states [2, P, W] of the condition slots."""
    config, (vectors, valid) = target.config, condition
    cache = KVCache(config.layers, 2, config.heads, config.prefix, config.head_dim)
    mask = prefix_mask(valid, config)
    return target(target.prefix(vectors), slice(0, config.prefix), mask, cache, 0)


# -- transformers-style -------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [0, 1, 2])
def test_prefill_with_padded_rows(prompt):
    io, target = tensors(IO), hf_target()
    hidden = prefill(target, caption(prompt, IO))
    assert_close(hidden, io[f"p{prompt}.prefill.hidden_postnorm"])
    assert_close(target.logits(hidden[:, -1]), io[f"p{prompt}.prefill.logits_last"])


def test_left_padding_and_mask():
    _, valid = caption(0, IO)
    recorded = tensors(IO)["p0.attention_mask"].bool()
    assert valid.equal(recorded[0]) and valid.equal(recorded[1])  # one mask for both CFG rows


@pytest.mark.parametrize("prompt", [0, 1, 2])
def test_cached_decoding(prompt):
    io, target = tensors(IO), hf_target()
    request = new_request(target, caption(prompt, IO))
    request.prefill()
    hidden = feed(request, io[f"p{prompt}.forced_tokens"].tolist())
    assert_close(hidden, io[f"p{prompt}.decode.hidden_postnorm"])
    if prompt == 0:
        logits = target.logits(hidden)
        assert_close(logits[:, -2:], io["p0.decode.logits_last2"])
        assert_close(logits[:, :24], io["p0.decode.logits_first24"])
        # Guidance takes differences of logits three times.
        assert_close(guide(logits[:, :24], 3.0), io["p0.decode.cfg3_logits_first24"], 1e-4)
        assert_close(request.cache.kv[..., :138, :], io["p0.kv_cache_first_138"])


def recorded_tree(key: str):
    io = tensors(IO)
    parts = (io[f"{key}.{name}"] for name in ("tokens", "parents", "tree_position_ids"))
    return tree_of(*parts), io[f"{key}.tree_mask"][0, 0].bool()


@pytest.mark.parametrize("prompt, committed", [(0, 13), (1, 5)])
def test_tree_pass_and_compaction(prompt, committed):
    io, target, key = tensors(IO), hf_target(), f"p{prompt}.tree{committed}"
    request = new_request(target, caption(prompt, IO))
    request.prefill()
    feed(request, io[f"p{prompt}.forced_tokens"][:committed].tolist())
    tree, mask = recorded_tree(key)
    assert tree.ancestors.equal(mask)
    with torch.inference_mode():
        hidden = request._verify(tree)
    assert_close(hidden, io[f"{key}.hidden_postnorm"])
    if f"{key}.logits" in io:
        assert_close(target.logits(hidden), io[f"{key}.logits"])
    assert_close(guide(target.logits(hidden), 3.0), io[f"{key}.cfg3_logits_nodes"], 1e-4)

    best, accepted = (int(io[f"{key}.compact.{x}"]) for x in ("best_candidate", "accept_length"))
    path = io[f"{key}.retrieve_indices"][best, : accepted + 1].tolist()
    request.cache.keep(request.cache.length, path)
    request.position += len(path)
    after = feed(request, io[f"{key}.compact.next_token"].tolist())
    assert_close(after[:, 0], io[f"{key}.compact.next_hidden"])


@pytest.mark.parametrize("committed", [254, 255])
def test_tree_pass_at_the_end_of_the_image(committed):
    # The official loop drafts past the last cell, into zero rotary rows. Ours never does, so only
    # the nodes that are inside the image are compared.
    io, target, key = tensors(IO), hf_target(), f"p0.tree{committed}"
    request = new_request(target, caption(0, IO))
    request.prefill()
    feed(request, io["p0.forced_tokens"][:committed].tolist())
    tree, _ = recorded_tree(key)
    inside = (tree.depth <= 255 - committed).nonzero()[:, 0]
    # Nodes of depth 0 and 1, so no parent is lost: all of them hang on the root.
    small = tree_of(tree.tokens[inside], torch.zeros(len(inside)), tree.depth[inside])
    assert len(small) == {254: 4, 255: 1}[committed]
    with torch.inference_mode():
        hidden = request._verify(small)
    assert_close(hidden, io[f"{key}.hidden_postnorm"][:, inside])


# -- masks and rotary tables --------------------------------------------------------------------


@pytest.mark.parametrize("dtype, rows", [("float32", "fp32"), ("bfloat16", "bf16")])
def test_condition_mask_by_dtype(dtype, rows):
    # Condition slots have zero scores, so attention is uniform over what the mask allows.
    target = hf_target(rows)
    _, valid = caption(0, IO)
    allowed = condition_mask(valid, target.config).float()
    weights = allowed / allowed.sum(-1, keepdim=True)
    recorded = tensors("target_hf/masks_by_dtype")[f"attn_weights_zero_scores_{dtype}"][0]
    assert_close(weights, recorded, 5e-3 if dtype == "bfloat16" else 1e-6)
    assert weights.gt(0).equal(recorded > 0)


def test_padded_rows_in_bf16():
    # Our fp32 arithmetic with the bf16 mask: rounding costs 0.05, the wrong mask would cost 4.7.
    recorded = tensors("target_hf/masks_by_dtype")["prefill_hidden_postnorm_bfloat16"].float()
    hidden = {rows: prefill(hf_target(rows), caption(0, IO)) for rows in ("bf16", "fp32", "self")}
    assert (hidden["bf16"] - recorded).abs().max() < 0.1
    assert (hidden["fp32"] - recorded).abs().max() > 1
    _, valid = caption(0, IO)
    for rows in ("fp32", "self"):  # valid slots never see the difference
        assert_close(hidden[rows][:, valid], hidden["bf16"][:, valid])


def test_rotary_tables():
    rope = tensors("target_hf/rope")
    real = ModelConfig(16384, 1280, 36, 20, 3584, grid=32, prefix=120, caption_dim=2048)
    for ours, recorded in (
        (hf_target().rotation, rope["freqs_cis_target_block256"]),
        (original_target("t2i").rotation, rope["freqs_cis_target_block64"]),
        (rotary_table(real, 120, 64)[:200], rope["freqs_cis_target_block1024_real_headdim64"]),
    ):
        # The official tables end in ten zero rows for drafts past the image, which we never feed.
        assert_close(torch.view_as_real(ours), recorded[: len(ours)], 5e-6)
        assert recorded[len(ours) :].eq(0).all()


# -- original -----------------------------------------------------------------------------------


def original_condition(kind: str, prompt: int):
    io = tensors(f"target_orig/{kind}_io")
    if kind == "c2i":
        return io["cond_combined"][prompt : prompt + 1], torch.ones(1, dtype=torch.bool)
    mask = io["raw_caption_mask"][prompt].bool()
    return left_pad(io["raw_caption_emb"][prompt][mask], len(mask))


@pytest.mark.parametrize("kind", ["t2i", "c2i"])
@pytest.mark.parametrize("prompt", [0, 1])
def test_original_target(kind, prompt):
    io, target = tensors(f"target_orig/{kind}_io"), original_target(kind)
    rows = [prompt, 2 + prompt]  # recorded as [c0, c1, u0, u1]
    condition = original_condition(kind, prompt)
    hidden = prefill(target, condition)
    assert_close(hidden, io["prefill.hidden_postnorm"][rows])
    assert_close(target.logits(hidden[:, -1]), io["prefill.logits_last"][rows])
    request = new_request(target, condition)
    request.prefill()
    hidden = feed(request, io["forced_tokens"][prompt].tolist())
    assert_close(hidden, io["decode.hidden_postnorm"][rows])
    logits = target.logits(hidden)
    assert_close(logits[:, :16], io["decode.logits_first16"][rows])
    assert_close(logits[:, -1], io["decode.logits_last"][rows])


@pytest.mark.parametrize("kind", ["t2i", "c2i"])
@pytest.mark.parametrize("prompt", [0, 1])
def test_original_greedy_image(kind, prompt):
    target = original_target(kind)
    request = new_request(target, original_condition(kind, prompt))
    events = Decoder(target).stream(request.caption, request.valid, request.options)
    tokens = [token.token for event in events for token in event.tokens]
    assert tokens == tensors(f"target_orig/{kind}_io")["greedy_cfg3_tokens"][prompt].tolist()


def test_original_mask_and_conversion():
    io = tensors("target_orig/t2i_io")
    condition = original_condition("t2i", 0)
    ours = condition_mask(condition[1], original_target("t2i").config)
    assert ours.equal(io["causal_mask_row0"][0, :120, :120].bool())
    # The same weights in the transformers class: only what padded slots attend to changes.
    hidden = prefill(original_target("t2i", "fp32"), condition)
    assert_close(hidden, io["hf_converted.prefill.hidden_postnorm"][[0, 2]])
