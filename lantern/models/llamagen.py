"""Target transformer of the LlamaGen-T2I family (arXiv 2406.06525).

Caption vectors pass through an MLP and fill ``prefix`` condition slots in front of the image
tokens. Blocks are pre-norm with RMSNorm, SwiGLU and 2-D rotary positions; q, k, v and the two MLP
inputs are fused. Knows nothing of sampling, CFG or trees: callers give positions and a mask.

Legend: B rows (cond and uncond under CFG), T new positions, S cache slots, W width, H heads,
D head_dim, V codebook size, P prefix.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lantern.cache import KVCache
from lantern.config import ModelConfig


def rotary_table(config: ModelConfig, prefix: int, head_dim: int) -> Tensor:
    """Complex rotations [prefix + grid*grid, D/2] for interleaved pairs.

    The first half of the pairs turns by row, the second by column. Condition slots hold the
    identity if ``config.attend_condition``, else zeros: their keys and queries vanish, as in the
    published models. Computed on the CPU even while modules are built on the meta device.
    """
    grid, base, cpu = config.grid, config.rope_base, torch.device("cpu")
    quarter = torch.arange(head_dim // 4, device=cpu).double()
    frequencies = base ** (-2 * quarter / (head_dim // 2))
    angles = torch.arange(grid, device=cpu).double()[:, None] * frequencies
    rows = angles[:, None, :].expand(grid, grid, -1)
    columns = angles[None, :, :].expand(grid, grid, -1)
    cells = torch.cat([rows, columns], dim=-1).reshape(grid * grid, head_dim // 2)
    table = torch.polar(torch.ones_like(cells), cells).to(torch.complex64)
    attend = float(config.attend_condition)
    condition = torch.full((prefix, head_dim // 2), attend, device=cpu)
    return torch.cat([condition.to(torch.complex64), table])


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Apply ``rotation`` [T, D/2] to x [B, T, ..., D]; computed in fp32, returned in x's dtype."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    shape = (1, rotation.shape[0]) + (1,) * (x.ndim - 3) + (rotation.shape[1],)
    return torch.view_as_real(pairs * rotation.view(shape)).flatten(-2).to(x.dtype)


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], self.weight.float(), self.eps).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(
        self,
        x: Tensor,
        rotation: Tensor,
        mask: Tensor | None,
        cache: KVCache | None = None,
        layer: int = 0,
        start: int = 0,
    ) -> Tensor:
        b, t, w = x.shape
        qkv = self.qkv(x).view(b, t, 3, self.heads, w // self.heads)
        qk = rotate(qkv[:, :, :2], rotation).permute(2, 0, 3, 1, 4)  # [2, B, H, T, D]
        q, k, v = qk[0], qk[1], qkv[:, :, 2].transpose(1, 2)
        if cache is not None:
            k, v = cache.write(layer, start, k, v)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).reshape(b, t, w))


class MLP(nn.Module):
    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    """One decoder layer; ``input_norm=False`` is the EAGLE drafter's first layer."""

    def __init__(self, width: int, heads: int, mlp_width: int, eps: float, input_norm: bool = True):
        super().__init__()
        self.attention_norm = RMSNorm(width, eps) if input_norm else nn.Identity()
        self.attention = Attention(width, heads)
        self.mlp_norm = RMSNorm(width, eps)
        self.mlp = MLP(width, mlp_width)

    def forward(self, x: Tensor, rotation, mask, cache=None, layer=0, start=0) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotation, mask, cache, layer, start)
        return x + self.mlp(self.mlp_norm(x))


class CaptionProjection(nn.Module):
    """Caption vectors [.., caption_dim] -> [.., W], with the learned unconditional caption."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.fc1 = nn.Linear(config.caption_dim, config.width, bias=False)
        self.fc2 = nn.Linear(config.width, config.width, bias=False)
        self.uncond = nn.Parameter(torch.randn(config.prefix, config.caption_dim) * 0.1)

    def forward(self, caption: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(caption), approximate="tanh"))


class ClassEmbedding(nn.Module):
    """Class ids [..] -> [.., W]; the row after the last class is the unconditional one."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.table = nn.Embedding(config.classes + 1, config.width)

    @property
    def uncond(self) -> Tensor:
        return torch.tensor([self.table.num_embeddings - 1], device=self.table.weight.device)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids)


class Transformer(nn.Module):
    """LlamaGen-T2I decoder. ``forward`` returns hidden states after the final norm (the drafter's
    input feature); ``logits`` applies the head."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.caption = ClassEmbedding(config) if config.classes else CaptionProjection(config)
        self.layers = nn.ModuleList(
            Block(config.width, config.heads, config.mlp_width, config.norm_eps)
            for _ in range(config.layers)
        )
        self.norm = RMSNorm(config.width, config.norm_eps)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        table = rotary_table(config, config.prefix, config.head_dim)
        self.register_buffer("rotation", table, persistent=False)

    def prefix(self, caption: Tensor) -> Tensor:
        """Caption vectors [P, caption_dim] (zeros where padded), or a class id [1] int64 ->
        embedded rows [2, P, W], the conditional row first."""
        uncond = self.caption.uncond
        return self.caption(torch.stack([caption.to(uncond.dtype), uncond]))

    def forward(
        self,
        x: Tensor,
        positions: slice | Tensor,
        mask: Tensor | None,
        cache: KVCache | None = None,
        start: int = 0,
    ) -> Tensor:
        """Embedded inputs x [B, T, W] at ``positions`` -> hidden [B, T, W].

        With a cache, keys and values go to slots start..start+T and attention covers all slots
        below start+T; ``mask`` is additive and broadcasts to [B, 1, T, start+T].
        """
        rotation = self.rotation[positions]
        for i, layer in enumerate(self.layers):
            x = layer(x, rotation, mask, cache, i, start)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden [.., W] -> fp32 logits [.., V]."""
        return self.head(hidden).float()


def condition_mask(valid: Tensor, config: ModelConfig) -> Tensor:
    """Which condition slots each condition slot attends to: valid [.., P] -> bool [.., P, P].

    Valid slots look back at valid slots; padded ones follow ``config.padded_rows``.
    """
    p = valid.shape[-1]
    causal = torch.ones(p, p, dtype=torch.bool, device=valid.device).tril()
    keys, queries = valid[..., None, :], valid[..., :, None]
    padded = {
        "self": torch.eye(p, dtype=torch.bool, device=valid.device),
        "fp32": causal ^ keys,
        "bf16": causal & ~keys,
    }[config.padded_rows]
    return torch.where(queries, causal & keys, padded)


def prefix_mask(valid: Tensor, config: ModelConfig, dtype: torch.dtype = torch.float32) -> Tensor:
    """``condition_mask`` of one caption, valid [P] bool, as an additive mask [1, 1, P, P]."""
    allowed = condition_mask(valid, config)
    mask = torch.zeros(allowed.shape, dtype=dtype, device=valid.device)
    return mask.masked_fill_(~allowed, -torch.inf)[None, None]


def left_pad(vectors: Tensor, prefix: int) -> tuple[Tensor, Tensor]:
    """Caption vectors [n, caption_dim], n <= prefix -> ([prefix, caption_dim] with zeros in front,
    valid [prefix] bool), the LlamaGen layout."""
    n = len(vectors)
    if n > prefix:
        raise ValueError(f"the caption has {n} pieces but the model takes {prefix}; shorten it.")
    caption = vectors.new_zeros(prefix, vectors.shape[1])
    valid = torch.zeros(prefix, dtype=torch.bool, device=vectors.device)
    caption[prefix - n :] = vectors
    valid[prefix - n :] = True
    return caption, valid
