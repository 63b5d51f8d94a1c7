"""The verdict with its reasons, and the groups of each column, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from flipguard.comparison import Comparison
from flipguard.gate import Judgement, Outcome, RuleVerdict, Verdict
from flipguard.groups import Correction, Group, Grouping, grouping_of
from flipguard.render.numbers import Number
from flipguard.render.words import (
    OUTCOME_WORDS,
    corrections,
    explanation,
    fewer_than_min_n,
    judged_numbers,
    limit,
    little_data,
    number,
    plural,
    verdict_sentence,
)

JUDGEMENTS_SHOWN = 6
IDS_SHOWN = 20

MOST_GROUPS = 300
CORRECTED = {
    "holm": "after Holm's correction over the groups",
    "benjamini-hochberg": "after Benjamini and Hochberg's correction over the groups",
    "none": "without a correction over the groups",
}
CHANGES = {"regressed": "regressed", "improved": "improved", None: ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One rule, or one group of a rule, and how it was judged."""

    outcome: str
    word: str
    metric: str
    by: str | None
    group: str | None
    limit: str
    value: float | None
    text: str
    low: float | None
    interval: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictSection:
    """The verdict in words, with its reasons."""

    outcome: Outcome
    word: str
    sentence: str
    policy: str
    reasons: tuple[Reason, ...]
    flipped: tuple[str, ...]
    more_flipped: int


def verdict_section(verdict: Verdict) -> VerdictSection:
    """The verdict with its reasons, worst first."""
    reasons = [reason for rule in verdict.rules for reason in _reasons(rule)]
    flipped: tuple[str, ...] = ()
    if verdict.pinned is not None:
        flipped = verdict.pinned.flipped
        reasons.append(
            Reason(
                outcome=verdict.pinned.verdict,
                word=OUTCOME_WORDS[verdict.pinned.verdict],
                metric="pinned samples",
                by=None,
                group=None,
                limit="no flip",
                value=float(len(flipped)),
                text=f"{len(flipped):,} of {verdict.pinned.n:,}",
                low=None,
                interval="",
                why="",
            )
        )
    order = ("fail", "inconclusive", "pass", "not_judged")
    reasons.sort(key=lambda reason: order.index(reason.outcome))
    return VerdictSection(
        outcome=verdict.verdict,
        word=OUTCOME_WORDS[verdict.verdict].capitalize(),
        sentence=f"{verdict_sentence(verdict)}. {corrections(verdict)}".strip(),
        policy=verdict.policy.name,
        reasons=tuple(reasons),
        flipped=flipped[:IDS_SHOWN],
        more_flipped=max(len(flipped) - IDS_SHOWN, 0),
    )


def _reasons(rule: RuleVerdict) -> list[Reason]:
    if rule.rule.by is None:
        return [_reason(judgement) for judgement in rule.judgements]
    worst = [j for j in rule.judgements if j.verdict in ("fail", "inconclusive")]
    reasons = [_reason(judgement) for judgement in worst[:JUDGEMENTS_SHOWN]]
    shown = worst[:JUDGEMENTS_SHOWN]
    for outcome in OUTCOME_WORDS:
        rest = sum(j.verdict == outcome for j in rule.judgements)
        listed = sum(j.verdict == outcome for j in shown)
        if rest > listed:
            few = fewer_than_min_n(rule) if outcome == "not_judged" else ""
            weakest = rule.on_little_data
            if weakest is not None and weakest.verdict == outcome:
                few = "; ".join(part for part in (few, little_data(rule)) if part)
            told = plural(rest - listed, "further group" if listed else "group")
            shared = rule.verdict if rest == len(rule.judgements) else outcome
            reasons.append(
                Reason(
                    outcome=shared,
                    word=OUTCOME_WORDS[shared],
                    metric=rule.rule.metric,
                    by=rule.rule.by,
                    group=None,
                    limit=limit(rule.rule),
                    value=None,
                    text=told,
                    low=None,
                    interval="",
                    why=few,
                )
            )
    return reasons


def _reason(judgement: Judgement) -> Reason:
    rule = judgement.rule
    found = judgement.as_json()
    text, ends = judged_numbers(judgement)
    return Reason(
        outcome=judgement.verdict,
        word=OUTCOME_WORDS[judgement.verdict],
        metric=rule.metric,
        by=rule.by,
        group=judgement.group,
        limit=limit(rule),
        value=found["value"],
        text=text,
        low=found["low"],
        interval=ends,
        why=explanation(judgement),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """The flips in one group, and whether it regressed or improved significantly."""

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
    """One table per group-by column, and one by class if targets are known."""
    groupings = dict(result.by)
    if not _targets(result) & set(groupings):
        found = _by_target(result)
        groupings = {"target": found, **groupings} if found is not None else groupings
    return tuple(_table(grouping) for grouping in groupings.values() if len(grouping))


def _targets(result: Comparison) -> set[str]:
    """The names of the target column in the group-by columns of a user."""
    sides = () if result.plan is None else result.plan.sides
    return {"target", *(side.target for side in sides if side.target is not None)}


def _by_target(result: Comparison) -> Grouping | None:
    """The groups by class, counted only for the page; None without targets or rows."""
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
