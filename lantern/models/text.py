"""What a model is asked for: prompts through a text encoder, or class names.

emoji-128 uses all-MiniLM-L6-v2 (Apache-2.0), LlamaGen's Stage I and II use flan-t5-xl (Apache-2.0),
both through transformers; the last hidden state of every word piece, special tokens included, goes
to the target. Class-conditional models take the number of an ImageNet class.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from lantern.models.llamagen import left_pad


class TextEncoder:
    """A transformers encoder with its tokenizer, loaded from a local folder.

    ``limit`` is the most word pieces a prompt may have (the target's ``prefix``). A T5 runs in
    ``dtype`` and, as LlamaGen trained it, on lower-case text; anything else in fp32.
    """

    def __init__(
        self,
        folder: Path,
        limit: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ):
        from transformers import AutoConfig, AutoModel, AutoTokenizer, T5EncoderModel
        from transformers.utils import logging

        logging.disable_progress_bar()
        self.limit = limit
        try:
            self.lower = (
                AutoConfig.from_pretrained(folder, local_files_only=True).model_type == "t5"
            )
            self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            if self.lower:
                model = T5EncoderModel.from_pretrained(folder, local_files_only=True, dtype=dtype)
            else:
                model = AutoModel.from_pretrained(
                    folder, local_files_only=True, dtype=torch.float32, add_pooling_layer=False
                )
        except Exception as error:  # transformers raises many kinds, some of them its own
            reason = str(error).strip().split("\n")[0][:200]
            raise ValueError(
                f"the text encoder in {folder} cannot be loaded ({reason}); restore it or "
                "download the model again."
            ) from None
        self.model = model.eval().requires_grad_(False).to(device)

    @property
    def width(self) -> int:
        """Length of a caption vector."""
        return self.model.config.hidden_size

    def pieces(self, prompt: str) -> int:
        """Word pieces of the prompt, special tokens included."""
        text = prompt.lower() if self.lower else prompt
        return len(self.tokenizer(text, verbose=False)["input_ids"])

    def check(self, prompt: str) -> str:
        """The prompt without surrounding space; ValueError if it is empty or too long."""
        if not is_text(prompt):
            raise ValueError("the prompt holds characters that are no text; type it anew.")
        prompt = " ".join(prompt.split())
        count = self.pieces(prompt[:2000])
        if not prompt or count <= self.pieces(""):
            raise ValueError("the prompt is empty; write what to draw, for example 'a red apple'.")
        if count > self.limit or len(prompt) > 2000:
            raise ValueError(
                f"the prompt is too long ({count} word pieces, at most {self.limit}); shorten it."
            )
        return prompt

    @torch.inference_mode()
    def encode(self, prompts: list[str]) -> list[Tensor]:
        """Caption vectors [n_i, caption_dim] of each prompt, on the encoder's device and in its
        dtype; n_i word pieces, special tokens included. Prompts are not cut: ``check`` first."""
        if self.lower:
            prompts = [prompt.lower() for prompt in prompts]
        batch = self.tokenizer(prompts, padding=True, return_tensors="pt").to(self.model.device)
        hidden = self.model(**batch).last_hidden_state
        keep = batch["attention_mask"].bool()
        return [row[mask] for row, mask in zip(hidden, keep, strict=True)]

    def condition(self, prompt: str) -> tuple[Tensor, Tensor]:
        """Prompt -> (caption [limit, caption_dim] left-padded, valid [limit] bool)."""
        return left_pad(self.encode([prompt])[0], self.limit)


class ClassNames:
    """Stands in for a text encoder where the target draws classes: a prompt is a class name, part
    of one, or a number."""

    limit = 1

    def __init__(self, classes: int, device: torch.device | str = "cpu"):
        self.classes, self.device = classes, device

    @cached_property
    def names(self) -> list[str]:
        """One name a class, in the order of the class numbers."""
        names = class_names()
        return names if len(names) == self.classes else [str(i) for i in range(self.classes)]

    def pieces(self, prompt: str) -> int:
        return 1

    def check(self, prompt: str) -> str:
        """The full name of the class; ValueError if there is no such class."""
        text = " ".join(prompt.split()).lower()
        if not text:
            raise ValueError("no class is given; write an ImageNet class, for example 'macaw'.")
        if text.isdecimal() and int(text) < self.classes:
            return self.names[int(text)]
        exact = " ".join(prompt.split())  # "Cardigan" is a dog, "cardigan" a garment
        if exact in self.names:
            return exact
        lower = [name.lower() for name in self.names]
        if text in lower:
            return self.names[lower.index(text)]
        close = [name for name, low in zip(self.names, lower, strict=True) if text in low]
        if len(close) == 1:
            return close[0]
        hint = f"it could be {', '.join(close[:5])}" if close else "see the list of classes"
        raise ValueError(
            f"{prompt.strip()!r} is not one of the model's {self.classes} classes; {hint}."
        )

    def condition(self, prompt: str) -> tuple[Tensor, Tensor]:
        """Class name -> (class number [1] int64, valid [1] bool)."""
        number = self.names.index(self.check(prompt))
        return (
            torch.tensor([number], device=self.device),
            torch.ones(1, dtype=torch.bool, device=self.device),
        )


def is_text(prompt: str) -> bool:
    """Whether every character is one: half of a surrogate pair, as a broken client sends it, cannot
    be written anywhere."""
    return not any("\ud800" <= character <= "\udfff" for character in prompt)


def class_names() -> list[str]:
    """The 1000 ImageNet classes in the order of their numbers."""
    file = Path(__file__).with_name("imagenet_classes.txt")
    return file.read_text(encoding="utf-8").splitlines()
