"""Names and shapes of every published real-size model, against our modules built without memory."""

import json
from dataclasses import replace

import pytest
import torch

from lantern import formats
from lantern.checkpoints import entry
from lantern.config import DrafterConfig, ModelConfig, VQConfig
from lantern.models.drafter import Drafter
from lantern.models.llamagen import Transformer
from lantern.models.vq import VQModel
from parity.recorded import values

KEYS = values("full_keys")
XL = ModelConfig(16384, 1280, 36, 20, 3584, grid=16, prefix=120, caption_dim=2048)


def state(name: str) -> dict[str, torch.Tensor]:
    """The published tensors of a model, without content."""
    with torch.device("meta"):
        return {key: torch.empty(shape) for key, (shape, _) in KEYS[name]["keys"].items()}


def covers(module: torch.nn.Module, names: formats.Names, published: dict) -> None:
    """Every published tensor, and no other, is loaded, and the shapes fit."""
    used = {}
    for name, own in module.state_dict().items():
        parts = names(name)
        assert own.shape[0] == sum(published[part].shape[0] for part in parts)
        for part in parts:
            assert part not in used, "one published tensor would be loaded twice"
            assert published[part].shape[1:] == own.shape[1:]
            used[part] = name
    assert {k for k in published if not formats.IGNORED.search(k)} == set(used)


def on_meta(cls, *configs):
    with torch.device("meta"):
        return cls(*configs)


@pytest.mark.parametrize("name, grid", [("hf_LlamaGen-T2I", 16), ("hf_LlamaGen-T2I-2", 32)])
def test_transformers_style_targets(name, grid, tmp_path):
    # The published config.json was not at hand; its values are those the keys were listed with.
    file = tmp_path / "config.json"
    file.write_text(json.dumps(KEYS[name]["config"] | {"rms_norm_eps": 1e-5}))
    config = formats.hf_target_config(file)
    assert config == replace(XL, grid=grid)
    covers(on_meta(Transformer, config), formats.hf_target, state(name))


@pytest.mark.parametrize("name, model", [
    ("gpt_XL_t2i_stage1", "llamagen-stage1"), ("gpt_XL_t2i_stage2", "llamagen-stage2"),
    ("gpt_B_c2i_256", "llamagen-b-256"), ("gpt_B_c2i_384", "llamagen-b-384"),
    ("gpt_L_c2i_256", "llamagen-l-256"), ("gpt_L_c2i_384", "llamagen-l-384"),
    ("gpt_XL_c2i_384", "llamagen-xl-384"),
])  # fmt: skip
def test_original_targets(name, model):
    published, recorded = state(name), KEYS[name]["config"]
    config = formats.original_target_config(published, "file.pt", entry(model).grid)
    assert config.width == recorded["dim"] and config.layers == recorded["n_layer"]
    assert config.heads == recorded["n_head"] and config.norm_eps == recorded["norm_eps"]
    assert config.prefix == recorded["cls_token_num"]
    assert config.image_tokens == recorded["block_size"]
    assert config.classes == (1000 if recorded["model_type"] == "c2i" else 0)
    covers(on_meta(Transformer, config), formats.original_target, published)
    assert sum(v.numel() for v in published.values()) == KEYS[name]["n_values"]


@pytest.mark.parametrize("name, grid", [("drafter_t2i", 16), ("drafter_t2i2", 32)])
def test_drafters(name, grid, tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(KEYS[name]["config"]))
    target = replace(XL, grid=grid)
    config = formats.published_drafter_config(file, target)
    assert config == DrafterConfig(1, 20, 3584, 1e-6, True, own_embedding=True)
    covers(on_meta(Drafter, config, target), formats.published_drafter, state(name))
    with pytest.raises(ValueError, match=f"is a drafter for a grid of side {grid}"):
        formats.published_drafter_config(file, replace(XL, grid=48 - grid))


@pytest.mark.parametrize("name, multipliers", [
    ("VQ-16", (1, 1, 2, 2, 4)), ("VQ-8", (1, 2, 2, 4)),
])  # fmt: skip
def test_tokenizers(name, multipliers):
    published = state(name)
    config = formats.vq_config(published, "vq.pt")
    assert config == VQConfig(channel_multipliers=multipliers)
    covers(on_meta(VQModel, config), formats.native, published)
    assert "quantize.codebook_used" in published  # a statistic, not loaded


def test_every_recorded_model_is_covered():
    names = {"hf_LlamaGen-T2I", "hf_LlamaGen-T2I-2", "drafter_t2i", "drafter_t2i2", "VQ-16", "VQ-8"}
    assert {name for name in KEYS if not name.startswith("gpt_")} == names
    assert len(KEYS) == 13
