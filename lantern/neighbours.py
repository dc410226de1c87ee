"""B_k tables: the nearest codes of every code by l2 distance between l2-normalised rows."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from lantern.config import MAX_K

CHUNK = 1024


def neighbour_table(codes: Tensor, k: int = MAX_K) -> Tensor:
    """Nearest codes of each row of unit vectors ``codes`` [V, d], itself excluded, nearest first:
    int32 [V, min(k, V - 1)]."""
    size = len(codes)
    k = min(k, size - 1)
    table = torch.empty(size, k, dtype=torch.int32)
    for start in range(0, size, CHUNK):
        rows = codes[start : start + CHUNK]
        closeness = rows @ codes.T  # for unit vectors, nearer = larger inner product
        own = torch.arange(start, start + len(rows), device=codes.device)
        closeness.scatter_(1, own[:, None], -torch.inf)
        table[start : start + len(rows)] = closeness.topk(k, dim=1).indices.int().cpu()
    return table


def checksum(tensor: Tensor) -> str:
    """SHA-256 of a tensor's bytes."""
    return hashlib.sha256(tensor.cpu().contiguous().numpy().tobytes()).hexdigest()


def cached_table(codes: Tensor, folder: Path) -> Tensor:
    """The table of this codebook from ``folder``, built and stored there on first use.

    A file of another codebook, or one whose content does not match its own checksum, is rebuilt; a
    folder that cannot be written is no obstacle. The file is written aside and renamed, so a
    half-written one is never read.
    """
    file = folder / f"neighbours-{checksum(codes)[:16]}.safetensors"
    table = _read(file)
    if table is None:
        table = neighbour_table(codes)
        _write(file, table)
    return table


def _read(file: Path) -> Tensor | None:
    try:
        with safe_open(file, framework="pt") as stored:
            table = stored.get_tensor("table")
            digest = (stored.metadata() or {}).get("sha256")
    except (OSError, SafetensorError):
        return None
    return table if digest == checksum(table) else None


def _write(file: Path, table: Tensor) -> None:
    aside = file.with_suffix(f".{os.getpid()}.new")
    try:
        save_file({"table": table}, aside, metadata={"sha256": checksum(table)})
        aside.chmod(0o644)
        os.replace(aside, file)
    except (OSError, SafetensorError):
        aside.unlink(missing_ok=True)
