"""Modules against independent formulations of the same thing."""

import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from tiny_decoder import TINY, decode, make_caption, make_decoder, tokens_of

from lantern import runtime
from lantern.config import ModelConfig, VQConfig
from lantern.models.llamagen import left_pad, prefix_mask, rotary_table, rotate
from lantern.models.vq import VQModel, to_uint8
from lantern.neighbours import cached_table, neighbour_table
from lantern.runtime import (
    Int8Linear,
    PackedLinear,
    can_pack,
    can_quantise,
    check_dtype,
    pack,
    pack_linears,
    packer,
)  # fmt: skip
from lantern.training.target import training_mask

SMALL_VQ = VQConfig(
    codebook_size=32, codebook_dim=4, base_width=16, channel_multipliers=(1, 2), z_channels=16,
    res_blocks=1, patch_size=2, norm_groups=8,
)  # fmt: skip


def test_rotary_positions_are_row_and_column_angles():
    config = replace(TINY, grid=3)
    table = rotary_table(config, prefix=2, head_dim=8)
    assert table.shape == (2 + 9, 4) and not table[:2].any()
    attending = rotary_table(replace(config, attend_condition=True), prefix=2, head_dim=8)
    assert attending[:2].eq(1).all() and attending[2:].equal(table[2:])
    x = torch.randn(1, 11, 8)
    turned = rotate(x, table)
    assert not turned[0, :2].any(), "condition slots vanish"
    row, column = 2, 1
    vector = x[0, 2 + row * 3 + column]
    for pair, (place, frequency) in enumerate([(row, 1), (row, 0.01), (column, 1), (column, 0.01)]):
        a, b = vector[2 * pair], vector[2 * pair + 1]
        cos, sin = math.cos(place * frequency), math.sin(place * frequency)
        expected = torch.stack([a * cos - b * sin, a * sin + b * cos])
        got = turned[0, 2 + row * 3 + column, 2 * pair : 2 * pair + 2]
        torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("attend", [False, True])
def test_training_mask_allows_what_decoding_allows(attend):
    """Same hidden states, padded rows included, which the drafter reads."""
    config = replace(TINY, attend_condition=attend)
    target = make_decoder(config=config).target
    caption, valid = make_caption()
    tokens = torch.randint(TINY.vocab_size, (2, 5))
    x = torch.cat([target.prefix(caption), target.embedding(tokens)], 1)
    n, p = x.shape[1], TINY.prefix
    additive = torch.full((1, 1, n, n), -torch.inf).triu(1)
    additive[..., :p, :p] = prefix_mask(valid, config)
    additive[..., p:, :p].masked_fill_(~valid, -torch.inf)
    boolean = training_mask(valid.expand(2, -1), 5, config)
    torch.testing.assert_close(
        target(x, slice(0, n), boolean), target(x, slice(0, n), additive), atol=1e-5, rtol=1e-5
    )


def test_left_pad():
    caption, valid = left_pad(torch.ones(2, 3), 5)
    assert valid.tolist() == [False] * 3 + [True] * 2
    assert caption.sum(1).tolist() == [0, 0, 0, 3, 3]
    with pytest.raises(ValueError, match="6 pieces but the model takes 5"):
        left_pad(torch.ones(6, 3), 5)


def test_vq_shapes_and_nearest_code():
    torch.manual_seed(0)
    model = VQModel(SMALL_VQ).eval()
    images = torch.rand(2, 3, 24, 16) * 2 - 1
    codes = model.encode(images)
    assert codes.shape == (2, 6, 4) and SMALL_VQ.downsample == 4
    z = model.latents(images)
    torch.testing.assert_close(z.norm(dim=-1), torch.ones(2, 6, 4))
    distances = torch.cdist(z.reshape(-1, 4), model.quantize.codes)
    assert codes.flatten().equal(distances.argmin(1))
    decoded = model.decode(codes)
    assert decoded.shape == images.shape
    pixels = to_uint8(torch.tensor([-2.0, -1.0, 0.0, 1.0]).view(1, 1, 1, 4).expand(1, 3, 1, 4))
    assert pixels[0, 0, :, 0].tolist() == [0, 0, 128, 255]


def test_neighbours_are_the_nearest_of_normalised_rows():
    torch.manual_seed(0)
    codes = torch.nn.functional.normalize(torch.randn(50, 6), dim=-1)
    table = neighbour_table(codes, 20)
    assert table.dtype == torch.int32 and table.shape == (50, 20)
    distances = torch.cdist(codes, codes).fill_diagonal_(torch.inf)
    assert table.long().equal(distances.argsort(1)[:, :20])


def test_neighbour_cache_is_checked_and_rebuilt(tmp_path):
    torch.manual_seed(0)
    codes = torch.nn.functional.normalize(torch.randn(50, 6), dim=-1)
    table = cached_table(codes, tmp_path)
    (file,) = tmp_path.iterdir()
    assert cached_table(codes, tmp_path).equal(table)
    file.write_bytes(file.read_bytes()[:100])
    assert cached_table(codes, tmp_path).equal(table)
    assert len(file.read_bytes()) > 100, "the broken file was replaced"
    save_file({"table": torch.full_like(table, 999)}, file, metadata={"sha256": "0"})
    assert cached_table(codes, tmp_path).equal(table)
    other = cached_table(codes.flip(0), tmp_path)
    assert not other.equal(table) and len(list(tmp_path.iterdir())) == 2
    assert cached_table(codes, tmp_path / "no" / "such" / "folder").equal(table)


@pytest.mark.parametrize("changes", [{"heads": 5}, {"heads": 16}])
def test_impossible_shapes_are_refused(changes):
    values = {"vocab_size": 8, "width": 32, "layers": 1, "heads": 2, "mlp_width": 8, "grid": 2,
              "prefix": 2, "caption_dim": 4}  # fmt: skip
    with pytest.raises(ValueError, match="heads"):
        ModelConfig(**values | changes)


def test_packed_linear_equals_linear_and_rows_do_not_depend_on_company():
    """The reason a token verified in a tree gets the very logits it gets alone."""
    assert can_pack(), "this torch build should pack weights"
    torch.manual_seed(0)
    linear = torch.nn.Linear(96, 80)
    packed = PackedLinear(linear)
    x = torch.randn(2, 12, 96)
    with torch.inference_mode():
        torch.testing.assert_close(packed(x), linear(x), atol=1e-5, rtol=1e-5)
        rows = packed(x[0])
        for n in (1, 2, 3, 5, 8):
            assert packed(x[0, :n]).equal(rows[:n])


def test_packing_a_model_keeps_its_results():
    plain, packed = make_decoder(), make_decoder()
    fp32 = packer(torch.float32)
    pack_linears(packed.target, fp32), pack_linears(packed.drafter, fp32)
    assert not any(isinstance(m, torch.nn.Linear) for m in packed.target.modules())
    ar = [decode(d, "ar", seed=4) for d in (plain, packed)]
    assert tokens_of(ar[0]) == tokens_of(ar[1])
    assert tokens_of(decode(packed, "eagle2", seed=4)) == tokens_of(ar[1])


def test_int8_is_close_and_rows_do_not_depend_on_company():
    assert can_quantise() == torch.cpu._is_vnni_supported()
    # Without integer dot products sums of two products saturate: too rough, hence the refusal.
    nearness = 0.02 if can_quantise() else 0.3
    torch.manual_seed(0)
    linear, scale = torch.nn.Linear(96, 80), torch.rand(96) + 0.5
    whole = Int8Linear(linear, scale)
    x = torch.randn(2, 12, 96) * torch.logspace(-3, 3, 12)[:, None]
    with torch.inference_mode():
        right = linear(x * scale) - linear.bias
        wrong = (whole(x) - linear.bias - right).norm(dim=-1) / right.norm(dim=-1)
        assert wrong.max() < nearness
        rows = whole(x[0])
        for n in (1, 2, 3, 5, 8):
            assert whole(x[0, :n]).equal(rows[:n])
        assert whole(torch.zeros(1, 96)).equal(linear.bias[None])


def test_a_whole_model_decodes_in_int8(monkeypatch):
    """Few tokens, so that no rounding shows: the same image in the lossless modes."""
    monkeypatch.setattr(runtime, "can_quantise", lambda: True)
    decoder = make_decoder()
    pack(decoder.target, decoder.drafter, torch.int8)
    assert any(isinstance(m, Int8Linear) for m in decoder.drafter.modules())
    ar = tokens_of(decode(decoder, "ar", seed=4))
    assert tokens_of(decode(decoder, "eagle2", seed=4)) == ar
    assert len(tokens_of(decode(decoder, "lantern", seed=4))) == len(ar)


def test_without_integer_dot_products_drafts_are_floats_and_int8_is_refused(monkeypatch):
    monkeypatch.setattr(runtime, "can_quantise", lambda: False)
    decoder = make_decoder()
    pack(decoder.target, decoder.drafter)
    assert not any(isinstance(m, Int8Linear) for m in decoder.drafter.modules())
    assert len(tokens_of(decode(decoder, "eagle2", seed=4))) == decoder.target.config.image_tokens
    with pytest.raises(ValueError, match="VNNI"):
        check_dtype(torch.int8, torch.device("cpu"))


def test_int8_is_refused_on_a_gpu():
    with pytest.raises(ValueError, match="int8 is for CPUs"):
        check_dtype(torch.int8, torch.device("cuda"))
