"""Text encoder: prompt -> caption vectors, through transformers.

emoji-128 uses all-MiniLM-L6-v2 (Apache-2.0), the small sibling of flan-t5-xl in the same slot: the
last hidden state of every word piece, special tokens included, goes to the target.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor


class TextEncoder:
    """A transformers encoder with its tokenizer, loaded from a local folder.

    ``limit`` is the most word pieces a prompt may have (the target's ``prefix``).
    """

    def __init__(self, folder: Path, limit: int, device: torch.device | str = "cpu"):
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            if not (folder / name).is_file():
                raise FileNotFoundError(
                    f"{folder / name} is missing; restore it (git checkout, or download the model)."
                )
        self.limit = limit
        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.model = AutoModel.from_pretrained(
            folder, local_files_only=True, dtype=torch.float32, add_pooling_layer=False
        )
        self.model.eval().requires_grad_(False).to(device)

    def pieces(self, prompt: str) -> int:
        """Word pieces of the prompt, special tokens included."""
        return len(self.tokenizer(prompt, verbose=False)["input_ids"])

    def check(self, prompt: str) -> str:
        """The prompt without surrounding space; ValueError if it is empty or too long."""
        prompt = " ".join(prompt.split())
        if not prompt:
            raise ValueError("the prompt is empty; write what to draw, for example 'a red apple'.")
        count = self.pieces(prompt[:2000])
        if count > self.limit or len(prompt) > 2000:
            raise ValueError(
                f"the prompt is too long ({count} word pieces, at most {self.limit}); shorten it."
            )
        return prompt

    @torch.inference_mode()
    def encode(self, prompts: list[str]) -> list[Tensor]:
        """Caption vectors [n_i, caption_dim] fp32 of each prompt."""
        batch = self.tokenizer(prompts, padding=True, return_tensors="pt").to(self.model.device)
        hidden = self.model(**batch).last_hidden_state
        keep = batch["attention_mask"].bool()
        return [row[mask] for row, mask in zip(hidden, keep, strict=True)]
