"""VQ tokenizer: image <-> grid of codebook indices.

The network is LlamaGen's (arXiv 2406.06525), a convolutional autoencoder whose latent vectors are
l2-normalised and replaced by the nearest of the l2-normalised codebook rows. Module names follow
the published checkpoints. Knows nothing of the transformer.

Shapes: images [B, 3, H, W] float in [-1, 1]; codes [B, H/f, W/f] int64 with f = config.downsample.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lantern.config import VQConfig


def _norm(channels: int, groups: int) -> nn.GroupNorm:
    return nn.GroupNorm(groups, channels, eps=1e-6) if groups else PlaceNorm(channels)


class PlaceNorm(nn.GroupNorm):
    """Layer norm over the channels of each place; ``GroupNorm`` looks at all places."""

    def __init__(self, channels: int):
        super().__init__(1, channels, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps).permute(0, 3, 1, 2)


class ResBlock(nn.Module):
    """``groups`` 0 makes a local block: nothing passes between places."""

    def __init__(self, c_in: int, c_out: int, groups: int):
        super().__init__()
        size, pad = (3, 1) if groups else (1, 0)
        self.norm1 = _norm(c_in, groups)
        self.conv1 = nn.Conv2d(c_in, c_out, size, padding=pad)
        self.norm2 = _norm(c_out, groups)
        self.conv2 = nn.Conv2d(c_out, c_out, size, padding=pad)
        if c_in != c_out:
            self.nin_shortcut = nn.Conv2d(c_in, c_out, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return h + (self.nin_shortcut(x) if hasattr(self, "nin_shortcut") else x)


class AttnBlock(nn.Module):
    """Single-head self-attention over all positions."""

    def __init__(self, channels: int, groups: int):
        super().__init__()
        self.norm = _norm(channels, groups)
        self.q = nn.Conv2d(channels, channels, 1)
        self.k = nn.Conv2d(channels, channels, 1)
        self.v = nn.Conv2d(channels, channels, 1)
        self.proj_out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = (f(h).flatten(2).transpose(1, 2)[:, None] for f in (self.q, self.k, self.v))
        h = F.scaled_dot_product_attention(q, k, v)[:, 0].transpose(1, 2)
        return x + self.proj_out(h.reshape(x.shape))


class Downsample(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Upsample(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class Level(nn.Module):
    """Residual blocks of one resolution, attention after each where asked for, then a resampler."""

    def __init__(self, c_in: int, c_out: int, blocks: int, groups: int, attention: bool):
        super().__init__()
        self.res = nn.ModuleList(
            ResBlock(c_in if i == 0 else c_out, c_out, groups) for i in range(blocks)
        )
        self.attn = nn.ModuleList(AttnBlock(c_out, groups) for _ in range(blocks * attention))

    def forward(self, x: Tensor) -> Tensor:
        for i, block in enumerate(self.res):
            x = block(x)
            if len(self.attn):
                x = self.attn[i](x)
        for name in ("downsample", "upsample"):
            if hasattr(self, name):
                x = getattr(self, name)(x)
        return x


def _mid(channels: int, groups: int) -> nn.ModuleList:
    blocks = [ResBlock(channels, channels, groups), ResBlock(channels, channels, groups)]
    if groups:
        blocks.insert(1, AttnBlock(channels, groups))
    return nn.ModuleList(blocks)


class Encoder(nn.Module):
    def __init__(self, config: VQConfig):
        super().__init__()
        self.patch_size = config.patch_size
        local, last = config.local_encoder, len(config.channel_multipliers) - 1
        groups = 0 if local else config.norm_groups
        channels = config.base_width
        self.conv_in = nn.Conv2d(3 * config.patch_size**2, channels, 3, padding=1)
        self.conv_blocks = nn.ModuleList()
        for i, multiplier in enumerate(config.channel_multipliers):
            out = config.base_width * multiplier
            level = Level(channels, out, config.res_blocks, groups, i == last and not local)
            if i != last:
                level.downsample = Downsample(out)
            self.conv_blocks.append(level)
            channels = out
        self.mid = _mid(channels, groups)
        self.norm_out = _norm(channels, groups)
        size, pad = (1, 0) if local else (3, 1)
        self.conv_out = nn.Conv2d(channels, config.z_channels, size, padding=pad)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_in(F.pixel_unshuffle(x, self.patch_size))
        for block in (*self.conv_blocks, *self.mid):
            x = block(x)
        return self.conv_out(F.silu(self.norm_out(x)))


class Decoder(nn.Module):
    def __init__(self, config: VQConfig):
        super().__init__()
        self.patch_size = config.patch_size
        groups = config.norm_groups
        channels = config.base_width * config.channel_multipliers[-1]
        self.conv_in = nn.Conv2d(config.z_channels, channels, 3, padding=1)
        self.mid = _mid(channels, groups)
        self.conv_blocks = nn.ModuleList()
        for i, multiplier in enumerate(reversed(config.channel_multipliers)):
            out = config.base_width * multiplier
            level = Level(channels, out, config.res_blocks + 1, groups, attention=i == 0)
            if i != len(config.channel_multipliers) - 1:
                level.upsample = Upsample(out)
            self.conv_blocks.append(level)
            channels = out
        self.norm_out = _norm(channels, groups)
        self.conv_out = nn.Conv2d(channels, 3 * config.patch_size**2, 3, padding=1)

    def forward(self, z: Tensor) -> Tensor:
        z = self.conv_in(z)
        for block in (*self.mid, *self.conv_blocks):
            z = block(z)
        return F.pixel_shuffle(self.conv_out(F.silu(self.norm_out(z))), self.patch_size)


class Quantizer(nn.Module):
    """The codebook; distances and look-ups use l2-normalised vectors."""

    def __init__(self, config: VQConfig):
        super().__init__()
        self.embedding = nn.Embedding(config.codebook_size, config.codebook_dim)
        nn.init.normal_(self.embedding.weight)

    @property
    def codes(self) -> Tensor:
        """Unit-norm codebook [V, d]."""
        return F.normalize(self.embedding.weight, dim=-1)

    def nearest(self, z: Tensor) -> Tensor:
        """Index of the nearest code for unit vectors ``z`` [..., d]."""
        # For unit vectors the smallest distance is the largest inner product.
        # In fp32 even under autocast: bf16 rounds near ties to the wrong code.
        with torch.autocast(z.device.type, enabled=False):
            return (z.float() @ self.codes.T).argmax(-1)


class VQModel(nn.Module):
    """Encoder, codebook and decoder."""

    def __init__(self, config: VQConfig):
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.quantize = Quantizer(config)
        self.quant_conv = nn.Conv2d(config.z_channels, config.codebook_dim, 1)
        self.post_quant_conv = nn.Conv2d(config.codebook_dim, config.z_channels, 1)

    def latents(self, images: Tensor) -> Tensor:
        """Images [B, 3, H, W] -> unit latent vectors [B, H/f, W/f, d]."""
        return F.normalize(self.quant_conv(self.encoder(images)).permute(0, 2, 3, 1), dim=-1)

    def encode(self, images: Tensor) -> Tensor:
        """Images [B, 3, H, W] -> codes [B, H/f, W/f]."""
        return self.quantize.nearest(self.latents(images))

    def decode_latents(self, z: Tensor) -> Tensor:
        """Latent vectors [B, h, w, d] -> images [B, 3, h*f, w*f]."""
        return self.decoder(self.post_quant_conv(z.permute(0, 3, 1, 2)))

    def decode(self, codes: Tensor) -> Tensor:
        """Codes [B, h, w] -> images [B, 3, h*f, w*f], not clamped."""
        return self.decode_latents(F.embedding(codes, self.quantize.codes))


@torch.no_grad()
def to_uint8(images: Tensor) -> Tensor:
    """Images [B, 3, H, W] in [-1, 1] -> uint8 [B, H, W, 3]."""
    return ((images.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1)
