"""Splits by id: the same id lands in the same part in every order and company."""

from __future__ import annotations

import hashlib
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flipguard.data import TextSplit, first_classes, load_data, part, seen_before, stratified
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


def test_an_old_model_that_saw_a_part() -> None:
    data = load_data("mnist1d:train=1000,test=10")
    old, older = (seen_before(data.train, fraction=share, seed=4) for share in (0.5, 0.25))
    assert 400 < len(old) < 600
    assert set(older.ids_index.tolist()) <= set(old.ids_index.tolist())
    assert torch.equal(old.targets, data.train.targets[old.ids_index])


def test_an_old_model_that_knew_fewer_classes() -> None:
    data = load_data("mnist1d:train=1000,test=10")
    old = first_classes(data.train, 6)
    assert set(old.targets.tolist()) == set(range(6))
    assert len(old) == int((data.train.targets < 6).sum())
    assert torch.equal(old.targets, data.train.targets[old.ids_index])


@pytest.mark.parametrize("fraction", [-0.1, 1.5, float("nan")])
def test_a_fraction_that_is_none_is_refused(fraction: float) -> None:
    with pytest.raises(InputError, match="Expected `fraction` to be from 0 to 1, but got"):
        part(torch.arange(3), 0, fraction)


@pytest.mark.parametrize("count", [0, True, 2.5])
def test_a_count_of_classes_that_is_none_is_refused(count: int) -> None:
    split = TextSplit(texts=["a"], targets=torch.tensor([0]))
    with pytest.raises(InputError, match=re.escape("Expected `count` to be a whole number of at")):
        first_classes(split, count)


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
