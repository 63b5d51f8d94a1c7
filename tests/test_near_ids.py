"""Ids that do not meet: the error says how they differ, if they do so in a common way."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flipguard import InputError, compare
from tests.effort import tries

N = 20


def refused(old: list[Any], new: list[Any], **options: Any) -> str:
    sides = [pl.DataFrame({"id": ids, "label": ["a", "b"] * (len(ids) // 2)}) for ids in (old, new)]
    with pytest.raises(InputError) as caught:
        compare(old=sides[0], new=sides[1], **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


NUMBERS = list(range(5, 5 + N))
NAMES = [f"Img{chr(97 + i)}" for i in range(N)]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            NAMES,
            [f" {n}" for n in NAMES],
            "They differ in blanks: old has 'Imga' where new has ' I",
        ),
        (NAMES, [n.lower() for n in NAMES], "in upper and lower case: old has 'Imga' where new"),
        (NUMBERS, [f"{n:04d}" for n in NUMBERS], "leading zeros: old has '5' where new has '0005'"),
        (
            [f"s{n}" for n in NUMBERS],
            [f"s{n:03d}" for n in NUMBERS],
            "in leading zeros: old has 's",
        ),
        ([f"x{n}" for n in NUMBERS], NUMBERS, "in text around a number: old has 'x5' where new ha"),
        (["n", *NUMBERS[1:]], ["m", *(f"{n}.0" for n in NUMBERS[1:])], "They differ in decimals: "),
        (NUMBERS, [n + 1 for n in NUMBERS], "The ids of new are those of old +1 (5 is the first)"),
        (NUMBERS, [str(n - 5) for n in NUMBERS[::-1]], "The ids of new are those of old -5"),
        ([n + 1000 for n in NUMBERS], NUMBERS, "The ids of new are those of old -1,000"),
    ],
    ids=str,
)
def test_common_causes(old: list[Any], new: list[Any], told: str) -> None:
    old = [str(x) for x in old] if any(isinstance(x, str) for x in old) else old
    found = refused(old, new)
    assert told.replace("(5 is", "('5' is") in found


def test_some_ids_that_differ() -> None:
    found = refused(NAMES, [*NAMES[:14], *(name.upper() for name in NAMES[14:])])
    assert "old has 6 ids that new lacks" in found
    assert found.endswith(
        "They differ in upper and lower case: old has 'Imgo' where new has 'IMGO'; write ids in "
        "one way."
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (NAMES, [f"other{i}{i * i}x" for i in range(N)]),
        (NUMBERS, [n * 7919 + 10**6 for n in NUMBERS]),
        (NUMBERS, NUMBERS[:-2]),
        (NAMES, [*NAMES[:-4], "p", "q", "r", NAMES[-1].upper()]),
    ],
    ids=str,
)
def test_ids_that_differ_for_no_common_cause(old: list[Any], new: list[Any]) -> None:
    found = refused(old, new)
    assert "They differ in" not in found
    assert "are those of" not in found


ALPHABET = st.text(alphabet="abAB01. 7", min_size=1, max_size=5)


@settings(max_examples=tries(60), deadline=None)
@given(st.lists(ALPHABET, min_size=2, max_size=8, unique=True), st.data())
def test_no_ids_break_the_explanation(old: list[str], data: st.DataObject) -> None:
    new = data.draw(st.lists(ALPHABET, min_size=2, max_size=8, unique=True))
    # Two columns of floats, such as "1." and "7.0", are compared as numbers.
    old, new = ([f"x{name}" for name in ids] for ids in (old, new))
    sides = [pl.DataFrame({"id": ids, "label": ["a"] * len(ids)}) for ids in (old, new)]
    if sorted(old) == sorted(new):
        assert compare(old=sides[0], new=sides[1]).n == len(old)
        return
    with pytest.raises(InputError) as caught:
        compare(old=sides[0], new=sides[1])
    assert "\n" not in str(caught.value)
