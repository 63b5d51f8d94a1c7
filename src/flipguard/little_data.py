"""How large a loss the data of a passing rule cannot exclude.

Judging belongs to `flipguard.gate`, and the words to `flipguard.render`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from flipguard.metrics import METRICS
from flipguard.policy import Rule

# A pass rests on little data if the interval reaches further from the value, towards the limit,
# than this share of what the limit allows. Then chance could hide most of an allowed loss.
SHARE = 0.5
# Distances of less than a tenth of a point are never little data: a limit of 0 allows nothing.
FLOOR = 0.001


def largest_loss(
    rule: Rule, judged: Sequence[tuple[float, float, float, bool]]
) -> dict[int, float]:
    """Return the worst value that a passing rule does not exclude, by the index of its group.

    Empty if there is enough data. Groups are given as value, low, high, and whether they were
    judged.
    """
    found = {i: _not_excluded(rule, *one) for i, one in enumerate(judged)}
    ends = {i: end for i, end in found.items() if end is not None}
    if not ends:
        return {}
    worst = max(ends, key=lambda i: ends[i][1])
    return {worst: ends[worst][0]}


def _not_excluded(
    rule: Rule, value: float, low: float, high: float, judged: bool
) -> tuple[float, float] | None:
    """Return the worst value that little data cannot exclude, and how far it is past the limit.

    None if there is enough data. A group that was not judged has too little data also if its
    interval reaches past the limit. Only metrics that are shown in percent or points have one.
    """
    metric = METRICS[rule.metric]
    if not metric.percent or any(math.isnan(number) for number in (value, low, high)):
        return None
    found = []
    is_difference = metric.range[0] < 0.0
    for limit, end, sign, best in (
        (rule.max, high, 1.0, metric.range[0]),
        (rule.min, low, -1.0, metric.range[1]),
    ):
        if limit is None or math.isinf(end):
            continue
        past = sign * (end - limit)
        allowed = abs(limit) if is_difference else abs(limit - best)
        far = sign * (end - value) > max(SHARE * allowed, FLOOR)
        is_loss = not is_difference or sign * end > 0.0
        if is_loss and (far or (not judged and past > 0.0)):
            found.append((end, past))
    return max(found, key=lambda one: one[1], default=None)
