"""Texts as tensors, encoded once; a batch is as wide as its longest text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flipguard.errors import InputError
from flipguard.models import encode_texts, tokenizer_for
from flipguard.models.text import LONGEST
from flipguard.training.folder import Run

AT_ONCE = 1000
WIDTHS = 16  # a batch's width is a multiple of it, so that few widths occur
MOST = 2**30  # bytes that are kept on the device
TRIED = 100  # texts by which tokenizers are held against each other


def check_tokens(model: str, runs: Sequence[Run], texts: Sequence[str]) -> None:
    """Refuses runs that would take the model's tokens for other words: all get the same batches."""
    for run in runs:
        if run.config.model == model:
            continue
        own, other = tokenizer_for(model), tokenizer_for(run.config.model)
        some = list(texts[:TRIED])
        if own.get_vocab() != other.get_vocab() or own(some) != other(some):
            raise InputError(
                f"Expected {run.folder} to read texts by the tokenizer of {model}, since both are "
                f"given the same tokens, but {run.config.model} has another; choose a model with "
                "the same one, or train without it and compare their predictions."
            )


class EncodedTexts:
    """The tokens of all texts of a split, on the device if they are not too many.

    Shorter texts are padded on the right and masked, so a narrower batch gives the same logits, to
    rounding. A tokenizer that pads on the left gets full width.
    """

    def __init__(self, texts: Sequence[str], *, tokenizer: Any, device: torch.device) -> None:
        longest = min(LONGEST, tokenizer.model_max_length)
        some = [
            encode_texts(texts[start : start + AT_ONCE], tokenizer=tokenizer, max_length=longest)
            for start in range(0, len(texts), AT_ONCE)
        ]
        tokens = {name: torch.cat([one[name] for one in some]) for name in some[0]}
        width = next(iter(tokens.values())).shape[1]
        self._lengths = torch.full((len(texts),), width)
        if "attention_mask" in tokens and tokenizer.padding_side == "right":
            self._lengths = tokens["attention_mask"].sum(1)
        self._device = device
        size = sum(tensor.numel() * tensor.element_size() for tensor in tokens.values())
        self._tokens = {name: t.to(device) if size <= MOST else t for name, t in tokens.items()}
        self._lengths = self._lengths.to(device)

    def widths(self, pieces: Sequence[Tensor]) -> list[int]:
        """How wide batches are; all at once, since a device is waited for."""
        longest = torch.stack([self._lengths[piece].amax() for piece in pieces])
        return [-(-one // WIDTHS) * WIDTHS for one in longest.tolist()]

    def batch(self, where: Tensor, width: int) -> dict[str, Tensor]:
        """The named tensors of some texts."""
        found = {}
        for name, tokens in self._tokens.items():
            found[name] = tokens[where.to(tokens.device), :width].to(self._device)
        return found
