"""Kinds of rows: what is right, what differs, and which sums follow from that.

A labelled row has a predicted class and a target. A graded row says itself whether it is right.
Both engines count rows of every kind in the same way, by the expressions that its class states.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import polars as pl

from flipguard.counts import ANSWERS, CELLS, NO_ANSWER, SIDES, UNLABELLED, grade_name
from flipguard.engines.grades import RIGHT
from flipguard.engines.plan import LABELS, NEW, OLD, TARGET, CountingPlan, grade_column

SUMMED = (*CELLS, *UNLABELLED)


def total(condition: pl.Expr) -> pl.Expr:
    """The number of rows that meet a condition; null does not."""
    return condition.sum().cast(pl.Int64)


class RowKind(ABC):
    """One kind of rows, as expressions over a paired table."""

    @abstractmethod
    def is_known(self) -> pl.Expr:
        """Whether it is known which models are right."""

    @abstractmethod
    def is_right(self, label: str) -> pl.Expr:
        """Whether a model is right; null where that is unknown."""

    @abstractmethod
    def differs(self, label: str = NEW) -> pl.Expr:
        """Whether a model's answer is not that of old."""

    @abstractmethod
    def answer(self, label: str) -> pl.Expr:
        """What a list of flips shows of a model."""

    @abstractmethod
    def cell_sums(self, label: str = NEW, names: tuple[str, ...] = SUMMED) -> list[pl.Expr]:
        """The counts of old against one other model, under these names."""

    @property
    def two_answers_may_be_right(self) -> bool:
        """Whether the cells do not tell how often answers differ."""
        return False

    def answer_sums(self, label: str, names: tuple[str, ...]) -> list[pl.Expr]:
        """The `ANSWERS` of another model, under these names, if the cells do not tell them."""
        if not self.two_answers_may_be_right:
            return []
        was, other = self.is_right(OLD), self.differs(label)
        cells = (was & ~other, was & other, ~was & ~other, ~was & other)
        return [total(cell).alias(name) for cell, name in zip(cells, names, strict=True)]

    def own_sums(self) -> list[pl.Expr]:
        """The sums of old and new that only this kind of rows has."""
        return []

    def is_listed(self) -> pl.Expr:
        """Whether a row is in the list of flips."""
        return self.differs()

    def is_negative_flip(self, label: str = NEW) -> pl.Expr:
        """Whether old is right and a model is not; null where that is unknown."""
        return self.is_right(OLD) & ~self.is_right(label)

    def cell_index(self) -> pl.Expr:
        """The index of a row's cell among `CELLS` and `UNLABELLED`."""
        return (
            pl.when(~self.is_known())
            .then(pl.when(self.differs()).then(6).otherwise(5))
            .when(self.is_negative_flip())
            .then(1)
            .when(self.is_right(OLD))
            .then(0)
            .when(self.is_right(NEW))
            .then(2)
            .when(self.differs())
            .then(4)
            .otherwise(3)
            .cast(pl.Int8)
        )


class Labelled(RowKind):
    """Rows with a predicted class, which is right if it is the target."""

    def is_known(self) -> pl.Expr:
        return pl.col(TARGET).is_not_null()

    def is_right(self, label: str) -> pl.Expr:
        return pl.col(label) == pl.col(TARGET)

    def differs(self, label: str = NEW) -> pl.Expr:
        return pl.col(OLD) != pl.col(label)

    def answer(self, label: str) -> pl.Expr:
        return pl.col(label)

    def cell_sums(self, label: str = NEW, names: tuple[str, ...] = SUMMED) -> list[pl.Expr]:
        same, unknown = ~self.differs(label), pl.col(TARGET).is_null()

        # A comparison with a null target is null, and sums pass over it. Four sums and two lengths
        # give the seven cells with fewer passes over the data than seven masks would.
        both_right = total(self.is_right(OLD) & self.is_right(label))
        n_old_right, n_new_right = total(self.is_right(OLD)), total(self.is_right(label))
        same_unlabelled = total(same & unknown)
        n_unlabelled = pl.col(TARGET).null_count().cast(pl.Int64)
        n_labelled = pl.len().cast(pl.Int64) - n_unlabelled
        negative, positive = n_old_right - both_right, n_new_right - both_right
        wrong_same = total(same) - same_unlabelled - both_right
        cells = {
            "both_right": both_right,
            "negative_flip": negative,
            "positive_flip": positive,
            "wrong_same": wrong_same,
            "wrong_different": n_labelled - both_right - negative - positive - wrong_same,
            "unlabelled_same": same_unlabelled,
            "unlabelled_different": n_unlabelled - same_unlabelled,
        }
        return [cells[cell].alias(name) for cell, name in zip(SUMMED, names, strict=True)]


@dataclass(frozen=True, slots=True)
class Graded(RowKind):
    """Rows with a grade; `has_labels` says whether they also have answers to compare.

    Without answers, models differ where one is right and the other is not.
    """

    has_labels: bool

    def is_known(self) -> pl.Expr:
        return pl.lit(True)

    def is_right(self, label: str) -> pl.Expr:
        return pl.col(grade_column(label)) == RIGHT

    def differs(self, label: str = NEW) -> pl.Expr:
        if self.has_labels:
            # Where an error or a refusal has left no answer, two missing answers are the same.
            return pl.col(OLD).ne_missing(pl.col(label))
        return self.is_right(OLD) != self.is_right(label)

    def answer(self, label: str) -> pl.Expr:
        return pl.col(label if self.has_labels else grade_column(label))

    def is_listed(self) -> pl.Expr:
        # Two right answers may differ, and one answer may get two grades.
        was, now = self.is_right(OLD), self.is_right(NEW)
        return (was != now) | (~was & ~now & self.differs())

    def cell_sums(self, label: str = NEW, names: tuple[str, ...] = SUMMED) -> list[pl.Expr]:
        was, now, other = self.is_right(OLD), self.is_right(label), self.differs(label)
        nothing = pl.lit(0, dtype=pl.Int64)
        sums = [
            total(was & now),
            total(was & ~now),
            total(~was & now),
            total(~was & ~now & ~other),
            total(~was & ~now & other),
            nothing,
            nothing,
        ]
        return [one.alias(name) for one, name in zip(sums, names, strict=True)]

    @property
    def two_answers_may_be_right(self) -> bool:
        return self.has_labels

    def own_sums(self) -> list[pl.Expr]:
        shares = [
            total(pl.col(grade_column(label)) == reason).alias(grade_name(side, reason))
            for side, label in zip(SIDES, LABELS, strict=True)
            for reason in NO_ANSWER
        ]
        return [*shares, *self.answer_sums(NEW, ANSWERS)]


LABELLED = Labelled()


def row_kind(plan: CountingPlan) -> RowKind:
    """The kind of the rows of a plan."""
    return Graded(plan.layout.has_labels) if plan.layout.graded else LABELLED
