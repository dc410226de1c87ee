"""Tiny random models in the published formats, written into a models folder (LANTERN_MODELS).

They have the real models' file names, tensor names, grids and pixels, so the public loader takes
them for the real ones; only widths and depths are small.
"""

import json
from dataclasses import asdict
from pathlib import Path

import torch
from app_process import ROOT
from safetensors.torch import load_file, save_file

from lantern import checksums
from lantern.checkpoints import entry
from lantern.config import DrafterConfig, ModelConfig, VQConfig
from lantern.formats import hf_target, original_target, published_drafter, to_published
from lantern.models.drafter import Drafter
from lantern.models.llamagen import Transformer
from lantern.models.vq import VQModel

WIDTH, MLP, VOCAB, PREFIX, CAPTION = 64, 96, 256, 12, 24
WORDS = "a an the of in on with at and red blue apple table wooden lighthouse cliff sunset corgi " \
        "wearing bow tie oil painting bowl ramen egg cat".split()  # fmt: skip


def write_class_model(root: Path, name: str = "llamagen-b-256", drafter: bool = False) -> Path:
    """A class-conditional model as LlamaGen publishes it; the folder it lies in."""
    folder = root / name
    folder.mkdir(parents=True)
    config = _config(name, prefix=1, caption_dim=WIDTH, classes=1000)
    target = _target(config)
    torch.save({"model": to_published(target, original_target)}, folder / _file(name, "target"))
    _write_vq(folder / _file(name, "tokenizer"))
    if drafter:
        kind = {16: "t2i", 24: "c2i"}[config.grid]  # the grids these words stand for
        _write_drafter(folder / "drafter", target, kind, "model.safetensors")
    return folder


def write_stage(root: Path, number: int = 1) -> Path:
    """A text-to-image model as LANTERN's authors publish it, with its drafter and a tiny T5."""
    name = f"llamagen-stage{number}"
    folder = root / name
    for part in ("target", "drafter", "text"):
        (folder / part).mkdir(parents=True)
    config = _config(name, prefix=PREFIX, caption_dim=CAPTION)
    target = _target(config)
    kind = {1: "t2i", 2: "t2i2"}[number]
    values = _llama_values(target, kind) | {
        "block_size": config.grid**2, "cls_token_num": PREFIX, "caption_dim": CAPTION,
    }  # fmt: skip
    (folder / "target" / "config.json").write_text(json.dumps(values))
    save_file(to_published(target, hf_target), folder / "target" / "model.safetensors")
    _write_drafter(folder / "drafter", target, kind, "pytorch_model.bin")
    _write_vq(folder / _file(name, "tokenizer"))
    _write_t5(folder / "text")
    return folder


def write_native(root: Path) -> Path:
    """A model in this repository's own format under the shipped one's name, with its checksums."""
    folder = root / "emoji-128"
    config = ModelConfig(
        vocab_size=VOCAB, width=WIDTH, layers=2, heads=1, mlp_width=MLP, grid=16, prefix=PREFIX,
        caption_dim=CAPTION, attend_condition=True,
    )  # fmt: skip
    torch.manual_seed(1)
    drafter = DrafterConfig(heads=1, mlp_width=MLP)
    vq = VQConfig(
        codebook_size=VOCAB, base_width=32, channel_multipliers=(1, 1), z_channels=32, res_blocks=1,
        patch_size=4,
    )  # fmt: skip
    target = _target(config)
    for part, values, module in (
        ("target", config, target),
        ("drafter", drafter, Drafter(drafter, config)),
        ("tokenizer", vq, VQModel(vq)),
    ):
        (folder / part).mkdir(parents=True)
        (folder / part / "config.json").write_text(json.dumps(asdict(values)))
        save_file(module.state_dict(), folder / part / "model.safetensors")
    (folder / "text").mkdir()
    _write_bert(folder / "text")
    defaults = {"k": 20, "delta": 0.2, "temperature": 1.0, "cfg": 2.0, "top_k": 0,
                "nodes": 4, "depth": 2, "branch": 2}  # fmt: skip
    info = {"title": "tiny", "defaults": defaults, "examples": ["a red apple", "a cat"]}
    (folder / "model.json").write_text(json.dumps(info))
    checksums.write(folder)
    return folder


def write_light(root: Path) -> Path:
    """The shipped model with the first of its target's layers alone: what a page shows and does is
    the same, drawing takes a fraction of the time."""
    folder, shipped = root / "emoji-128", ROOT / "checkpoints" / "emoji-128"
    for file in (f for f in shipped.rglob("*") if f.is_file()):
        path = folder / file.relative_to(shipped)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(file)
    weights, config = folder / "target" / "model.safetensors", folder / "target" / "config.json"
    values = json.loads(config.read_text())
    later = {f"layers.{i}." for i in range(1, values["layers"])}
    state = {k: v for k, v in load_file(weights).items() if not k.startswith(tuple(later))}
    for file in (weights, config, folder / "SHA256SUMS"):
        file.unlink()
    save_file(state, weights)
    config.write_text(json.dumps(values | {"layers": 1}))
    checksums.write(folder)
    return folder


def _file(name: str, part: str) -> str:
    """The published file name of a part that is one torch file."""
    return next(s.files[0] for s in entry(name).parts[part] if s.files[0].endswith(".pt"))


def _config(name: str, **values) -> ModelConfig:
    return ModelConfig(
        vocab_size=VOCAB, width=WIDTH, layers=2, heads=1, mlp_width=MLP, grid=entry(name).grid,
        **values,
    )  # fmt: skip


def _target(config: ModelConfig) -> Transformer:
    torch.manual_seed(0)
    target = Transformer(config)
    for parameter in target.parameters():
        parameter.data.normal_(0, 0.1)
    target.norm.weight.data.fill_(1.0)
    target.head.weight.data.mul_(6)  # as sure of itself as a trained model
    return target


def _llama_values(target: Transformer, kind: str) -> dict:
    return {
        "input_type": kind, "hidden_act": "silu", "hidden_size": WIDTH, "intermediate_size": MLP,
        "num_attention_heads": 1, "num_key_value_heads": 1, "rms_norm_eps": 1e-5,
        "num_hidden_layers": target.config.layers, "vocab_size": VOCAB,
    }  # fmt: skip


def _write_drafter(folder: Path, target: Transformer, kind: str, file: str) -> None:
    folder.mkdir(exist_ok=True)
    torch.manual_seed(1)
    config = DrafterConfig(heads=1, mlp_width=MLP, norm_eps=1e-5, own_embedding=True)
    state = to_published(Drafter(config, target.config), published_drafter)
    values = _llama_values(target, kind) | {"num_hidden_layers": 1, "bias": True}
    (folder / "config.json").write_text(json.dumps(values))
    if file.endswith(".bin"):
        torch.save(state, folder / file)
    else:
        save_file(state, folder / file)


def _write_vq(file: Path) -> None:
    torch.manual_seed(2)
    vq = VQModel(
        VQConfig(codebook_size=VOCAB, base_width=32, channel_multipliers=(1,) * 5, z_channels=32,
                 res_blocks=1)
    )  # fmt: skip
    torch.save({"model": vq.state_dict()}, file)


def _write_words(folder: Path) -> int:
    """A tokenizer of whole words; its size."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    return len(vocabulary)


def _write_t5(folder: Path) -> None:
    from transformers import T5Config, T5EncoderModel

    words = _write_words(folder)
    torch.manual_seed(3)
    T5EncoderModel(
        T5Config(vocab_size=words, d_model=CAPTION, d_kv=8, d_ff=32, num_layers=1,
                 num_heads=2)
    ).save_pretrained(folder)  # fmt: skip


def _write_bert(folder: Path) -> None:
    from transformers import BertConfig, BertModel

    words = _write_words(folder)
    torch.manual_seed(4)
    BertModel(
        BertConfig(vocab_size=words, hidden_size=CAPTION, num_hidden_layers=1,
                   num_attention_heads=2, intermediate_size=32, max_position_embeddings=64),
        add_pooling_layer=False,
    ).save_pretrained(folder)  # fmt: skip
