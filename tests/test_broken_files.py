"""Every file a model is loaded from, damaged in every way: one clear sentence, no code executed,
nothing else changed; and caches, which are never an obstacle."""

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from tiny_models import write_native

import lantern.tuning
from app.recorded import recordings
from lantern import checksums, neighbours
from lantern.__main__ import main
from lantern.config import DrafterConfig, ModelConfig, VQConfig, config_from_dict
from lantern.formats import read_state
from lantern.pipeline import Pipeline

NAME = "emoji-128"
FILES = [
    "model.json", "target/config.json", "target/model.safetensors", "drafter/config.json",
    "drafter/model.safetensors", "tokenizer/config.json", "tokenizer/model.safetensors",
    "text/config.json", "text/model.safetensors", "text/tokenizer.json",
]  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    write_native(root)
    return root


@pytest.fixture
def root(whole, tmp_path, monkeypatch) -> Path:
    """A copy of the model to damage; its neighbour table is made on the first load."""
    monkeypatch.delenv("LANTERN_MODELS", raising=False)
    shutil.copytree(whole, tmp_path / "models")
    return tmp_path / "models"


class Harmful:
    def __init__(self, proof: Path):
        self.proof = proof

    def __reduce__(self):
        return Path.touch, (self.proof,)


def truncate(file: Path, proof: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def empty(file: Path, proof: Path) -> None:
    file.write_bytes(b"")


def flip_a_bit(file: Path, proof: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-len(content) // 3] ^= 1
    file.write_bytes(content)


def garble(file: Path, proof: Path) -> None:
    file.write_bytes(bytes(range(255, -1, -1)) * 4)


def replace_by_pickle(file: Path, proof: Path) -> None:
    file.write_bytes(pickle.dumps({"model": Harmful(proof)}))


def replace_by_torch_file(file: Path, proof: Path) -> None:
    torch.save({"model": Harmful(proof)}, file)


def replace_by_folder(file: Path, proof: Path) -> None:
    file.unlink()
    file.mkdir()


def make_unreadable(file: Path, proof: Path) -> None:
    # A link to itself is an error even for root, whom permissions do not stop.
    file.unlink()
    file.symlink_to(file)


def delete(file: Path, proof: Path) -> None:
    file.unlink()


DAMAGES = [
    truncate, empty, flip_a_bit, garble, replace_by_pickle, replace_by_torch_file,
    replace_by_folder, make_unreadable, delete,
]  # fmt: skip


@pytest.mark.parametrize("sealed", [True, False], ids=["checksums", "bare"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_damaged_model_file(root, tmp_path, file, damage, sealed):
    """Without checksums a flipped bit may make another valid file; everything else is noticed."""
    if not sealed:
        (root / NAME / checksums.NAME).unlink()
    proof = tmp_path / "it-ran"
    damage(root / NAME / file, proof)
    try:
        Pipeline.load(NAME, "cpu", model_dir=root)
    except (ValueError, FileNotFoundError) as error:
        words = str(error)
        assert "\n" not in words and len(words) < 600
        assert str(root / NAME / Path(file).parent) in words, "names the file or its folder"
        if not (damage is flip_a_bit and file.endswith(".json")):  # then it names the wrong key
            assert "restore" in words or "download" in words
    else:
        assert damage is flip_a_bit and not sealed
    assert not proof.exists()


def test_on_the_command_line(root, capsys):
    flip_a_bit(root / NAME / "target" / "model.safetensors", root)
    arguments = ["generate", "a cat", "--model", NAME, "--model-dir", str(root)]
    assert main([*arguments, "--out", str(root / "i.png")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "checksum" in error and not (root / "i.png").exists()


@pytest.mark.parametrize("text", ["", "no sums at all\n", "abc  target/config.json\n", "\x00é"])
def test_broken_list_of_checksums(root, text):
    (root / NAME / checksums.NAME).write_text(text, encoding="latin-1")
    if text:
        with pytest.raises(ValueError, match="SHA256SUMS"):
            Pipeline.load(NAME, "cpu", model_dir=root)
    else:
        Pipeline.load(NAME, "cpu", model_dir=root)


def test_checksums_follow_a_training(root):
    state = read_state(root / NAME / "drafter" / "model.safetensors")
    from safetensors.torch import save_file

    save_file({k: v * 2 for k, v in state.items()}, root / NAME / "drafter" / "model.safetensors")
    with pytest.raises(ValueError, match="checksum"):
        checksums.verify(root / NAME)
    checksums.refresh(root / NAME)
    checksums.verify(root / NAME)
    assert (main(["checksums", "--model-dir", str(root / NAME)])) == 0


@pytest.mark.parametrize("kind,values", [
    (ModelConfig, {"heads": 0}), (ModelConfig, {"width": -64}), (ModelConfig, {"layers": 0}),
    (ModelConfig, {"grid": 0}), (ModelConfig, {"norm_eps": float("nan")}),
    (ModelConfig, {"rope_base": 0}), (ModelConfig, {"classes": -1}), (ModelConfig, {"heads": "5"}),
    (ModelConfig, {"heads": True}), (DrafterConfig, {"heads": 0}), (DrafterConfig, {"layers": -1}),
    (VQConfig, {"base_width": 0}), (VQConfig, {"norm_groups": 0}), (VQConfig, {"norm_groups": 33}),
    (VQConfig, {"channel_multipliers": []}), (VQConfig, {"channel_multipliers": [1, "2"]}),
    (VQConfig, {"channel_multipliers": [0]}), (VQConfig, {"patch_size": 0}),
])  # fmt: skip
def test_configs_that_no_model_can_have(kind, values):
    good = {"vocab_size": 8, "width": 64, "layers": 1, "heads": 1, "mlp_width": 8, "grid": 4,
            "prefix": 2, "caption_dim": 4} if kind is ModelConfig else {}  # fmt: skip
    config_from_dict(kind, good, where="x.json")
    with pytest.raises(ValueError, match=f"x.json: .*{next(iter(values))}"):
        config_from_dict(kind, good | values, where="x.json")


@pytest.mark.parametrize("weight_map", [[], ["a"], {"w": 3}, {"w": "../../etc/passwd"}, None])
def test_broken_index_of_shards(tmp_path, weight_map):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ValueError, match="names no files of weights"):
        read_state(index)


# -- caches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_neighbour_table_is_made_anew(tmp_path, damage):
    codes = torch.nn.functional.normalize(torch.randn(32, 4, generator=torch.manual_seed(0)), dim=1)
    table = neighbours.cached_table(codes, tmp_path)
    (file,) = tmp_path.glob("neighbours-*")
    damage(file, tmp_path / "it-ran")
    assert neighbours.cached_table(codes, tmp_path).equal(table)
    assert not (tmp_path / "it-ran").exists()


def no_space(*_, **__):
    raise OSError(28, "No space left on device")


def test_full_disk_leaves_no_half_written_table(tmp_path, monkeypatch):
    codes = torch.nn.functional.normalize(torch.randn(32, 4, generator=torch.manual_seed(0)), dim=1)

    def half(tensors, file, metadata):
        Path(file).write_bytes(b"half")
        no_space()

    monkeypatch.setattr(neighbours, "save_file", half)
    assert neighbours.cached_table(codes, tmp_path).shape == (32, 31)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_measurements_are_made_anew(whole, tmp_path, monkeypatch, damage):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(lantern.tuning.Tuner, "measure", lambda *_: MEASURED)
    pipeline = Pipeline.load(NAME, "cpu", model_dir=whole)
    pipeline.tuner.costs(pipeline.options())
    (file,) = (tmp_path / "lantern").iterdir()
    damage(file, tmp_path / "it-ran")
    assert pipeline.tuner.costs(pipeline.options()).verify.keys() == MEASURED.verify.keys()
    assert not (tmp_path / "it-ran").exists()


MEASURED = lantern.tuning.Costs({1: 0.01, 2: 0.02}, {1: (0.001, 0.001)})


def test_full_disk_while_writing_measurements(whole, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(lantern.tuning.Tuner, "measure", lambda *_: MEASURED)
    monkeypatch.setattr(Path, "write_text", no_space)
    pipeline = Pipeline.load(NAME, "cpu", model_dir=whole)
    assert pipeline.tuner.costs(pipeline.options()) == MEASURED
    assert not list((tmp_path / "lantern").iterdir())


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_recording_is_left_out(tmp_path, damage):
    from app.recorded import FOLDER

    for file in FOLDER.glob("*.json"):
        shutil.copyfile(file, tmp_path / file.name)
    whole = recordings(tmp_path)
    first = min(tmp_path.glob("*.json"))
    damage(first, tmp_path / "it-ran")
    left = recordings(tmp_path)
    assert len(left) >= len(whole) - 1 and set(left) <= set(whole)
    assert not (tmp_path / "it-ran").exists()
