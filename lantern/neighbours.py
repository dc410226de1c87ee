"""B_k tables: the nearest codes of every code by l2 distance between l2-normalised rows."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
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


def checksum(codes: Tensor) -> str:
    """SHA-256 of the codebook's fp32 bytes."""
    return hashlib.sha256(codes.float().cpu().contiguous().numpy().tobytes()).hexdigest()


def cached_table(codes: Tensor, folder: Path) -> Tensor:
    """The table of this codebook from ``folder``, built and stored there on first use.

    A file of another codebook, or a broken one, is rebuilt; a folder that cannot be written is no
    obstacle. The file is written aside and renamed, so a half-written one is never read.
    """
    digest = checksum(codes)
    file = folder / f"neighbours-{digest[:16]}.safetensors"
    shape = (len(codes), min(MAX_K, len(codes) - 1))
    try:
        table = load_file(file)["table"]
        if table.dtype == torch.int32 and tuple(table.shape) == shape:
            return table
    except Exception:  # noqa: BLE001 - whatever is wrong with the cache, the answer is to rebuild
        pass
    table = neighbour_table(codes)
    try:
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".new", delete=False) as aside:
            pass
        save_file({"table": table}, aside.name)
        os.replace(aside.name, file)
    except OSError:
        pass
    return table
