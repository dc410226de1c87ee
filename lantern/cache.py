"""Static key/value cache: one tensor for all layers. Knows nothing of tokens or masks."""

from __future__ import annotations

import torch
from torch import Tensor


class KVCache:
    """Keys and values ``kv`` [layers, 2, batch, heads, slots, head_dim]; slots [0, length) hold
    committed rows. ``length`` is a host integer that only the decoder advances."""

    def __init__(
        self,
        layers: int,
        batch: int,
        heads: int,
        slots: int,
        head_dim: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ):
        self.kv = torch.zeros(layers, 2, batch, heads, slots, head_dim, device=device, dtype=dtype)
        self.length = 0

    @property
    def slots(self) -> int:
        return self.kv.shape[4]

    def write(self, layer: int, start: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store k, v [batch, heads, T, head_dim] at slots start.. and return all rows up to
        start + T, [batch, heads, start + T, head_dim] each."""
        end = start + k.shape[2]
        assert end <= self.slots, f"cache of {self.slots} slots cannot take rows up to {end}"
        keys, values = self.kv[layer]
        keys[:, :, start:end] = k
        values[:, :, start:end] = v
        return keys[:, :, :end], values[:, :, :end]

    def keep(self, base: int, path: list[int]) -> None:
        """Move rows base + path[j] to base + j in every layer and commit them."""
        moved = [(j, p) for j, p in enumerate(path) if j != p]
        if moved:
            start = base + moved[0][0]
            source = torch.tensor([base + p for _, p in moved], device=self.kv.device)
            self.kv[..., start : start + len(moved), :] = self.kv.index_select(4, source)
        self.length = base + len(path)

    def reset(self) -> None:
        """Forget all rows; later writes overwrite the old values."""
        self.length = 0


class FixedCache(KVCache):
    """A cache whose rows may be named by the device: then all slots come back, and masks hide the
    empty ones, so that no shape depends on how far the image is."""

    def write(self, layer: int, start: int | Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store k, v [batch, heads, T, head_dim] in slots ``start`` [T] int64 and return all rows;
        with a number as in ``KVCache``."""
        if isinstance(start, int):
            return super().write(layer, start, k, v)
        keys, values = self.kv[layer]
        keys.index_copy_(2, start, k)
        values.index_copy_(2, start, v)
        return keys, values

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy rows ``source`` [T] to ``target`` [T], int64, in every layer."""
        self.kv.index_copy_(4, target, self.kv.index_select(4, source))


class CachePool:
    """Keeps the caches of finished images for later ones, so that decoding allocates none after
    the first. Two images at a time get one each. Safe to use from several threads."""

    def __init__(self):
        self._free: dict[tuple, list[KVCache]] = {}

    def take(
        self, layers: int, batch: int, heads: int, slots: int, head_dim: int,
        *, device: torch.device, dtype: torch.dtype,
    ) -> KVCache:  # fmt: skip
        """An empty cache of at least ``slots`` slots. Smaller ones that are free are dropped: the
        sizes of one model differ by its trees only, so soon there is one that suits all."""
        free = self._free.setdefault((layers, batch, heads, head_dim, device, dtype), [])
        while free:
            try:
                cache = free.pop()
            except IndexError:  # another thread took it
                break
            if cache.slots >= slots:
                cache.reset()
                return cache
        return KVCache(layers, batch, heads, slots, head_dim, device=device, dtype=dtype)

    def give(self, cache: KVCache) -> None:
        """Take back what ``take`` returned; its holder must not use it any more."""
        layers, _, batch, heads, _, head_dim = cache.kv.shape
        key = layers, batch, heads, head_dim, cache.kv.device, cache.kv.dtype
        self._free.setdefault(key, []).append(cache)

    def clear(self) -> None:
        """Let go of all free caches."""
        self._free.clear()
