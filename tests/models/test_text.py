"""Texts as the tensors of a model of Transformers, without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from flipguard.errors import InputError
from flipguard.models import build_model, classify, encode_texts, tokenizer_for
from tests.models.conftest import LABELS, WORDS


def ids(*words: str) -> list[int]:
    return [WORDS.index(word) for word in words]


@pytest.mark.parametrize("place", ["", "config.json"])
def test_texts_are_cut_and_padded_to_one_length(bert: Path, place: str) -> None:
    tokenizer = tokenizer_for(f"hf:{bert / place}" if place else f"hf:{bert}")
    encoded = encode_texts(
        ["The cats sat", "the dog ran the dog ran", ""], tokenizer=tokenizer, max_length=6
    )
    assert set(encoded) >= {"input_ids", "attention_mask"}
    assert type(encoded) is dict
    assert encoded["input_ids"].tolist() == [
        ids("[CLS]", "the", "cat", "##s", "sat", "[SEP]"),
        ids("[CLS]", "the", "dog", "ran", "the", "[SEP]"),
        ids("[CLS]", "[SEP]", "[PAD]", "[PAD]", "[PAD]", "[PAD]"),
    ]
    assert encoded["attention_mask"].sum(1).tolist() == [6, 6, 2]


def test_texts_go_through_the_model(bert: Path) -> None:
    spec = f"hf:{bert}"
    model = build_model(spec, classes=LABELS, input_shape=None, seed=0).eval()
    tokenizer = tokenizer_for(spec)
    texts = ["the cat sat", "dogs ran"]
    logits = classify(model, encode_texts(texts, tokenizer=tokenizer, max_length=8))
    assert logits.shape == (2, LABELS)
    # Padding changes nothing but the last digits.
    longer = classify(model, encode_texts(texts, tokenizer=tokenizer, max_length=16))
    torch.testing.assert_close(logits, longer)


@pytest.mark.parametrize(
    ("texts", "length", "part"),
    [
        ("the cat", 8, "a list of texts, but got one text"),
        (["the", 3], 8, "a list of texts, but got int"),
        (["the"], 0, "from 1 to 16, but got 0"),
        (["the"], 17, "from 1 to 16, but got 17"),
        (["the"], 4.0, "from 1 to 16, but got 4.0"),
    ],
)
def test_texts_that_cannot_be_read(bert: Path, texts: Any, length: Any, part: str) -> None:
    tokenizer = tokenizer_for(f"hf:{bert}")
    with pytest.raises(InputError) as caught:
        encode_texts(texts, tokenizer=tokenizer, max_length=length)
    assert part in str(caught.value)


def test_a_tokenizer_that_cannot_pad(bert: Path) -> None:
    tokenizer = tokenizer_for(f"hf:{bert}")
    tokenizer.pad_token = None
    with pytest.raises(InputError, match="a token for padding, but got none"):
        encode_texts(["the"], tokenizer=tokenizer, max_length=8)


@pytest.mark.parametrize("spec", ["mlp", "hf:", None])
def test_only_folders_have_tokenizers(spec: Any) -> None:
    with pytest.raises(InputError, match="`model` to be hf:PATH, but got"):
        tokenizer_for(spec)


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'hf:.*' to be a folder with a tokenizer, but got"):
        tokenizer_for(f"hf:{tmp_path / 'absent'}")
