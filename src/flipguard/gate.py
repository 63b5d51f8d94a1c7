"""The gate: judge a comparison by a policy.

How a verdict is shown belongs to `flipguard.render`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from flipguard.comparison import Comparison
from flipguard.corrections import failing_alphas
from flipguard.errors import InputError, PolicyError, listed
from flipguard.estimates import Estimate
from flipguard.formatting import finite_or_none, json_text
from flipguard.groups import Group
from flipguard.inconclusive import (
    NO_FLIP_OF_CONTROL,
    no_interval,
    no_update_exceeds,
    why_inconclusive,
)
from flipguard.little_data import largest_loss
from flipguard.metrics import METRICS
from flipguard.pinned import PinnedVerdict, judge_pinned
from flipguard.planning import Question, samples_needed
from flipguard.policy import Policy, Rule
from flipguard.policy_checks import blind_rules, check_columns, check_judgeable

if TYPE_CHECKING:
    from flipguard.render.display import VerdictDisplay

Outcome = Literal["pass", "fail", "inconclusive"]
GroupOutcome = Literal["pass", "fail", "inconclusive", "not_judged"]
SCHEMA = "flipguard.verdict/1"
SEVERITY: dict[GroupOutcome, int] = {"fail": 0, "inconclusive": 1, "pass": 2, "not_judged": 3}
RULE_COLUMNS = {
    **dict.fromkeys(("metric", "by", "group"), pl.String),
    **dict.fromkeys(("min", "max", "value", "low", "high"), pl.Float64),
    "n": pl.Int64,
    "verdict": pl.String,
}
EXIT_CODES: dict[Outcome, int] = {"pass": 0, "fail": 1, "inconclusive": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One rule applied to one group.

    With a correction, the end of the interval that could fail is the corrected one.
    """

    rule: Rule
    group: str | None
    value: float
    low: float
    high: float
    n: int
    verdict: GroupOutcome
    correction: str = "none"
    samples_needed_even: int | None = None
    samples_needed_90: int | None = None
    reason: str | None = None
    # Of a rule that passes on little data: the worst value of this group that is not excluded.
    not_excluded: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return a row of the verdict's JSON."""
        row: dict[str, Any] = {
            "metric": self.rule.metric,
            "by": self.rule.by,
            "group": self.group,
            "limit": self.rule.limit,
            "value": finite_or_none(self.value),
            "low": finite_or_none(self.low),
            "high": finite_or_none(self.high),
            "n": self.n,
            "verdict": self.verdict,
            "judge": self.rule.judge,
        }
        if self.rule.level == "advisory":
            row["level"] = self.rule.level
        if self.correction != "none":
            row["correction"] = self.correction
        if self.verdict == "inconclusive":
            row["samples_needed_even"] = self.samples_needed_even
            row["samples_needed_90"] = self.samples_needed_90
        if self.reason is not None:
            row["reason"] = self.reason
        if self.not_excluded is not None:
            row["not_excluded"] = self.not_excluded
        return row


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleVerdict:
    """A rule with its judgements, worst first."""

    rule: Rule
    verdict: Outcome
    judgements: tuple[Judgement, ...]

    @property
    def on_little_data(self) -> Judgement | None:
        """The judgement with the largest loss that was not excluded, if the rule passes on it."""
        return next((j for j in self.judgements if j.not_excluded is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Verdict:
    """Whether the update may ship: the worst outcome of its rules."""

    comparison: Comparison
    policy: Policy
    rules: tuple[RuleVerdict, ...]
    pinned: PinnedVerdict | None = None

    @property
    def verdict(self) -> Outcome:
        """The worst outcome of the blocking rules and the pinned samples."""
        outcomes: list[Outcome] = [rule.verdict for rule in self.blocking]
        if self.pinned is not None:
            outcomes.append(self.pinned.verdict)
        return min(outcomes, key=lambda outcome: SEVERITY[outcome])

    @property
    def blocking(self) -> tuple[RuleVerdict, ...]:
        """The rules that decide the verdict; all others are advisory."""
        return tuple(rule for rule in self.rules if rule.rule.level == "blocking")

    @property
    def advisory(self) -> tuple[RuleVerdict, ...]:
        """The rules that are reported only."""
        return tuple(rule for rule in self.rules if rule.rule.level == "advisory")

    @property
    def exit_code(self) -> int:
        """0 for pass, 1 for fail, 3 for inconclusive; 2 is for input that could not be judged."""
        return EXIT_CODES[self.verdict]

    def __bool__(self) -> bool:
        """Return whether the update may ship, so that `if verdict:` never ships a failed one."""
        return self.verdict == "pass"

    def __repr__(self) -> str:
        outcomes = [rule.verdict for rule in self.rules]
        told = ", ".join(f"{outcomes.count(o)} {o}" for o in EXIT_CODES if o in outcomes)
        return f"<Verdict {self.verdict!r} by {self.policy.name!r}, rules: {told or 'none'}>"

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        """Return the tables that a notebook shows."""
        return self._display().html()

    def summary(self) -> str:
        """Return what `flipguard gate` prints."""
        return self._display().text()

    def to_markdown(self) -> str:
        """Return the verdict as Markdown for a pull request."""
        return self._display().markdown()

    def to_frame(self) -> pl.DataFrame:
        """Return one row per rule and group, in the order of the policy, worst group first."""
        rows = [
            (*(j.rule.metric, j.rule.by, j.group, j.rule.min, j.rule.max), *_numbers(j))
            for rule in self.rules
            for j in rule.judgements
        ]
        if self.pinned is not None:
            flipped, ends = len(self.pinned.flipped), (math.nan, math.nan)
            numbers = (flipped, *ends, self.pinned.n, self.pinned.verdict)
            rows.append(("pinned", None, None, None, 0, *numbers))
        return pl.DataFrame(rows, schema=RULE_COLUMNS, orient="row", strict=False)

    def _display(self) -> VerdictDisplay:
        # Rendering is built on verdicts, so this import goes up and is made when it is needed.
        from flipguard.render.display import VerdictDisplay

        return VerdictDisplay(self)

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict as the values of its JSON document."""
        rows = [j.as_json() for rule in self.rules for j in rule.judgements]
        if self.pinned is not None:
            rows.append(self.pinned.as_json())
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "policy": self.policy.name,
            "confidence": self.policy.confidence,
            "correction": self.policy.correction,
            "rules": rows,
            "comparison": self.comparison.as_dict(),
        }

    def to_json(self) -> str:
        """Return the verdict as a JSON document."""
        return json_text(self.as_dict())


def _numbers(judged: Judgement) -> tuple[Any, ...]:
    return (judged.value, judged.low, judged.high, judged.n, judged.verdict)


def check(result: Comparison, policy: Policy | str | os.PathLike[str]) -> Verdict:
    """Judge a comparison by a policy, or by the policy in a file.

    Groups that the policy needs and the comparison does not have are counted now.

    >>> from flipguard import Policy, Predictions, check, compare
    >>> target = [0, 1] * 500
    >>> old = Predictions.from_arrays(labels=[0, 1] * 500, targets=target)
    >>> new = Predictions.from_arrays(labels=[0, 1] * 490 + [1, 0] * 10, targets=target)
    >>> rule = {"metric": "negative_flip_rate", "max": 0.05}
    >>> check(compare(old=old, new=new), Policy.from_dict({"rule": [rule]})).verdict
    'pass'
    """
    if not isinstance(result, Comparison):
        raise InputError(
            f"Expected `result` to be a Comparison, but got {type(result).__name__}; make one with "
            "flipguard.compare."
        )
    if isinstance(policy, str | os.PathLike):
        policy = Policy.read(policy)
    if not isinstance(policy, Policy):
        raise PolicyError(
            f"Expected `policy` to be a Policy or the path of one, but got {type(policy).__name__};"
            " use Policy.read or Policy.from_dict."
        )
    if result.plan is not None:
        check_columns(policy, old=result.plan.old, new=result.plan.new)
        result = result.grouped_by(policy.by)
    check_judgeable(result, policy)
    # A comparison that was judged before has the notes already.
    if notes := [note for note in blind_rules(result, policy) if note not in result.notes]:
        result = replace(result, notes=(*result.notes, *notes))
    groups = [_groups(result, rule, policy) for rule in policy.rules]
    judged = [
        [group for group in listed if group[rule.metric].n >= rule.min_n]
        for rule, listed in zip(policy.rules, groups, strict=True)
    ]
    alphas = failing_alphas(policy, judged)
    rules = tuple(
        _judge_rule(rule, listed, large, errors, policy)
        for rule, listed, large, errors in zip(policy.rules, groups, judged, alphas, strict=True)
    )
    pinned = None
    if policy.pinned is not None:
        n, flipped = judge_pinned(result, policy.pinned)
        pinned = PinnedVerdict(
            verdict="fail" if flipped else "pass",
            n=n,
            flipped=tuple(flipped),
            file=str(policy.pinned),
        )
    return Verdict(comparison=result, policy=policy, rules=rules, pinned=pinned)


def _judge_rule(
    rule: Rule,
    groups: Sequence[Group],
    judged: Sequence[Group],
    alphas: Sequence[float],
    policy: Policy,
) -> RuleVerdict:
    found = [
        _judge_group(rule, group, alpha, policy)
        for group, alpha in zip(judged, alphas, strict=True)
    ]
    judgements = _planned(rule, found, judged, alphas, policy.confidence)
    judgements += [
        _not_judged(rule, group, policy.confidence)
        for group in groups
        if group[rule.metric].n < rule.min_n
    ]
    judgements.sort(key=lambda j: (SEVERITY[j.verdict], -_excess(j)))
    outcomes: list[Outcome] = [j.verdict for j in judgements if j.verdict != "not_judged"]
    # If no group is large enough, nothing was shown, which is not a pass.
    verdict: Outcome = min(outcomes, key=lambda v: SEVERITY[v], default="inconclusive")
    if verdict == "pass":
        ends = [(j.value, j.low, j.high, j.verdict != "not_judged") for j in judgements]
        for i, end in largest_loss(rule, ends).items():
            judgements[i] = replace(judgements[i], not_excluded=end)
    return RuleVerdict(rule=rule, verdict=verdict, judgements=tuple(judgements))


def _groups(result: Comparison, rule: Rule, policy: Policy) -> Sequence[Group]:
    if rule.by is None:
        return [result.whole]
    if rule.by not in result.by:
        raise PolicyError(
            f"{policy.name} judges groups of '{rule.by}', but the comparison is not grouped by "
            f"that column; compare with by=[{rule.by!r}]."
        )
    grouping = result.by[rule.by]
    _refuse_missing_groups(rule, {group.name: group for group in grouping}, policy)
    if rule.only is None:
        return list(grouping)
    known = {group.name: group for group in grouping}
    absent = [name for name in rule.only if name not in known]
    if absent:
        raise PolicyError(
            f"{policy.name} judges group {listed(absent)} of '{rule.by}', but it has no samples; "
            f"use one of the groups {listed(known, most=8)}."
        )
    return [known[name] for name in rule.only]


def _refuse_missing_groups(rule: Rule, known: Mapping[str, Group], policy: Policy) -> None:
    """Refuse groups that the rule requires but cannot judge."""
    for name in rule.require or ():
        where = f"{policy.name} requires group {listed([name])} of '{rule.by}'"
        if name not in known:
            raise PolicyError(
                f"{where}, but it has no samples; add them, or remove it from `require` (there "
                f"are the groups {listed(known, most=8)})."
            )
        n = known[name][rule.metric].n
        if n < max(rule.min_n, 1):
            least = f"min_n = {rule.min_n:,}" if rule.min_n else "at least one"
            raise PolicyError(
                f"{where}, but {rule.metric} has only {n:,} samples there instead of {least}; add "
                "samples, or remove it from `require`."
            )


def _judge_group(rule: Rule, group: Group, alpha: float, policy: Policy) -> Judgement:
    """Judge one group against the limits; `alpha` is the error rate at which it may fail."""
    metric, confidence = METRICS[rule.metric], policy.confidence
    estimate = _estimate(rule, group, confidence)
    judgement = replace(
        _undecided(rule, group, estimate),
        correction=policy.correction_of(rule) if rule.judge == "interval" else "none",
        reason=NO_FLIP_OF_CONTROL if math.isinf(estimate.value) else None,
    )
    lowest, highest = rule.ends
    value, low, high = estimate.value, estimate.low, estimate.high
    if not estimate.is_defined:
        return replace(
            judgement, low=math.nan, high=math.nan, reason=f"{metric.name} is undefined here"
        )
    if never_exceeded := no_update_exceeds(rule, group):
        return replace(judgement, reason=never_exceeded)
    if rule.judge == "point":
        return replace(judgement, verdict="pass" if lowest <= value <= highest else "fail")
    # The corrected interval, which is wider, decides a fail; the plain one decides a pass. A value
    # can fail only if it lies beyond a limit, and then only the end nearer to that limit matters.
    if 1.0 - alpha != confidence and not lowest <= value <= highest:
        wide = group.sample.interval(metric, 1.0 - alpha)
        low, high = (wide[0], high) if value > highest else (low, wide[1])
    judgement = replace(judgement, low=low, high=high)
    if math.isnan(low) or math.isnan(high):
        return replace(judgement, reason=no_interval(group))
    if low >= lowest and high <= highest:
        return replace(judgement, verdict="pass")
    if low > highest or high < lowest:
        return replace(judgement, verdict="fail")
    return judgement


def _undecided(rule: Rule, group: Group, estimate: Estimate) -> Judgement:
    """Return the estimate of a group as a judgement that decides nothing."""
    return Judgement(
        rule=rule,
        group=group.name if rule.by is not None else None,
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        n=estimate.n,
        verdict="inconclusive",
    )


def _estimate(rule: Rule, group: Group, confidence: float) -> Estimate:
    # The comparison has estimated all groups at once, which is many times faster.
    if confidence == group.confidence:
        return group[rule.metric]
    return group.sample.estimate(METRICS[rule.metric], confidence)


def _planned(
    rule: Rule,
    found: Sequence[Judgement],
    groups: Sequence[Group],
    alphas: Sequence[float],
    confidence: float,
) -> list[Judgement]:
    """Add to each inconclusive judgement the number of samples it still needs, and the reason."""
    metric = METRICS[rule.metric]
    lowest, highest = rule.ends
    undecided = [i for i, j in enumerate(found) if j.verdict == "inconclusive" and j.reason is None]
    questions = [
        Question(
            sample=groups[i].sample,
            value=found[i].value,
            lowest=lowest,
            highest=highest,
            passing=confidence,
            failing=1.0 - alphas[i],
        )
        for i in undecided
    ]
    needed = dict(zip(undecided, samples_needed(metric, questions), strict=True))
    return [
        replace(
            judgement,
            samples_needed_even=needed[i][0],
            samples_needed_90=needed[i][1],
            reason=why_inconclusive(
                rule, groups[i], (judgement.value, judgement.high), needed[i], confidence
            ),
        )
        if i in needed
        else judgement
        for i, judgement in enumerate(found)
    ]


def _not_judged(rule: Rule, group: Group, confidence: float) -> Judgement:
    estimate = _estimate(rule, group, confidence)
    return replace(
        _undecided(rule, group, estimate),
        verdict="not_judged",
        reason=f"only {estimate.n:,} of min_n = {rule.min_n:,}",
    )


def _excess(judgement: Judgement) -> float:
    """Return how far a value lies beyond its limit, to sort judgements with the same verdict."""
    rule, value = judgement.rule, judgement.value
    if math.isnan(value):
        return -math.inf
    above = value - rule.max if rule.max is not None else -math.inf
    below = rule.min - value if rule.min is not None else -math.inf
    return max(above, below)
