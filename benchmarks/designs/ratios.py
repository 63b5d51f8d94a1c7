"""Ratios to controls, sampling error only: few flips, high confidences, many groups.

What seeds add is measured in `noise.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy.special import ndtr, ndtri

from designs.ratio_rivals import Floats, Interval, bonett_price, log_delta, mover_wilson, score
from designs.row import Rival, Row
from flipguard import statistics

SIZES = (200, 1_000, 5_000, 50_000)
LEVELS = (0.8, 0.95, 0.99)
# the controls' rate, the ratio, and the correlation of two models' flips
WORLDS: tuple[tuple[float, float, float | str], ...] = (
    (0.005, 1.0, 0.0),
    (0.005, 0.6, 0.3),
    (0.02, 0.3, 0.0),
    (0.02, 0.6, 0.7),
    (0.02, 1.5, 0.3),
    (0.05, 0.3, 0.3),
    (0.05, 1.0, 0.0),
    (0.15, 0.6, 0.3),
    (0.15, 1.0, 0.7),
    (0.15, 1.5, 0.7),
    (0.05, 1.0, "near-identical"),
    (0.15, 1.0, "near-identical"),
    (0.05, 0.6, "exclusive"),
    (0.3, 1.0, "exclusive"),
)
# Worlds in which some of the intervals miss on one side more often than in others.
GROUP_WORLDS = (
    (0.005, 1.0, 0.0),
    (0.02, 0.3, 0.0),
    (0.05, 0.3, 0.3),
    (0.05, 0.6, "exclusive"),
    (0.05, 1.0, "near-identical"),
)
# Per number of groups, how many models are simulated per draw, because errors are rare there.
GROUPS = {10: 10, 100: 50, 1_000: 200}


def rows(rng: np.random.Generator, draws: int) -> Iterator[Row]:
    """All designs."""
    for k in (1, 3):
        for rate, truth, together in WORLDS:
            if k > 1 and isinstance(together, str):
                continue
            chances = flip_chances(rate, truth, together, k)
            for n in SIZES:
                joint, often = _drawn(rng, n, chances, draws)
                for level in LEVELS:
                    yield _coverage_row(joint, often, n, level, rate, truth, together)
    for rate, truth, together in GROUP_WORLDS:
        chances = flip_chances(rate, truth, together, 1)
        for n in (200, 1_000):
            for groups, times in GROUPS.items():
                joint, often = _drawn(rng, n, chances, times * draws)
                yield _groups_row(joint, often, n, groups, rate, truth, together)


def flip_chances(rate: float, ratio: float, together: float | str, controls: int) -> Floats:
    """The chances of the joint table; near-identical models differ in 2 % of their flips."""
    if together == "near-identical":
        apart = 0.02 * rate
        return np.array([[1 - rate - apart, apart], [apart, rate - apart]])
    if together == "exclusive":
        return np.array([[1 - rate - rate * ratio, rate], [rate * ratio, 0.0]])
    return _correlated_chances(rate, ratio, float(together), controls)


def _correlated_chances(rate: float, ratio: float, correlation: float, controls: int) -> Floats:
    """Flips that depend on one shared normal variable, for a given correlation of two models."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(201)
    weights = weights / weights.sum()
    new_rate = rate * ratio

    def flagged(chance: float, strength: float) -> Floats:
        return np.asarray(
            ndtr((ndtri(chance) - math.sqrt(strength) * nodes) / math.sqrt(1 - strength))
        )

    def correlated(strength: float) -> float:
        both = float((weights * flagged(new_rate, strength) * flagged(rate, strength)).sum())
        scale = math.sqrt(new_rate * (1 - new_rate) * rate * (1 - rate))
        return (both - new_rate * rate) / scale

    low, high = 0.0, 0.995
    assert correlated(high) >= correlation
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if correlated(middle) < correlation else (low, middle)
    new, control = flagged(new_rate, low), flagged(rate, low)
    chances = np.empty((2, controls + 1))
    for j in range(controls + 1):
        these = math.comb(controls, j) * control**j * (1 - control) ** (controls - j)
        chances[:, j] = (weights * (1 - new) * these).sum(), (weights * new * these).sum()
    return chances / chances.sum()


def _drawn(rng: np.random.Generator, n: int, chances: Floats, draws: int) -> tuple[Floats, Floats]:
    """The distinct tables among `draws` draws, and how often each occurred."""
    tables, often = np.unique(
        rng.multinomial(n, chances.ravel(), size=draws), axis=0, return_counts=True
    )
    return tables.reshape(-1, *chances.shape).astype(np.float64), often.astype(np.float64)


def _coverage_row(
    joint: Floats,
    often: Floats,
    n: int,
    level: float,
    rate: float,
    truth: float,
    together: float | str,
) -> Row:
    k = joint.shape[-1] - 1
    chosen = statistics.paired_ratio(joint, confidence=level)
    others: dict[str, Interval] = {}
    if level == 0.95:
        others = {
            "score": score(joint, level),
            "MOVER-Wilson": mover_wilson(joint, level),
            "log delta": log_delta(joint, level),
        }
        if k == 1:
            others["Bonett-Price"] = bonett_price(joint, level)
    above, below, undefined = _errors(chosen, truth, often)
    # If no control flips, most alternatives have no interval or no finite one.
    seen = np.isfinite(chosen[1])
    return Row(
        metric=f"churn_ratio, negative_flip_ratio, k={k}",
        design=_design(rate, truth, together),
        n=n,
        confidence=level,
        draws=int(often.sum()),
        promise="coverage",
        nominal=level,
        measured=1 - above - below,
        above=above,
        below=below,
        width=_width(chosen, often, seen),
        undefined=undefined,
        rivals={
            name: Rival(
                measured=1 - sum(_errors(interval, truth, often)[:2]),
                width=_width(interval, often, seen),
            )
            for name, interval in others.items()
        },
        printed=None,
    )


def _groups_row(
    joint: Floats,
    often: Floats,
    n: int,
    groups: int,
    rate: float,
    truth: float,
    together: float | str,
) -> Row:
    """How often any of many groups fails a rule at the true ratio, on the worse side."""
    level = 1 - 0.05 / groups
    chosen = statistics.paired_ratio(joint, confidence=level)
    above, below, undefined = _errors(chosen, truth, often)
    rival = _errors(score(joint, level), truth, often)
    return Row(
        metric="churn_ratio, negative_flip_ratio, many groups",
        design=f"{_design(rate, truth, together)}, {groups:,} groups",
        n=n,
        confidence=level,
        draws=int(often.sum()) // groups,
        promise="family-wise error",
        nominal=0.05,
        measured=_any(max(above, below), groups),
        above=_any(above, groups),
        below=_any(below, groups),
        width=_width(chosen, often, np.isfinite(chosen[1])),
        undefined=undefined,
        rivals={"score": Rival(measured=_any(max(rival[:2]), groups), width=None)},
        printed=None,
    )


def _design(rate: float, truth: float, together: float | str) -> str:
    alike = together if isinstance(together, str) else f"correlation {together}"
    return f"rate {rate:.1%}, ratio {truth}, {alike}"


def _any(error: float, groups: int) -> float:
    return float(-np.expm1(groups * np.log1p(-error)))


def _errors(interval: Interval, truth: float, often: Floats) -> tuple[float, float, float]:
    """Shares of the defined intervals wholly above and below the true value; share of undefined."""
    low, high = interval
    known = often * ~np.isnan(low)
    total = max(float(known.sum()), 1.0)
    above, below = (known * (low > truth)).sum() / total, (known * (high < truth)).sum() / total
    return float(above), float(below), float(1 - known.sum() / often.sum())


def _width(interval: Interval, often: Floats, seen: Floats) -> float | None:
    """The median width over these tables; None if it is not finite."""
    width, times = (interval[1] - interval[0])[seen], often[seen]
    if not len(width):
        return None
    order = np.argsort(width)
    passed = times[order].cumsum()
    middle = float(width[order][np.searchsorted(passed, passed[-1] / 2)])
    return middle if np.isfinite(middle) else None
