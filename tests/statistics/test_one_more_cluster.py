"""The interval over clusters, against its likelihood maximised by brute force."""

import math

import numpy as np
import pytest
import scipy.stats
from scipy.optimize import brentq, minimize_scalar

from flipguard.statistics.clusters import p_value_below, upper_end

# Per kind of cluster: flips, rows that count, all rows, and the number of such clusters.
Cluster = tuple[float, float, float, float]
DESIGNS: dict[str, list[Cluster]] = {
    "no flip": [(0, 100, 100, 10)],
    "one flip": [(0, 100, 100, 9), (1, 100, 100, 1)],
    "unlike sizes": [(0, 4, 4, 20), (1, 7, 7, 3), (30, 300, 300, 1), (2, 50, 50, 2)],
    "fewer rows that count": [(0, 30, 40, 6), (3, 20, 40, 2), (1, 1, 9, 5)],
    "single rows": [(0, 1, 1, 95), (1, 1, 1, 5)],
    "most flipped": [(90, 100, 100, 8), (100, 100, 100, 3)],
}


def fall(clusters: list[tuple[float, float, float]], rate: float) -> float:
    """By how much the best weights with this rate are less likely than equal ones, as a logarithm.

    `clusters` are their flips and rows, weighed, and how often each counts.
    """
    distances = [(a - rate * b, k) for a, b, k in clusters]
    largest = max(d for d, _ in distances)
    if largest <= 0:
        return math.inf

    def unlikeliness(share: float) -> float:
        return -sum(k * math.log1p(-share * d / largest) for d, k in distances)

    return -minimize_scalar(
        unlikeliness, bounds=(0, 1), method="bounded", options={"xatol": 1e-13}
    ).fun


def likelihoods(clusters: list[Cluster]) -> list[list[tuple[float, float, float]]]:
    """The clusters and the unseen one, with the weights of each likelihood."""
    # Rows of a cluster are weighted as with a correlation of 0.1.
    shares = [m / (1 + (m - 1) * 0.1) for _, _, m, _ in clusters]
    times = [k for *_, k in clusters]
    total = sum(k * s for k, s in zip(times, shares, strict=True))
    squares = sum(k * s**2 for k, s in zip(times, shares, strict=True))
    found = []
    alike = sum(k * s**2 / m for s, (_, _, m, k) in zip(shares, clusters, strict=True)) / squares
    unseen = 0.5 + 0.5 * alike
    weighed = [
        (a * s * total / squares / m, b * s * total / squares / m, k)
        for s, (a, b, m, k) in zip(shares, clusters, strict=True)
    ]
    found.append([*weighed, (unseen, unseen, 0.65)])
    scale = sum(m * k for _, _, m, k in clusters) / sum(m**2 * k for _, _, m, k in clusters)
    weighed = [(a * scale, b * scale, k) for a, b, _, k in clusters]
    found.append([*weighed, (0.01, 0.01, 0.65)])
    return found


def slow_end(clusters: list[Cluster], confidence: float) -> float:
    """The larger of the ends at which both likelihoods have fallen by z^2 / 2."""
    z = scipy.stats.norm.isf((1 - confidence) / 2)
    ends = []
    for weighed in likelihoods(clusters):
        # The unseen cluster flips at the rate u + (1 - u) * rate, where u is its weight.
        best = sum(a * k for a, _, k in weighed) / sum(b * k for _, b, k in weighed)
        ends.append(
            brentq(
                lambda r, w=weighed: min(fall(w, r), 1e9) - z**2 / 2,
                best + 1e-7 * (1 - best),
                1 - 1e-12,
                xtol=1e-14,
            )
        )
    return max(ends)


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.9995])
@pytest.mark.parametrize("design", DESIGNS)
def test_the_upper_end_is_where_the_likelihood_has_fallen(design: str, confidence: float) -> None:
    clusters = DESIGNS[design]
    high = upper_end(*np.array(clusters, dtype=float).T, confidence=confidence)
    assert high == pytest.approx(slow_end(clusters, confidence), rel=1e-5)


@pytest.mark.parametrize("design", DESIGNS)
def test_the_p_value_is_the_level_whose_end_is_the_limit(design: str) -> None:
    columns = np.array(DESIGNS[design], dtype=float).T
    for confidence in (0.5, 0.95, 0.999):
        limit = upper_end(*columns, confidence=confidence)
        assert p_value_below(*columns, limit=limit) == pytest.approx(1 - confidence, rel=1e-6)
    # For limits below the joint rate of the clusters and the unseen one, the p value is 1.
    for weighed in likelihoods(DESIGNS[design]):
        rate = sum(a * k for a, _, k in weighed) / sum(b * k for _, b, k in weighed)
        assert p_value_below(*columns, limit=0.999 * rate) == 1.0


def test_groups_of_unlike_clusters_fit_one_array() -> None:
    shapes = [(0.0, 100.0, 100.0), (1.0, 100.0, 100.0), (5.0, 10.0, 12.0)]
    times = np.array([[10.0, 0.0, 0.0], [9.0, 1.0, 0.0], [3.0, 2.0, 4.0], [0.0, 0.0, 1.0]])
    columns = [np.broadcast_to(column, times.shape) for column in np.array(shapes).T]
    together = upper_end(*columns, times, confidence=[0.95, 0.9, 0.8, 0.95])
    chances = p_value_below(*columns, times, limit=0.3)
    for row, often in enumerate(times[:3]):
        some = [(*shape, k) for shape, k in zip(shapes, often, strict=True) if k]
        alone = upper_end(*np.array(some).T, confidence=[0.95, 0.9, 0.8][row])
        assert together[row] == pytest.approx(alone, rel=1e-9)
        assert chances[row] == pytest.approx(p_value_below(*np.array(some).T, limit=0.3), rel=1e-9)
    # One cluster says nothing about others.
    assert np.isnan(together[3])
    assert np.isnan(chances[3])


def test_clusters_without_rows_do_not_count() -> None:
    columns = np.array([(0, 100, 100, 9), (1, 100, 100, 1)], dtype=float).T
    more = np.array([(0, 100, 100, 9), (1, 100, 100, 1), (0, 0, 0, 7)], dtype=float).T
    assert upper_end(*more, confidence=0.95) == upper_end(*columns, confidence=0.95)
    assert np.isnan(upper_end(*np.array([(0, 5, 5, 1), (0, 0, 0, 7)]).T, confidence=0.95))
    assert not np.isnan(upper_end(*np.array([(0, 5, 5, 2), (0, 0, 0, 7)]).T, confidence=0.95))


def test_the_end_is_at_most_all() -> None:
    assert upper_end([5.0], [5.0], [5.0], [10.0], confidence=0.95) == 1.0
    assert np.isnan(upper_end([0.0], [5.0], [5.0], [10.0], confidence=np.nan))
    assert np.isnan(upper_end([0.0], [0.0], [5.0], [1.0], confidence=0.95))


def test_one_more_flip_never_lowers_the_end() -> None:
    flips = np.arange(0, 41.0)[:, np.newaxis]
    top = np.concatenate([np.zeros_like(flips), flips], axis=-1)
    rows = np.broadcast_to([100.0, 40.0], top.shape)
    for times in ([9.0, 1.0], [3.0, 3.0], [1.0, 1.0], [200.0, 1.0]):
        ends = upper_end(top, rows, rows, np.broadcast_to(times, top.shape), confidence=0.95)
        assert (np.diff(ends) >= 0).all()


def test_without_any_flip_single_rows_have_nearly_their_exact_limit() -> None:
    for rows in (30.0, 300.0):
        high = upper_end([0.0], [1.0], [1.0], [rows], confidence=0.95)
        assert high == pytest.approx(1 - 0.025 ** (1 / rows), rel=0.01)
