"""How many further samples decide, against counting one by one."""

import math

import pytest

from flipguard.statistics import deciding_sample_size, wilson


def rate_at(successes: int, n: int):  # type: ignore[no-untyped-def]
    return lambda scale: wilson(successes * scale, n * scale, confidence=0.95)


def one_by_one(successes: int, n: int, low_limit: float, high_limit: float) -> int:
    for further in range(1, 20_000):
        low, high = rate_at(successes, n)((n + further) / n)
        if (low >= low_limit and high <= high_limit) or low > high_limit or high < low_limit:
            return further
    raise AssertionError("not decided")


@pytest.mark.parametrize(
    ("successes", "n", "low_limit", "high_limit"),
    [
        (40, 1000, -math.inf, 0.05),
        (60, 1000, -math.inf, 0.05),
        (5, 50, 0.05, math.inf),
        (3, 10, 0.1, 0.6),
    ],
)
def test_it_is_the_first_that_decides(
    successes: int, n: int, low_limit: float, high_limit: float
) -> None:
    found = deciding_sample_size(
        rate_at(successes, n), n=n, low_limit=low_limit, high_limit=high_limit
    )
    assert found == one_by_one(successes, n, low_limit, high_limit)


def test_a_value_on_the_limit_is_never_decided() -> None:
    at = rate_at(50, 1000)
    assert deciding_sample_size(at, n=1000, low_limit=-math.inf, high_limit=0.05) is None


def test_nothing_to_scale_is_never_decided() -> None:
    assert deciding_sample_size(rate_at(0, 0), n=0, low_limit=0.0, high_limit=0.1) is None
    nan = lambda scale: (math.nan, math.nan)  # noqa: E731
    assert deciding_sample_size(nan, n=5, low_limit=0.0, high_limit=0.1) is None


def test_largest_is_the_last_that_is_tried() -> None:
    at = rate_at(18, 1000)
    needed = deciding_sample_size(at, n=1000, low_limit=0.0, high_limit=0.02)
    assert needed is not None
    limits = {"n": 1000, "low_limit": 0.0, "high_limit": 0.02}
    assert deciding_sample_size(at, **limits, largest=1000 + needed) == needed  # type: ignore[arg-type]
    assert deciding_sample_size(at, **limits, largest=999 + needed) is None  # type: ignore[arg-type]


def test_one_flip_too_many_is_decided_soon() -> None:
    # An interval that is decided with one further sample.
    assert deciding_sample_size(rate_at(500, 1000), n=1000, low_limit=0.0, high_limit=0.1) == 1
