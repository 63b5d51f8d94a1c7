"""Cluster resampling, against its moments and a plain loop."""

import time

import numpy as np
import pytest

from flipguard.statistics import (
    cluster_replicates,
    clusters,
    design_effect,
    effective_degrees,
    leave_one_out,
)


def moments_of_a_resample(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """G draws of G: the mean is the sum, the covariance G times that of one row."""
    return values.sum(axis=0), len(values) * np.cov(values.T, bias=True)


@pytest.mark.parametrize("normal_limit", [False, True])
def test_moments(monkeypatch: pytest.MonkeyPatch, normal_limit: bool) -> None:
    if normal_limit:
        monkeypatch.setattr(clusters, "MOST_DISTINCT_ROWS", 5)
    rng = np.random.default_rng(0)
    values = np.column_stack([rng.poisson(1, 60), rng.poisson(3, 60), np.full(60, 2)]).astype(float)
    found = cluster_replicates(values, replicates=40_000, seed=1)
    centre, covariance = moments_of_a_resample(values)
    np.testing.assert_allclose(found.mean(axis=0), centre, atol=0.2)
    np.testing.assert_allclose(np.cov(found.T), covariance, atol=0.04 * covariance.max())


def test_every_replicate_is_a_sum_of_as_many_clusters() -> None:
    values = np.column_stack([np.ones(30), np.arange(30) % 4])
    found = cluster_replicates(values, replicates=200, seed=0)
    np.testing.assert_array_equal(found[:, 0], 30)
    assert found[:, 1].min() >= 0
    assert found[:, 1].max() <= 90


def test_seed_and_order_of_clusters() -> None:
    values = np.random.default_rng(3).poisson(2, size=(100, 3)).astype(float)
    first = cluster_replicates(values, replicates=50, seed=7)
    np.testing.assert_array_equal(first, cluster_replicates(values, replicates=50, seed=7))
    np.testing.assert_array_equal(first, cluster_replicates(values[::-1], replicates=50, seed=7))
    assert (first != cluster_replicates(values, replicates=50, seed=8)).any()


def test_chunks_do_not_change_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(20.0).reshape(10, 2)
    whole = cluster_replicates(values, replicates=25, seed=0)
    monkeypatch.setattr(clusters, "CHUNK", 30)
    np.testing.assert_array_equal(whole, cluster_replicates(values, replicates=25, seed=0))


def test_edges() -> None:
    assert np.isnan(cluster_replicates(np.empty((0, 2)), replicates=3, seed=0)).all()
    sums, weights = leave_one_out(np.empty((0, 2)))
    assert sums.shape == (0, 2)
    assert weights.shape == (0,)
    with pytest.raises(ValueError, match=r"Expected `values` to be \(clusters, k\)"):
        cluster_replicates([1.0, 2.0], replicates=3, seed=0)


@pytest.mark.parametrize("distinct", [False, True])
def test_a_million_clusters_take_seconds(distinct: bool) -> None:
    rng = np.random.default_rng(0)
    values = rng.poisson(0.5, size=(1_000_000, 4)).astype(float)
    if distinct:
        values[:, 0] = rng.random(len(values))
    started = time.perf_counter()
    assert cluster_replicates(values, replicates=500, seed=0).shape == (500, 4)
    assert time.perf_counter() - started < 20


def test_design_effect_of_copied_rows_is_the_size_of_a_cluster() -> None:
    # Each cluster is one sample, written down four times.
    flags = np.random.default_rng(5).random(800) < 0.1
    values = 4.0 * flags[:, np.newaxis]
    rate = flags.mean()
    again = cluster_replicates(values, replicates=4000, seed=0)[:, 0] / 3200
    effect = design_effect(again, rate * (1 - rate) / 3200, 800)
    assert effect == pytest.approx(4.0, rel=0.1)


def test_design_effect_where_nothing_was_seen() -> None:
    nothing = np.zeros((100, 2))
    np.testing.assert_array_equal(design_effect(nothing, [0.0, 0.0], 50, largest=6.0), 6.0)
    assert np.isnan(design_effect(nothing[:, 0], 0.0, 50))
    # Logarithms of no flip: nothing finite to go by.
    assert design_effect(np.full(100, -np.inf), np.nan, 50, largest=6.0) == 6.0
    assert design_effect([1.0, 2.0, 3.0], 1e9, 50) == 1.0
    # Replicates without a value do not count.
    some = [np.nan, 1.0, 3.0, np.inf, 8.0]
    assert design_effect(some, 2.0, 9) == pytest.approx(design_effect([1.0, 3.0, 8.0], 2.0, 9))
    # One cluster says nothing about others.
    assert np.isnan(design_effect([1.0, 2.0, 3.0], 2.0, 1))
    assert design_effect([1.0, 2.0, 3.0], 2.0, 1, largest=7.0) == 7.0


def test_leave_one_out_is_a_plain_loop() -> None:
    values = np.array([[1.0, 0.0], [3.0, 2.0], [1.0, 0.0], [5.0, 1.0]])
    sums, weights = leave_one_out(values)
    slow = sorted((values.sum(axis=0) - row).tolist() for row in values)
    assert sorted(np.repeat(sums, weights.astype(int), axis=0).tolist()) == slow


def test_effective_degrees() -> None:
    # Two kinds of clusters, as many of each: the variance is known as well as can be.
    assert effective_degrees([0.0, 1.0], [50, 50]) == 99
    # Six of a thousand clusters hold all there is: about twelve numbers' worth.
    assert effective_degrees([0.0, 1.0], [994, 6]) == pytest.approx(12, rel=0.05)
    # One cluster makes or breaks a logarithm; no cluster matters.
    assert effective_degrees([0.0, -np.inf], [99, 1]) == 1
    assert effective_degrees([0.3], [40]) == 39
    np.testing.assert_array_equal(effective_degrees([[0.0, 0.3], [1.0, 0.3]], [50, 50]), [99, 99])


def test_effective_degrees_are_satterthwaites() -> None:
    values, weights = np.array([1.0, 2.0, 3.5, 9.0]), np.array([30.0, 12.0, 7.0, 1.0])
    moved = (values - np.average(values, weights=weights)) ** 2
    variation = (weights * moved**2).sum() / (weights * moved).sum() ** 2 - 1 / 50
    assert 2 / variation == pytest.approx(effective_degrees(values, weights))
    # A metric without a value on some sums is known no better than from two numbers.
    table = np.column_stack([values, np.where(values == 9.0, np.nan, values)])
    np.testing.assert_allclose(effective_degrees(table, weights), [2 / variation, 1.0])
    assert effective_degrees([], []) == 1.0
    assert effective_degrees([5.0], [1.0]) == 1.0
