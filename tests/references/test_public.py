"""The public names of the package, and the imports that it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest
from torch import nn

import flipguard.references
from flipguard.references import Ensemble, OldModel, Peer, Reference, StoredLogits


def test_all_names_what_is_there() -> None:
    assert flipguard.references.__all__ == [
        "Ensemble",
        "OldModel",
        "Peer",
        "Reference",
        "StoredLogits",
    ]
    for name in flipguard.references.__all__:
        assert getattr(flipguard.references, name).__doc__


@pytest.mark.parametrize("kind", [Ensemble, OldModel, Peer, StoredLogits])
def test_references_are_no_modules(kind: type) -> None:
    assert issubclass(kind, Reference)
    assert not issubclass(kind, nn.Module)


def test_a_reference_must_say_how_it_is_called_and_moved() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Reference()  # type: ignore[abstract]


def test_importing_needs_torch_numpy_and_scipy_alone() -> None:
    code = (
        "import sys, flipguard.references; "
        "print(*sorted({'polars', 'pyarrow', 'pydantic', 'duckdb', 'timm', 'torchvision', "
        "'transformers', 'lightning'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
