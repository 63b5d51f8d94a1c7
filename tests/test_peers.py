"""What other libraries compute too must be what they compute."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats
from sklearn.metrics import accuracy_score, confusion_matrix, zero_one_loss
from statsmodels.stats.contingency_tables import mcnemar
from torchmetrics.functional.classification import multiclass_calibration_error

from flipguard import METRICS, FlipCounts, Predictions, compare
from flipguard.counts import StatisticsLayout
from tests import plain
from tests.cases import measured
from tests.effort import tries


def flips(negative: int, positive: int, rest: int = 10) -> FlipCounts:
    return FlipCounts.of(
        StatisticsLayout(has_target=True),
        negative_flip=negative,
        positive_flip=positive,
        both_right=rest,
    )


@settings(max_examples=tries(300))
@given(st.integers(0, 3000), st.integers(0, 3000))
def test_mcnemar_is_the_binomial_test(negative, positive):
    if negative + positive == 0:
        return
    expected = stats.binomtest(negative, negative + positive, 0.5).pvalue
    value = METRICS["mcnemar_p"].value(flips(negative, positive))
    assert value == pytest.approx(expected, rel=1e-9, abs=1e-300)


@settings(max_examples=tries(100))
@given(st.integers(0, 400), st.integers(0, 400), st.integers(0, 50))
def test_mcnemar_is_the_exact_test_of_statsmodels(negative, positive, rest):
    if negative + positive == 0:
        return
    expected = mcnemar([[rest, negative], [positive, 3]], exact=True).pvalue
    value = METRICS["mcnemar_p"].value(flips(negative, positive, rest))
    assert value == pytest.approx(expected, rel=1e-9, abs=1e-300)


def test_mcnemar_of_no_flips_is_1_and_of_no_rows_undefined():
    assert METRICS["mcnemar_p"].value(flips(0, 0)) == 1.0
    assert np.isnan(METRICS["mcnemar_p"].value(flips(0, 0, rest=0)))


def test_mcnemar_of_a_thousand_million_flips_is_a_number():
    value = METRICS["mcnemar_p"].value(flips(500_010_000, 499_990_000))
    normal = 2 * stats.norm.sf(20_000 / np.sqrt(1e9))
    assert value == pytest.approx(normal, rel=1e-3)


def random_scores(seed: int, *, n: int, classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    old, new = random.normal(0, 2, (2, n, classes))
    return old, new, random.integers(0, classes, n)


@settings(max_examples=tries(60))
@given(st.integers(0, 10**6), st.integers(1, 300), st.integers(2, 12), st.booleans())
def test_calibration_error_is_that_of_torchmetrics(seed, n, classes, as_probabilities):
    old, new, target = random_scores(seed, n=n, classes=classes)
    given_as = {}
    for name, logits in (("old", old), ("new", new)):
        chances = special.softmax(logits, axis=1)
        key, scores = ("probabilities", chances) if as_probabilities else ("logits", logits)
        given_as[name] = Predictions.from_arrays(**{key: scores}, targets=target)
    result = compare(**given_as)
    for name, logits in (("old", old), ("new", new)):
        expected = multiclass_calibration_error(
            torch.tensor(special.softmax(logits, axis=1)),
            torch.tensor(target),
            num_classes=classes,
            n_bins=15,
            norm="l1",
        )
        value = result[f"expected_calibration_error_{name}"].value
        # The peer computes in single precision.
        assert value == pytest.approx(float(expected), abs=2e-6)


@settings(max_examples=tries(60))
@given(st.integers(0, 10**6), st.integers(1, 200), st.integers(1, 6))
def test_error_rates_and_flips_are_those_of_scikit_learn(seed, n, classes):
    random = np.random.default_rng(seed)
    target, old, new = random.integers(0, classes, (3, n))
    result = measured(
        old=Predictions.from_arrays(labels=old, targets=target),
        new=Predictions.from_arrays(labels=new),
    )
    assert result["error_rate_old"].value == pytest.approx(1 - accuracy_score(target, old))
    assert result["error_rate_new"].value == pytest.approx(1 - accuracy_score(target, new))
    assert result["churn"].value == pytest.approx(zero_one_loss(old, new))
    right = confusion_matrix(old == target, new == target, labels=[False, True])
    counts = result.counts
    assert counts["wrong_same"] + counts["wrong_different"] == right[0, 0]
    assert counts["positive_flip"] == right[0, 1]
    assert counts["negative_flip"] == right[1, 0]
    assert counts["both_right"] == right[1, 1]


@settings(max_examples=tries(60))
@given(st.integers(0, 10**6), st.integers(1, 50), st.integers(2, 9))
def test_scores_are_those_of_scipy_and_numpy(seed, n, classes):
    old, new, _ = random_scores(seed, n=n, classes=classes)
    result = compare(
        old=Predictions.from_arrays(logits=old), new=Predictions.from_arrays(logits=new)
    )
    for name, logits in (("old", old), ("new", new)):
        ranked = np.sort(special.softmax(logits, axis=1), axis=1)
        margin = (ranked[:, -1] - ranked[:, -2]).mean()
        assert result[f"margin_{name}"].value == pytest.approx(margin, abs=1e-8)
    distance = np.linalg.norm(new - old, axis=1).mean()
    assert result["logit_displacement"].value == pytest.approx(distance, abs=1e-6)


@given(st.lists(st.floats(-500, 500), min_size=1, max_size=9))
def test_the_plain_softmax_is_that_of_scipy(values):
    ours = plain.softmax({str(i): value for i, value in enumerate(values)})
    assert list(ours.values()) == pytest.approx(special.softmax(values).tolist(), rel=1e-12)
