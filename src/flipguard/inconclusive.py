"""Reasons of inconclusive judgements, in words.

The numbers of further samples belong to `flipguard.planning`.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Literal

from flipguard.groups import Group
from flipguard.metric import Metric
from flipguard.metric_kinds import ControlRatioKind, MeanKind, RateKind, RelativeRateKind
from flipguard.metrics import METRICS
from flipguard.policy import Rule

Needed = tuple[int | None, int | None]
NO_FLIP_OF_CONTROL = "no control has any flip, so the ratio is infinite"


def expected_outcome(rule: Rule, value: float) -> Literal["pass", "fail"]:
    """Return the verdict that further samples lead to, if the rates stay as they are."""
    above, below = (
        rule.max is not None and value > rule.max,
        rule.min is not None and value < rule.min,
    )
    return "fail" if above or below else "pass"


def why_inconclusive(
    rule: Rule, group: Group, found: tuple[float, float], samples: Needed, confidence: float
) -> str | None:
    """Return the reason in words, or None if the numbers of further samples are enough.

    `found` is the value and the upper end of its interval. `samples` are the numbers of further
    samples that decide with a chance of 50 % and of 90 %.
    """
    value, high = found
    return (
        _never_inside(rule, value)
        or _never_below(rule, value, high)
        or _too_few(rule, group, value, samples, confidence)
        or (_never_decided(rule, group, value) if samples[0] is None else None)
        or (_further(rule, group, value, samples) if group.sample.clusters is not None else None)
    )


def no_interval(group: Group) -> str:
    """Return why a metric of this group has no interval."""
    clusters = group.sample.clusters
    if clusters is not None and len(clusters) < 2:
        return "all samples belong to one cluster, so there is no interval"
    return "there are too few samples or clusters for an interval"


def no_update_exceeds(rule: Rule, group: Group) -> str | None:
    """Return the reason if no update of this old model has a value above the rule's limit.

    A relative negative flip rate is at most 1 / (1 - ER_old): the value of an update that breaks
    samples and has no other errors.
    """
    metric = METRICS[rule.metric]
    if rule.max is None or rule.min or not isinstance(metric.kind, RelativeRateKind):
        return None
    counts = group.counts
    most = float(counts.labelled / counts.old_right)
    if rule.max < most:
        return None
    return (
        f"{metric.name} cannot exceed {100 * most:.2f} % if the old model is right on "
        f"{_percent(1.0 / most)} of the samples, so every update would pass; use a smaller `max`"
    )


def further_needed(
    more: Needed,
    outcome: Literal["pass", "fail"],
    *,
    word: str = "sample",
    condition: str = "the rates stay as they are",
) -> str:
    """Return in words how many further samples or clusters decide a rule; empty if none do.

    >>> further_needed((1, 1), "pass")
    'about 1 more sample to pass, if the rates stay as they are'
    """
    even, most = (None if number is None else rounded_up(number) for number in more)
    if even is None:
        return ""
    text = f"about {even:,} more {word}{'' if even == 1 else 's'}"
    if even == most:
        text += f" to {outcome}"
    else:
        text += f" for a 50 % chance to {outcome}"
        text += f", {most:,} for 90 %" if most is not None else ""
    return f"{text}, if {condition}"


def rounded_up(number: int) -> int:
    """Round up to three digits, because the number is a forecast.

    >>> rounded_up(111_683), rounded_up(42)
    (112000, 42)
    """
    unit: int = 10 ** max(len(str(number)) - 3, 0)
    return -(-number // unit) * unit


def _further(rule: Rule, group: Group, value: float, samples: Needed) -> str:
    """Return in words how many more samples, or clusters, are needed."""
    outcome, clusters = expected_outcome(rule, value), group.sample.clusters
    if clusters is None:
        return further_needed(samples, outcome)
    # Count in whole clusters, because more rows of the same clusters add less information.
    each = len(clusters) / float(clusters.rows.sum())
    even, most = (None if more is None else math.ceil(more * each) for more in samples)
    return further_needed(
        (even, most), outcome, word="cluster", condition="they are like those seen"
    )


def _never_inside(rule: Rule, value: float) -> str | None:
    """Return the reason if the limit is the smallest or largest possible value of the metric."""
    metric = METRICS[rule.metric]
    least, most = metric.range
    for limit, end in ((rule.max, least), (rule.min, most)):
        if limit == end == value:
            case = "flip" if _counts_flips(metric) else "case"
            # The other intervals may contain the best value even after one case.
            one_fails = isinstance(metric.kind, RateKind | ControlRatioKind | MeanKind)
            return (
                f"no number of samples can pass a limit of {_number(metric, limit)}"
                + (f", and one {case} fails it" if one_fails else "")
                + f'; with judge = "point" it passes as long as there is no {case}'
            )
    return None


def _never_below(rule: Rule, value: float, high: float) -> str | None:
    """Return the reason if the metric has no largest value, so its interval has no upper end."""
    unbounded = not METRICS[rule.metric].kind.has_largest_value
    if rule.max is None or value > rule.max or not (unbounded and math.isinf(high)):
        return None
    return (
        f"one more sample may have a {rule.metric} of any size, so no number of samples shows that "
        f'the mean is at most {rule.max:g}; judge = "point" judges the value alone'
    )


def _too_few(
    rule: Rule, group: Group, value: float, samples: Needed, confidence: float
) -> str | None:
    """Return the reason if these samples are too few to pass this limit at any rate."""
    metric = METRICS[rule.metric]
    end, most = group.sample.end_at_zero(metric, confidence)
    if rule.max is not None and end > rule.max:
        limit, text = rule.max, f"{_at_best(metric, 0.0)} the upper end would be {_percent(end)}"
    elif rule.min is not None and most - end < rule.min:
        limit, text = (
            rule.min,
            f"{_at_best(metric, most)} the lower end would be {_percent(most - end)}",
        )
    else:
        return None
    clusters = group.sample.clusters
    found, word = (group.n, "sample") if clusters is None else (len(clusters), "cluster")
    few = f"1 {word} is" if found == 1 else f"{found:,} {word}s are"
    reason = f"{few} too few for a limit of {_percent(limit)}: even {text}"
    if samples[0] is None:
        return f"{reason}; {_never_decided(rule, group, value)}"
    more = _further(rule, group, value, samples)
    return f"{reason}; at the rate seen ({_percent(value)}), {more}"


def _never_decided(rule: Rule, group: Group, value: float) -> str:
    if any(math.isclose(value, limit, abs_tol=1e-12) for limit in rule.limit.values()):
        return "no number of samples decides, because the value lies on its limit"
    controls = group.counts.layout.controls
    if isinstance(METRICS[rule.metric].kind, ControlRatioKind) and controls > 1:
        return (
            f"no number of samples decides if the {controls} controls differ as much as here; give "
            "more controls"
        )
    clusters = group.sample.clusters
    if clusters is not None and clusters.rows.min() < clusters.rows.max():
        return (
            "no number of clusters like those seen decides: large clusters have little weight in "
            "the interval, and here they differ from small ones"
        )
    return "no number of samples decides, if the rates stay as they are"


def _at_best(metric: Metric, rate: float) -> str:
    # Compatibility is the share that does not flip, so its best value is 1.
    kept = metric.name.startswith("backward")
    if _counts_flips(metric) and rate == (1.0 if kept else 0.0):
        return "without any flip"
    return f"at {_percent(rate)}"


def _counts_flips(metric: Metric) -> bool:
    whole = not isinstance(metric.kind, MeanKind)  # a mean can change by less than one flip
    return whole and any(word in metric.name for word in ("flip", "churn", "backward"))


def _number(metric: Metric, value: float) -> str:
    return _percent(value) if metric.percent else f"{value:g}"


def _percent(value: float) -> str:
    """Return a percentage with three significant digits, counted from 100 % if it is near.

    >>> _percent(0.17904), _percent(0.02), _percent(0.0), _percent(0.9995), _percent(5e-7)
    ('17.9 %', '2 %', '0 %', '99.95 %', '0.00005 %')
    """
    missing = 0.99 < value < 1.0
    share = 100.0 * (1.0 - value if missing else value)
    figures = Decimal(f"{share:.3g}")
    return f"{(100 - figures if missing else figures).normalize():f} %"
