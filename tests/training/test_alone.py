"""Models trained together: at strength 0 the student ends exactly as if it were trained alone.

Gradients are clipped to a norm far below their own, so that the tests notice if another model's
gradient counts in the student's norm. Ten steps are made, so that an early difference grows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from flipguard.methods import METHODS
from flipguard.runs.folder import MODEL
from flipguard.training import Config, Run
from flipguard.training.scoping import without_held_out
from tests.training.tiny import make_old, tiny, trained, with_old

# 200 samples in batches of 18: eleven steps in an epoch, and ten where a tenth is held out.
RECIPE: dict[str, Any] = {"batch_size": 18, "clip": 0.05, "optimizer": "sgd", "learning_rate": 0.1}
# Options with which a method has no effect.
NEUTRAL: dict[str, dict[str, Any]] = {
    "dropout": {"rate": 0.0},
    **{name: {"weight": 0.0} for name in ("naive", "kd", "fd-kl", "fd-lm", "bct", "ract")},
    **{name: {"weight": 0.0} for name in ("new-error", "strict-imitation", "muscle")},
    "elodi": {"alpha": 0.0},
    **{name: {"alpha": 0.0} for name in ("entropy", "skl")},
    "codistill-ce": {"beta": 0.0},
    "codistill-skl": {"beta": 0.0, "alpha": 0.0},
    "codistill-l1": {"beta": 0.0},
    **{name: {"strength": 0.0} for name in ("l2-sp", "ewc")},
    **{name: {"share": 0.0} for name in ("mixout", "label-mix")},
}
# `bu-cr` replaces the task's loss by a Bayesian update, so it has no strength; `ensemble` trains no
# model itself: its members are runs of `none`.
WITHOUT = ("none", "bu-cr", "ensemble")


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_old(tmp_path_factory.mktemp("old") / "old")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An old model of another width, so that features need a projection, which is trained too."""
    return make_old(tmp_path_factory.mktemp("small") / "old", model="mlp:hidden=12")


def weights(config: Config, folder: Path) -> dict[str, Tensor]:
    return load_file(trained(config, folder).folder / MODEL)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def one_epoch(method: str, **changes: Any) -> Config:
    return tiny(method, epochs=1, recipe={**RECIPE, **changes.pop("recipe", {})}, **changes)


def check(
    method: str, options: dict[str, Any], out: Path, olds: tuple[Run, ...], **changes: Any
) -> None:
    treated = with_old(one_epoch(method, options=options, **changes), *olds)
    if METHODS[method].default_needs().held_out:  # the control learns from the same nine tenths
        changes["scope"] = without_held_out(treated.scope)
    control = with_old(one_epoch("none", **changes), *olds)
    assert same(weights(treated, out / "treated"), weights(control, out / "control"))


def test_every_method_is_here() -> None:
    assert sorted((*NEUTRAL, *WITHOUT)) == sorted(METHODS)


@pytest.mark.parametrize("method", NEUTRAL)
def test_at_strength_0_a_method_is_no_treatment(method: str, old: Run, tmp_path: Path) -> None:
    needs = METHODS[method].default_needs().names
    olds = (old,) if "old" in needs else ()
    check(method, NEUTRAL[method], tmp_path, olds, fine_tune="same_layout" in needs)


@pytest.mark.parametrize("method", ["bct", "ract"])
def test_a_projection_is_clipped_apart(method: str, small: Run, tmp_path: Path) -> None:
    check(method, {"weight": 0.0}, tmp_path, (small,))


@pytest.mark.parametrize("method", ["codistill-ce", "codistill-skl"])
@pytest.mark.parametrize(
    "changes",
    [
        {"recipe": {"batch_size": 9, "accumulate": 2}},
        {"machine": {"precision": "bf16-mixed"}},
        {"machine": {"precision": "64-true"}},
        {"recipe": {"optimizer": "adamw", "learning_rate": 5e-3}},
        {"model": "mlp:hidden=16,dropout=0.3", "recipe": {"batch_size": 9, "accumulate": 2}},
    ],
    ids=["accumulate", "bf16", "64", "adamw", "dropout"],
)
def test_a_twin_changes_nothing_at_strength_0(
    method: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    check(method, NEUTRAL[method], tmp_path, (), **changes)


@pytest.mark.parametrize("updates", ["joint", "independent"])
@pytest.mark.parametrize("plus", ["entropy", "skl"])
@pytest.mark.parametrize("agreement", ["skl", "l1", "ce"])
def test_co_distillation_in_any_way_at_strength_0(
    agreement: str, plus: str, updates: str, tmp_path: Path
) -> None:
    ways = {"updates": updates, "plus": plus, "k": 3, "every": 2, "ramp": 0.0, "burn_in": 0.0}
    for kind in ("linear", "step"):
        options = {"beta": 0.0, "alpha": 0.0, "ramp_kind": kind, **ways}
        check(f"codistill-{agreement}", options, tmp_path / kind, ())


def test_the_clip_is_binding(tmp_path: Path) -> None:
    free = one_epoch("none", recipe={"clip": None})
    assert not same(weights(free, tmp_path / "a"), weights(one_epoch("none"), tmp_path / "b"))
