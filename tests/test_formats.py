"""Tiny models in the published formats through the public loader and the command line."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import write_class_model, write_stage

import lantern.checkpoints as checkpoints
from lantern import formats
from lantern.__main__ import main
from lantern.config import ALL_MODES
from lantern.pipeline import Pipeline

SMALL_TREE = {"nodes": 5, "depth": 2, "branch": 3}
STAGE, CLASSES = "llamagen-stage1", "llamagen-b-256"
DRAWING = {STAGE: "a red apple on a table", CLASSES: "macaw", "llamagen-b-384": "macaw"}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """A folder with a Stage I model and a class-conditional one without drafter."""
    root = tmp_path_factory.mktemp("models")
    write_stage(root)
    write_class_model(root)
    return root


@pytest.fixture(autouse=True)
def only_given_folders(monkeypatch):
    """Real models of whoever runs the tests stay out of sight."""
    monkeypatch.delenv("LANTERN_MODELS", raising=False)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)


@pytest.fixture
def copy(models, tmp_path) -> Path:
    """A copy of the models to damage or rearrange; the models folder."""
    shutil.copytree(models, tmp_path / "models")
    return tmp_path / "models"


def load(root: Path, name: str = STAGE) -> Pipeline:
    return Pipeline.load(name, "cpu", model_dir=root)


def draw(pipeline: Pipeline, mode: str = "ar") -> list[int]:
    """Tokens of a greedy image; its size is checked on the way."""
    options = {"temperature": 0.0, "k": 20} | SMALL_TREE
    trace, image = pipeline.generate(DRAWING[pipeline.name], mode=mode, **options)
    known = checkpoints.entry(pipeline.name)
    assert image.size == (known.pixels, known.pixels)
    assert len(trace.tokens) == known.grid**2
    return trace.tokens


# -- every format draws -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stage_tokens(models) -> list[int]:
    return draw(load(models))


@pytest.mark.parametrize("mode", ALL_MODES)
def test_transformers_style_model_in_every_mode(models, stage_tokens, mode):
    pipeline = load(models)
    assert pipeline.modes == ALL_MODES
    tokens = draw(pipeline, mode)
    if "lantern" not in mode:
        assert tokens == stage_tokens


@pytest.mark.parametrize("wrap", [None, "model", "module", "state_dict"])
def test_original_target(copy, stage_tokens, wrap):
    folder = copy / STAGE
    target = load(copy).decoder.target  # for its configuration only: packing changes its layers
    state = load_file(folder / "target" / "model.safetensors")
    original = to_original(state, target.config.layers)
    shutil.rmtree(folder / "target")
    torch.save({wrap: original} if wrap else original, folder / "t2i_XL_stage1_256.pt")
    found = checkpoints.find(STAGE, "target", copy)
    assert found.source.layout == "original"
    if wrap in (None, "model"):
        assert draw(load(copy)) == stage_tokens
    else:
        formats.load_target(found, 16)


def to_original(state: dict, layers: int) -> dict:
    """The tensors of a transformers-style target as LlamaGen's own files hold them."""
    top = {
        "tok_embeddings.weight": "model.embed_tokens.weight",
        "cls_embedding.uncond_embedding": "model.cls_embedding.uncond_embedding",
        "cls_embedding.cap_proj.fc1.weight": "model.cls_embedding.cap_proj.fc1.weight",
        "cls_embedding.cap_proj.fc2.weight": "model.cls_embedding.cap_proj.fc2.weight",
        "norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
    block = {
        "attention.wo.weight": "self_attn.o_proj.weight",
        "feed_forward.w1.weight": "mlp.gate_proj.weight",
        "feed_forward.w3.weight": "mlp.up_proj.weight",
        "feed_forward.w2.weight": "mlp.down_proj.weight",
        "attention_norm.weight": "input_layernorm.weight",
        "ffn_norm.weight": "post_attention_layernorm.weight",
    }
    original = {name: state[theirs] for name, theirs in top.items()}
    for i in range(layers):
        for name, theirs in block.items():
            original[f"layers.{i}.{name}"] = state[f"model.layers.{i}.{theirs}"]
        parts = [state[f"model.layers.{i}.self_attn.{x}_proj.weight"] for x in "qkv"]
        original[f"layers.{i}.attention.wqkv.weight"] = torch.cat(parts)
    return original


def test_drafter_as_safetensors_and_bare_tokenizer(copy, models):
    folder = copy / STAGE
    file = folder / "drafter" / "pytorch_model.bin"
    save_file(torch.load(file, weights_only=True), folder / "drafter" / "model.safetensors")
    file.unlink()
    # The official tokenizer files carry a statistic that is not loaded.
    state = torch.load(folder / "vq_ds16_t2i.pt", weights_only=True)["model"]
    torch.save(state | {"quantize.codebook_used": torch.zeros(65536)}, folder / "vq_ds16_t2i.pt")
    assert draw(load(copy), "eagle2") == draw(load(models), "eagle2")


def test_class_model_without_drafter(models):
    pipeline = load(models, CLASSES)
    assert pipeline.modes == ("ar",)
    draw(pipeline)
    with pytest.raises(ValueError, match="needs a drafter"):
        draw(pipeline, "lantern")


def test_class_model_with_drafter(tmp_path):
    # The published convention gives class-conditional drafters a grid of 24 x 24.
    write_class_model(tmp_path, "llamagen-b-384", drafter=True)
    pipeline = load(tmp_path, "llamagen-b-384")
    assert pipeline.modes == ALL_MODES and draw(pipeline, "eagle2") == draw(pipeline)


# -- the command line ---------------------------------------------------------------------------


@pytest.mark.parametrize("name, mode", [(STAGE, "lantern"), (CLASSES, "ar")])
def test_cli_generate(models, tmp_path, capsys, name, mode):
    image, trace = tmp_path / "image.png", tmp_path / "trace.json"
    tree = [x for key, value in SMALL_TREE.items() for x in (f"--{key}", str(value))]
    arguments = [DRAWING[name], "--model", name, "--model-dir", str(models), "--mode", mode, *tree]
    assert main(["generate", *arguments, "--out", str(image), "--json", str(trace)]) == 0
    assert "256 tokens" in capsys.readouterr().out
    assert image.is_file() and len(json.loads(trace.read_text())["tokens"]) == 256


def test_cli_check(models, capsys):
    assert main(["check", CLASSES, "--model-dir", str(models)]) == 0
    out = capsys.readouterr().out
    assert "classes 1000" in out and "ar: 256 x 256 px" in out and "peak memory" in out


def test_cli_models(models, tmp_path, capsys):
    assert main(["models", "--model-dir", str(models)]) == 0
    out = capsys.readouterr().out
    listed = dict(block.split(":", 1) for block in out.split("\nllamagen-"))
    assert "present" in listed["stage1"] and str(models / STAGE) in listed["stage1"]
    assert "present" in listed["b-256"] and "train-drafter" in listed["b-256"]
    assert "python -m lantern download llamagen-stage2" in listed["stage2"]


# -- faults -------------------------------------------------------------------------------------


def fault(root: Path, *words: str, name: str = STAGE) -> None:
    """Loading fails with one sentence that holds ``words``, from Python and the command line."""
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        load(root, name)
    message = str(caught.value)
    assert "\n" not in message and message.endswith("."), message
    for word in words:
        assert word in message, message


def change(file: Path, edit) -> None:
    state = load_file(file)
    edit(state)
    save_file(state, file)


@pytest.mark.parametrize("edit, words", [
    (lambda s: s.pop("model.norm.weight"), "model.norm.weight is missing"),
    (lambda s: s.update(stray=torch.zeros(1)), "stray is unexpected"),
    (lambda s: s.update({"lm_head.weight": torch.zeros(9, 64)}),
     "lm_head.weight has shape (9, 64), expected (256, 64)"),
    (lambda s: s.pop("model.layers.1.self_attn.k_proj.weight"), "self_attn.k_proj.weight is miss"),
])  # fmt: skip
def test_wrong_tensors(copy, edit, words):
    file = copy / STAGE / "target" / "model.safetensors"
    change(file, edit)
    fault(copy, str(file), words, "download it again")


@pytest.mark.parametrize("file", [
    "target/model.safetensors", "drafter/pytorch_model.bin", "vq_ds16_t2i.pt",
    "text/model.safetensors",
])  # fmt: skip
def test_truncated_files(copy, file):
    path = copy / STAGE / file
    os.truncate(path, path.stat().st_size // 2)
    fault(copy, str(path.parent if "text" in file else path), "download")


def test_wrong_grid_and_wrong_drafter(copy, tmp_path):
    other = write_stage(tmp_path / "other", 2)
    for part in ("target", "drafter"):
        shutil.copytree(copy / STAGE / part, tmp_path / part)
        shutil.copyfile(other / part / "config.json", copy / STAGE / part / "config.json")
        words = {
            "target": ("model of 32 x 32 tokens", "16 x 16"),
            "drafter": ("drafter for a grid of side 32", "target has 16"),
        }[part]
        fault(copy, str(copy / STAGE / part / "config.json"), *words)
        shutil.copyfile(tmp_path / part / "config.json", copy / STAGE / part / "config.json")
    load(copy)


def test_wrong_text_encoder(copy):
    from transformers import T5Config, T5EncoderModel

    text = copy / STAGE / "text"
    T5EncoderModel(
        T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    ).save_pretrained(text)
    fault(copy, "text encoder's vectors have 32 values but the target takes 24")


def test_wrong_tokenizer(copy, tmp_path):
    file = copy / STAGE / "vq_ds16_t2i.pt"
    torch.save({"quantize.embedding.weight": torch.zeros(4, 2)}, file)
    fault(copy, str(file), "not a LlamaGen VQ tokenizer")
    torch.save([1, 2], file)
    fault(copy, str(file), "does not hold a dictionary of tensors")


class Harmful:
    """What a hostile file holds: loading it the unsafe way would write a file."""

    def __init__(self, file: Path):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


@pytest.mark.parametrize("file", ["drafter/pytorch_model.bin", "vq_ds16_t2i.pt"])
def test_code_in_a_file_never_runs(copy, tmp_path, file):
    path, proof = copy / STAGE / file, tmp_path / "it-ran"
    torch.save({"model": Harmful(proof)}, path)
    fault(copy, str(path), "code")
    assert not proof.exists()


def test_fault_on_the_command_line(copy, capsys):
    (copy / STAGE / "target" / "model.safetensors").write_bytes(b"")
    assert main(["generate", "a cat", "--model", STAGE, "--model-dir", str(copy)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "model.safetensors is damaged" in error


@pytest.mark.parametrize("name", [STAGE, CLASSES])
def test_absent_model_names_the_download_command(tmp_path, capsys, name):
    fault(tmp_path, f"python -m lantern download {name}", " GB", name=name)
    assert main(["check", name, "--model-dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_absent_part_is_named(copy):
    (copy / STAGE / "drafter" / "pytorch_model.bin").unlink()
    fault(copy, "its drafter needs pytorch_model.bin", f"python -m lantern download {STAGE}")


def test_download_offline(tmp_path, monkeypatch, capsys):
    import httpx
    from huggingface_hub.errors import LocalEntryNotFoundError

    errors = iter([httpx.ConnectError("no route\nsecond line"), LocalEntryNotFoundError("offline")])

    def offline(*_, **__):
        raise next(errors)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", offline)
    assert main(["download", STAGE, "--model-dir", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "no route" in error and "second line" not in error
    assert f"python -m lantern download {STAGE}" in error


def test_download_fetches_only_what_is_missing(copy, monkeypatch, capsys):
    (copy / STAGE / "vq_ds16_t2i.pt").rename(copy / "aside.pt")
    asked = []

    def fetch(repo, file, local_dir):
        asked.append((repo, file))
        local_dir.mkdir(exist_ok=True)
        (copy / "aside.pt").rename(local_dir / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fetch)
    assert main(["download", STAGE, "--model-dir", str(copy)]) == 0
    assert asked == [("peizesun/llamagen_t2i", "vq_ds16_t2i.pt")]
    assert "complete" in capsys.readouterr().out
    load(copy)


def test_download_onto_a_full_disk_says_so(tmp_path, monkeypatch, capsys):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", full)
    assert main(["download", STAGE, "--model-dir", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "No space left on device" in error and "--model-dir" in error
    assert "connection" not in error


def test_download_error_without_words(tmp_path, monkeypatch, capsys):
    import httpx

    def silent(*_, **__):
        raise httpx.ReadTimeout("")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", silent)
    assert main(["download", STAGE, "--model-dir", str(tmp_path)]) == 2
    assert "ReadTimeout" in capsys.readouterr().err
