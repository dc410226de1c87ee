"""A Stage-I-size model of random weights, from disk to tokens: python tests/real_size.py FOLDER.

Writes about 4 GB in the published formats below FOLDER (unless they are there), loads them as a
user would, decodes 8 tokens in every mode and prints seconds and memory. pytest does not run it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lantern import formats  # noqa: E402
from lantern.config import DrafterConfig, ModelConfig, VQConfig  # noqa: E402
from lantern.models.drafter import Drafter  # noqa: E402
from lantern.models.llamagen import Transformer  # noqa: E402
from lantern.models.vq import VQModel  # noqa: E402
from lantern.neighbours import neighbour_table  # noqa: E402
from lantern.pipeline import Pipeline  # noqa: E402
from lantern.runtime import describe, peak_memory, set_threads  # noqa: E402

NAME, TOKENS, PROMPT = "llamagen-stage1", 8, "a red apple on a wooden table"
CONFIG = ModelConfig(16384, 1280, 36, 20, 3584, grid=16, prefix=120, caption_dim=2048)
LLAMA = {
    "input_type": "t2i", "hidden_act": "silu", "hidden_size": 1280, "intermediate_size": 3584,
    "num_attention_heads": 20, "num_key_value_heads": 20, "rms_norm_eps": 1e-5,
    "vocab_size": 16384,
}  # fmt: skip


def random_state(cls, configs: tuple, names: formats.Names = formats.native) -> dict:
    """Random tensors under the published names, made one by one."""
    with torch.device("meta"):
        module = cls(*configs)
    state = {}
    for name, own in module.state_dict().items():
        value = torch.randn(own.shape) * 0.02
        value = value + 1 if own.ndim == 1 and name.endswith("weight") else value
        parts = names(name)
        for part, tensor in zip(parts, value.chunk(len(parts)), strict=True):
            state[part] = tensor.clone()
    return state


def write(folder: Path) -> None:
    """All four parts in the published formats."""
    torch.manual_seed(0)
    for part in ("target", "drafter", "text"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    sizes = {"num_hidden_layers": 36, "block_size": 256, "cls_token_num": 120, "caption_dim": 2048}
    (folder / "target/config.json").write_text(json.dumps(LLAMA | sizes))
    target = random_state(Transformer, (CONFIG,), formats.hf_target)
    save_file(target, folder / "target/model.safetensors")
    del target
    (folder / "drafter/config.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": 1}))
    config = DrafterConfig(heads=20, mlp_width=3584, own_embedding=True)
    drafter = random_state(Drafter, (config, CONFIG), formats.published_drafter)
    torch.save(drafter, folder / "drafter/pytorch_model.bin")
    torch.save({"model": random_state(VQModel, (VQConfig(),))}, folder / "vq_ds16_t2i.pt")
    write_text(folder / "text")


def write_text(folder: Path) -> None:
    """An encoder of flan-t5-xl's shape with 2 of its 24 layers, and a tokenizer of one word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

    words = {"<pad>": 0, "</s>": 1, "<unk>": 2}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    T5EncoderModel(
        T5Config(vocab_size=32128, d_model=2048, d_kv=64, d_ff=5120, num_layers=2, num_heads=32,
                 feed_forward_proj="gated-gelu")
    ).save_pretrained(folder)  # fmt: skip


def table_cost() -> str:
    """Time and memory of the neighbour table of 16384 codes, in a process of its own."""
    codes = torch.nn.functional.normalize(torch.randn(16384, 8), dim=-1)
    before, start = peak_memory("cpu"), time.perf_counter()
    table = neighbour_table(codes)
    seconds, extra = time.perf_counter() - start, 1024 * (peak_memory("cpu") - before)
    return f"neighbour table {tuple(table.shape)}: {seconds:.1f} s, {extra:.0f} MiB extra"


def load(root: Path, device: str, dtype: torch.dtype) -> Pipeline:
    """The model through the public loader, with the seconds and memory of each part."""
    phases: list[tuple[str, float, float]] = []

    def progress(what: str) -> None:
        phases.append((what, time.perf_counter(), peak_memory("cpu")))

    pipeline = Pipeline.load(NAME, device, dtype=dtype, model_dir=root, progress=progress)
    progress("end")
    for (what, start, _), (_, end, peak) in zip(phases, phases[1:], strict=False):
        print(f"load {what}: {end - start:.1f} s, peak so far {peak:.2f} GiB")
    return pipeline


def decode(pipeline: Pipeline, mode: str) -> str:
    """The first tokens of an image in one mode; seconds of each phase."""
    options = replace(pipeline.options(seed=1), mode=mode)
    trace = pipeline.new_trace(PROMPT, options)
    for _ in pipeline.stream(PROMPT, options, trace):
        if len(trace.tokens) >= TOKENS:
            break
    phases = ", ".join(f"{name} {s:.2f}" for name, s in trace.seconds_by_phase.items())
    nodes = options.tree.nodes if mode != "ar" else 1
    return (
        f"{mode}: {len(trace.tokens)} tokens in {len(trace.events) - 1} steps of {nodes} nodes, "
        f"{trace.seconds:.2f} s ({phases})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", choices=("write", "table"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    set_threads()
    if args.only == "write":
        return write(args.folder / NAME)
    if args.only == "table":
        return print(table_cost())
    # In processes of their own, so that their memory does not count below.
    for part in ("table",) if (args.folder / NAME / "text").is_dir() else ("table", "write"):
        start = time.perf_counter()
        subprocess.run([sys.executable, __file__, args.folder, "--only", part], check=True)
        print(f"({part}: {time.perf_counter() - start:.0f} s)")
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[args.dtype]
    pipeline = load(args.folder, args.device, dtype)
    where = describe(pipeline.device, dtype)
    print(f"{where['hardware']}, {where['threads']} threads, {where['dtype']}")
    pipeline.warm_up()
    for mode in pipeline.modes:
        print(decode(pipeline, mode))
    start = time.perf_counter()
    pipeline.image(list(range(256)))
    print(f"VQ decoding: {time.perf_counter() - start:.2f} s")
    print(f"peak memory: {peak_memory(where['device']):.2f} GiB")


if __name__ == "__main__":
    main()
