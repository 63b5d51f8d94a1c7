"""The verdict in words, and every reason for it, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from flipguard.gate import Judgement, Outcome, RuleVerdict, Verdict
from flipguard.render.text import (
    by_value_alone,
    corrections,
    count,
    explanation,
    fewer_than_min_n,
    interval,
    limit,
    number,
)

JUDGEMENTS_SHOWN = 6
IDS_SHOWN = 20
VERDICT_WORDS: dict[Outcome, tuple[str, str]] = {
    "pass": ("Pass", "Every rule of the policy holds"),
    "fail": ("Fail", "At least one rule of the policy is broken"),
    "inconclusive": (
        "Inconclusive",
        "No rule is broken, but these samples do not decide every rule",
    ),
}
OUTCOME_WORDS = {
    "pass": "pass",
    "fail": "fail",
    "inconclusive": "open",
    "not_judged": "not judged",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One rule, or one group of it, and how it was judged."""

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
class Judged:
    """The verdict in words, and every reason for it."""

    outcome: Outcome
    word: str
    sentence: str
    policy: str
    reasons: tuple[Reason, ...]
    flipped: tuple[str, ...]
    more_flipped: int


def judged_of(verdict: Verdict) -> Judged:
    """The verdict with its reasons, the worst first."""
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
    return Judged(
        outcome=verdict.verdict,
        word=VERDICT_WORDS[verdict.verdict][0],
        sentence=_sentence(verdict),
        policy=verdict.policy.name,
        reasons=tuple(reasons),
        flipped=flipped[:IDS_SHOWN],
        more_flipped=max(len(flipped) - IDS_SHOWN, 0),
    )


def _sentence(verdict: Verdict) -> str:
    """What the verdict means; sampling error is named only if intervals decided."""
    told = VERDICT_WORDS[verdict.verdict][1]
    deciding = [rule for rule in verdict.rules if rule.verdict == verdict.verdict]
    by_interval = [rule.rule.judge != "point" for rule in deciding]
    holds = all(by_interval) if verdict.verdict == "pass" else any(by_interval)
    whole = verdict.verdict != "inconclusive" and deciding and holds
    alone = by_value_alone(verdict) if verdict.verdict == "pass" else ""
    if whole:
        told = f"{told}, even allowing for sampling error"
    elif alone:
        told = f"{told} ({alone})"
    return f"{told}. {corrections(verdict)}".strip()


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
            told = count(rest - listed, "further group" if listed else "group")
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
    return Reason(
        outcome=judgement.verdict,
        word=OUTCOME_WORDS[judgement.verdict],
        metric=rule.metric,
        by=rule.by,
        group=judgement.group,
        limit=limit(rule),
        value=found["value"],
        text=number(rule.metric, judgement.value),
        low=found["low"],
        interval=interval(rule.metric, judgement.low, judgement.high),
        why=explanation(judgement),
    )
