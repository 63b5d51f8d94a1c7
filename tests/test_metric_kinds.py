"""Kinds of metric: what each must state, and that what they state agrees."""

from __future__ import annotations

import inspect
from dataclasses import replace

import numpy as np
import pytest

from flipguard import METRICS, class_metrics, metric_kinds
from flipguard.class_metrics import ClassGainKind
from flipguard.counts import (
    STATISTICS,
    FlipCounts,
    StatisticsLayout,
    fixed_point,
    high_name,
    joint_name,
)
from flipguard.estimates import has_cluster_interval
from flipguard.metric_kinds import (
    CalibrationErrorKind,
    ClusterRatioKind,
    ControlRatioKind,
    Design,
    GainKind,
    MetricKind,
    PValueKind,
    RateKind,
    RelativeRateKind,
)

KINDS = {
    kind
    for module in (metric_kinds, class_metrics)
    for _, kind in inspect.getmembers(module, inspect.isclass)
    if issubclass(kind, MetricKind)
}
COUNTS = FlipCounts.of(
    StatisticsLayout(has_target=True, controls=1),
    both_right=700,
    negative_flip=60,
    positive_flip=90,
    wrong_same=100,
    wrong_different=50,
    **{joint_name("churn", *at): n for at, n in {(0, 0): 650, (0, 1): 150, (1, 1): 200}.items()},
    **{joint_name("negative_flip", *at): n for at, n in {(0, 0): 900, (0, 1): 40}.items()},
    **{joint_name("negative_flip", *at): n for at, n in {(1, 0): 20, (1, 1): 40}.items()},
)


@pytest.mark.parametrize("base", [MetricKind, ClusterRatioKind])
def test_a_kind_that_leaves_something_out_cannot_be_made(base: type[MetricKind]) -> None:
    for missing in sorted(base.__abstractmethods__):
        stated = {name: lambda *_: None for name in base.__abstractmethods__ - {missing}}
        kind = type("Kind", (base,), stated)
        with pytest.raises(TypeError, match=missing):
            kind()


def test_value_size_interval_variance_and_scale_must_be_stated() -> None:
    asked = {"value", "size", "interval", "variance", "scale"}
    assert asked <= MetricKind.__abstractmethods__
    concrete = [kind for kind in KINDS if not inspect.isabstract(kind)]
    assert {type(metric.kind) for metric in METRICS.values()} == set(concrete)


@pytest.mark.parametrize(
    "kind",
    [
        RateKind(lambda c: c["negative_flip"], lambda c: c.labelled),
        GainKind(),
        RelativeRateKind(),
        ControlRatioKind("churn"),
        ControlRatioKind("negative_flip"),
    ],
)
def test_intervals_are_as_wide_as_the_variance_on_their_scale_says(kind: MetricKind) -> None:
    # With thousands of samples all methods come near the normal interval.
    counts = FlipCounts(COUNTS.layout, COUNTS.values * 1_000)
    found = kind.interval(counts, confidence=0.95, design=Design())
    assert found is not None
    low, high = (kind.scale(end) for end in found)
    half = 1.959964 * np.sqrt(kind.variance(counts))
    assert (high - low) / 2 == pytest.approx(half, rel=0.01)


def test_a_p_value_has_no_interval_and_no_variance() -> None:
    kind = METRICS["mcnemar_p"].kind
    assert isinstance(kind, PValueKind)
    assert kind.interval(COUNTS, confidence=0.95, design=Design()) is None
    assert np.isnan(kind.variance(COUNTS))


def test_a_limit_and_its_share_are_each_other_s_inverse() -> None:
    for metric in METRICS.values():
        if has_cluster_interval(metric):
            assert isinstance(metric.kind, ClusterRatioKind)
            bounds = [metric.kind.bound(0.3, side, 2.0) for side in ("below", "above")]
            ends = metric.kind.ends(np.array(bounds[0]), np.array(bounds[1]), 2.0)
            assert ends == pytest.approx((0.3, 0.3)), metric.name
        else:
            assert isinstance(metric.kind, CalibrationErrorKind | PValueKind | ClassGainKind) or (
                metric.name == "logit_displacement"
            )


# -- statistics ------------------------------------------------------------------------------------


def test_every_statistic_is_declared_with_what_fills_it() -> None:
    whole = StatisticsLayout(
        has_target=True,
        scored=frozenset({"old", "new"}),
        has_logits=True,
        graded=True,
        is_class=True,
        has_classes=True,
    )
    assert set(whole.names) == set(STATISTICS)
    for name, statistic in STATISTICS.items():
        assert statistic.name == name
        assert statistic.filled_by <= whole.available
        assert np.log2(statistic.unit) % 1 == 0
    without_logits = replace(whole, has_logits=False)
    lacks = set(whole.names) - set(without_logits.names)
    assert lacks == {name for name in STATISTICS if name.startswith("distance")}


@pytest.mark.parametrize("name", ["old_margin", "surrogate", "distance", "distance_squared"])
def test_fixed_point_keeps_values_to_half_a_unit(name: str) -> None:
    values = np.array([0.0, 0.3, 0.999, 1.0, 5.25, 700.125])
    integers = fixed_point(name, values)
    assert set(integers) == {name, *({high_name(name)} & set(STATISTICS))}
    told = sum(integers[part] * STATISTICS[part].unit for part in integers)
    np.testing.assert_allclose(told, values, atol=STATISTICS[name].unit / 2)
