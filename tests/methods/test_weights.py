"""A weight of the paper, written as `flipguard methods` says, gives the paper's objective."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from flipguard.cli.methods import methods_command as shown
from flipguard.methods import METHODS
from tests.methods.scenes import CLASSES, Gradients, Scene, build, gradients_of, minimised, scene

Found = tuple[float, Gradients]


def objective_of(name: str, options: Mapping[str, Any], at: Scene) -> Found:
    total = minimised(build(name, options, at), at, 10**6)
    found = gradients_of(total, {"scores": at.student.get_parameter("scores")})
    return float(total.detach()), found


def same(found: Found, wanted: Found, times: float = 1.0, tolerance: float = 1e-9) -> None:
    assert found[0] * times == pytest.approx(wanted[0], rel=tolerance)
    slope, other = found[1]["scores"] * times, wanted[1]["scores"]
    assert float((slope - other).norm() / other.norm()) < tolerance


@pytest.mark.parametrize("weight", [0.2, 1.0])
def test_fd_lm(weight: float) -> None:
    assert METHODS["fd-lm"].default_weights() == ["weight = C w for w in the paper, with C classes"]
    at = scene()
    printed = objective_of("fd-lm", {"preset": "paper", "weight": weight}, at)
    same(objective_of("fd-lm", {"weight": CLASSES * weight}, at), printed)


@pytest.mark.parametrize("temperature", [3.0, 100.0])
def test_fd_kl(temperature: float) -> None:
    (said,) = METHODS["fd-kl"].default_weights()
    assert said.startswith("weight = w / T^2 for w in the paper")
    at, weight = scene(), 500.0
    printed = objective_of(
        "fd-kl", {"preset": "paper", "weight": weight, "temperature": temperature}, at
    )
    ours = {"weight": weight / temperature**2, "temperature": temperature}
    same(objective_of("fd-kl", {**ours, "direction": "reverse"}, at), printed)
    # At 100, the direction is no matter.
    if temperature == 100.0:
        same(objective_of("fd-kl", ours, at), printed, tolerance=0.02)


@pytest.mark.parametrize("alpha", [0.3, 0.8])
@pytest.mark.parametrize(("k", "count"), [(None, CLASSES), (10, 10)])
def test_elodi(alpha: float, k: int | None, count: int) -> None:
    (said,) = METHODS["elodi"].default_weights()
    assert said.startswith("alpha = n a / (1 - a + n a) for a in the paper, with n classes")
    at = scene()
    printed = objective_of("elodi", {"preset": "paper", "alpha": alpha, "k": k}, at)
    scale = 1 - alpha + count * alpha
    same(objective_of("elodi", {"alpha": count * alpha / scale, "k": k}, at), printed, scale)


@pytest.mark.parametrize("name", METHODS)
def test_other_weights_are_those_of_the_paper(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each default that makes another equation says what becomes of a weight, or changes none."""
    method = METHODS[name]
    shown(name, json=True)
    (row,) = json.loads(capsys.readouterr().out)
    assert row["weights"] == method.default_weights()
    if name in ("fd-lm", "fd-kl", "elodi"):
        return
    weights = [one.name for one in method.options if one.is_weight]
    told = f"{' and '.join(weights)} as in the paper"
    assert method.default_weights() == ([told] if weights else [])
    known = {"weight", "alpha", "beta", "strength"}
    assert {one.name for one in method.options} & known == set(weights)
    shown(name)
    assert ("How to write a weight of the paper:" in capsys.readouterr().out) == bool(weights)
