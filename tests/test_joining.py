"""Rows that meet by a table of rows, and by hashes: the same comparison either way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flipguard as fg
from flipguard.engines import joining
from flipguard.engines.pairing import Pairing
from flipguard.engines.plan import CountingPlan

WANT = frozenset({"id", "row", "label", "target"})


def table(ids: Sequence[int], dtype: Any, *, name: str, scored: bool = False) -> fg.Predictions:
    """Predictions that follow from the id, so that rows that meet wrongly are seen."""
    numbers = np.array(ids, dtype=np.int64)
    kinds = {"old": 3, "new": 4, "control": 5}
    columns: dict[str, Any] = {"id": pl.Series(ids, dtype=dtype), "target": numbers % 3}
    if scored:
        for c in range(3):
            columns[f"logit_{c}"] = np.cos(numbers * kinds[name] + c)
    else:
        columns["label"] = numbers % kinds[name] % 3
    return fg.Predictions.from_frame(pl.DataFrame(columns), name=name)


def outcome(run: Callable[[], fg.Comparison]) -> tuple[Any, ...]:
    """What a comparison says, or the sentence with which it is refused."""
    try:
        result = run()
    except fg.InputError as problem:
        return (str(problem),)
    return (result.as_dict(), result.flips().rows())


@given(
    base=st.lists(st.integers(-40, 60), min_size=1, max_size=30, unique=True),
    order=st.randoms(use_true_random=False),
    lost=st.tuples(*[st.sets(st.integers(0, 29), max_size=3)] * 3),
    twice=st.sampled_from([None, None, None, 0, 1, 2]),
    dtype=st.sampled_from([pl.Int8, pl.Int32, pl.Int64]),
    on_missing=st.sampled_from(["error", "drop"]),
    scored=st.booleans(),
    with_control=st.booleans(),
)
def test_both_ways_say_the_same(
    base: list[int],
    order: Any,
    lost: tuple[set[int], ...],
    twice: int | None,
    dtype: Any,
    on_missing: Any,
    scored: bool,
    with_control: bool,
) -> None:
    sides = []
    for i, name in enumerate(("old", "new", "control")):
        ids = [x for place, x in enumerate(base) if place not in lost[i]] or base[:1]
        order.shuffle(ids)
        ids += ids[:1] if twice == i else []
        sides.append(table(ids, dtype, name=name, scored=scored and i < 2))
    old, new, control = sides

    def run() -> fg.Comparison:
        controls = [control] if with_control else []
        return fg.compare(old=old, new=new, control=controls, on_missing=on_missing)

    found = outcome(run)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(joining, "ROOM_PER_ROW", 0)
        assert outcome(run) == found


@pytest.mark.parametrize(
    ("ids", "dtype", "is_looked_up"),
    [
        ([3, 1, 2, 0], pl.Int64, True),
        ([-5, 7, 0, 1], pl.Int16, True),
        ([200, 0, 100, 255], pl.UInt8, False),
        ([2**63 - 1, -(2**63), 0, 1], pl.Int64, False),
        ([2**64 - 1, 2**64 - 2, 2**64 - 4, 2**64 - 3], pl.UInt64, False),
    ],
)
def test_only_integers_close_together_are_looked_up(
    ids: list[int], dtype: Any, is_looked_up: bool
) -> None:
    frames = [
        pl.DataFrame({"id": pl.Series(given, dtype=dtype), "label": [0, 1, 2, 3]})
        for given in (ids, ids[::-1])
    ]
    old, new = (fg.Predictions.from_frame(frame) for frame in frames)
    found = joining._looked_up(Pairing(CountingPlan(old=old, new=new)), WANT)
    assert (found is not None) == is_looked_up
    assert fg.compare(old=old, new=new).counts["unlabelled_different"] == 4
    if found is not None:
        assert found.table["0|id"].to_list() == ids
        assert found.table["1|row"].to_list() == [3, 2, 1, 0]


def test_many_rows_are_looked_up_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "ROWS_WORTH_THREADS", 10)
    ids = np.random.default_rng(0).permutation(1_003)
    old = table(ids.tolist(), pl.Int64, name="old")
    new = table(sorted(ids.tolist()), pl.Int64, name="new")
    result = fg.compare(old=old, new=new)
    wrong = [x for x in range(1_003) if x % 3 % 3 == x % 3 and x % 4 % 3 != x % 3]
    assert result.counts["negative_flip"] == len(wrong)
    assert sorted(result.flips("negative")["id"]) == wrong
