"""train-drafter: samples from folders and from the target, formats, report, several processes."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from test_training import tiny_shard
from tiny_decoder import TINY, make_caption, make_decoder, tokens_of
from tiny_models import write_class_model, write_stage
from two_processes import train

from lantern import checkpoints, formats
from lantern.__main__ import main
from lantern.checkpoints import ROOT, in_folder
from lantern.config import DecodeOptions, DrafterConfig, ModelConfig, TreeShape, VQConfig
from lantern.models.drafter import Drafter
from lantern.models.llamagen import Transformer
from lantern.models.text import ClassNames
from lantern.models.vq import VQModel
from lantern.training import data, images
from lantern.training.art import read_concepts
from lantern.training.drafter_report import measure, random_drafter, table
from lantern.training.sampling import sample_tokens
from lantern.training.shards import Mixture, Shard, Shards

STAGE, CLASSES = "llamagen-stage1", "llamagen-b-256"
KEYS = Path(__file__).parent / "data" / "parity" / "full_keys.json"


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """A models folder: Stage I without its drafter, and a class-conditional model."""
    root = tmp_path_factory.mktemp("models")
    shutil.rmtree(write_stage(root) / "drafter")
    write_class_model(root, CLASSES)
    return root


def write_images(folder: Path, captions: list[str], size=(300, 270)) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i, caption in enumerate(captions):
        pixels = rng.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
        (folder / f"{i}.txt").write_text(caption)
    return folder


def command(*words) -> int:
    return main(["train-drafter", *map(str, words)])


# -- the target's own samples -------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"temperature": 0.0}, {"top_k": 9, "cfg": 3.0}])
def test_batched_sampling_draws_what_the_decoder_draws(decoder, changes):
    options = replace(DecodeOptions(mode="ar", top_k=0), **changes)
    captions, valid = zip(*(make_caption(i, 2 + i) for i in range(4)), strict=True)
    seeds = [7, 1, 7, 3]
    drawn = sample_tokens(decoder.target, torch.stack(captions), torch.stack(valid), seeds, options)
    for row, caption, mask, seed in zip(drawn, captions, valid, seeds, strict=True):
        alone = tokens_of(decoder.stream(caption, mask, replace(options, seed=seed)))
        assert row.tolist() == alone


def test_batched_sampling_of_classes():
    config = replace(TINY, classes=5, prefix=1)
    decoder, text = make_decoder(config=config), ClassNames(5)
    pairs = [text.condition(name) for name in ("0", "3", "4")]
    captions, valid = (torch.stack(part) for part in zip(*pairs, strict=True))
    options = DecodeOptions(mode="ar", top_k=0)
    drawn = sample_tokens(decoder.target, captions, valid, [1, 2, 3], options)
    alone = tokens_of(decoder.stream(*pairs[1], replace(options, seed=2)))
    assert drawn[1].tolist() == alone


def test_sampling_refuses_logits_that_are_not_numbers(decoder):
    decoder.target.head.weight.data.fill_(torch.nan)
    caption, valid = make_caption()
    with pytest.raises(RuntimeError, match="not numbers"):
        sample_tokens(decoder.target, caption[None], valid[None], [0], DecodeOptions(mode="ar"))


def test_captions_of_scenes_keep_held_out_pairs_apart():
    concepts = read_concepts(core_only=True)
    train_captions = data.sample_captions(concepts, 300, 0, held_out=False)
    held_out = data.sample_captions(concepts, 100, 0, held_out=True)
    assert train_captions == data.sample_captions(concepts, 300, 0, held_out=False)
    assert len(set(train_captions)) > 200
    told = [c for c in held_out if c.count(" ") > 3]  # short ones leave the place out
    assert not set(told) & set(train_captions)


# -- captioned images ---------------------------------------------------------------------------


def test_images_are_cropped_at_the_centre(tmp_path):
    wide = np.zeros((40, 120, 3), np.uint8)
    wide[:, 40:80] = (200, 30, 60)
    Image.fromarray(wide).save(tmp_path / "wide.png")
    image = images.load_image(tmp_path / "wide.png", 20)
    assert image.shape == (20, 20, 3)
    assert abs(image.astype(int) - (200, 30, 60)).max() < 20  # the edges are interpolated


def test_captions_beside_images_or_in_metadata(tmp_path):
    folder = write_images(tmp_path / "a", ["a red apple", "a cat "])
    assert images.read_folder(folder) == [
        (folder / "0.png", "a red apple"),
        (folder / "1.png", "a cat"),
    ]
    rows = [{"file_name": "1.png", "text": "ramen"}, {"file_name": "0.png", "text": "bowl"}]
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert [caption for _, caption in images.read_folder(folder)] == ["bowl", "ramen"]


def test_shards_hold_class_numbers_and_few_items(tmp_path):
    shard = Shard.join([torch.zeros(2, 4)], [torch.tensor([999]).int(), torch.tensor([3]).int()])
    batch = shard.batch(torch.tensor([1, 0]), 1)
    assert batch.captions.tolist() == [[3], [999]] and batch.valid.all()
    shards = Shards.of(tmp_path, list(range(5)), lambda items: tiny_shard(len(items)), 2)
    assert (shards.count, shards.size) == (3, 2)
    assert len(shards.batch(0, 7, TINY.prefix).tokens) == 7
    steps = []

    class Named:
        def __init__(self, name):
            self.name = name

        def batch(self, step, batch_size, prefix):
            steps.append((self.name, step))

    mixture = Mixture(Named("own"), Named("scenes"), 0.25)
    for step in range(8):
        mixture.batch(step, 1, 1)
    assert [s for name, s in steps if name == "scenes"] == [0, 1]
    assert [s for name, s in steps if name == "own"] == list(range(6))


# -- the whole command --------------------------------------------------------------------------


def test_from_images_to_a_published_drafter(models, tmp_path, capsys):
    """Image folder -> shards in the run folder -> drafter in the published format -> loader."""
    folder = write_images(
        tmp_path / "images", ["a red apple", "the cat", "a corgi", "a lighthouse"]
    )
    words = (
        "--model", STAGE, "--model-dir", models, "--data", folder, "--run", tmp_path / "run",
        "--batch", 2, "--drop", 0.1, "--report-prompts", 0,
    )  # fmt: skip
    assert command(*words, "--steps", 2) == 0
    assert "| trained | " in capsys.readouterr().out
    out = models / STAGE / "drafter"
    keys = json.loads(KEYS.read_text())["drafter_t2i"]
    assert set(load_file(out / "model.safetensors")) == set(keys["keys"])
    values = json.loads((out / "config.json").read_text())
    assert set(keys["config"]) - {"transformers_version"} <= set(values)
    assert values["input_type"] == "t2i" and values["hidden_size"] == 64

    found = checkpoints.find(STAGE, "drafter", models)
    target = formats.load_target(checkpoints.find(STAGE, "target", models), 16)
    drafter = formats.load_drafter(found, target.config)
    torch.testing.assert_close(drafter.embedding.weight, target.embedding.weight, atol=1e-3, rtol=0)
    assert checkpoints.unavailable(STAGE, models) is None
    (cache,) = (tmp_path / "run").glob("samples-*")
    made = (cache / "shard-000.pt").stat().st_mtime_ns

    # Goes on where it was, with the shards it has.
    assert command(*words, "--steps", 4) == 0
    assert (cache / "shard-000.pt").stat().st_mtime_ns == made
    assert torch.load(tmp_path / "run/state.pt", weights_only=True)["step"] == 4


def test_class_conditional_samples_report_and_pipeline(models, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("lantern.training.drafter_report.CASES", (("lantern", 1.0),))
    words = (
        "--model", CLASSES, "--model-dir", models, "--samples", 4, "--run", tmp_path / "run",
        "--batch", 2, "--steps", 2, "--report-prompts", 1,
    )  # fmt: skip
    assert command(*words) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("| drafter | test accuracy | MAL lantern, temperature 1 |")
    rows = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert [row["drafter"] for row in rows] == ["random", "trained"]
    assert all(1 <= value < 6 for row in rows for value in row["mal"].values())

    from lantern.pipeline import Pipeline

    pipeline = Pipeline.load(CLASSES, "cpu", model_dir=models)
    assert "lantern" in pipeline.modes and pipeline.decoder.drafter.config.own_embedding


def write_emoji(folder: Path) -> Path:
    """A tiny model in this repository's own format, with the shipped text encoder."""
    torch.manual_seed(0)
    target = ModelConfig(
        vocab_size=64, width=32, layers=1, heads=2, mlp_width=48, grid=16, prefix=24,
        caption_dim=384,
    )  # fmt: skip
    vq = VQConfig(
        codebook_size=64, codebook_dim=8, base_width=16, channel_multipliers=(1, 1), z_channels=16,
        res_blocks=1, patch_size=4, norm_groups=4,
    )  # fmt: skip
    for part, module in (("target", Transformer(target)), ("tokenizer", VQModel(vq))):
        (folder / part).mkdir(parents=True)
        save_file(module.state_dict(), folder / part / "model.safetensors")
        (folder / part / "config.json").write_text(json.dumps(asdict(module.config)))
    (folder / "text").symlink_to(ROOT / "emoji-128" / "text")
    shutil.copy(ROOT / "emoji-128" / "model.json", folder)
    return folder


def test_emoji_own_samples_mixed_with_scenes(tmp_path):
    folder = write_emoji(tmp_path / "emoji")
    art = tmp_path / "art.npz"
    labels = [concept.label for concept in read_concepts()]
    drawings = np.full((len(labels), 128, 128, 4), 200, np.uint8)
    np.savez(art, rgba=drawings, labels=labels, styles=["3D"] * len(labels))
    words = (
        "--model-dir", folder, "--samples", 6, "--scenes", 0.5, "--art", art, "--shards", 1,
        "--shard-size", 4, "--shard-dir", tmp_path / "scenes", "--run", tmp_path / "run",
        "--steps", 4, "--batch", 2, "--report-prompts", 0,
    )  # fmt: skip
    assert command(*words) == 0
    found = in_folder("emoji-128", "drafter", folder)
    target = formats.load_target(in_folder("emoji-128", "target", folder), 16)
    drafter = formats.load_drafter(found, target.config)
    assert not drafter.config.own_embedding
    assert list((tmp_path / "scenes").glob("*/shard-000.pt"))
    (cache,) = (tmp_path / "run").glob("samples-*")
    shard = Shard(**torch.load(cache / "held-out/shard-000.pt", weights_only=True))
    assert shard.tokens.shape == (1, 256) and shard.vectors.shape[1] == 384


# -- the report ---------------------------------------------------------------------------------


def test_an_untrained_drafter_accepts_nothing():
    config = replace(TINY, vocab_size=4096, grid=6)
    decoder = make_decoder(config=config)
    options = DecodeOptions(top_k=0, k=0, delta=0, tree=TreeShape(8, 3, 3))
    shard = replace_tokens(tiny_shard(2), config)
    drafter = random_drafter(DrafterConfig(heads=2, mlp_width=48), decoder.target)
    figures = measure(decoder.target, drafter, decoder.codes, decoder.neighbours, shard, options, 2)
    assert figures["test_accuracy"] < 0.05
    assert set(figures["mal"]) == {"eagle2/0", "eagle2/1", "lantern/0", "lantern/1"}
    assert {round(value, 2) for value in figures["mal"].values()} == {1.0}
    text = table({"random": figures, "trained": figures})
    assert len({line.count("|") for line in text.splitlines()}) == 1 and "| 1.00 |" in text


def replace_tokens(shard: Shard, config: ModelConfig) -> Shard:
    tokens = torch.randint(config.vocab_size, (len(shard), config.image_tokens)).short()
    return Shard(tokens, shard.vectors, shard.offsets)


# -- several processes --------------------------------------------------------------------------


def test_two_processes_train_one_drafter(tmp_path):
    """Two processes with half the batch each end at the weights of one process, agree with each
    other, save once and resume."""
    launch = (
        sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2",
        "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no",
        "--main_process_port", "0", str(Path(__file__).with_name("two_processes.py")),
    )  # fmt: skip
    paths = os.pathsep.join(map(str, (Path(__file__).parent.parent, Path(__file__).parent)))
    env = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    train(tmp_path / "one", 9, 8)
    train(tmp_path / "two", 5, 8)  # what two processes go on with
    done = subprocess.run(
        [*launch, str(tmp_path / "two"), "9", "4"], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    one = torch.load(tmp_path / "one/rank-0.pt", weights_only=True)
    ranks = [torch.load(tmp_path / f"two/rank-{i}.pt", weights_only=True) for i in range(2)]
    assert torch.equal(*ranks)
    # bf16 autocast sees halves of the batch, so the gradients differ in the last bits.
    torch.testing.assert_close(ranks[0], one, atol=2e-3, rtol=0)
    assert json.loads((tmp_path / "two/run/config.json").read_text())["processes"] == 2
    assert torch.load(tmp_path / "two/run/state.pt", weights_only=True)["step"] == 9


# -- bad input ----------------------------------------------------------------------------------


def refused(capsys, tmp_path, *words) -> str:
    """The one line that a command answers with; nothing may have been written."""
    before = sorted(tmp_path.rglob("*"))
    assert command(*words, "--run", tmp_path / "run", "--steps", 1) == 2
    message = capsys.readouterr().err.strip()
    assert message.startswith("lantern: ") and "\n" not in message
    assert sorted(tmp_path.rglob("*")) == before
    return message


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--model", "nonsense", "--samples", 4], "unknown model 'nonsense'; known are"),
        (["--model", "llamagen-stage2", "--samples", 4], "python -m lantern download"),
        (["--model", STAGE], "give --data FOLDER or --samples N"),
        (["--data", "x", "--samples", 4], "--data and --samples exclude each other"),
        (["--prompts", "x"], "give --samples N too"),
        (["--samples", 1], "at least 2"),
        (["--model", STAGE, "--samples", 4, "--scenes", 0.5], "leave it out"),
        (["--samples", 4, "--drop", 2], "--drop must be from 0 to 1"),
        (["--samples", 4, "--batch", 0], "--batch must be at least 1"),
        (["--model", STAGE, "--data", "absent"], "absent is not a folder"),
        (["--model", STAGE, "--samples", 4, "--prompts", "absent"], "absent is missing"),
        (["--model", STAGE, "--samples", 4, "--init", "absent"], "absent holds no drafter"),
    ],
)
def test_bad_options(models, tmp_path, capsys, words, expected):
    if "--model" in words:
        words = [*words, "--model-dir", models]
    assert expected in refused(capsys, tmp_path, *words)


def test_bad_folders(models, tmp_path, capsys):
    folder = tmp_path / "images"
    words = ("--model", STAGE, "--model-dir", models, "--data", folder)
    folder.mkdir()
    assert "holds no image" in refused(capsys, tmp_path, *words)
    folder.rmdir()
    write_images(folder, ["a cat", "a corgi"], size=(20, 20))
    (folder / "1.txt").unlink()
    assert "1.png has no caption; write it into 1.txt" in refused(capsys, tmp_path, *words)
    (folder / "1.txt").write_text(" ")
    assert "caption of" in refused(capsys, tmp_path, *words)
    (folder / "1.txt").write_text("word " * 40)
    assert "too long" in refused(capsys, tmp_path, *words)
    (folder / "1.txt").write_text("a cat")
    (folder / "1.png").write_bytes((folder / "0.png").read_bytes()[:300])
    assert "1.png cannot be read as an image" in refused(capsys, tmp_path, *words)
    (folder / "1.png").unlink()
    assert "at least two" in refused(capsys, tmp_path, *words)
    listing = folder / "metadata.jsonl"
    listing.write_text('{"file_name": "0.png"}')
    assert "line 1: must be like" in refused(capsys, tmp_path, *words)
    listing.write_text('{"file_name": "2.png", "text": "a cat"}')
    assert "2.png is missing" in refused(capsys, tmp_path, *words)


def test_a_class_that_does_not_exist(models, tmp_path, capsys):
    folder = write_images(tmp_path / "images", ["macaw", "gnu hat"], size=(20, 20))
    words = ("--model", CLASSES, "--model-dir", models, "--data", folder)
    message = refused(capsys, tmp_path, *words)
    assert "1.png" in message and "'gnu hat' is not one of" in message


def test_a_published_drafter_is_not_overwritten(tmp_path, capsys):
    write_stage(tmp_path)
    words = ("--model", STAGE, "--model-dir", tmp_path, "--samples", 4)
    assert "move it away or give --out" in refused(capsys, tmp_path, *words)


def test_a_drafter_trained_here_comes_before_the_cache(tmp_path, monkeypatch):
    """The nearer place wins, whatever its format."""
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: __file__)
    assert checkpoints.find(STAGE, "drafter", tmp_path).paths[0] == Path(__file__)
    folder = tmp_path / STAGE / "drafter"
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (folder / name).touch()
    assert checkpoints.find(STAGE, "drafter", tmp_path).folder == folder


def test_published_names_round_trip():
    config = DrafterConfig(heads=2, mlp_width=48, own_embedding=True)
    drafter = Drafter(config, TINY)
    state = formats.to_published(drafter, formats.published_drafter)
    other = formats.fill(Drafter(config, TINY), state, Path("x"), formats.published_drafter)
    assert all(
        torch.equal(a, b) for a, b in zip(drafter.parameters(), other.parameters(), strict=True)
    )
