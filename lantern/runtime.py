"""Device, dtype, threads and clocks: the only file that knows about speed."""

from __future__ import annotations

import os
import platform
import time

import torch


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
    if name not in ("cpu", "cuda"):
        raise ValueError(f"device must be auto, cpu or cuda, not {name!r}.")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda is not available here; use --device cpu.")
    return torch.device(name)


def physical_cores() -> int:
    """Cores this process may use; hyper-threads are counted as they come."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(count: int | None = None) -> int:
    """Use ``count`` CPU threads, by default one per core up to four: more only adds barriers for
    matrices of this size. Returns the number in force."""
    torch.set_num_threads(count or min(4, physical_cores()))
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


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
