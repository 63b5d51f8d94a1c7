"""Mutants of the source: each changes exactly one place."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from benchmarks.mutating import sites

ROOT = Path(__file__).resolve().parents[1]

SOURCE = '''"""A module of 3 lines - or more."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    LIMIT = 3

__all__ = ["of"]
SHARE = 0.5  # über 1


def of(values: list[int], start: int = 0, *, last: bool = True) -> float:
    """Return 1 + 1."""
    if not values or start < 0 and last:
        raise ValueError(f"Expected {len(values) + 1} values, not " + "none")
    total = -(values[1:] + SHARE)
    for value in values:
        if value == "none":
            continue
    total += max(total, 1)
    return total
'''

EXPECTED = {
    "SHARE = 1.5  # über 1",
    "SHARE = -0.5  # über 1",
    "SHARE = 1.0  # über 1",
    "def of(values: list[int], start: int = 1, *, last: bool = True) -> float:",
    "def of(values: list[int], start: int = 0, *, last: bool = False) -> float:",
    "if values or start < 0 and last:",
    "if not values and start < 0 and last:",
    "if not values or start <= 0 and last:",
    "if not values or start >= 0 and last:",
    "if not values or start < 1 and last:",
    "if not values or start < 0 or last:",
    "if not (not values or start < 0 and last):",
    "pass",
    "total = (values[1:] + SHARE)",
    "total = -(values[1:] - SHARE)",
    "total = -(values[1:])",
    "total = -(SHARE)",
    "total = -(values[2:] + SHARE)",
    "total = -(values[0:] + SHARE)",
    "total = -(values[:] + SHARE)",
    'if value != "none":',
    "if value == 'none-':",
    "break",
    "total -= max(total, 1)",
    "total += min(total, 1)",
    "total += max(total, 2)",
    "total += max(total, 0)",
    "return None",
}


def test_every_change_is_made_once() -> None:
    source = SOURCE.encode()
    found = [mutant for site in sites("of.py", source) for mutant in site]
    assert {mutant.shown(source)[1] for mutant in found} == EXPECTED
    for mutant in found:
        changed = mutant.applied(source).decode()
        ast.parse(changed)
        before, after = SOURCE.splitlines(), changed.splitlines()
        assert sum(line not in after for line in before) == 1


@pytest.mark.parametrize("name", ["gate.py", "statistics/rates.py", "losses/divergences.py"])
def test_changes_of_the_package_can_be_read_and_differ(name: str) -> None:
    source = (ROOT / "src" / "flipguard" / name).read_bytes()
    original = ast.dump(ast.parse(source))
    mutants = [mutant for site in sites(name, source) for mutant in site]
    assert len(mutants) > 50
    for mutant in mutants[::10]:
        assert ast.dump(ast.parse(mutant.applied(source))) != original
