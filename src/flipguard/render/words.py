"""Numbers, verdicts and corrections in words; terminal, Markdown and HTML all take them from here.

The layout of each output belongs to its own module. Percent and points appear only here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from flipguard.comparison import Comparison
from flipguard.controls import NoiseFloor
from flipguard.counts import NO_ANSWER, SIDES
from flipguard.errors import listed, printable
from flipguard.estimates import Estimate
from flipguard.gate import GroupOutcome, Judgement, RuleVerdict, Verdict
from flipguard.inconclusive import expected_outcome, further_needed
from flipguard.metrics import METRICS
from flipguard.policy import Rule

# Differences of rates, which are shown in points.
SIGNED = frozenset({"accuracy_gain", "macro_f1_gain"})
# More than the usual two are shown if a number would otherwise look like the limit of its rule.
MOST_DECIMALS = 6

OUTCOME_WORDS: dict[GroupOutcome, str] = {
    "pass": "pass",
    "fail": "fail",
    "inconclusive": "inconclusive",
    "not_judged": "not judged",
}
# The metrics that every output shows first, in this order. Ratios appear only if a control is
# given, and nothing else asks for them.
KEY_METRICS = (
    "error_rate_old",
    "error_rate_new",
    "accuracy_gain",
    "negative_flip_rate",
    "relative_negative_flip_rate",
    "churn",
)
KEY_RATIOS = ("churn_ratio", "negative_flip_ratio")


def known_metrics(result: Comparison) -> list[str]:
    """Return the names of all metrics that the inputs allow, in the order of the table."""
    return [name for name in METRICS if METRICS[name].needs <= result.layout.available]


def key_metrics(result: Comparison) -> list[str]:
    """Return the names of the metrics to show first, without those that the inputs do not allow.

    Of graded rows, also why answers are missing, where some are.
    """
    known = known_metrics(result)
    missing = [
        f"{reason}_share_{side}"
        for reason in NO_ANSWER
        for side in SIDES
        if any(result[f"{reason}_share_{either}"].value > 0 for either in SIDES)
    ]
    return [name for name in (*KEY_METRICS, *missing, *KEY_RATIOS) if name in known]


def verdict_sentence(verdict: Verdict) -> str:
    """Return which rules failed or are inconclusive, or that every rule holds.

    Sampling error is named only if intervals alone decided.
    """
    outcome = verdict.verdict
    deciding = [rule.rule for rule in verdict.blocking if rule.verdict == outcome]
    names = [rule_name(rule) for rule in deciding]
    if outcome != "pass" and verdict.pinned is not None and verdict.pinned.verdict == outcome:
        names.append("pinned samples")
    by_interval = deciding and all(rule.judge == "interval" for rule in deciding)
    error = ""
    if outcome != "inconclusive" and by_interval and "pinned samples" not in names:
        error = ", even allowing for sampling error"
    if outcome == "pass":
        alone = by_value_alone(verdict)
        return f"Every rule holds{f' ({alone})' if alone else ''}{error}{_advice(verdict)}"
    be = "is" if len(names) == 1 else "are"
    verb = "failed" if outcome == "fail" else f"{be} inconclusive"
    return f"{plural(len(names), 'rule')} {verb}{error}: {', '.join(names)}{_advice(verdict)}"


def _advice(verdict: Verdict) -> str:
    """Return which advisory rules do not hold; empty if all do."""
    broken = [rule for rule in verdict.advisory if rule.verdict != "pass"]
    told = [f"{rule_name(rule.rule)} ({OUTCOME_WORDS[rule.verdict]})" for rule in broken]
    return f"; advisory only: {', '.join(told)}" if told else ""


def rule_name(rule: Rule) -> str:
    """Return the metric of a rule and the column that it groups by.

    >>> rule_name(Rule(metric="churn", max=0.1, by="weather"))
    'churn by weather'
    """
    return rule.metric if rule.by is None else f"{rule.metric} by {printable(rule.by, longest=40)}"


def compared_with_retrains(floor: NoiseFloor) -> str:
    """Return in words whether the update differs from what one more retrain would do."""
    if floor.verdict == "unknown":
        return "unknown"
    if floor.verdict == "within":
        return "as a retrain would"
    word = {"above": "more", "below": "less"}[floor.verdict]
    if METRICS[floor.metric].better == "higher":
        word = {"above": "better", "below": "worse"}[floor.verdict]
    return f"{word} than a retrain would"


def what_controls_show(result: Comparison) -> str:
    """Return the smallest changes that these controls can show, and the smallest with five of them.

    The text is empty with five or more controls, because further ones add little.
    """
    floors = [floor for floor in result.noise_floor if not math.isnan(floor.value)]
    k = len(result.controls)
    if not floors or k >= 5:
        return ""
    if any((floor.low, floor.high) == METRICS[floor.metric].range for floor in floors):
        return f"{k} controls that differ this much cannot show any change; give more controls."
    seen = ", ".join(f"{floor.metric} {100 * floor.shows:.2f}" for floor in floors)
    five = ", ".join(f"{floor.metric} {100 * floor.five_show:.2f}" for floor in floors)
    return (
        f"With {k} controls, the smallest changes that can be told from noise, in points, are "
        f"about: {seen}; with five controls that vary as much: {five}."
    )


def what_ratios_say(result: Comparison) -> str:
    """Return the variation that intervals of ratios to a control include; empty without one."""
    k = len(result.controls)
    if not k:
        return ""
    if k == 1:
        return (
            "Ratios to one control compare these two models, not their recipes: another seed alone "
            "can move a ratio out of its interval. Two or more controls allow for that."
        )
    return f"Intervals of ratios to {k} controls include the variation between training seeds."


def number(metric: str, value: float, *, unit: bool = True, decimals: int = 2) -> str:
    """Return a metric's value: a percentage or points with two decimals, or a plain number.

    >>> number("negative_flip_rate", 0.02314), number("accuracy_gain", 0.0051)
    ('2.31 %', '+0.51 points')
    >>> number("churn_ratio", 0.5), number("mcnemar_p", 1e-9), number("churn", float("nan"))
    ('0.500', '<0.0001', '–')
    >>> number("negative_flip_ratio", float("inf")), number("relative_negative_flip_rate", 25.67)
    ('∞', '2,567.00 %')
    """
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞"
    if metric == "mcnemar_p":
        return "<0.0001" if value < 1e-4 else f"{value:.4f}"
    if metric == "pinned":
        return f"{value:.0f}"
    if not METRICS[metric].percent:
        return _plain_number(value)
    sign, word = ("+", " points") if metric in SIGNED else ("", " %")
    return f"{100 * value:{sign},.{decimals}f}" + (word if unit else "")


def _plain_number(value: float) -> str:
    """Return a number without a unit: three decimals, or none if it is large.

    >>> _plain_number(2.5), _plain_number(123456.7), _plain_number(2.88e24)
    ('2.500', '123,457', '3e+24')
    """
    if abs(value) < 1e3:
        return f"{value:.3f}"
    return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.0e}"


def interval(metric: str, low: float, high: float, *, decimals: int = 2) -> str:
    """Return an interval in the unit of its value, without naming the unit.

    >>> interval("negative_flip_rate", 0.0203, 0.0262)
    '2.03 to 2.62'
    >>> interval("logit_displacement", 1.2, math.inf)
    '1.200 or more'
    """
    if math.isnan(low) or math.isnan(high):
        return ""
    if math.isinf(high):
        return f"{number(metric, low, unit=False, decimals=decimals)} or more"
    ends = (number(metric, end, unit=False, decimals=decimals) for end in (low, high))
    return " to ".join(ends)


def judged_numbers(judgement: Judgement) -> tuple[str, str]:
    """Return a judgement's value and interval, with enough decimals to tell them from its limits.

    With two decimals, a lower end of 0.003 % would look like a limit of 0.
    """
    metric, value, ends = (
        judgement.rule.metric,
        judgement.value,
        (judgement.low, judgement.high),
    )
    different = [
        (x, limit)
        for x in (value, *ends)
        for limit in judgement.rule.limit.values()
        if not math.isnan(x) and not math.isclose(x, limit, abs_tol=1e-12)
    ]
    decimals = max(_decimals(limit) for limit in judgement.rule.limit.values())
    while decimals < MOST_DECIMALS and any(
        number(metric, x, decimals=decimals) == number(metric, limit, decimals=decimals)
        for x, limit in different
    ):
        decimals += 1
    return (
        number(metric, value, decimals=decimals),
        interval(metric, *ends, decimals=decimals),
    )


def _decimals(limit: float) -> int:
    """Return how many decimals a limit has in percent, at least two."""
    exact = (d for d in range(2, MOST_DECIMALS) if math.isclose(round(100 * limit, d), 100 * limit))
    return next(exact, MOST_DECIMALS)


def _limit(metric: str, value: float, *, unit: bool = True) -> str:
    return number(metric, value, unit=unit, decimals=_decimals(value))


def estimate_interval(metric: str, estimate: Estimate) -> str:
    """Return the interval of an estimate in words; empty if there is none."""
    return interval(metric, estimate.low, estimate.high)


def plural(value: float, word: str) -> str:
    """Return a count with its word in the singular or plural.

    >>> plural(1, "sample"), plural(12345, "sample")
    ('1 sample', '12,345 samples')
    """
    return f"{value:,.0f} {word}" + ("" if value == 1 else "s")


def percent(confidence: float) -> str:
    """Return a confidence level in percent, without trailing zeros."""
    return f"{100 * confidence:.10g} %"


def headline(result: Comparison) -> str:
    """Return the update in one sentence."""
    n = plural(result.n, "sample")
    churn = number("churn", result["churn"].value)
    if not result["negative_flip_rate"].is_defined:
        return f"Of {n}, {churn} get another label. Without targets, flips cannot be counted."
    fixed, broken = result.counts["positive_flip"], result.counts["negative_flip"]
    gain = result["accuracy_gain"]
    ends = interval("accuracy_gain", gain.low, gain.high)
    return (
        f"The update fixes {fixed:,.0f} of {n} and breaks {broken:,.0f}; accuracy changes by "
        f"{100 * gain.value:+.2f} points{f' ({ends})' if ends else ''}."
    )


def left_out(result: Comparison) -> list[str]:
    """Return how many rows were left out because some file lacks them."""
    rows = result.rows
    text = []
    if rows.only_old or rows.only_new:
        text.append(
            f"{plural(rows.only_old, 'row')} only in old and "
            f"{plural(rows.only_new, 'row')} only in new were left out"
            + _first_ids(rows.only_old, "old", rows.ids_only_old)
            + _first_ids(rows.only_new, "new", rows.ids_only_new)
        )
    if rows.not_in_control:
        verb = "was" if rows.not_in_control == 1 else "were"
        text.append(f"{plural(rows.not_in_control, 'row')} missing from a control {verb} left out")
    return text


def _first_ids(total: int, side: str, ids: Sequence[object]) -> str:
    """Return the first of the ids that only one side has."""
    more = f" and {total - len(ids):,} more" if total > len(ids) else ""
    return f"; only in {side}: {', '.join(listed([one]) for one in ids)}{more}" if ids else ""


def limit(rule: Rule) -> str:
    """Return the limit of a rule, such as `≤ 2.00 %` or `≥ -0.50 points`."""
    metric = rule.metric
    if rule.min is not None and rule.max is not None:
        return f"{_limit(metric, rule.min, unit=False)} to {_limit(metric, rule.max)}"
    if rule.max is not None:
        return f"≤ {_limit(metric, rule.max)}"
    return f"≥ {_limit(metric, rule.min if rule.min is not None else math.nan)}"


def explanation(judgement: Judgement) -> str:
    """Return the reason of a judgement, and how many more samples an inconclusive one needs."""
    text = []
    if judgement.reason is not None:
        text.append(judgement.reason)
    elif judgement.verdict == "inconclusive":
        needed = (judgement.samples_needed_even, judgement.samples_needed_90)
        text.append(further_needed(needed, expected_outcome(judgement.rule, judgement.value)))
    if judgement.rule.judge == "point" and judgement.verdict in ("pass", "fail"):
        text.append("judged by its value alone")
    if judgement.rule.level == "advisory":
        text.append("advisory")
    return "; ".join(part for part in text if part)


def fewer_than_min_n(rule: RuleVerdict) -> str:
    """Return why some groups of a rule were not judged, and the consequence if none was."""
    text = f"fewer than {rule.rule.min_n:,} samples"
    if all(judgement.verdict == "not_judged" for judgement in rule.judgements):
        text += "; no group is large enough, so the rule is inconclusive"
    return text


def by_value_alone(verdict: Verdict) -> str:
    """Return which rules were judged without their interval; empty if there are none."""
    rules = [rule.rule for rule in verdict.blocking if rule.rule.judge == "point"]
    names = list(dict.fromkeys(rule.metric for rule in rules))
    if not names:
        return ""
    whose = "its value" if len(names) == 1 else "their values"
    return f"judged by {whose} alone: {', '.join(names)}"


CORRECTIONS = {
    "holm": "Holm's correction",
    "benjamini-hochberg": "Benjamini and Hochberg's correction",
}


def corrections(verdict: Verdict) -> str:
    """Return which corrections for many rules or groups were applied; empty without any."""
    text = []
    over_rules = CORRECTIONS.get(verdict.policy.correction)
    if over_rules and sum(rule.rule.judge == "interval" for rule in verdict.rules) > 1:
        text.append(f"Failing is corrected for the number of rules ({over_rules}).")
    for rule in (rule.rule for rule in verdict.rules):
        over_groups = CORRECTIONS.get(verdict.policy.correction_of(rule))
        if rule.by is not None and rule.judge == "interval" and over_groups:
            text.append(
                f"Failing by {rule.metric} is corrected for the number of groups of {rule.by} "
                f"({over_groups})."
            )
    return " ".join(dict.fromkeys(text))
