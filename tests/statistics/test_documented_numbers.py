"""Numbers that the pages state and that follow exactly from the binomial."""

import numpy as np
import pytest
from scipy.stats import binom

from flipguard.statistics import upper_end, wilson


def lowest_coverage(confidence: float) -> float:
    """Over expected counts of 0.3 to 60: how often the interval holds the true rate, at worst."""
    found = []
    for n in (200, 1_000):
        hits = np.arange(n + 1)
        low, high = wilson(hits, n, confidence=confidence)
        for rate in np.linspace(0.3, 60, 600) / n:
            found.append(binom.pmf(hits, n, rate)[(low <= rate) & (rate <= high)].sum())
    return float(min(found))


@pytest.mark.parametrize("confidence", [0.8, 0.9, 0.95, 0.99])
def test_the_lowest_coverage_of_a_rate(confidence: float) -> None:
    """docs/statistics.md: a rate's interval covers at least what it says."""
    assert lowest_coverage(confidence) >= confidence


@pytest.mark.parametrize(("rate", "share"), [(0.02, 0.023), (0.017, 0.58), (0.015, 0.97)])
def test_how_often_a_rule_of_two_percent_passes(rate: float, share: float) -> None:
    """docs/gate.md: of test sets of 10,000 samples."""
    hits = np.arange(10_001)
    _, high = wilson(hits, 10_000, confidence=0.95)
    passes = binom.pmf(hits, 10_000, rate)[high <= 0.02].sum()
    assert passes == pytest.approx(share, abs=0.005)


def test_how_often_one_of_six_rules_fails() -> None:
    """docs/gate.md: independent rules on rates whose true value is the limit."""
    hits = np.arange(10_001)
    low, _ = wilson(hits, 10_000, confidence=0.95)
    fails = binom.pmf(hits, 10_000, 0.02)[low > 0.02].sum()
    assert 1 - (1 - fails) ** 6 == pytest.approx(0.12, abs=0.02)


@pytest.mark.parametrize(
    ("clusters", "end"), [(3, 0.51), (10, 0.18), (30, 0.062), (100, 0.019), (1000, 0.0019)]
)
def test_the_upper_end_without_any_flip(clusters: int, end: float) -> None:
    """docs/statistics.md: equal clusters of 100 rows."""
    found = upper_end([0.0], [100.0], [100.0], [float(clusters)], confidence=0.95)
    assert found == pytest.approx(end, rel=0.06)
