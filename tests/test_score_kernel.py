"""The arithmetic on scores: its precision, and that no row depends on its neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from flipguard.engines.score_kernel import side_and_pair_rows

Array = npt.NDArray[Any]
ROWS, CLASSES = 300, 40
LOGITS: Any = ("logits", "logits")


def certain(boost: float, spread: float) -> Array:
    rng = np.random.default_rng(1)
    logits = rng.standard_normal((ROWS, CLASSES)) * spread
    logits[np.arange(ROWS), rng.integers(0, CLASSES, ROWS)] += boost
    return logits


def pairs() -> dict[str, tuple[Array, Array]]:
    rng = np.random.default_rng(2)
    noise = rng.standard_normal((ROWS, CLASSES))
    usual, sure = certain(6, 3), certain(25, 1)
    large = usual.copy()
    large[::3] += 100.0
    return {
        "usual": (usual, usual + noise),
        "nearly certain": (sure, sure + 0.3 * noise),
        "nearly equal": (usual, usual + 0.01 * noise),
        "opposite": (sure, -sure),
        "large logits": (usual + 300, usual + 300 + noise),
        "some large logits": (large, usual + noise),
        "new below the least probability": (usual, 6 * usual),
        "new below it in a few rows": (usual, np.where(noise[:, :1] > 1.5, 6 * usual, usual)),
        "far apart": (1000 * usual, 900 * usual),
    }


def logarithms(logits: Array) -> Array:
    """Log-probabilities in extended precision."""
    z = logits.astype(np.longdouble)
    z -= z.max(axis=1, keepdims=True)
    found: Array = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    return found


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", list(pairs()))
def test_entropies_and_divergences_are_their_definitions(name: str, dtype: Any) -> None:
    old, new = (side.astype(dtype) for side in pairs()[name])
    a, b, pair = side_and_pair_rows(old, new, kinds=LOGITS, matching=None, exponent=1.0)
    assert a is not None
    assert b is not None
    assert pair is not None
    p, q = logarithms(old), logarithms(new)
    least = np.log(np.longdouble(1e-12))
    divergence = (np.exp(p) * (p - np.maximum(q, least))).sum(axis=1)
    # Logits of this size do not say more about a small probability.
    one = float(np.finfo(dtype).eps)
    for found, meant in (
        (a.entropy, -(np.exp(p) * p).sum(axis=1)),
        (b.entropy, -(np.exp(q) * q).sum(axis=1)),
        (pair.divergence, np.maximum(divergence, 0)),
    ):
        assert found == pytest.approx(meant.astype(float), rel=100 * one, abs=40 * one)
    # A model that is nearly certain has an entropy of its few small probabilities, not of rounding.
    meant = -(np.exp(p) * p).sum(axis=1)
    assert a.entropy.mean() == pytest.approx(float(meant.mean()), rel=10 * one)


@pytest.mark.parametrize("name", list(pairs()))
@pytest.mark.parametrize("kind", ["logits", "probabilities", "one of each"])
def test_a_row_does_not_depend_on_its_neighbours(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = [side.astype(np.float32) for side in pairs()[name]]
    kinds: list[Any] = ["logits", "logits"]
    for i in {"logits": (), "probabilities": (0, 1), "one of each": (0,)}[kind]:
        sides[i], kinds[i] = np.exp(logarithms(sides[i])).astype(np.float32), "probabilities"
    found = []
    for rows in (1, 7, ROWS):
        monkeypatch.setattr("flipguard.engines.score_kernel.NUMBERS_PER_BLOCK", rows * CLASSES)
        old, new, pair = side_and_pair_rows(
            sides[0], sides[1], kinds=(kinds[0], kinds[1]), matching=None, exponent=1.0
        )
        assert old is not None
        assert new is not None
        assert pair is not None
        values = [pair.surrogate, pair.divergence]
        values += [x for side in (old, new) for x in (side.confidence, side.margin, side.entropy)]
        found.append(values + ([] if pair.distance is None else [pair.distance]))
    for each in found[1:]:
        for one, other in zip(found[0], each, strict=True):
            np.testing.assert_array_equal(one, other)
