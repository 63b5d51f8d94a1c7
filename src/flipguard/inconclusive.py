"""Reasons of inconclusive judgements, where a number of further samples is not enough."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Literal

from flipguard.comparison import Group
from flipguard.metric_kinds import ControlRatioKind, MeanKind, RateKind
from flipguard.metrics import METRICS, Metric
from flipguard.policy import Rule

Needed = tuple[int | None, int | None]


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
    )


def _never_inside(rule: Rule, value: float) -> str | None:
    """The reason if the limit is the smallest or largest possible value of the metric."""
    metric = METRICS[rule.metric]
    least, most = metric.range
    for limit, end in ((rule.max, least), (rule.min, most)):
        if limit == end == value:
            case = "flip" if _counts_flips(metric) else "case"
            # The other intervals may hold their best value after one case as well.
            sure = isinstance(metric.kind, RateKind | ControlRatioKind | MeanKind)
            return (
                f"no number of samples passes a limit of {_number(metric, limit)}"
                + (f", and one {case} fails it" if sure else "")
                + f'; with judge = "point" it passes as long as there is no {case}'
            )
    return None


def _never_below(rule: Rule, value: float, high: float) -> str | None:
    """The reason if the metric has no largest value, so its interval has no upper end."""
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
    """The reason if these samples are too few to pass this limit at any rate."""
    metric = METRICS[rule.metric]
    end, most = group.sample.end_at_zero(metric, confidence)
    if rule.max is not None and end > rule.max:
        limit, told = rule.max, f"{_at_best(metric, 0.0)} the upper end would be {_percent(end)}"
    elif rule.min is not None and most - end < rule.min:
        limit, told = (
            rule.min,
            f"{_at_best(metric, most)} the lower end would be {_percent(most - end)}",
        )
    else:
        return None
    clusters = group.sample.clusters
    found, word = (group.n, "sample") if clusters is None else (len(clusters), "cluster")
    few = f"1 {word} is" if found == 1 else f"{found:,} {word}s are"
    reason = f"{few} too few for a limit of {_percent(limit)}: even {told}"
    even, sure = (
        None if more is None else _rounded(found * (1 + more / group.n)) for more in samples
    )
    if even is None:
        return f"{reason}; {_never_decided(rule, group, value)}"
    outcome = expected_outcome(rule, value)
    chances = f"{even:,} {word}s in all are needed"
    if even == sure:
        chances += f" to {outcome}"
    else:
        chances += f" for an even chance to {outcome}"
        chances += f", {sure:,} for 90 %" if sure is not None else ""
    condition = "the rates stay as they are" if clusters is None else "they are like those seen"
    return f"{reason}; at the rate seen ({_percent(value)}), about {chances}, if {condition}"


def _never_decided(rule: Rule, group: Group, value: float) -> str:
    if any(math.isclose(value, limit, abs_tol=1e-12) for limit in rule.limit.values()):
        return "no number of samples decides: the value lies on its limit"
    controls = group.counts.layout.controls
    if isinstance(METRICS[rule.metric].kind, ControlRatioKind) and controls > 1:
        return (
            f"no number of samples decides: the {controls} controls differ too much from seed to "
            "seed; give more controls"
        )
    return "no number of samples decides, if the rates stay as they are"


def _at_best(metric: Metric, rate: float) -> str:
    # Compatibility is the share that does not flip, so its best is 1.
    kept = metric.name.startswith("backward")
    if _counts_flips(metric) and rate == (1.0 if kept else 0.0):
        return "without any flip"
    return f"at {_percent(rate)}"


def _counts_flips(metric: Metric) -> bool:
    whole = not isinstance(metric.kind, MeanKind)  # a mean moves by parts of a flip
    return whole and any(word in metric.name for word in ("flip", "churn", "backward"))


def _number(metric: Metric, value: float) -> str:
    return _percent(value) if metric.percent else f"{value:g}"


def _percent(value: float) -> str:
    """A percentage with three significant digits, or its distance from 100 % with three.

    >>> _percent(0.17904), _percent(0.02), _percent(0.0), _percent(0.9995), _percent(5e-7)
    ('17.9 %', '2 %', '0 %', '99.95 %', '0.00005 %')
    """
    missing = 0.99 < value < 1.0
    share = 100.0 * (1.0 - value if missing else value)
    figures = Decimal(f"{share:.3g}")
    return f"{(100 - figures if missing else figures).normalize():f} %"


def _rounded(number: float) -> int:
    """Round up to two digits and a half (the third is 0 or 5), because the number is a forecast.

    >>> _rounded(183), _rounded(42), _rounded(12345)
    (185, 42, 12500)
    """
    count = math.ceil(number)
    unit = 5 * 10 ** max(len(str(count)) - 3, 0) if count > 99 else 1
    return -(-count // unit) * unit
