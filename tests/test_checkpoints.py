"""Loading: every fault of a file is one sentence that names it."""

import json

import pytest
import torch
from safetensors.torch import save_file

from lantern.checkpoints import entry, find
from lantern.config import DecodeOptions, TreeShape, VQConfig, config_from_dict, read_json
from lantern.formats import load_weights
from lantern.models.text import ClassNames


@pytest.fixture
def layer():
    return torch.nn.Linear(3, 2)


def test_strict_loading(layer, tmp_path):
    file = tmp_path / "model.safetensors"
    wanted = {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}
    save_file({name: value.half() for name, value in wanted.items()}, file)
    load_weights(layer, file)
    assert layer.weight.dtype == torch.float32 and layer.weight.eq(1).all()

    for change, message in [
        ({"bias": None}, "bias is missing"),
        ({"extra": torch.ones(1)}, "extra is unexpected"),
        ({"weight": torch.ones(3, 3)}, r"weight has shape \(3, 3\), expected \(2, 3\)"),
    ]:
        save_file({k: v for k, v in (wanted | change).items() if v is not None}, file)
        with pytest.raises(ValueError, match=message):
            load_weights(layer, file)


@pytest.mark.parametrize("damage", [lambda b: b[:50], lambda b: b"", lambda b: b"\x00" * len(b)])
def test_damaged_files(layer, tmp_path, damage):
    file = tmp_path / "model.safetensors"
    save_file({"weight": torch.ones(2, 3), "bias": torch.zeros(2)}, file)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match="model.safetensors is damaged"):
        load_weights(layer, file)


def test_missing_file(layer, tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"):
        load_weights(layer, tmp_path / "nothing.safetensors")


def test_configs_refuse_unknown_and_missing_keys(tmp_path):
    assert (
        config_from_dict(VQConfig, {"patch_size": 4, "channel_multipliers": [1, 2]}).downsample == 8
    )
    with pytest.raises(ValueError, match="unknown keys patchsize"):
        config_from_dict(VQConfig, {"patchsize": 4})
    file = tmp_path / "config.json"
    with pytest.raises(FileNotFoundError):
        read_json(file)
    for text in ("{", "[1]"):
        file.write_text(text)
        with pytest.raises(ValueError, match="config.json"):
            read_json(file)
    file.write_text(json.dumps({"a": 1}))
    assert read_json(file) == {"a": 1}


def test_unknown_model_is_named():
    with pytest.raises(ValueError, match="'emoji-999'; known are emoji-128, llamagen-stage1"):
        entry("emoji-999")


@pytest.mark.parametrize("changes, name", [
    ({"mode": "fast"}, "mode"), ({"seed": -1}, "seed"), ({"seed": 2**32}, "seed"),
    ({"k": 1001}, "k"),
    ({"k": 1.5}, "k"), ({"delta": 1.1}, "delta"), ({"delta": float("nan")}, "delta"),
    ({"temperature": -0.1}, "temperature"), ({"cfg": float("inf")}, "cfg"), ({"top_p": 0}, "top_p"),
    ({"top_k": -1}, "top-k"),
])  # fmt: skip
def test_options_out_of_range(changes, name):
    with pytest.raises(ValueError, match=name):
        DecodeOptions(**changes)


@pytest.mark.parametrize("changes", [{"nodes": 0}, {"nodes": 65}, {"depth": 0}, {"branch": 33}])
def test_trees_out_of_range(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        TreeShape(**changes)


def test_a_parts_config_is_not_taken_for_another_parts(tmp_path):
    """Target files straight in the model's folder are nobody's."""
    for folder, weights in [("llamagen-stage1", "model.safetensors"),
                            ("llamagen_drafter", "pytorch_model.bin")]:  # fmt: skip
        (tmp_path / folder).mkdir()
        for file in ("config.json", weights):
            (tmp_path / folder / file).touch()
    found = find("llamagen-stage1", "drafter", tmp_path)
    assert found.folder == tmp_path / "llamagen_drafter"
    assert find("llamagen-stage1", "target", tmp_path) is None


def test_class_names_that_differ_in_case_only():
    names = ClassNames(1000)
    numbers = [int(names.condition(name)[0]) for name in ("Cardigan", "cardigan", "474", "264")]
    assert numbers == [264, 474, 474, 264]
    assert int(names.condition(names.check("474"))[0]) == 474
