"""Texts as the tensors that a model of Transformers is called with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from flipguard.errors import InputError
from flipguard.models.hugging import path_of
from flipguard.models.libraries import library, refusing

LONGEST = 128


def tokenizer_for(spec: str) -> Any:
    """The tokenizer in the folder of an ``hf:`` model; nothing is ever downloaded."""
    path = path_of(spec)
    transformers = library("transformers", what=f"The tokenizer of '{spec}'")
    if Path(path).is_file():
        # A configuration was named; its tokenizer lies next to it.
        path = str(Path(path).parent)
    with refusing(spec, expected="a folder with a tokenizer"):
        return transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)


def encode_texts(
    texts: Sequence[str], *, tokenizer: Any, max_length: int = LONGEST
) -> dict[str, Tensor]:
    """Texts as named tensors [texts, `max_length`]: cut if longer, padded if shorter.

    All batches have one shape, so that a sample's logits do not depend on what it is batched with.
    """
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise InputError(
            "Expected `texts` to be a list of texts, but got "
            f"{_odd(texts)}; give one text for each sample."
        )
    longest = tokenizer.model_max_length
    if not isinstance(max_length, int) or not 1 <= max_length <= longest:
        raise InputError(
            f"Expected `max_length` to be a whole number of tokens from 1 to {longest}, but got "
            f"{max_length!r}; the model reads no more."
        )
    if tokenizer.pad_token is None:
        raise InputError(
            "Expected `tokenizer` to have a token for padding, but got none; set its `pad_token`, "
            "and the model's `config.pad_token_id`."
        )
    encoded = tokenizer(
        list(texts),
        padding="max_length",
        truncation=True,
        max_length=max_length,
        return_tensors="pt",
    )
    return dict(encoded)


def _odd(texts: Sequence[object]) -> str:
    if isinstance(texts, str):
        return "one text"
    return next(type(text).__name__ for text in texts if not isinstance(text, str))
