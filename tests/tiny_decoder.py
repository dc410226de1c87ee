"""Small random models, so that the decoder is tested in seconds and without weights."""

from dataclasses import replace

import torch

from lantern.config import DecodeOptions, DrafterConfig, ModelConfig, TreeShape
from lantern.decode import Decoder
from lantern.models.drafter import Drafter
from lantern.models.llamagen import Transformer
from lantern.neighbours import neighbour_table

torch.set_num_threads(1)

TINY = ModelConfig(
    vocab_size=64, width=32, layers=2, heads=2, mlp_width=48, grid=4, prefix=6, caption_dim=8
)


def make_decoder(seed: int = 0, config: ModelConfig = TINY, sharpness: float = 6.0) -> Decoder:
    """A random target with a random drafter; ``sharpness`` scales the logits."""
    torch.manual_seed(seed)
    target = Transformer(config)
    for parameter in target.parameters():
        parameter.data.normal_(0, 0.15)
    target.norm.weight.data.fill_(1.0)
    target.head.weight.data.mul_(sharpness)
    drafter = Drafter(DrafterConfig(heads=2, mlp_width=48), config)
    codes = torch.nn.functional.normalize(torch.randn(config.vocab_size, 4), dim=-1)
    decoder = Decoder(target.eval(), drafter.eval(), codes, neighbour_table(codes))
    for module in (target, drafter):
        module.requires_grad_(False)
    return decoder


def make_caption(seed: int = 0, pieces: int = 4, config: ModelConfig = TINY):
    """Left-padded caption vectors and their validity."""
    generator = torch.Generator().manual_seed(seed)
    caption = torch.zeros(config.prefix, config.caption_dim)
    caption[-pieces:] = torch.randn(pieces, config.caption_dim, generator=generator)
    valid = torch.zeros(config.prefix, dtype=torch.bool)
    valid[-pieces:] = True
    return caption, valid


def tokens_of(events) -> list[int]:
    return [token.token for event in events for token in event.tokens]


def decode(decoder, mode="ar", caption=None, **changes) -> list:
    """All events of one run with small-model defaults."""
    tree = changes.pop("tree", TreeShape(8, 3, 3))
    options = replace(DecodeOptions(mode=mode, top_k=0, k=8, tree=tree), **changes)
    return list(decoder.stream(*(caption or make_caption()), options))
