"""Generated pages are up to date with the tables of the package, such as defaults."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.mark.parametrize("name", ["methods", "losses", "metrics"])
def test_a_page_shows_what_the_package_has(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    render = getattr(importlib.import_module(f"pages.{name}"), f"{name}_page")
    assert render() == (DOCS / f"{name}.md").read_text(), "run `make docs`"
