"""Updates by design: predictions with exactly the flips that a test asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flipguard import Policy, Predictions, Verdict, check, compare


@dataclass(frozen=True, kw_only=True)
class Flips:
    """How many samples of each kind an update, or a group of it, has."""

    both_right: int = 0
    negative: int = 0
    positive: int = 0
    wrong_same: int = 0
    wrong_different: int = 0
    unlabelled_same: int = 0
    unlabelled_different: int = 0

    @property
    def n(self) -> int:
        return sum(getattr(self, name) for name in self.__dataclass_fields__)

    def rows(self) -> list[tuple[str | None, str, str]]:
        """(target, old, new) of every sample: a is right, b and c are wrong."""
        return [
            *[("a", "a", "a")] * self.both_right,
            *[("a", "a", "b")] * self.negative,
            *[("a", "b", "a")] * self.positive,
            *[("a", "b", "b")] * self.wrong_same,
            *[("a", "b", "c")] * self.wrong_different,
            *[(None, "b", "b")] * self.unlabelled_same,
            *[(None, "b", "c")] * self.unlabelled_different,
        ]


def update(
    groups: Flips | Mapping[str, Flips],
    *,
    column: str = "group",
    slices: Mapping[str, Sequence[object]] | None = None,
    targets: bool = True,
    ids: bool = True,
) -> tuple[Predictions, Predictions]:
    """Old and new with these flips, in the groups of a column."""
    named = groups if isinstance(groups, Mapping) else {"all": groups}
    rows = [(name, *row) for name, flips in named.items() for row in flips.rows()]
    shared: dict[str, Any] = {"ids": [f"s{i}" for i in range(len(rows))] if ids else None}
    if targets:
        shared["targets"] = [row[1] for row in rows]
    old = Predictions.from_arrays(
        labels=[row[2] for row in rows],
        slices={column: [row[0] for row in rows], **(slices or {})},
        name="old",
        **shared,
    )
    new = Predictions.from_arrays(labels=[row[3] for row in rows], name="new", **shared)
    return old, new


def policy(*rules: Mapping[str, Any], confidence: float = 0.95) -> Policy:
    return Policy.from_dict({"confidence": confidence, "rule": [dict(rule) for rule in rules]})


def judged(
    groups: Flips | Mapping[str, Flips], *rules: Mapping[str, Any], confidence: float = 0.95
) -> Verdict:
    """The verdict of rules on an update with these flips."""
    old, new = update(groups)
    rules_read = policy(*rules, confidence=confidence)
    return check(
        compare(old=old, new=new, by=rules_read.by, confidence=confidence),
        rules_read,
    )
