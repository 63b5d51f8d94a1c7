"""Paths of the documentation and of the results that its pages are rendered from."""

from __future__ import annotations

import json
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
RESULTS = ROOT / "benchmarks" / "results"


def committed(name: str) -> dict:
    """Read the document that a program in benchmarks/ wrote: its rows, and how they were measured."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def is_committed(name: str) -> bool:
    return (RESULTS / f"{name}.json").exists()
