"""File formats: weights as published -> our modules, strictly.

Reads safetensors, torch files (weights only) and sharded files; knows the tensor names of the
transformers-style LlamaGen targets, of LlamaGen's original files and of the published drafters.
Where files lie is ``checkpoints``' business.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from lantern.checkpoints import Found
from lantern.config import DrafterConfig, ModelConfig, VQConfig, config_from_dict, read_json
from lantern.models.drafter import Drafter
from lantern.models.llamagen import Transformer
from lantern.models.vq import VQModel

State = dict[str, Tensor]
# One of our tensor names -> the published tensors that make it up, stacked on the first dimension.
Names = Callable[[str], tuple[str, ...]]
# Buffers of the official classes that carry nothing to load.
IGNORED = re.compile(r"(^|\.)(codebook_used|inv_freq|freqs_cis)$")
_NOT_TENSORS = (
    "does not hold a dictionary of tensors; put the model's own file there or download it again."
)


def native(name: str) -> tuple[str, ...]:
    """Files written by this repository, and VQ tokenizers: the same names."""
    return (name,)


def _renaming(top: dict[str, str], block: dict[str, tuple[str, ...]], prefix: str = "") -> Names:
    def names(name: str) -> tuple[str, ...]:
        if name in top:
            return (top[name],)
        match = re.fullmatch(r"layers\.(\d+)\.(.+)", name)
        layer, rest = match.groups() if match else (0, name)
        return tuple(f"{prefix}layers.{layer}.{part}" for part in block[rest])

    return names


_HF_BLOCK = {
    "attention_norm.weight": ("input_layernorm.weight",),
    "attention.qkv.weight": tuple(f"self_attn.{x}_proj.weight" for x in "qkv"),
    "attention.out.weight": ("self_attn.o_proj.weight",),
    "mlp_norm.weight": ("post_attention_layernorm.weight",),
    "mlp.gate_up.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "mlp.down.weight": ("mlp.down_proj.weight",),
}
hf_target = _renaming(
    {
        "embedding.weight": "model.embed_tokens.weight",
        "caption.uncond": "model.cls_embedding.uncond_embedding",
        "caption.fc1.weight": "model.cls_embedding.cap_proj.fc1.weight",
        "caption.fc2.weight": "model.cls_embedding.cap_proj.fc2.weight",
        "norm.weight": "model.norm.weight",
        "head.weight": "lm_head.weight",
    },
    _HF_BLOCK,
    "model.",
)
published_drafter = _renaming(
    {"embedding.weight": "embed_tokens.weight", "fc.weight": "fc.weight", "fc.bias": "fc.bias"},
    _HF_BLOCK,
)
original_target = _renaming(
    {
        "embedding.weight": "tok_embeddings.weight",
        "caption.uncond": "cls_embedding.uncond_embedding",
        "caption.fc1.weight": "cls_embedding.cap_proj.fc1.weight",
        "caption.fc2.weight": "cls_embedding.cap_proj.fc2.weight",
        "caption.table.weight": "cls_embedding.embedding_table.weight",
        "norm.weight": "norm.weight",
        "head.weight": "output.weight",
    },
    {
        "attention_norm.weight": ("attention_norm.weight",),
        "attention.qkv.weight": ("attention.wqkv.weight",),
        "attention.out.weight": ("attention.wo.weight",),
        "mlp_norm.weight": ("ffn_norm.weight",),
        "mlp.gate_up.weight": ("feed_forward.w1.weight", "feed_forward.w3.weight"),
        "mlp.down.weight": ("feed_forward.w2.weight",),
    },
)


# -- reading ------------------------------------------------------------------------------------


def read_state(file: Path) -> State:
    """All tensors of a safetensors file, a torch file or an ``.index.json`` of shards, on the CPU.

    FileNotFoundError if it (or a shard) is missing, ValueError if it is damaged.
    """
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing; restore it or download the model again.")
    if file.name.endswith(".index.json"):
        shards = _shards(file)
        return {k: v for shard in shards for k, v in read_state(file.parent / shard).items()}
    try:
        state = load_file(file) if file.suffix == ".safetensors" else _torch_load(file)
    except pickle.UnpicklingError:
        # torch's own message explains how to run the code in the file.
        raise ValueError(
            f"{file} is damaged or holds code, which is never run; download it again from its "
            "publisher."
        ) from None
    except MemoryError:
        raise
    except Exception as error:  # what garbage leads torch's reader to can be any kind
        reason = (str(error) or type(error).__name__).split("\n")[0].split(". ")[0][:200]
        raise ValueError(f"{file} is damaged ({reason}); restore or download it again.") from None
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise ValueError(f"{file} {_NOT_TENSORS}")
    return state


def _shards(file: Path) -> list[str]:
    """File names that an index names, each beside the index."""
    weight_map = read_json(file).get("weight_map")
    names = set(weight_map.values()) if isinstance(weight_map, dict) else {None}
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise ValueError(f"{file} names no files of weights; restore or download it again.")
    return sorted(names)


def _torch_load(file: Path) -> object:
    """What the file holds; the dictionary of tensors if it is one of ours or of LlamaGen's."""
    try:
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError:  # files older than the zip format cannot be mapped
        state = torch.load(file, map_location="cpu", weights_only=True)
    for key in ("model", "module", "state_dict"):  # training code wraps the tensors
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    return state


def fill(
    module: nn.Module,
    state: State,
    file: Path,
    names: Names = native,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """Put ``state``, read from ``file``, into ``module`` (which may be on the meta device) and
    return it. Values take the module's dtype, floating ones ``dtype`` if given.

    ValueError, naming file and tensor, if one is missing, left over or of another shape.
    """
    result, problems, used = {}, [], set()
    for name, own in module.state_dict().items():
        parts = names(name)
        used.update(parts)
        absent = [part for part in parts if part not in state]
        wanted = (own.shape[0] // len(parts), *own.shape[1:]) if own.ndim else ()
        wrong = [p for p in parts if p in state and tuple(state[p].shape) != wanted]
        problems += [f"{part} is missing" for part in absent]
        problems += [
            f"{part} has shape {tuple(state[part].shape)}, expected {wanted}" for part in wrong
        ]
        if not problems:
            value = torch.cat([state[p] for p in parts]) if len(parts) > 1 else state[parts[0]]
            kind = dtype if dtype and own.is_floating_point() else own.dtype
            result[name] = value.to(kind, copy=len(parts) == 1)
    problems += [f"{k} is unexpected" for k in state if k not in used and not IGNORED.search(k)]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ValueError(
            f"{file} does not fit its config: {problems[0]}{more}; put the model's own file "
            "there or download it again."
        )
    module.load_state_dict(result, assign=True)
    return module


def load_weights(module: nn.Module, file: Path) -> None:
    """Fill ``module`` from a file written by this repository; errors as in ``read_state`` and
    ``fill``."""
    fill(module, read_state(file), file)


def to_published(module: nn.Module, names: Names) -> State:
    """The inverse of ``fill``: the module's tensors under the published ``names``, joined ones
    taken apart. They share memory with the module where they can."""
    state = {}
    for name, value in module.state_dict().items():
        parts = names(name)
        for part, tensor in zip(parts, value.chunk(len(parts)), strict=True):
            state[part] = tensor.contiguous()
    return state


# -- configurations -----------------------------------------------------------------------------


def _checked(cls, file: Path, **values):
    """The configuration ``cls``; its errors name ``file``."""
    return config_from_dict(cls, values, where=str(file))


def _field(values: dict, name: str, file: Path, kind: type = int):
    value = values.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        wanted = getattr(kind, "__name__", "a number")
        raise ValueError(f"{file}: {name} must be given as {wanted}, not {value!r}.")
    return value


def _check_llama(values: dict, file: Path) -> None:
    """Refuse what these classes can express and our transformer does not compute."""
    heads = values.get("num_attention_heads")
    for name, wanted in (
        ("hidden_act", "silu"),
        ("num_key_value_heads", heads),
        ("attention_bias", False),
        ("mlp_bias", False),
        ("rope_scaling", None),
        ("tie_word_embeddings", False),
    ):
        if values.get(name, wanted) != wanted:
            raise ValueError(
                f"{file}: {name} {values[name]!r} is not supported, only {wanted!r}; is this a "
                "LlamaGen model?"
            )


def hf_target_config(file: Path, padded_rows: str = "bf16") -> ModelConfig:
    """config.json of a transformers-style LlamaGen-T2I target."""
    values = read_json(file)
    _check_llama(values, file)
    kind = values.get("input_type")
    if kind not in ("t2i", "t2i2"):
        raise ValueError(f"{file}: input_type {kind!r} is not supported, only t2i and t2i2.")
    tokens = _field(values, "block_size", file)
    grid = round(tokens**0.5)
    if grid * grid != tokens:
        raise ValueError(f"{file}: block_size {tokens} is not a square number of tokens.")
    return _checked(
        ModelConfig,
        file,
        vocab_size=_field(values, "vocab_size", file),
        width=_field(values, "hidden_size", file),
        layers=_field(values, "num_hidden_layers", file),
        heads=_field(values, "num_attention_heads", file),
        mlp_width=_field(values, "intermediate_size", file),
        grid=grid,
        prefix=_field(values, "cls_token_num", file),
        caption_dim=_field(values, "caption_dim", file),
        norm_eps=_field(values, "rms_norm_eps", file, float),
        rope_base=float(_field({"rope_base": 10000} | values, "rope_base", file, int | float)),
        padded_rows=padded_rows,
    )


def original_target_config(
    state: State, file: Path, grid: int, padded_rows: str = "bf16", head_dim: int = 64
) -> ModelConfig:
    """What LlamaGen's own files do not say is the same in all of them: heads of 64, eps 1e-5. The
    grid is not in the file at all."""
    try:
        vocab, width = state["tok_embeddings.weight"].shape
        mlp_width = state["layers.0.feed_forward.w1.weight"].shape[0]
        if "cls_embedding.embedding_table.weight" in state:
            classes = state["cls_embedding.embedding_table.weight"].shape[0] - 1
            prefix, caption_dim = 1, width
        else:
            classes = 0
            prefix, caption_dim = state["cls_embedding.uncond_embedding"].shape
    except KeyError as error:
        raise ValueError(
            f"{file}: {error.args[0]} is missing; this is not a LlamaGen transformer."
        ) from None
    except ValueError:  # a tensor of other dimensions
        raise ValueError(f"{file} is not a LlamaGen transformer: wrong shapes.") from None
    layers = 1 + max(int(m[1]) for k in state if (m := re.match(r"layers\.(\d+)\.", k)))
    return _checked(
        ModelConfig, file, vocab_size=vocab, width=width, layers=layers, heads=width // head_dim,
        mlp_width=mlp_width, grid=grid, prefix=prefix, caption_dim=caption_dim,
        padded_rows=padded_rows, classes=classes,
    )  # fmt: skip


def published_drafter_config(file: Path, target: ModelConfig) -> DrafterConfig:
    """config.json of a published drafter; ValueError if it was made for another target."""
    values = read_json(file)
    _check_llama(values, file)
    made_for = {"t2i": 16, "t2i2": 32, "c2i": 24}.get(values.get("input_type"), target.grid)
    if "block_size" in values:  # written here, where one word names grids of two sizes
        made_for = round(_field(values, "block_size", file) ** 0.5)
    for what, theirs, ours in (
        ("a grid of side", made_for, target.grid),
        ("a hidden size of", _field(values, "hidden_size", file), target.width),
        ("a vocabulary of", _field(values, "vocab_size", file), target.vocab_size),
    ):
        if theirs != ours:
            raise ValueError(
                f"{file} is a drafter for {what} {theirs}, but the target has {ours}; "
                "use the drafter that belongs to it."
            )
    return _checked(
        DrafterConfig,
        file,
        layers=_field(values, "num_hidden_layers", file),
        heads=_field(values, "num_attention_heads", file),
        mlp_width=_field(values, "intermediate_size", file),
        norm_eps=_field(values, "rms_norm_eps", file, float),
        fc_bias=values.get("bias", True),
        own_embedding=True,
    )


def published_drafter_values(config: DrafterConfig, target: ModelConfig) -> dict:
    """The config.json that ``published_drafter_config`` reads, and the published code too."""
    kind = "c2i" if target.classes else {32: "t2i2"}.get(target.grid, "t2i")
    heads = config.heads
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "input_type": kind,
        "hidden_size": target.width, "intermediate_size": config.mlp_width,
        "num_attention_heads": heads, "num_key_value_heads": heads,
        "num_hidden_layers": config.layers, "vocab_size": target.vocab_size,
        "block_size": target.image_tokens, "caption_dim": target.caption_dim,
        "rms_norm_eps": config.norm_eps, "bias": config.fc_bias, "hidden_act": "silu",
        "bos_token_id": 1, "eos_token_id": 2, "class_dropout_p": 0.0, "initializer_range": 0.02,
        "max_position_embeddings": 2048, "pretraining_tp": 1, "rope_scaling": None,
        "tie_word_embeddings": False, "torch_dtype": "float16", "use_cache": True,
    }  # fmt: skip


def vq_config(state: State, file: Path) -> VQConfig:
    """A published VQ tokenizer describes itself by its shapes."""

    def count(pattern: str) -> int:
        return 1 + max((int(m[1]) for k in state if (m := re.match(pattern, k))), default=-1)

    try:
        size, dim = state["quantize.embedding.weight"].shape
        base = state["encoder.conv_in.weight"].shape[0]
        levels = count(r"encoder\.conv_blocks\.(\d+)\.")
        widths = [state[f"encoder.conv_blocks.{i}.res.0.conv2.weight"].shape[0]
                  for i in range(levels)]  # fmt: skip
        return _checked(
            VQConfig,
            file,
            codebook_size=size,
            codebook_dim=dim,
            base_width=base,
            channel_multipliers=tuple(width // base for width in widths),
            z_channels=state["quant_conv.weight"].shape[1],
            res_blocks=count(r"encoder\.conv_blocks\.0\.res\.(\d+)\."),
        )
    except KeyError as error:
        raise ValueError(
            f"{file}: {error.args[0]} is missing; this is not a LlamaGen VQ tokenizer."
        ) from None
    except (ZeroDivisionError, IndexError):
        raise ValueError(f"{file} is not a LlamaGen VQ tokenizer: wrong shapes.") from None


# -- parts of a model ---------------------------------------------------------------------------


def load_target(found: Found, grid: int, dtype: torch.dtype = torch.float32) -> Transformer:
    """The target of a model whose token grid has side ``grid``; ValueError if it is another's."""
    file, names = found.paths[-1], native
    if found.source.layout == "original":
        state = read_state(file)
        config, names = original_target_config(state, file, grid), original_target
    elif found.source.layout == "hf":
        config, names = hf_target_config(found.paths[0]), hf_target
    else:
        config = _native_config(ModelConfig, found.paths[0])
    if config.grid != grid:
        raise ValueError(
            f"{found.paths[0]} describes a model of {config.grid} x {config.grid} tokens, but "
            f"this one has {grid} x {grid}; put the right model's files there."
        )
    if found.source.layout != "original":
        state = read_state(file)
    return _build(Transformer, (config,), state, file, names, dtype)


def load_drafter(found: Found, target: ModelConfig, dtype: torch.dtype = torch.float32) -> Drafter:
    """The drafter of ``target``; ValueError if it was made for another."""
    if found.source.layout == "native":
        config, names = _native_config(DrafterConfig, found.paths[0]), native
    else:
        config, names = published_drafter_config(found.paths[0], target), published_drafter
    file = found.paths[-1]
    return _build(Drafter, (config, target), read_state(file), file, names, dtype)


def load_vq(found: Found) -> VQModel:
    """The VQ tokenizer, in fp32 on every device."""
    file = found.paths[-1]
    state = read_state(file)
    native_file = found.source.layout == "native"
    config = _native_config(VQConfig, found.paths[0]) if native_file else vq_config(state, file)
    return _build(VQModel, (config,), state, file, native, torch.float32)


def _native_config(cls, file: Path):
    return config_from_dict(cls, read_json(file), where=str(file))


def _build(cls, configs: tuple, state: State, file: Path, names: Names, dtype: torch.dtype):
    # On the meta device nothing is allocated or initialised only to be overwritten.
    try:
        with torch.device("meta"):
            module = cls(*configs)
    except RuntimeError as error:  # sizes beyond what a tensor can have
        reason = str(error).split("\n")[0][:200]
        raise ValueError(f"the config beside {file} describes no model ({reason}).") from None
    return fill(module, state, file, names, dtype).eval().requires_grad_(False)
