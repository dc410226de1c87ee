"""Device, dtype, threads and clocks: the only file that knows about speed."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import time

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


def pack_linears(module: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Replace every fp32 CPU Linear inside ``module`` by its packed form in ``dtype`` and fold the
    norms of blocks into them; a no-op where torch cannot. For inference only afterwards."""
    weight = next(module.parameters())
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or not can_pack():
        return module
    for block in [m for m in module.modules() if isinstance(m, Block)]:
        block.attention_norm = _fold(block.attention_norm, block.attention, "qkv", dtype)
        block.mlp_norm = _fold(block.mlp_norm, block.mlp, "gate_up", dtype)
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, name, PackedLinear(child, dtype=dtype))
    return module


def pack(target: Transformer, drafter: Drafter | None) -> None:
    """Prepare a model for decoding on a CPU. The drafter, which only proposes, takes bf16 and a
    bf16 copy of the head where the CPU computes in it; the target, which decides, stays fp32."""
    weight = target.head.weight
    if drafter and weight.device.type == "cpu" and weight.dtype == torch.float32 and can_pack():
        fast = torch.cpu._is_avx512_bf16_supported()
        drafter.head = nn.Linear(*reversed(weight.shape), bias=False, device="meta")
        drafter.head.weight = weight
        pack_linears(drafter, torch.bfloat16 if fast else torch.float32)
    pack_linears(target)


def _fold(norm: nn.Module, parent: nn.Module, name: str, dtype: torch.dtype) -> nn.Module:
    """Pack ``parent.name``, the Linear behind ``norm``, with the norm's weight in it; returns what
    is left of the norm."""
    if not isinstance(norm, RMSNorm):
        return norm
    scale = norm.weight.detach() * len(norm.weight) ** 0.5
    setattr(parent, name, PackedLinear(getattr(parent, name), scale, dtype))
    return UnitNorm(norm)
