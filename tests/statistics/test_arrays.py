"""Critical values and roots, against SciPy."""

from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats
from scipy.optimize import brentq

from flipguard.statistics._arrays import critical_value, divide, find_root, tail_of

FUNCTIONS: dict[str, Callable] = {
    "cubic": lambda x: x**3 - 2,
    "exponential": lambda x: np.exp(5 * x) - 3,
    "falling": lambda x: 1 / (1 + x) - 0.4,
    "steep": lambda x: np.tanh(40 * (x - 0.3)),
    "nearly flat at the root": lambda x: (x - 0.7) ** 3,
    "a step": lambda x: np.sign(x - 1.23456),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_root_is_found_to_the_last_digits(name: str) -> None:
    function = FUNCTIONS[name]
    found = find_root(function, low=np.array(0.0), high=np.array(2.0))
    if name == "nearly flat at the root":  # every point near it has the value 0
        assert abs(function(found)) < 1e-45
    else:
        assert found == pytest.approx(brentq(function, 0.0, 2.0, xtol=1e-15), rel=2e-15)
    assert find_root(function, low=np.array(2.0), high=np.array(0.0)) == pytest.approx(
        found, rel=2e-15, abs=1e-15
    )


@pytest.mark.parametrize(
    ("name", "most"),
    [("cubic", 9), ("exponential", 12), ("falling", 4), ("steep", 14), ("a step", 60)],
)
def test_a_smooth_function_is_evaluated_few_times(name: str, most: int) -> None:
    calls = []

    def counted(x: np.ndarray) -> np.ndarray:
        calls.append(x)
        return FUNCTIONS[name](x)

    find_root(counted, low=np.array(0.0), high=np.array(2.0))
    print(name, len(calls))
    assert len(calls) <= most


def test_each_element_has_a_bracket_and_a_root() -> None:
    target = np.array([0.5, 2.0, 7.0, 30.0, np.nan])
    found = find_root(lambda x: x**3 - target, low=np.zeros(5), high=np.full(5, 3.0))
    np.testing.assert_allclose(found[:3], np.cbrt(target[:3]), rtol=1e-15)
    # Without a change of sign the end nearer to zero is returned.
    assert found[3] == 3.0
    assert find_root(lambda x: x + 1, low=np.array(0.0), high=np.array(2.0)) == 0.0


@pytest.mark.parametrize("root", [1e-3, 1e-9, 1e-30])
def test_small_roots_keep_their_digits(root: float) -> None:
    found = find_root(lambda x: x**3 - root**3, low=np.array(0.0), high=np.array(2 * root))
    assert found == pytest.approx(root, rel=1e-14, abs=0)


def test_an_end_may_be_the_root() -> None:
    assert find_root(lambda x: x - 2, low=np.array(0.0), high=np.array(2.0)) == 2.0
    assert find_root(lambda x: x, low=np.array(0.0), high=np.array(2.0)) == 0.0


def test_critical_values_are_those_of_scipy() -> None:
    confidence = np.array([0.5, 0.8, 0.95, 0.9995, 1 - 1e-10])
    tail = (1 - confidence) / 2
    np.testing.assert_allclose(
        critical_value(confidence=confidence), scipy.stats.norm.isf(tail), rtol=1e-13
    )
    for degrees in (0.5, 1.0, 7.5, 200.0):
        found = critical_value(confidence=confidence, degrees=degrees)
        np.testing.assert_allclose(found, scipy.stats.t.isf(tail, degrees), rtol=1e-6)
    mixed = critical_value(confidence=0.95, degrees=[np.inf, 4.0, 0.0, -1.0, np.nan])
    np.testing.assert_allclose(mixed[:2], [1.959963984540054, 2.7764451051977987])
    assert np.isnan(mixed[2:]).all()


def test_a_critical_value_stands_for_both_tails() -> None:
    np.testing.assert_allclose(tail_of(critical_value(confidence=0.9)), 0.1)
    np.testing.assert_allclose(tail_of(np.array([0.0, 8.0])), [1.0, 2 * scipy.stats.norm.sf(8)])


def test_a_rate_of_nothing_is_undefined() -> None:
    found = divide([1.0, 0.0, 6.0, -1.0], [0.0, 0.0, -3.0, 1e-9])
    np.testing.assert_allclose(found, [np.nan, np.nan, -2.0, -1e9])
