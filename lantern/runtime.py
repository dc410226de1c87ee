"""Device, dtype, threads and clocks: the only file that knows about speed."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import time
import warnings
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn

from lantern.models.drafter import Drafter
from lantern.models.llamagen import Block, RMSNorm, Transformer


class Stopwatch:
    """Wall-clock laps with the device synchronised; one clock for every mode."""

    def __init__(self, device: torch.device):
        self.device = device

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def start(self) -> None:
        self.began = self._now()

    def lap(self) -> float:
        """Seconds since the last lap or start."""
        now = self._now()
        seconds, self.began = now - self.began, now
        return seconds


def pick_device(name: str = "auto") -> torch.device:
    """``auto`` is cuda where there is one, else cpu; ValueError if the named one is absent."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "mps":
        raise ValueError("device mps is not supported (untested complex arithmetic); use cpu.")
    if name not in ("cpu", "cuda"):
        raise ValueError(f"device must be auto, cpu or cuda, not {name!r}.")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda is not available here; use --device cpu.")
    return torch.device(name)


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}


def pick_dtype(name: str | None, device: torch.device) -> torch.dtype:
    """What weights are multiplied in; without a name the device's default. ValueError if the device
    cannot."""
    dtype = DTYPES[name] if name else default_dtype(device)
    check_dtype(dtype, device)
    return dtype


def check_dtype(dtype: torch.dtype, device: torch.device) -> None:
    """ValueError for int8 where it cannot be computed."""
    if dtype == torch.int8 and (device.type != "cpu" or not can_quantise()):
        raise ValueError("int8 is for CPUs with integer dot products (VNNI); use fp32 or bf16.")


def default_dtype(device: torch.device) -> torch.dtype:
    """bf16 weights on a GPU, fp32 on a CPU; logits, CFG, noise and softmax are fp32 on both."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def usable_cores() -> int:
    """Logical cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(count: int | None = None) -> int:
    """Use ``count`` CPU threads, by default one for every two cores, up to four: matrices of this
    size gain nothing from more (docs/log.md), and a page server needs a core too. Returns the
    number in force."""
    torch.set_num_threads(count or max(1, min(4, usable_cores() // 2)))
    return torch.get_num_threads()


def describe(device: torch.device, dtype: torch.dtype) -> dict:
    """Where a run happened, for the trace."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()
    return {
        "device": device.type,
        "hardware": name,
        "dtype": str(dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def streaming_seconds(target: Transformer, dtype: torch.dtype, repeats: int = 9) -> float:
    """Median seconds of copying as many bytes as the weights in ``dtype`` that one step reads:
    blocks and head. A step cannot take less time than its weights take to arrive."""
    weight = target.embedding.weight
    config = target.config
    block = 4 * config.width**2 + 3 * config.width * config.mlp_width
    count = config.layers * block + config.vocab_size * config.width
    source = torch.zeros(count, dtype=dtype, device=weight.device)
    goal, watch = torch.empty_like(source), Stopwatch(weight.device)
    laps = []
    for _ in range(repeats + 1):
        watch.start()
        goal.copy_(source)
        laps.append(watch.lap())
    return median(laps[1:])


def peak_memory(device: str) -> float:
    """Peak memory in GiB: of the GPU if the model runs there, else of this process; NaN where the
    system does not tell."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    try:
        import resource
    except ImportError:  # Windows
        return float("nan")
    unit = 1 if platform.system() == "Darwin" else 2**10  # bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def release_memory() -> None:
    """Give the memory of dropped models back to the device and to the system."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if platform.libc_ver()[0] == "glibc":
        # Freed weights stay with the process otherwise (measured: docs/log.md).
        ctypes.CDLL(None).malloc_trim(0)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that the device or the system has no memory left."""
    words = str(error)  # a CPU allocation that fails is a plain RuntimeError
    return (
        isinstance(error, MemoryError | torch.OutOfMemoryError)
        or "can't allocate memory" in words
        or "not enough memory" in words
    )


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


class PackedLinear(nn.Module):
    """A Linear whose fp32 weight is stored in oneDNN's blocked layout, for inference on a CPU.

    About twice as fast as F.linear for the 2 to 32 rows of a decode step, and a row's result does
    not depend on how many rows share the call. Attention still differs in the last bits between a
    tree pass and a one-token pass. ``scale`` [in_features] multiplies the inputs; in ``dtype``
    bf16 the product is faster again and rounded to 8 bits.
    """

    # Fewer rows take longer than four in oneDNN's kernel, so they are filled up with copies.
    LEAST_ROWS = 4

    def __init__(
        self,
        linear: nn.Linear,
        scale: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__()
        self.out_features, self.dtype = linear.out_features, dtype
        weight = linear.weight.detach()
        weight = (weight if scale is None else weight * scale).to(dtype)
        self.packed = _mkldnn()._reorder_linear_weight(weight, self.LEAST_ROWS)
        self.bias = None if linear.bias is None else linear.bias.detach().to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).to(self.dtype)
        n = len(rows)
        if n < self.LEAST_ROWS:
            rows = torch.cat([rows] * -(-self.LEAST_ROWS // n))
        y = _mkldnn()._linear_pointwise(rows, self.packed, self.bias, "none", [], "")
        return y[:n].view(*x.shape[:-1], self.out_features).to(x.dtype)


class Int8Linear(nn.Module):
    """A Linear of 8-bit integers, for inference on a CPU: weights scaled by output, inputs by row.

    Sums of integers are exact, so a row's result does not depend on what shares the call. But the
    product differs from fp32's by about 1 %, and rounding inputs to 8 bits makes the last bits of
    attention count: images are others than fp32's, and a lossless mode differs from AR in places,
    as it does in bf16 (docs/log.md). ``together`` scales all inputs of a call alike, one operation
    instead of six, for a drafter: its guesses may depend on what is guessed beside them. Needs a
    torch with a quantised engine and, to be right and fast, a CPU with integer dot products (VNNI).
    ``scale`` as in PackedLinear.
    """

    def __init__(self, linear: nn.Linear, scale: Tensor | None = None, together: bool = False):
        super().__init__()
        self.out_features, self.together = linear.out_features, together
        weight = linear.weight.detach()
        weight = weight if scale is None else weight * scale
        steps = (weight.abs().amax(1) / 127).clamp(min=1e-12).double()
        zeros = torch.zeros(len(weight), dtype=torch.long)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its future; the operators are in torch 2.8 to 2.13
            quantised = torch.quantize_per_channel(weight, steps, zeros, 0, torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(quantised, None)
        self.bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        if self.together:
            y = torch.ops.quantized.linear_dynamic(x, self.packed, False)
        else:
            most = torch.linalg.vector_norm(x, torch.inf, -1, keepdim=True).clamp_(min=1e-12)
            multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
            y = multiply(x / most, 1 / 127, 128, self.packed).mul_(most)
        return y if self.bias is None else y + self.bias


class UnitNorm(nn.Module):
    """An RMSNorm without its weight and the factor sqrt(width), which the packed Linear behind it
    has taken over: three operations instead of nine."""

    def __init__(self, norm: RMSNorm):
        super().__init__()
        self.floor = torch.tensor((len(norm.weight) * norm.eps) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(self.floor)


def _mkldnn():
    return torch.ops.mkldnn


def can_pack() -> bool:
    """Whether this build of torch packs weights, tried on a small case."""
    try:
        with torch.inference_mode():
            linear, x = nn.Linear(16, 8), torch.randn(3, 16)
            return torch.allclose(PackedLinear(linear)(x), linear(x), atol=1e-5)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False


# Makes the packed form of a Linear and of the scale before it.
Packer = Callable[[nn.Linear, Tensor | None], nn.Module]


def packer(dtype: torch.dtype, drafts: bool = False) -> Packer:
    """Packs for products in ``dtype``: fp32, bf16 or int8; ``drafts`` for what only proposes."""
    if dtype == torch.int8:
        return partial(Int8Linear, together=drafts)
    return partial(PackedLinear, dtype=dtype)


def can_quantise() -> bool:
    """Whether this build of torch multiplies int8 weights, tried on a small case."""
    try:
        with torch.inference_mode():
            linear, x = nn.Linear(64, 8), torch.randn(3, 64)
            close = torch.allclose(Int8Linear(linear)(x), linear(x), atol=0.1)
            return close and torch.cpu._is_vnni_supported()
    except (AttributeError, RuntimeError, NotImplementedError):
        return False


def pack_linears(module: nn.Module, pack_one: Packer) -> nn.Module:
    """Replace every fp32 CPU Linear inside ``module`` by its packed form and fold the norms of
    blocks into them; a no-op where torch cannot. For inference only afterwards."""
    weight = next(module.parameters())
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or not can_pack():
        return module
    for block in [m for m in module.modules() if isinstance(m, Block)]:
        block.attention_norm = _fold(block.attention_norm, block.attention, "qkv", pack_one)
        block.mlp_norm = _fold(block.mlp_norm, block.mlp, "gate_up", pack_one)
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, name, pack_one(child, None))
    return module


def pack(target: Transformer, drafter: Drafter | None, dtype: torch.dtype = torch.float32) -> None:
    """Prepare a model for decoding on a CPU. The target, which decides, computes in ``dtype``, fp32
    or int8. The drafter, which only proposes, takes int8 where the CPU has instructions for it,
    else bf16, else fp32, with a copy of the head."""
    weight = target.head.weight
    if drafter and weight.device.type == "cpu" and weight.dtype == torch.float32 and can_pack():
        drafter.head = nn.Linear(*reversed(weight.shape), bias=False, device="meta")
        drafter.head.weight = weight
        pack_linears(drafter, packer(_fastest(), drafts=True))
    pack_linears(target, packer(dtype))


def _fastest() -> torch.dtype:
    if can_quantise():
        return torch.int8
    return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32


def _fold(norm: nn.Module, parent: nn.Module, name: str, pack_one: Packer) -> nn.Module:
    """Pack ``parent.name``, the Linear behind ``norm``, with the norm's weight in it; returns what
    is left of the norm."""
    if not isinstance(norm, RMSNorm):
        return norm
    scale = norm.weight.detach() * len(norm.weight) ** 0.5
    setattr(parent, name, pack_one(getattr(parent, name), scale))
    return UnitNorm(norm)
