"""EAGLE drafter: predicts the target's next hidden state from token embedding and hidden state.

One decoder layer without input norm on ``fc([embed(token); hidden])``; its output goes through the
target's head and is also the next input feature. Row j pairs the target's hidden state at slot j
with the token that follows it, so everything sits one position to the left of the target: the
row of image token i is P - 1 + i. EAGLE: arXiv 2401.15077; EAGLE-2: arXiv 2406.16858.

Legend as in llamagen.py.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lantern.cache import KVCache
from lantern.config import DrafterConfig, ModelConfig
from lantern.models.llamagen import Block, Transformer, rotary_table


class Drafter(nn.Module):
    """Callers embed tokens with ``embed`` and read predictions with ``logits``."""

    def __init__(self, config: DrafterConfig, target: ModelConfig):
        super().__init__()
        self.config = config
        width = target.width
        if config.own_embedding:
            self.embedding = nn.Embedding(target.vocab_size, width)
        self.fc = nn.Linear(2 * width, width, bias=config.fc_bias)
        self.layers = nn.ModuleList(
            Block(width, config.heads, config.mlp_width, config.norm_eps, input_norm=i > 0)
            for i in range(config.layers)
        )
        table = rotary_table(target, target.prefix - 1, width // config.heads)
        self.register_buffer("rotation", table, persistent=False)
        # A faster copy of the target's head, if the runtime made one.
        self.head: nn.Module | None = None

    def embed(self, tokens: Tensor, target: Transformer) -> Tensor:
        """Token ids -> vectors [.., W], from the drafter's own table if it has one."""
        return (self if self.config.own_embedding else target).embedding(tokens)

    def logits(self, out: Tensor, target: Transformer) -> Tensor:
        """Predicted hidden [.., W] -> fp32 logits [.., V] through the target's head."""
        return (self.head or target.head)(out).float()

    def forward(
        self,
        embedded: Tensor,
        hidden: Tensor,
        positions: slice | Tensor,
        mask: Tensor | None,
        cache: KVCache | None = None,
        start: int = 0,
    ) -> Tensor:
        """embedded tokens and hidden states, both [B, T, W] -> predicted hidden [B, T, W].

        Cache and mask as in ``Transformer.forward``; positions index the drafter's own table,
        where row P - 1 is the first grid cell and the rows before it are the condition's.
        """
        x = self.fc(torch.cat([embedded, hidden], dim=-1))
        rotation = self.rotation[positions]
        for i, layer in enumerate(self.layers):
            x = layer(x, rotation, mask, cache, i, start)
        return x
