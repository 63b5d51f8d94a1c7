"""What breaks: the groups of each column, those that regress beyond chance first."""

from __future__ import annotations

from dataclasses import dataclass

from flipguard.comparison import Comparison, Correction, Group, Grouping
from flipguard.measuring import grouping_of
from flipguard.render.text import number
from flipguard.report.content import Number

MOST_GROUPS = 300
CORRECTED = {
    "holm": "after Holm's correction over the groups",
    "benjamini-hochberg": "after Benjamini and Hochberg's correction over the groups",
    "none": "without a correction over the groups",
}
CHANGES = {"regressed": "regressed", "improved": "improved", None: ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """One group: what flips in it, and whether that leans one way beyond chance."""

    name: str
    n: int
    negative: int | None
    positive: int | None
    rate: Number
    gain: Number
    p_adjusted: float | None
    p_text: str
    change: str
    displacement: Number | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTable:
    """The groups of one column, worst first."""

    column: str
    rate: str
    rows: tuple[GroupRow, ...]
    total: int
    regressed: int
    improved: int
    correction: str


def group_tables(result: Comparison) -> tuple[GroupTable, ...]:
    """A table a column; the classes themselves are always one, where targets are known."""
    groupings = dict(result.by)
    if not _targets(result) & set(groupings):
        found = _by_target(result)
        groupings = {"target": found, **groupings} if found is not None else groupings
    return tuple(_table(grouping) for grouping in groupings.values() if len(grouping))


def _targets(result: Comparison) -> set[str]:
    """The names under which a user may have asked for the classes."""
    sides = () if result.plan is None else result.plan.sides
    return {"target", *(side.target for side in sides if side.target is not None)}


def _by_target(result: Comparison) -> Grouping | None:
    """The groups of the target, counted for the page alone: labels say enough for that."""
    if result.plan is None or not result.layout.has_target:
        return None
    groups = result.with_details(["target_groups"]).target_groups
    if groups is None:
        return None
    correction: Correction = next((g.correction for g in result.by.values()), "holm")
    clustered = result.cluster is not None
    return grouping_of("target", groups, result.confidence, correction, clustered=clustered)


def _table(grouping: Grouping) -> GroupTable:
    rate = "negative_flip_rate"
    if not any(group[rate].is_defined for group in grouping):
        rate = "churn"
    changes = [grouping.change(group) for group in grouping]
    return GroupTable(
        column=grouping.column,
        rate=rate,
        rows=tuple(_row(grouping, group, rate) for group in grouping.groups[:MOST_GROUPS]),
        total=len(grouping),
        regressed=changes.count("regressed"),
        improved=changes.count("improved"),
        correction=CORRECTED[grouping.correction],
    )


def _row(grouping: Grouping, group: Group, rate: str) -> GroupRow:
    known = group.counts.layout.has_target
    p = grouping.p_adjusted.get(group.name)
    p = None if p is None or p != p else p
    distance = group["logit_displacement"]
    return GroupRow(
        name=group.name,
        n=group.n,
        negative=int(group.counts["negative_flip"]) if known else None,
        positive=int(group.counts["positive_flip"]) if known else None,
        rate=Number.of(rate, group[rate]),
        gain=Number.of("accuracy_gain", group["accuracy_gain"]),
        p_adjusted=p,
        p_text=number("mcnemar_p", float("nan") if p is None else p),
        change=CHANGES[grouping.change(group)],
        displacement=Number.of("logit_displacement", distance) if distance.is_defined else None,
    )
