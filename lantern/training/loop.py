"""The training loop shared by tokenizer, target, drafter and judge.

Owns the optimiser, the schedule, the moving average of the weights (EMA), logging and resuming.
A run folder holds ``state.pt`` (everything needed to go on), ``log.jsonl`` (one line a report)
and whatever the caller puts beside them. State is written aside and renamed, so a killed process
loses at most ``save_minutes`` of work.

Under ``accelerate launch`` several processes share a run: gradients are averaged over them by the
prepared module, all else is computed alike by each, and the main one writes.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from tqdm import tqdm

from lantern import checksums
from lantern.formats import Names, native, to_published

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass(frozen=True)
class Budget:
    """When training ends: after ``steps`` updates or ``minutes`` of training, whichever is first.
    Extending a finished run with a larger budget resumes it."""

    steps: int | None = None
    minutes: float | None = None

    def __post_init__(self):
        if self.steps is None and self.minutes is None:
            raise ValueError("a training budget needs --steps or --minutes.")
        if min(v for v in (self.steps, self.minutes) if v is not None) <= 0:
            raise ValueError("--steps and --minutes must be above 0.")

    def progress(self, step: int, seconds: float) -> float:
        shares = [0.0]
        if self.steps:
            shares.append(step / self.steps)
        if self.minutes:
            shares.append(seconds / (60 * self.minutes))
        return max(shares)


@dataclass(frozen=True)
class Optimisation:
    """AdamW with linear warm-up and a cosine down to ``final`` of the peak learning rate."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    warmup: int = 100
    final: float = 0.02
    clip: float = 1.0
    ema: float = 0.999
    report_every: int = 50
    save_minutes: float = 4.0

    def factor(self, step: int, progress: float) -> float:
        cosine = 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
        return min(1.0, (step + 1) / self.warmup) * (self.final + (1 - self.final) * cosine)


class Run:
    """One resumable training run over the parameters of ``model``.

    ``beside`` is trained along with it and never exported: an auxiliary head, say. With an
    ``accelerator``, ``objective`` is the module whose forward pass gives the loss; callers
    go through ``run.objective``, which then averages gradients over the processes.
    """

    def __init__(
        self,
        folder: Path,
        model: nn.Module,
        budget: Budget,
        optimisation: Optimisation,
        *,
        config: dict,
        trainable: Callable[[str], bool] = lambda name: True,
        extra: dict[str, Tensor] | None = None,
        beside: nn.Module | None = None,
        accelerator: Accelerator | None = None,
        objective: nn.Module | None = None,
    ):
        self.folder, self.model, self.budget, self.options = folder, model, budget, optimisation
        self.extra = extra or {}
        self.beside = beside or nn.Module()
        self.step, self.seconds = 0, 0.0
        named = [(n, p) for n, p in model.named_parameters() if trainable(n)]
        named += self.beside.named_parameters()
        self.parameters = [p for _, p in named]
        decayed = [p for n, p in named if p.ndim >= 2 and "embed" not in n]
        plain = [p for n, p in named if not (p.ndim >= 2 and "embed" not in n)]
        self.optimiser = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": optimisation.weight_decay},
                {"params": plain, "weight_decay": 0.0},
            ],
            lr=optimisation.lr,
            betas=optimisation.betas,
            fused=True,
        )
        self.accelerator, self.objective = accelerator, objective
        self.main = accelerator is None or accelerator.is_main_process
        if accelerator:
            self.objective, self.optimiser = accelerator.prepare(objective, self.optimiser)
        self.ema = [p.detach().clone() for p in self.parameters]
        folder.mkdir(parents=True, exist_ok=True)
        if self.main:
            (folder / "config.json").write_text(json.dumps(config, indent=2, default=str) + "\n")
        if self._state_file.exists():
            self._resume()

    @property
    def _state_file(self) -> Path:
        return self.folder / "state.pt"

    @property
    def progress(self) -> float:
        return self.budget.progress(self.step, self.seconds)

    def steps(self, on_report: Callable[[dict], None] | None = None) -> Iterator[int]:
        """Yield step numbers until the budget is spent; call ``update`` once for each."""
        sums: dict[str, float] = {}
        bar = tqdm(
            total=1000, unit="‰", desc=self.folder.name, mininterval=5, disable=not self.main
        )
        bar.update(int(1000 * min(1, self.progress)))
        saved = began = time.perf_counter()
        while self.progress < 1:
            for group in self.optimiser.param_groups:
                group["lr"] = self.options.lr * self.options.factor(self.step, self.progress)
            self._metrics = {}
            yield self.step
            for name, value in self._metrics.items():
                sums[name] = sums.get(name, 0.0) + float(value)
            now = time.perf_counter()
            self.seconds = self._agreed(self.seconds + now - began)
            began = now
            self.step += 1
            if self.step % self.options.report_every == 0:
                report = {n: round(v, 5) for n, v in self._means(sums).items()}
                report = {"step": self.step, "minutes": round(self.seconds / 60, 2), **report}
                sums = {}
                if on_report and self.main:
                    on_report(report)
                self.log(report)
                bar.set_postfix({k: v for k, v in report.items() if k != "minutes"})
                bar.update(int(1000 * min(1, self.progress)) - bar.n)
                if now - saved > 60 * self.options.save_minutes:
                    self.save()
                    saved = time.perf_counter()
        self.save()
        bar.close()

    def _agreed(self, seconds: float) -> float:
        """The main process's clock, so that all of them stop at the same step."""
        if self.accelerator is None or self.accelerator.num_processes == 1:
            return seconds
        from accelerate.utils import broadcast

        clock = torch.tensor([seconds], dtype=torch.float64, device=self.accelerator.device)
        return float(broadcast(clock))

    def _means(self, sums: dict[str, float]) -> dict[str, float]:
        """Means of the steps since the last report and of the processes."""
        values = torch.tensor(list(sums.values())) / self.options.report_every
        if self.accelerator:
            values = values.to(self.accelerator.device)
            values = self.accelerator.gather(values[None]).mean(0)
        return dict(zip(sums, values.tolist(), strict=True))

    def update(self, loss: Tensor, **metrics) -> None:
        """Back-propagate ``loss``, clip, step, and move the average."""
        if self.accelerator:
            self.accelerator.backward(loss)
        else:
            loss.backward()
        norm = nn.utils.clip_grad_norm_(self.parameters, self.options.clip)
        if not math.isfinite(float(norm)):
            raise RuntimeError(f"training diverged at step {self.step}: gradient norm {norm}.")
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        weight = 1 - min(self.options.ema, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            torch._foreach_lerp_(self.ema, self.parameters, weight)
        self._metrics = {"loss": loss.detach(), **metrics}

    @contextmanager
    def averaged(self):
        """Inside, the model carries the averaged weights."""
        current = [p.detach().clone() for p in self.parameters]
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.ema)
        try:
            yield self.model
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, current)

    def export(
        self,
        out: Path,
        config,
        keep: Callable[[str], bool] = lambda name: False,
        names: Names = native,
    ) -> None:
        """Write the averaged weights in fp16, fp32 where ``keep`` says so, and their config: a
        dataclass, or the dictionary of a published format whose tensor names are ``names``."""
        if not self.main:
            return
        out.mkdir(parents=True, exist_ok=True)
        with self.averaged():
            weights = {
                name: (w if keep(name) else w.half()).cpu().clone()
                for name, w in to_published(self.model, names).items()
            }
        aside = out / f"model.safetensors.{os.getpid()}.new"
        save_file(weights, aside)
        aside.chmod(0o644)
        os.replace(aside, out / "model.safetensors")  # never half-written where an app may load it
        values = config if isinstance(config, dict) else asdict(config)
        (out / "config.json").write_text(json.dumps(values, indent=2) + "\n")
        checksums.refresh(out.parent)

    def save(self) -> None:
        if not self.main:
            return
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "model": self.model.state_dict(),
            "beside": self.beside.state_dict(),
            "ema": self.ema,
            "optimiser": self.optimiser.state_dict(),
            "extra": self.extra,
            "rng": torch.get_rng_state(),
        }
        aside = self._state_file.with_suffix(".new")
        torch.save(state, aside)
        os.replace(aside, self._state_file)

    def _resume(self) -> None:
        state = torch.load(self._state_file, weights_only=True, map_location="cpu")
        self.model.load_state_dict(state["model"])
        self.beside.load_state_dict(state.get("beside", {}))
        with torch.no_grad():
            torch._foreach_copy_(self.ema, state["ema"])
            for name, value in state["extra"].items():
                self.extra[name].copy_(value)
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.seconds = state["step"], state["seconds"]
        torch.set_rng_state(state["rng"])

    def log(self, report: dict) -> None:
        """Append a line to ``log.jsonl``."""
        if not self.main:
            return
        with open(self.folder / "log.jsonl", "a") as file:
            file.write(json.dumps(report) + "\n")


def autocast_dtype(device: torch.device) -> torch.dtype:
    """bf16 where the hardware has it, fp32 elsewhere."""
    fast = device.type == "cuda" or torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if fast else torch.float32


def autocast(device: torch.device):
    """bf16 matrix products where the hardware has them, fp32 elsewhere."""
    dtype = autocast_dtype(device)
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32)
