"""Comparisons to try: generated rows, and the prediction tables that say the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import polars as pl
from hypothesis import strategies as st

from flipguard import Comparison, Predictions
from flipguard.comparison import comparison_from_counts
from flipguard.counts import FlipCounts
from flipguard.engines import local
from flipguard.engines.plan import Counted, CountingPlan, Groups
from tests.plain import Case, Kind, Row, first_of_the_largest

# How a table spells its classes and holds its scores; one meaning, many looks.
Look = Literal["arrays", "wide", "list"]
Spelling = Literal["text", "int", "float"]

TEXT_CLASSES = ("cat", "dog", "7", "007", "été", "a b")
INT_CLASSES = ("0", "1", "2", "3", "-5", "12")
LOGITS = st.integers(-6, 6).map(lambda i: i / 2)
FAR_LOGITS = st.sampled_from([-300.0, -61.0, -59.5, 0.0, 59.5, 60.0, 75.25, 800.0])


@dataclass(frozen=True, kw_only=True)
class Side:
    """What one model's table is made of."""

    classes: tuple[str, ...]
    kind: Kind
    look: Look
    spelling: Spelling
    own_label: bool
    named: bool
    has_target: bool
    has_groups: bool


@dataclass(frozen=True, kw_only=True)
class Example:
    """A generated comparison and the looks of its tables."""

    case: Case
    old: Side
    new: Side
    controls: tuple[Side, ...]
    ids: Literal["int", "text", "none"]
    orders: tuple[tuple[int, ...], ...]


def spelled(name: str | None, spelling: Spelling) -> object:
    if name is None or spelling == "text":
        return name
    return int(name) if spelling == "int" else float(name)


@st.composite
def sides(
    draw: st.DrawFn,
    pool: tuple[str, ...],
    *,
    kinds: Sequence[Kind],
    dense: bool,
    spellings: Sequence[Spelling] = ("text", "int"),
) -> Side:
    kind = draw(st.sampled_from(list(kinds)))
    whole_numbers = pool == INT_CLASSES
    if dense:
        classes = tuple(str(i) for i in range(draw(st.integers(2, 4))))
    else:
        classes = tuple(draw(st.lists(st.sampled_from(pool), min_size=2, max_size=4, unique=True)))
    named = not dense
    look: Look = draw(st.sampled_from(["arrays", "wide"] if named else ["arrays", "list"]))
    return Side(
        classes=classes,
        kind=kind,
        look=look,
        spelling=draw(st.sampled_from(list(spellings))) if whole_numbers else "text",
        own_label=kind is None or draw(st.sampled_from([False, False, True])),
        named=named,
        has_target=True,
        has_groups=True,
    )


def _scores(draw: st.DrawFn, side: Side, *, far: bool) -> dict[str, float] | None:
    if side.kind is None:
        return None
    n = len(side.classes)
    if side.kind == "logits":
        values = draw(st.lists(FAR_LOGITS if far else LOGITS, min_size=n, max_size=n))
    else:
        weights = draw(
            st.lists(st.sampled_from([0, 1, 1, 2, 5]), min_size=n, max_size=n).filter(any)
        )
        values = [weight / sum(weights) for weight in weights]
    return dict(zip(side.classes, values, strict=True))


def _label(draw: st.DrawFn, side: Side, scores: dict[str, float] | None) -> str:
    if scores is not None and not side.own_label:
        return first_of_the_largest(scores)
    return draw(st.sampled_from(side.classes))


@st.composite
def examples(
    draw: st.DrawFn,
    *,
    most_rows: int = 12,
    most_controls: int = 3,
    kinds: Sequence[Kind] = (None, "logits", "probabilities"),
    exponents: Sequence[float] = (1.0, 1.0, 0.5, 3.0),
    far: bool = False,
) -> Example:
    dense = draw(st.booleans())
    pool = INT_CLASSES if dense else draw(st.sampled_from([TEXT_CLASSES, INT_CLASSES]))
    # Floats are classes only where all columns of classes are floats.
    spellings: list[Spelling] = draw(st.sampled_from([["text", "int"], ["float"]]))
    each = sides(pool, kinds=kinds, dense=dense, spellings=spellings)
    old, new = draw(each), draw(each)
    controls = tuple(draw(st.lists(each, max_size=most_controls)))
    # Targets and groups may be told by either file, or by both.
    told_by = draw(st.sampled_from(["both", "old", "new"]))
    old = replace(old, has_target=told_by != "new", has_groups=told_by != "old")
    new = replace(new, has_target=told_by != "old", has_groups=told_by != "new")
    n = draw(st.integers(1, most_rows))
    ids = draw(st.sampled_from(["int", "text", "none"]))
    if any("list" in s.look or s.look == "wide" for s in (old, new, *controls)) and ids == "none":
        ids = "int"
    rows = []
    for i in range(n):
        old_scores, new_scores = (_scores(draw, side, far=far) for side in (old, new))
        rows.append(
            Row(
                id=i if ids == "int" else f"{i:03d}",
                target=draw(st.sampled_from([*pool[:4], None])),
                old=_label(draw, old, old_scores),
                new=_label(draw, new, new_scores),
                old_scores=old_scores,
                new_scores=new_scores,
                controls=tuple(draw(st.sampled_from(side.classes)) for side in controls),
                groups={"group": draw(st.sampled_from(["x", "y", None]))},
            )
        )
    order = st.permutations(range(n)).map(tuple)
    keep = st.just(tuple(range(n)))
    orders = tuple(
        draw(keep if ids == "none" else st.one_of(keep, order)) for _ in range(2 + len(controls))
    )
    return Example(
        case=Case(
            rows=rows,
            old_kind=old.kind,
            new_kind=new.kind,
            exponent=draw(st.sampled_from(list(exponents))),
        ),
        old=old,
        new=new,
        # Of a control only the labels count, so labels are what it is made of.
        controls=tuple(
            replace(c, kind=None, own_label=True, has_target=False, has_groups=False)
            for c in controls
        ),
        ids=ids,
        orders=orders,
    )


def tables(
    example: Example, rows: Sequence[Row] | None = None, *, dtype: Any = np.float64
) -> tuple[Predictions, Predictions, list[Predictions]]:
    """The example's files, or those of some of its rows."""
    rows = list(example.case.rows if rows is None else rows)
    whole = len(rows) == len(example.case.rows)
    orders = example.orders if whole else [range(len(rows))] * len(example.orders)
    old = table(example, example.old, [rows[i] for i in orders[0]], "old", name="old", dtype=dtype)
    new = table(example, example.new, [rows[i] for i in orders[1]], "new", name="new", dtype=dtype)
    controls = [
        table(example, side, [rows[i] for i in order], place, name=f"control{place}", dtype=dtype)
        for place, (side, order) in enumerate(zip(example.controls, orders[2:], strict=True))
    ]
    return old, new, controls


def table(
    example: Example,
    side: Side,
    rows: Sequence[Row],
    which: Literal["old", "new"] | int,
    *,
    name: str,
    dtype: Any = np.float64,
) -> Predictions:
    if isinstance(which, int):
        labels = [row.controls[which] for row in rows]
        scores: list[dict[str, float] | None] = [None] * len(rows)
    else:
        labels = [row.old if which == "old" else row.new for row in rows]
        scores = [row.old_scores if which == "old" else row.new_scores for row in rows]
    columns: dict[str, list[object]] = {}
    if example.ids != "none":
        columns["id"] = [row.id for row in rows]
    if side.has_target:
        columns["target"] = [spelled(row.target, side.spelling) for row in rows]
    if side.own_label:
        columns["label"] = [spelled(label, side.spelling) for label in labels]
    groups = {"group": [row.groups["group"] for row in rows]} if side.has_groups else {}
    matrix = None
    if side.kind is not None:
        matrix = np.array([list((s or {}).values()) for s in scores], dtype=dtype)
    if side.look == "arrays":
        named = side.named and matrix is not None
        return Predictions.from_arrays(
            ids=columns.get("id"),
            targets=columns.get("target"),
            labels=columns.get("label"),
            logits=matrix if side.kind == "logits" else None,
            probabilities=matrix if side.kind == "probabilities" else None,
            class_names=[spelled(c, side.spelling) for c in side.classes] if named else None,
            slices=groups,
            name=name,
        )
    frame = pl.DataFrame({**columns, **groups}, strict=False)
    if matrix is not None and side.look == "wide":
        prefix = "logit_" if side.kind == "logits" else "probability_"
        frame = frame.with_columns(
            pl.Series(f"{prefix}{c}", matrix[:, i]) for i, c in enumerate(side.classes)
        )
    elif matrix is not None:
        inner = pl.Float32 if dtype == np.float32 else pl.Float64
        lists = pl.Series(str(side.kind), matrix.tolist(), dtype=pl.List(inner))
        frame = frame.with_columns(lists)
    return Predictions.from_frame(frame, name=name)


def measured(
    *,
    old: Predictions,
    new: Predictions,
    controls: Sequence[Predictions] = (),
    by: Sequence[str] = (),
    confidence: float = 0.95,
    exponent: float = 1.0,
) -> Comparison:
    """As `compare`, also for models whose few rows happen to have no class in common."""
    plan = CountingPlan(old=old, new=new, controls=tuple(controls), by=tuple(by), exponent=exponent)
    return comparison_from_counts(
        local.count(plan), plan, confidence=confidence, correction="holm", engine="local"
    )


def counted(example: Example, by: Sequence[str] = ()) -> Counted:
    """The counts of a comparison. Its intervals would take most of the time."""
    old, new, controls = tables(example)
    return local.count(
        CountingPlan(
            old=old,
            new=new,
            controls=tuple(controls),
            by=tuple(by),
            exponent=example.case.exponent,
        )
    )


def counts_of_groups(groups: Groups) -> dict[str, FlipCounts]:
    """The counts of each group by its name."""
    values = groups.counts.values
    found = {key: FlipCounts(groups.counts.layout, values[i]) for i, key in enumerate(groups.keys)}
    assert len(found) == len(groups.keys)
    return found
