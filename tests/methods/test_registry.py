"""Every method of the registry, in every scenario that it allows, by real runs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import flipguard
from flipguard.methods import METHODS
from flipguard.models import build_model
from flipguard.runs.config import as_dict, from_dict
from flipguard.runs.folder import MODEL
from flipguard.training import Config, Run, Seeds
from tests.training.tiny import (
    MODEL_SPEC,
    history_of,
    make_old,
    needs_old,
    tiny,
    trained,
    with_old,
)

PROMISED = [
    "none",
    "dropout",
    "naive",
    "kd",
    "fd-kl",
    "fd-lm",
    "bct",
    "ract",
    "bu-cr",
    "ensemble",
    "elodi",
    "entropy",
    "skl",
    "codistill-ce",
    "codistill-skl",
    "codistill-l1",
    "new-error",
    "strict-imitation",
    "muscle",
    "l2-sp",
    "ewc",
    "mixout",
    "label-mix",
]
VARIANTS = ("codistill-skl+entropy", "codistill-skl+skl", "codistill-ce+entropy")
GROWING = [
    name
    for name, row in METHODS.items()
    if (needs := row.default_needs()).old and not (needs.same_classes or needs.same_layout)
]


@pytest.fixture(scope="module")
def olds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("olds")
    return {
        "old": make_old(folder / "old"),
        "older": make_old(folder / "older", seed=8),
        "narrow": make_old(folder / "narrow", classes=8),
        "other": make_old(folder / "other", model="mlp:hidden=12,depth=1"),
    }


def test_no_method_is_forgotten() -> None:
    assert list(METHODS) == PROMISED


@pytest.mark.parametrize("method", [*METHODS, *VARIANTS])
def test_every_method_trains(method: str, olds: dict[str, Run], tmp_path: Path) -> None:
    config = tiny(method)
    if needs_old(method):
        config = with_old(config, olds["old"])
    check(config, olds, tmp_path)


@pytest.mark.parametrize(
    "method", [name for name in METHODS if not needs_old(name) and name != "ensemble"]
)
def test_methods_that_need_no_old_are_measured_against_one(
    method: str, olds: dict[str, Run], tmp_path: Path
) -> None:
    check(with_old(tiny(method), olds["old"]), olds, tmp_path)


@pytest.mark.parametrize(
    "method",
    [n for n, row in METHODS.items() if (got := row.default_needs()).old and not got.one_old],
)
def test_chain_of_two_olds(method: str, olds: dict[str, Run], tmp_path: Path) -> None:
    run = check(with_old(tiny(method), olds["old"], olds["older"]), olds, tmp_path)
    assert len(history_of(run.folder)[-1]["test"]["old"]) == 2


@pytest.mark.parametrize("method", GROWING)
def test_classes_are_added(method: str, olds: dict[str, Run], tmp_path: Path) -> None:
    check(with_old(tiny(method), olds["narrow"]), olds, tmp_path)


@pytest.mark.parametrize("name", ["old", "narrow", "other"])
def test_elodi_with_legacy(name: str, olds: dict[str, Run], tmp_path: Path) -> None:
    config = with_old(tiny("elodi", options={"legacy": 0.5}), olds[name])
    run = check(config, olds, tmp_path)
    assert set(history_of(run.folder)[-1]["losses"]) == {"task", "pull", "legacy"}


@pytest.mark.parametrize(
    "method",
    [n for n, row in METHODS.items() if (got := row.default_needs()).old and not got.same_layout],
)
def test_architecture_changes(method: str, olds: dict[str, Run], tmp_path: Path) -> None:
    check(with_old(tiny(method), olds["other"]), olds, tmp_path)


@pytest.mark.parametrize("method", ["none", "l2-sp", "ewc", "mixout", "fd-lm"])
def test_fine_tuning_starts_at_the_old_weights(
    method: str, olds: dict[str, Run], tmp_path: Path
) -> None:
    config = with_old(
        tiny(method, epochs=1, recipe={"learning_rate": 1e-7}, fine_tune=True), olds["old"]
    )
    run = check(config, olds, tmp_path)
    old, new = load_file(olds["old"].folder / MODEL), load_file(run.folder / MODEL)
    for name, weight in new.items():
        torch.testing.assert_close(weight, old[name], atol=1e-5, rtol=0)


def check(config: Config, olds: dict[str, Run], tmp_path: Path) -> Run:
    """Trains, and checks what holds for every run."""
    before = {name: (run.folder / MODEL).read_bytes() for name, run in olds.items()}
    run = trained(config, tmp_path / "run")

    assert run.finished
    for name, old in olds.items():
        assert (old.folder / MODEL).read_bytes() == before[name]
    assert from_dict(as_dict(run.config)) == run.config
    assert from_dict(json.loads(json.dumps(as_dict(run.config)))) == run.config
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]

    weights = load_file(run.folder / MODEL)
    assert all(bool(w.isfinite().all()) for w in weights.values())
    table = flipguard.read_predictions(run.folder / "predictions" / "test.npz")
    with np.load(run.folder / "predictions" / "test.npz") as archive:
        says = archive["logits"].argmax(-1)
        error = float(np.mean(says != archive["targets"]))
        assert len(archive["ids"]) == 100
    assert table.height == 100
    rows = history_of(run.folder)
    if config.method != "ensemble":
        assert [row["epoch"] for row in rows] == list(range(1, config.recipe.epochs + 1))
        assert all(math.isfinite(v) for row in rows for v in row["losses"].values())
        assert set(rows[-1]["test"]["old"]) == set(config.old)
        start = build_model(
            run.config.model, classes=10, input_shape=(40,), seed=run.config.seeds.of("init")
        ).state_dict()
        changed = [name for name in start if not torch.equal(start[name], weights[name])]
        assert changed == list(start)
    assert rows[-1]["test"]["error_rate"] == pytest.approx(error)
    return run


def test_the_student_has_an_initialisation_of_its_own() -> None:
    first, second = Seeds(seed=0).of("init"), Seeds(seed=1).of("init")
    models = [
        build_model(MODEL_SPEC, classes=10, input_shape=(40,), seed=s) for s in (first, second)
    ]
    assert not torch.equal(next(models[0].parameters()), next(models[1].parameters()))


@pytest.mark.parametrize("value", [-1, -0.1, math.nan, math.inf])
@pytest.mark.parametrize(("method", "name"), [("fd-lm", "weight"), ("elodi", "members")])
def test_amounts_below_nothing_are_refused(method: str, name: str, value: float) -> None:
    with pytest.raises(
        flipguard.InputError, match=f"Expected `{name}` of `{method}` to be a finite num"
    ):
        METHODS[method].complete({name: value})
