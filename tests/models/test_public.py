"""What the package offers, and what it needs to be imported."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

import flipguard.models
from flipguard.models import MODELS
from flipguard.models.registry import NETS


def test_all_names_what_is_there() -> None:
    assert flipguard.models.__all__ == [
        "MODELS",
        "Classified",
        "Description",
        "Inputs",
        "ModelOption",
        "ModelRow",
        "architecture",
        "build_model",
        "checkpoint_blocks",
        "classify",
        "describe",
        "encode_texts",
        "head_of",
        "same_layout",
        "tokenizer_for",
        "with_features",
    ]
    for name in set(flipguard.models.__all__) - {"MODELS"}:  # a mapping has no docstring
        assert getattr(flipguard.models, name).__doc__


def test_models_can_be_listed() -> None:
    libraries = ["timm:NAME", "torchvision:NAME", "hf:PATH", "python:MODULE:FUNCTION"]
    assert list(MODELS) == [*NETS, *libraries]
    for name, row in MODELS.items():
        assert row.name == name
        assert row.sentence.endswith(".")
        for option in row.options:
            assert option.least <= option.default < option.below
            assert option.sentence.endswith(".")


def test_models_cannot_be_changed() -> None:
    rows: Any = MODELS
    with pytest.raises(TypeError):
        rows["mlp"] = None
    with pytest.raises(dataclasses.FrozenInstanceError):
        rows["mlp"].name = "other"


def test_importing_needs_torch_and_numpy_alone() -> None:
    code = (
        "import sys, flipguard.models; "
        "print(*sorted({'polars', 'pyarrow', 'pydantic', 'duckdb', 'timm', 'torchvision', "
        "'transformers', 'lightning'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
