"""How often the whole gate errs: models whose true value lies exactly on a limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from designs.drawing import Floats
from designs.row import Promise, Row
from flipguard import Policy, Predictions, check, statistics
from flipguard.comparison import comparison_from_counts
from flipguard.counts import CELLS, FlipCounts, StatisticsLayout
from flipguard.engines.count_table import Groups
from flipguard.engines.plan import Counted, CountingPlan, RowCounts

LAYOUT = StatisticsLayout(has_target=True)
Rule = Mapping[str, Any]


def verdict_of(tables: NDArray[np.int64], rule: Rule) -> str:
    """The gate's verdict on the counts of one test set."""
    values = np.zeros((len(tables), len(LAYOUT.names)), dtype=np.int64)
    values[:, [LAYOUT.names.index(cell) for cell in CELLS]] = tables
    nothing = Predictions.from_arrays(labels=[0], targets=[0])
    plan = CountingPlan(old=nothing, new=nothing)
    counted = Counted(
        rows=RowCounts(matched=int(tables.sum())),
        whole=Groups(keys=["all"], counts=FlipCounts(LAYOUT, values)),
        by={},
    )
    result = comparison_from_counts(
        counted, plan, confidence=0.95, correction="holm", engine="local"
    )
    return check(result, Policy.from_dict({"rule": [dict(rule)]})).verdict


def cells(*, negative: float, positive: float, right: float = 0.8) -> Floats:
    both_wrong = 1.0 - right - positive
    return np.array([right - negative, negative, positive, both_wrong, 0.0])


AT_LIMIT = cells(negative=0.02, positive=0.03)
RELATIVE = 0.02 / (0.8 * (1 - 0.8 + 0.02 - 0.03))
EQUAL = cells(negative=0.05, positive=0.05)
# A verdict takes some hundredths of a second, most of it to compute how many samples would decide.
SIZES = {
    "negative_flip_rate": (50, 200, 1000, 5000, 50_000),
    "accuracy_gain": (50, 200),
    "relative_negative_flip_rate": (50,),
}
KEPT = {
    "negative_flip_rate": [1],
    "accuracy_gain": [1, 2],
    "relative_negative_flip_rate": [1, 2, 3],
}
# The metric, the description, the probabilities, the rule, and the verdict that must be rare.
SINGLE: tuple[tuple[str, str, Floats, Rule, str], ...] = (
    (
        "negative_flip_rate",
        "NFR at its limit of 2 %",
        AT_LIMIT,
        {"metric": "negative_flip_rate", "max": 0.02},
        "pass",
    ),
    (
        "accuracy_gain",
        "accuracy gain at its limit of -0.5 points",
        cells(negative=0.055, positive=0.05),
        {"metric": "accuracy_gain", "min": -0.005},
        "pass",
    ),
    (
        "relative_negative_flip_rate",
        f"relative NFR at its limit of {RELATIVE:.3f}",
        AT_LIMIT,
        {"metric": "relative_negative_flip_rate", "max": RELATIVE},
        "pass",
    ),
    (
        "accuracy_gain",
        "two retrains, gain may be -1 point: share that fails",
        EQUAL,
        {"metric": "accuracy_gain", "min": -0.01},
        "fail",
    ),
)


def rows(rng: np.random.Generator, draws: int) -> Iterator[Row]:
    for metric, words, chances, rule, rare in SINGLE:
        for n in SIZES[metric]:
            # Verdicts depend on these cells alone, so each distinct table is judged once.
            drawn = rng.multinomial(n, chances, size=draws)
            kept = KEPT[metric]
            merged = np.zeros_like(drawn)
            merged[:, kept] = drawn[:, kept]
            merged[:, 0] = n - merged[:, 1:].sum(axis=1)
            tables, often = np.unique(merged, axis=0, return_counts=True)
            verdicts = [verdict_of(table[np.newaxis], rule) for table in tables]
            yield row(metric, words, n, verdicts, often, rare)
    yield from families(rng, draws)


def families(rng: np.random.Generator, draws: int) -> Iterator[Row]:
    """Whether any of many groups fails after correction, if all lie at their limit of 5 %."""
    n, limit = 500, 0.05
    flips = np.arange(n + 1)
    p_values = statistics.p_value_by_inversion(
        lambda confidence: statistics.wilson(flips, n, confidence=confidence),
        limit=limit,
        side="above",
    )
    p_values = np.where(flips / n > limit, p_values, 1.0)
    for groups in (10, 100, 1000):
        found = p_values[rng.binomial(n, limit, size=(draws, groups))]
        for correction in ("holm", "benjamini-hochberg"):
            fails = [(statistics.corrected(p, correction) <= 0.05).any() for p in found]
            words = f"{groups:,} groups of {n}, each at its limit of 5 %, {correction}"
            yield promised("negative_flip_rate", words, n, draws, float(np.mean(fails)), "fail")


def row(
    metric: str, words: str, n: int, verdicts: Sequence[str], often: NDArray[Any], rare: str
) -> Row:
    total = often.sum()
    share = {
        name: float(often[np.array(verdicts) == name].sum() / total)
        for name in ("pass", "fail", "inconclusive")
    }
    told = ", ".join(f"{name} {100 * value:.1f} %" for name, value in share.items())
    return promised(metric, f"{words} ({told})", n, int(total), share[rare], rare)


def promised(metric: str, words: str, n: int, draws: int, measured: float, rare: str) -> Row:
    promise: Promise = "family-wise error" if rare == "fail" else "wrong pass"
    return {
        "metric": f"gate on {metric}",
        "design": words,
        "n": n,
        "confidence": 0.95,
        "draws": draws,
        "promise": promise,
        "nominal": 0.05 if rare == "fail" else 0.025,
        "measured": measured,
        "above": None,
        "below": None,
        "width": None,
        "undefined": 0.0,
        "rivals": {},
        "printed": None,
    }
