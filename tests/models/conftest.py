"""Settings that every test of models shares, and tiny models of Transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "dog", "##s", "ran"]
LABELS = 5
TINY = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small lose more by sharing work between threads than they gain."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def code_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Specs of these tests name functions of these tests."""
    monkeypatch.setenv("FLIPGUARD_ALLOW_CODE", "1")


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """A folder with the weights, the configuration and the vocabulary of a tiny model of texts."""
    folder = tmp_path / "bert"
    config = transformers.BertConfig(
        vocab_size=len(WORDS), max_position_embeddings=16, num_labels=LABELS, **TINY
    )
    with torch.random.fork_rng():
        transformers.BertForSequenceClassification(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "BertTokenizer", "model_max_length": 16, "do_lower_case": true}'
    )
    return folder


@pytest.fixture
def vit(tmp_path: Path) -> Path:
    """A folder with the configuration of a tiny model of images."""
    folder = tmp_path / "vit"
    transformers.ViTConfig(image_size=16, patch_size=8, **TINY).save_pretrained(folder)
    return folder
