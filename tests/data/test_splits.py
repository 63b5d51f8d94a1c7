"""Splits by id: an id is in the same part in any order and with any other samples."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from decimal import ROUND_HALF_UP, Decimal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flipguard.data import (
    TextSplit,
    held_out_per_class,
    part,
    part_per_class,
    random_classes,
    stratified,
)
from flipguard.data.dataset import ids_index_of
from flipguard.errors import InputError
from tests.data.test_counter import plain
from tests.effort import tries

WHOLE = st.integers(-(2**63), 2**63 - 1)
NAMES = st.lists(st.text(max_size=8), max_size=20, unique=True)


@settings(max_examples=tries(60))
@given(st.lists(WHOLE, max_size=20, unique=True), WHOLE, st.floats(0, 1))
def test_membership_is_as_the_definition_says(ids: list[int], seed: int, fraction: float) -> None:
    found = part(torch.tensor(ids, dtype=torch.int64), seed, fraction)
    assert found.tolist() == [(plain(seed, -1, one, 0) >> 11) / 2**53 < fraction for one in ids]


@settings(max_examples=tries(60))
@given(NAMES, st.integers(0, 9), st.floats(0, 1), st.floats(0, 1))
def test_neither_order_nor_growth_moves_anyone(
    names: list[str], seed: int, less: float, more: float
) -> None:
    less, more = sorted((less, more))
    members = dict(zip(names, part(names, seed, less).tolist(), strict=True))
    grown = [*reversed(names), "one more that is longer"]
    later = dict(zip(grown, part(grown, seed, less).tolist(), strict=True))
    assert later | members == later
    wider = part(names, seed, more).tolist()
    assert all(there for there, before in zip(wider, members.values(), strict=True) if before)


def test_all_and_none() -> None:
    ids = torch.arange(100)
    assert not part(ids, 0, 0.0).any()
    assert part(ids, 0, 1.0).all()


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.8])
def test_about_the_fraction_is_in_and_seeds_differ(fraction: float) -> None:
    ids = torch.arange(20_000)
    one, other = part(ids, 1, fraction), part(ids, 2, fraction)
    assert float(one.double().mean()) == pytest.approx(fraction, abs=0.015)
    assert float((one & other).double().mean()) == pytest.approx(fraction**2, abs=0.015)


@settings(max_examples=tries(30))
@given(NAMES)
def test_text_has_the_number_of_its_hash(names: list[str]) -> None:
    expected = [
        int.from_bytes(
            hashlib.blake2b(name.encode(), digest_size=8).digest(), "little", signed=True
        )
        for name in names
    ]
    assert ids_index_of(names).tolist() == expected


@pytest.mark.parametrize("fraction", [-0.1, 1.5, float("nan")])
def test_a_fraction_that_is_none_is_refused(fraction: float) -> None:
    split = TextSplit(texts=["a"], targets=torch.tensor([0]))
    for wrong in (
        lambda: part(torch.arange(3), 0, fraction),
        lambda: part_per_class(split, 0, fraction),
        lambda: held_out_per_class(split, 0, fraction),
    ):
        with pytest.raises(InputError, match="Expected `fraction` to be from 0 to 1, but got"):
            wrong()


@pytest.mark.parametrize("count", [0, True, 2.5, 4])
def test_a_count_of_classes_that_is_none_is_refused(count: int) -> None:
    with pytest.raises(InputError, match=re.escape("Expected `count` to be a whole number from 1")):
        random_classes(["a", "b", "c"], count, seed=0)


ROWS = st.lists(st.tuples(WHOLE, st.integers(0, 4)), max_size=40, unique_by=lambda row: row[0])
SHARES = st.decimals("0.01", "0.99", places=2)


def split_of(rows: list[tuple[int, int]]) -> TextSplit:
    return TextSplit(
        texts=[""] * len(rows),
        targets=torch.tensor([target for _, target in rows], dtype=torch.int64),
        ids=torch.tensor([one for one, _ in rows], dtype=torch.int64),
    )


@settings(max_examples=tries(60))
@given(ROWS, st.integers(0, 9), SHARES)
def test_a_share_of_each_class_is_as_the_definition_says(
    rows: list[tuple[int, int]], seed: int, share: Decimal
) -> None:
    split = split_of(rows)
    kept = part_per_class(split, seed, float(share)).tolist()
    held_out = held_out_per_class(split, seed, float(share)).tolist()
    for one in {target for _, target in rows}:
        of_class = [place for place, (_, target) in enumerate(rows) if target == one]
        size = len(of_class)
        half_up = int((size * share).quantize(Decimal(1), rounding=ROUND_HALF_UP))
        for mask, channel, count in (
            (kept, -1, max(half_up, 1)),
            (held_out, -3, min(half_up, size - 1)),
        ):
            drawn = [(signed(plain(seed, channel, rows[place][0], 0)), place) for place in of_class]
            first = {place for _, place in sorted(drawn)[:count]}
            assert {place for place in of_class if mask[place]} == first


@settings(max_examples=tries(40))
@given(ROWS, st.integers(0, 9), SHARES, SHARES)
def test_a_larger_share_of_each_class_keeps_a_smaller_one(
    rows: list[tuple[int, int]], seed: int, less: Decimal, more: Decimal
) -> None:
    less, more = sorted((less, more))
    split, turned = split_of(rows), split_of(rows[::-1])
    for take in (part_per_class, held_out_per_class):
        small, large = take(split, seed, float(less)), take(split, seed, float(more))
        assert bool((small <= large).all())
        assert torch.equal(take(turned, seed, float(less)).flip(0), small)


@settings(max_examples=tries(40))
@given(st.lists(st.text(max_size=6), min_size=1, max_size=15, unique=True), st.integers(0, 9))
def test_random_classes_are_as_the_definition_says(names: list[str], seed: int) -> None:
    index = ids_index_of(names).tolist()
    drawn = sorted(range(len(names)), key=lambda i: signed(plain(seed, -4, index[i], 0)))
    for count in range(1, len(names) + 1):
        assert random_classes(names, count, seed) == sorted(drawn[:count])


def test_each_class_is_chosen_about_equally_often() -> None:
    names = [f"class {index}" for index in range(10)]
    times = Counter(one for seed in range(1000) for one in random_classes(names, 5, seed))
    assert all(430 < times[index] < 570 for index in range(10))


@settings(max_examples=tries(60))
@given(st.lists(st.tuples(WHOLE, st.integers(0, 4)), max_size=30, unique_by=lambda row: row[0]))
def test_a_stratified_sample_is_as_the_definition_says(rows: list[tuple[int, int]]) -> None:
    ids, targets = [row[0] for row in rows], [row[1] for row in rows]
    split = TextSplit(
        texts=[""] * len(rows),
        targets=torch.tensor(targets, dtype=torch.int64),
        ids=torch.tensor(ids, dtype=torch.int64),
    )
    for most in (1, 7, 30):
        places = stratified(split, most).tolist()
        assert places == sorted(set(places))
        assert len(places) == min(most, len(rows))
        for one in set(targets):
            of_class = [i for i, target in enumerate(targets) if target == one]
            taken = [i for i in of_class if i in places]
            # The class's share, rounded up or down, of the samples that are first by their id.
            exact = len(of_class) * min(most / len(rows), 1)
            assert abs(len(taken) - exact) < 1
            drawn = sorted(of_class, key=lambda i: signed(plain(0, -2, ids[i], 0)))
            assert sorted(drawn[: len(taken)]) == taken


def signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits
