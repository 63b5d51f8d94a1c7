"""Settings in pairs: every two values that go together are in a run that ends as it should."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from flipguard.errors import InputError
from flipguard.methods import METHODS
from flipguard.runs.folder import MODEL
from flipguard.training import Config, Run, Scope, Seeds
from flipguard.training.predict import predict
from tests.training.covering import Forbidden, Row, covering, is_forbidden, pairs_of
from tests.training.tiny import DATA, history_of, images_file, tiny, trained

# Ways of a method that differ in how it is computed, each as a method.
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in METHODS},
    "kd tempered": ("kd", {"temperature": 2.0}),
    "codistill-skl+entropy": ("codistill-skl+entropy", {}),
    "codistill-skl+skl": ("codistill-skl+skl", {}),
    "elodi legacy": ("elodi", {"legacy": 0.3, "k": 3}),
    "elodi asked once": ("elodi", {"online": False}),
    "elodi views": ("elodi", {"views": 2, "views_top": 2}),
    "elodi calibrated": ("elodi", {"guide": "calibrated"}),
}
SAME_LAYOUT = frozenset(name for name, row in METHODS.items() if row.default_needs().same_layout)
SAME_CLASSES = frozenset(name for name, row in METHODS.items() if row.default_needs().same_classes)
FACTORS: dict[str, tuple[str, ...]] = {
    "method": tuple(WAYS),
    "update": ("same", "classes", "samples", "architecture"),
    "precision": ("32-true", "64-true", "bf16-mixed"),
    "old precision": ("32-true", "64-true"),
    "model": ("mlp", "conv1d"),
    "fuse": ("auto", "on", "off"),
    "fine_tune": ("no", "yes"),
    "accumulate": ("1", "2"),
    "clip": ("no", "0.1"),
    "augment": ("none", "shift-scale-noise"),
    "optimizer": ("adamw", "sgd"),
    "smoothing": ("0", "0.1"),
    "stopped": ("no", "yes"),
}
# All that is refused, and what each refusal says.
REFUSED: tuple[tuple[Forbidden, str], ...] = (
    (
        {"method": SAME_CLASSES, "update": frozenset({"classes"})},
        "to have the old model's classes, but it has others",
    ),
    (
        {"method": SAME_LAYOUT, "update": frozenset({"classes"})},
        "to have the old model's architecture, but ",
    ),
    (
        {"method": SAME_LAYOUT, "update": frozenset({"architecture"})},
        "to have the old model's architecture, but ",
    ),
    (
        {"fine_tune": frozenset({"yes"}), "update": frozenset({"architecture"})},
        "to have the old model's architecture, but ",
    ),
    (
        {
            "method": frozenset({"elodi calibrated"}),
            "fine_tune": frozenset({"yes"}),
            "update": frozenset({"same", "classes", "architecture"}),
        },
        "Expected `old=`, whose weights members start from, not to be trained on the ",
    ),
)
# What takes seconds a run: other ways to compute the same.
MACHINES: dict[str, dict[str, Any]] = {
    "two processes": {"processes": 2},
    "compiled in parts": {"compile": "parts"},
    "compiled whole": {"compile": "whole"},
    "checkpointing": {"checkpointing": True},
}
SLOW_FACTORS: dict[str, tuple[str, ...]] = {
    "machine": tuple(MACHINES),
    **{name: FACTORS[name] for name in ("method", "update", "precision", "fuse", "fine_tune")},
    **{name: FACTORS[name] for name in ("accumulate", "clip", "stopped")},
}
MEMBERS = frozenset(name for name, (method, _) in WAYS.items() if method in ("ensemble", "elodi"))
SLOW_REFUSED: list[Forbidden] = [
    *(forbidden for forbidden, _ in REFUSED),
    # As one network they are trained by one process; said by tests/fusion/test_runs.py.
    {"machine": frozenset({"two processes"}), "fuse": frozenset({"on"}), "method": MEMBERS},
]
MODELS = {
    "mlp": ("mlp:hidden=8", "mlp:hidden=6,depth=1"),
    "conv1d": ("conv1d:width=4", "conv1d:width=3"),
    "resnet20": ("resnet20:width=2", "resnet20:width=3"),
}
# By id alone, so that a tenth that a calibrated ensemble holds out is not in old's half.
OLD_SCOPES = {"classes": Scope(classes=2), "samples": Scope(samples=0.5, per_class=False)}
ROWS, IMPOSSIBLE = covering(FACTORS, [forbidden for forbidden, _ in REFUSED])
SLOW_ROWS = [
    # Blocks whose activations are computed again are those of a residual network.
    {**ROWS[0], "model": "resnet20" if row["machine"] == "checkpointing" else "conv1d", **row}
    for row in covering(SLOW_FACTORS, SLOW_REFUSED)[0]
]


def model_of(row: Row, *, old: bool) -> str:
    """The model of a row's run; across architectures, the old run has another."""
    same, other = MODELS[row["model"]]
    return other if old and row["update"] == "architecture" else same


@pytest.fixture(scope="module")
def old_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Row], Run]:
    """Old runs, each trained once."""
    place, known = tmp_path_factory.mktemp("old"), {}
    images = images_file(place / "images.npz")

    def find(row: Row) -> Run:
        key = tuple(row[name] for name in ("update", "model", "old precision"))
        if key not in known:
            config = tiny(
                data=images if row["model"] == "resnet20" else DATA,
                model=model_of(row, old=True),
                epochs=2,
                scope=OLD_SCOPES.get(row["update"], Scope()),
                machine={"precision": row["old precision"]},
            )
            known[key] = trained(config, place / str(len(known)))
        return known[key]

    return find


def config_of(row: Row, old: Run, **machine: Any) -> Config:
    method, options = WAYS[row["method"]]
    return tiny(
        method,
        options=options,
        data=old.config.data,
        model=model_of(row, old=False),
        seeds=Seeds(seed=1),
        old=(str(old.folder),),
        fine_tune=row["fine_tune"] == "yes",
        recipe={
            "accumulate": int(row["accumulate"]),
            "batch_size": 50 // int(row["accumulate"]),
            "clip": None if row["clip"] == "no" else float(row["clip"]),
            "augment": row["augment"],
            "optimizer": row["optimizer"],
            "label_smoothing": float(row["smoothing"]),
        },
        machine={"precision": row["precision"], "fuse": row["fuse"], **machine},
    )


def run_of(row: Row, config: Config, folder: Path) -> Run:
    """The run of a row; one that is stopped goes on until it is finished."""
    if row["stopped"] == "no":
        return trained(config, folder)
    hurried = dataclasses.replace(config.machine, minutes=0.0)
    run = trained(dataclasses.replace(config, machine=hurried), folder)
    return trained(config, folder, resume=True) if not run.finished else run


def check(row: Row, run: Run, *, same_bytes: bool = True) -> None:
    """A run that ended as it should: all is finite, and its files agree."""
    assert run.finished
    history = history_of(run.folder)
    assert all(math.isfinite(loss) for line in history for loss in line["losses"].values())
    assert all(np.isfinite(w).all() for w in load_file(run.folder / MODEL).values())
    path = run.folder / "predictions" / "test.npz"
    with np.load(path) as table:
        assert np.isfinite(table["logits"]).all()
        error = float((table["logits"].argmax(1) != table["targets"]).mean())
        # In mixed precision an epoch is measured in it, and predictions are written without.
        if row["precision"] != "bf16-mixed" and same_bytes:
            assert history[-1]["test"]["error_rate"] == pytest.approx(error, abs=1e-9)
    (rates,) = history[-1]["test"]["old"].values()
    assert all(0 <= rate <= 1 for rate in rates.values())
    if same_bytes:
        predict(run, split="test", out=run.folder / "again.npz")
        assert (run.folder / "again.npz").read_bytes() == path.read_bytes()


def told(row: Row) -> str:
    return ",".join(row.values())


def test_every_pair_is_there_that_can_be() -> None:
    covered = set().union(*(pairs_of(row) for row in ROWS))
    for pair in IMPOSSIBLE:
        assert pair not in covered
        # By one rule alone, so that what is refused is what that rule says.
        assert any(is_forbidden(dict(pair), forbidden) for forbidden, _ in REFUSED), pair
    pairs = sum(len(a) * len(b) for a, b in product(FACTORS.values(), repeat=2))
    own = sum(len(values) ** 2 for values in FACTORS.values())
    assert 2 * (len(covered) + len(IMPOSSIBLE)) == pairs - own
    assert len(ROWS) < 150


@pytest.mark.parametrize("row", ROWS, ids=told)
def test_settings_in_pairs(row: Row, old_of: Callable[[Row], Run], tmp_path: Path) -> None:
    check(row, run_of(row, config_of(row, old_of(row)), tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.parametrize("row", SLOW_ROWS, ids=told)
def test_settings_in_pairs_with_machines(
    row: Row, old_of: Callable[[Row], Run], tmp_path: Path
) -> None:
    config = config_of(row, old_of(row), **MACHINES[row["machine"]])
    check(row, run_of(row, config, tmp_path / "run"), same_bytes=False)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({**ROWS[0], "update": "same", **dict(zip(forbidden, values, strict=True))}, said)
        for forbidden, said in REFUSED
        for values in product(*(sorted(values) for values in forbidden.values()))
    ],
    ids=lambda value: told(value) if isinstance(value, dict) else "",
)
def test_what_is_refused(row: Row, said: str, old_of: Callable[[Row], Run], tmp_path: Path) -> None:
    with pytest.raises(InputError) as refusal:
        run_of(row, config_of(row, old_of(row)), tmp_path / "run")
    assert said in str(refusal.value)
    assert re.fullmatch(r"[^\n]+\.", str(refusal.value))
