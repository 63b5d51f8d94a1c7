"""The share of alpha that each rule and each group may use to fail, if a policy has a correction.

Only failing is corrected: the more rules and groups there are, the more likely one of them fails by
chance. Passing needs no correction: all rules and groups must pass, so more of them make it harder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from flipguard import statistics
from flipguard.counts import FloatArray
from flipguard.estimates import p_values
from flipguard.groups import Group
from flipguard.metrics import METRICS
from flipguard.policy import LEVELS, Policy, Rule


def failing_alphas(policy: Policy, judged: Sequence[Sequence[Group]]) -> list[list[float]]:
    """Return, per rule and per judged group, the alpha at which it may fail."""
    alpha = 1.0 - policy.confidence
    raw = [
        _p_values(rule, groups) if _is_corrected(policy, rule) else np.full(len(groups), np.nan)
        for rule, groups in zip(policy.rules, judged, strict=True)
    ]
    adjusted = [
        statistics.corrected(p, policy.correction_of(rule))
        for rule, p in zip(policy.rules, raw, strict=True)
    ]
    alphas = [alpha] * len(adjusted)
    # Advisory rules share their own alpha, so that adding one makes no other rule more lenient.
    for level in LEVELS:
        places = [i for i, rule in enumerate(policy.rules) if rule.level == level]
        shares = rule_alphas([adjusted[i] for i in places], policy.correction, alpha)
        for i, share in zip(places, shares, strict=True):
            alphas[i] = share
    return [
        _group_alphas(p, own, share) if _is_corrected(policy, rule) else [alpha] * len(p)
        for rule, p, own, share in zip(policy.rules, raw, adjusted, alphas, strict=True)
    ]


def rule_alphas(adjusted: Sequence[FloatArray], correction: str, alpha: float) -> list[float]:
    """Return the alpha of each rule, from the p values of its groups adjusted over its groups.

    Holm: when all groups of a rule have failed, the other rules share its alpha. While one of its
    groups could still fail wrongly they may not, or all shares together would exceed `alpha`.
    Benjamini and Hochberg: rules are selected by their smallest p values, and if S of R rules are
    selected, each gets alpha * S / R (Benjamini and Bogomolov, Journal of the Royal Statistical
    Society B 76, 2014). A rule without any p value cannot fail, and is not counted.

    >>> rule_alphas([np.array([0.001]), np.array([0.04, 0.3])], "holm", 0.05)
    [0.025, 0.05]
    """
    part = [p[~np.isnan(p)] for p in adjusted]
    rules = sum(len(p) > 0 for p in part)
    if correction == "none" or rules == 0:
        return [alpha] * len(part)
    if correction == "holm":
        failed = 0
        for largest in sorted(p.max() for p in part if len(p)):
            if failed == rules - 1 or largest > alpha / (rules - failed):
                break
            failed += 1
        last = rules - failed
        # A rule keeps the share at which it failed.
        ranks = {i: k for k, i in enumerate(_by_largest(part)[:failed])}
        return [alpha / (rules - ranks[i] if i in ranks else last) for i in range(len(part))]
    smallest = sorted(p.min() for p in part if len(p))
    selected = max(
        (k for k, p in enumerate(smallest, start=1) if p <= alpha * k / rules), default=1
    )
    return [alpha * selected / rules] * len(part)


def _by_largest(part: Sequence[FloatArray]) -> list[int]:
    return sorted((i for i, p in enumerate(part) if len(p)), key=lambda i: float(part[i].max()))


def _is_corrected(policy: Policy, rule: Rule) -> bool:
    # With judge = "point" there is no interval to widen.
    return policy.correction_of(rule) != "none" and rule.judge == "interval"


def _group_alphas(raw: FloatArray, adjusted: FloatArray, alpha: float) -> list[float]:
    # A group fails if its adjusted p is within alpha, that is if its own p is within this share.
    with np.errstate(all="ignore"):
        share = np.where(adjusted < 1.0, raw / adjusted, 1.0 / max(len(raw), 1))
    return [alpha * float(s) if math.isfinite(s) else alpha / len(raw) for s in share]


def _p_values(rule: Rule, groups: Sequence[Group]) -> FloatArray:
    """Return p values of groups whose value lies beyond a limit; 1 if inside, nan if undefined."""
    metric = METRICS[rule.metric]
    values = np.array([group[metric.name].value for group in groups], dtype=np.float64)
    found = np.where(np.isnan(values), np.nan, 1.0)
    sides: tuple[tuple[float | None, Literal["above", "below"], float], ...] = (
        (rule.max, "above", 1.0),
        (rule.min, "below", -1.0),
    )
    for limit, side, sign in sides:
        if limit is not None:
            beyond = np.flatnonzero(sign * values > sign * limit)
            samples = [groups[int(i)].sample for i in beyond]
            found[beyond] = p_values(metric, samples, limit, side)
    return found
