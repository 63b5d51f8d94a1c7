"""Counts by name, and every metric of labels computed by hand from one small table."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from flipguard.counts import (
    BINS,
    FlipCounts,
    StatisticsLayout,
    bin_name,
    control_name,
    high_name,
    joint_name,
    unit,
)
from flipguard.metrics import METRICS

CELLS = {
    "both_right": 50,
    "negative_flip": 10,
    "positive_flip": 20,
    "wrong_same": 12,
    "wrong_different": 8,
    "unlabelled_same": 30,
    "unlabelled_different": 5,
}
# Of two controls how many flip, by whether new flips.
CHURN = {(0, 0): 70, (0, 1): 15, (0, 2): 7, (1, 0): 3, (1, 1): 13, (1, 2): 27}
HARM = {(0, 0): 80, (0, 1): 6, (0, 2): 4, (1, 0): 1, (1, 1): 2, (1, 2): 7}
BY_HAND = {
    "error_rate_old": (40 / 100, 100),
    "error_rate_new": (30 / 100, 100),
    "accuracy_gain": (10 / 100, 100),
    "negative_flip_rate": (10 / 100, 100),
    "positive_flip_rate": (20 / 100, 100),
    "flip_rate": (30 / 100, 100),
    "relative_negative_flip_rate": (0.10 / (0.60 * 0.30), 100),
    "negative_flip_impact": (10 / 30, 30),
    "churn": (43 / 135, 135),
    "churn_correct": (10 / 60, 60),
    "churn_incorrect": (28 / 40, 40),
    "wrong_to_wrong": (8 / 100, 100),
    "backward_trust_compatibility": (50 / 60, 60),
    "backward_error_compatibility": (20 / 30, 30),
    "mcnemar_p": (scipy.stats.binomtest(10, 30).pvalue, 100),
    "churn_ratio": (43 / ((15 + 13 + 2 * 7 + 2 * 27) / 2), 135),
    "negative_flip_ratio": (10 / ((6 + 2 + 2 * 4 + 2 * 7) / 2), 100),
}


def of_labels() -> FlipCounts:
    joint = {joint_name("churn", *at): n for at, n in CHURN.items()}
    joint |= {joint_name("negative_flip", *at): n for at, n in HARM.items()}
    return FlipCounts.of(StatisticsLayout(has_target=True, controls=2), **CELLS, **joint)


@pytest.mark.parametrize("name", BY_HAND)
def test_a_metric_is_what_it_is_by_hand(name: str) -> None:
    value, size = BY_HAND[name]
    metric, counts = METRICS[name], of_labels()
    assert metric.value(counts) == pytest.approx(value, rel=1e-12)
    assert metric.kind.size(counts) == size
    # The same for groups, and for shards that are added up.
    groups = FlipCounts(counts.layout, np.stack([counts.values, 2 * counts.values]))
    np.testing.assert_allclose(
        metric.value(groups)[0], value if name != "mcnemar_p" else metric.value(counts)
    )
    np.testing.assert_array_equal(metric.kind.size(groups), [size, 2 * size])
    assert metric.kind.size(counts + counts) == 2 * size


def test_every_metric_of_labels_is_here() -> None:
    scored = {name for name, metric in METRICS.items() if any(n[-1] == "s" for n in metric.needs)}
    assert set(BY_HAND) == set(METRICS) - scored


@pytest.mark.parametrize("name", METRICS)
def test_without_what_it_needs_a_metric_is_undefined(name: str) -> None:
    metric = METRICS[name]
    nothing = FlipCounts.of(
        StatisticsLayout(has_target=False), unlabelled_same=3, unlabelled_different=1
    )
    assert np.isnan(metric.value(nothing)) == bool(metric.needs - {"label"})
    empty = FlipCounts.of(StatisticsLayout(has_target=True, controls=1))
    assert np.isnan(metric.value(empty))


def test_calibration_error_and_margin_by_hand() -> None:
    layout = StatisticsLayout(has_target=True, scored=frozenset({"old", "new"}))
    units = {
        bin_name("new", 3, "n"): 10,
        bin_name("new", 3, "right"): 4,
        bin_name("new", 3, "confidence"): round(2.5 / unit(bin_name("new", 3, "confidence"))),
        bin_name("new", 14, "n"): 30,
        bin_name("new", 14, "right"): 24,
        bin_name("new", 14, "confidence"): round(29 / unit(bin_name("new", 14, "confidence"))),
        "new_margin": round(20 / unit("new_margin")),
        "old_margin": round(5 / unit("old_margin")),
    }
    counts = FlipCounts.of(layout, both_right=30, wrong_same=10, **units)
    error = METRICS["expected_calibration_error_new"]
    assert error.value(counts) == pytest.approx((1.5 + 5) / 40)
    assert error.kind.size(counts) == 40
    assert METRICS["margin_new"].value(counts) == pytest.approx(0.5)
    assert METRICS["margin_old"].value(counts) == pytest.approx(0.125)
    assert METRICS["margin_old"].kind.size(counts) == 40


def test_units() -> None:
    """Shares are kept to 2^-32, distances to 2^-24, their squares to 2^-16, the rest is counted."""
    assert unit("negative_flip") == unit(bin_name("old", 0, "n")) == 1.0
    assert unit("old_margin") == unit("new_margin_squared") == unit("surrogate") == 2.0**-32
    assert unit(bin_name("new", 2, "confidence")) == unit(bin_name("new", 2, "gap_squared"))
    assert unit(bin_name("new", 2, "confidence")) == 2.0**-32
    assert unit("distance") == 2.0**-24
    assert unit("distance_squared") == 2.0**-16
    assert unit(high_name("distance")) == 2.0**8
    assert unit(high_name("surrogate")) == 1.0


def test_names_of_the_statistics() -> None:
    plain = StatisticsLayout(has_target=True)
    assert plain.names == tuple(CELLS)
    assert plain.available == {"target", "label"}
    both = StatisticsLayout(
        has_target=False, scored=frozenset({"old", "new"}), has_logits=True, controls=2
    )
    assert both.available == {"label", "old scores", "new scores", "logits", "control"}
    assert [both.columns[name] for name in both.names] == list(range(len(both.names)))
    for name in ("surrogate", "surrogate_squared_high", "distance_squared", "old_margin_squared"):
        assert name in both.columns
    assert bin_name("old", BINS - 1, "gap_squared") in both.columns
    assert control_name(1, "wrong_same") in both.columns
    assert control_name(2, "wrong_same") not in both.columns
    assert joint_name("churn", 1, 2) in both.columns
    assert joint_name("churn", 1, 3) not in both.columns
    one_sided = StatisticsLayout(has_target=True, scored=frozenset({"new"}))
    assert "new_margin" in one_sided.columns
    assert "surrogate" not in one_sided.columns
    assert "old_margin" not in one_sided.columns


def test_counts_of_another_layout_do_not_add() -> None:
    with pytest.raises(ValueError, match="Only counts of the same layout add"):
        FlipCounts.of(StatisticsLayout(has_target=True)) + FlipCounts.of(
            StatisticsLayout(has_target=False)
        )
    with pytest.raises(TypeError):
        FlipCounts.of(StatisticsLayout(has_target=True)) + 1
    with pytest.raises(ValueError, match=r"Unknown statistics \['flips'\]"):
        FlipCounts.of(StatisticsLayout(has_target=True), flips=1)
    with pytest.raises(ValueError, match="Expected a last axis of 7 statistics"):
        FlipCounts(StatisticsLayout(has_target=True), np.zeros(6, dtype=np.int64))


def test_sums_over_cells() -> None:
    counts = of_labels()
    assert (counts.labelled, counts.rows) == (100, 135)
    assert (counts.old_right, counts.new_right, counts.different) == (60, 70, 43)
    np.testing.assert_array_equal(counts.joint("churn"), [[70, 15, 7], [3, 13, 27]])


def test_one_control_is_a_comparison() -> None:
    layout = StatisticsLayout(has_target=True, controls=2)
    cells = {control_name(1, name): n for name, n in CELLS.items()}
    other = FlipCounts.of(layout, **cells).control(1)
    assert other.layout == StatisticsLayout(has_target=True)
    assert METRICS["negative_flip_rate"].value(other) == 0.1
    assert other.rows == 135


def test_groups_of_groups() -> None:
    layout = StatisticsLayout(has_target=True)
    values = np.arange(3 * 2 * 7).reshape(3, 2, 7)
    counts = FlipCounts(layout, values)
    assert len(counts) == 6
    assert len(FlipCounts.of(layout)) == 1
    np.testing.assert_array_equal(counts.total().values, values.sum(axis=(0, 1)))
    np.testing.assert_array_equal(counts.scaled(0.5).values, values / 2)
    np.testing.assert_array_equal(
        counts.columns(["wrong_same", "both_right"]), values[..., [3, 0]].astype(float)
    )
    assert counts == FlipCounts(layout, values.copy())
    assert counts != counts.total()
    assert counts != FlipCounts(StatisticsLayout(has_target=False), values)


def test_what_has_no_upper_bound_is_kept_in_two_parts() -> None:
    layout = StatisticsLayout(has_target=False, has_logits=True)
    parts = {"distance": 5 * 2**23, high_name("distance"): 3, high_name("distance_squared"): 2}
    counts = FlipCounts.of(layout, unlabelled_same=4, **parts)
    assert counts["distance"] == 2.5 + 3 * 256
    assert counts["distance_squared"] == 2 * 2**16
    assert METRICS["logit_displacement"].value(counts) == (2.5 + 3 * 256) / 4
