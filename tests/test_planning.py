"""Plans for further samples against draws of further samples: rows, clusters and means."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from flipguard import METRICS, Comparison, Predictions, compare
from flipguard.clustered import widened
from flipguard.counts import FlipCounts
from flipguard.estimates import intervals
from flipguard.planning import Question, samples_needed

DRAWS = 400


def of_clusters(clusters: int, rows: int, *, spread: float) -> Comparison:
    """Clusters whose rates of negative flips differ; old is right on all, in two classes."""
    rng = np.random.default_rng(4)
    rate = rng.gamma(1 / spread, spread, clusters) * 0.05
    flips = rng.random((clusters, rows)) < np.minimum(rate, 0.9)[:, np.newaxis]
    wrong = rng.random((clusters, rows)) < 0.1
    target = np.arange(clusters * rows) % 2
    slices = {"user": np.repeat(np.arange(clusters), rows)}
    right = ~wrong.ravel()
    old = Predictions.from_arrays(
        labels=np.where(right, target, 1 - target), targets=target, slices=slices
    )
    new = Predictions.from_arrays(
        labels=np.where(right & ~flips.ravel(), target, 1 - target), targets=target, slices=slices
    )
    return compare(old=old, new=new, cluster="user")


def question(result: Comparison, name: str, **limits: float) -> Question:
    sample = result.whole.sample
    return Question(
        sample=sample,
        value=result[name].value,
        lowest=limits.get("lowest", -math.inf),
        highest=limits.get("highest", math.inf),
        passing=0.95,
        failing=limits.get("failing", 0.95),
    )


def is_decided(ends: Any, asked: Question, confidences: Any = None) -> Any:
    low, high = ends
    return (
        ((asked.lowest <= low) & (high <= asked.highest))
        | (low > asked.highest)
        | (high < asked.lowest)
    )


@pytest.mark.parametrize(("side", "at"), [("highest", 0.6), ("lowest", 0.6), ("highest", -0.6)])
def test_further_clusters_decide_with_their_chance(side: str, at: float) -> None:
    result = of_clusters(60, 20, spread=0.5)
    metric, estimate = METRICS["negative_flip_rate"], result["negative_flip_rate"]
    end = estimate.high if (at > 0) == (side == "highest") else estimate.low
    limit = estimate.value + abs(at) * (end - estimate.value)
    asked = question(result, "negative_flip_rate", **{side: limit})
    ((even, most),) = samples_needed(metric, [asked])
    assert even is not None
    assert most is not None
    table = asked.sample.clusters
    assert table is not None
    rng = np.random.default_rng(7)
    for further, chance in ((even, 0.5), (most, 0.9)):
        more = round(further / 20)
        times = 1.0 + rng.multinomial(more, np.full(60, 1 / 60), size=DRAWS)
        values = FlipCounts(table.layout, times @ table.values)
        rows = intervals(metric, values, 0.95)
        ends = widened(metric, rows, [table] * DRAWS, 0.95, times=list(times))
        assert is_decided(ends, asked).mean() == pytest.approx(chance, abs=0.1)
