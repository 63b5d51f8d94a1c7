"""Covering arrays: few rows in which every pair of values of every two factors occurs.

Built greedily, in the order that values are written in, so always the same. Combinations that are
refused are left out of the rows; a pair that is part of every row it could be in is told apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TypeAlias

Row: TypeAlias = dict[str, str]
Pair: TypeAlias = tuple[tuple[str, str], tuple[str, str]]
Forbidden: TypeAlias = Mapping[str, frozenset[str]]
"""Values by factor that do not go together: all of them at once are refused."""


def is_forbidden(row: Mapping[str, str], combination: Forbidden) -> bool:
    """Whether a row, which may be incomplete, has the combination."""
    return all(row.get(factor) in values for factor, values in combination.items())


def pairs_of(row: Mapping[str, str]) -> set[Pair]:
    """All pairs of values in a row."""
    return set(combinations(sorted(row.items()), 2))


def all_pairs(factors: Mapping[str, Sequence[str]]) -> list[Pair]:
    """All pairs of values of two factors."""
    names = sorted(factors)
    return [
        ((one, a), (other, b))
        for one, other in combinations(names, 2)
        for a in factors[one]
        for b in factors[other]
    ]


def covering(
    factors: Mapping[str, Sequence[str]], forbidden: Sequence[Forbidden]
) -> tuple[list[Row], list[Pair]]:
    """Rows in which every pair occurs that can, and the pairs that cannot."""
    wanted = dict.fromkeys(all_pairs(factors))
    rows: list[Row] = []
    impossible: list[Pair] = []
    while wanted:
        pair = next(iter(wanted))
        row = _completed(dict(pair), factors, forbidden, wanted)
        if row is None:
            impossible.append(pair)
            del wanted[pair]
            continue
        rows.append({name: row[name] for name in factors})
        for found in pairs_of(row):
            wanted.pop(found, None)
    return rows, impossible


def _completed(
    row: Row,
    factors: Mapping[str, Sequence[str]],
    forbidden: Sequence[Forbidden],
    wanted: Mapping[Pair, None],
) -> Row | None:
    """The row with a value for every factor, of which each brings most pairs that are wanted."""
    if any(is_forbidden(row, one) for one in forbidden):
        return None
    missing = [name for name in factors if name not in row]
    if not missing:
        return row
    name = missing[0]

    def gain(value: str) -> int:
        return sum(tuple(sorted(((name, value), item))) in wanted for item in row.items())

    for value in sorted(factors[name], key=gain, reverse=True):
        found = _completed({**row, name: value}, factors, forbidden, wanted)
        if found is not None:
            return found
    return None
