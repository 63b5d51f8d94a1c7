"""Rates per epoch: those that `compare` gives, on training samples that stand for all of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flipguard
from flipguard.data import load_data, stratified
from flipguard.training import Config, Run, Scope, Seeds
from flipguard.training.evaluate import SEEN
from flipguard.training.monitor import LineMonitor
from flipguard.training.predict import predict
from flipguard.training.several import train_several
from tests.training.tiny import history_of, make_old, tiny, trained, with_old

RATES = ("negative_flip_rate", "positive_flip_rate", "churn")
SCOPES = {
    "same": Scope(),
    "samples": Scope(samples=0.5),
    "classes": Scope(classes=5, class_choice="first"),
    "random": Scope(classes=5),
}


def compared(old: Path, new: Path) -> flipguard.Comparison:
    return flipguard.compare(
        old=flipguard.read_predictions(old),
        new=flipguard.read_predictions(new),
        on_missing="drop",
    )


def check(row: dict[str, Any], result: flipguard.Comparison) -> None:
    (rates,) = row["old"].values()
    assert rates == {name: pytest.approx(result[name].value, abs=1e-12) for name in RATES}


@pytest.mark.parametrize("growth", SCOPES)
@pytest.mark.parametrize("precision", ["32-true", "64-true"])
def test_the_last_epoch_is_what_compare_says(growth: str, precision: str, tmp_path: Path) -> None:
    machine = {"precision": precision}
    old = trained(tiny(epochs=6, scope=SCOPES[growth], machine=machine), tmp_path / "old")
    config = tiny("fd-lm", epochs=6, seeds=Seeds(seed=1), machine=machine)
    new = trained(with_old(config, old), tmp_path / "new")
    last = history_of(new.folder)[-1]
    test = [run.folder / "predictions" / "test.npz" for run in (old, new)]
    result = compared(*test)
    assert result.n == {"classes": 52, "random": 49}.get(growth, 100)
    check(last["test"], result)
    assert last["test"]["old"][str(old.folder)]["churn"] > 0
    if growth == "samples":
        return  # the old model has no training predictions of the samples that came later
    train = [tmp_path / "old.npz", tmp_path / "new.npz"]
    for run, path in zip((old, new), train, strict=True):
        predict(run, split="train", out=path)
    check(last["train"], compared(*train))


def test_members_that_are_one_network_are_measured_alike(tmp_path: Path) -> None:
    old = make_old(tmp_path / "old", classes=5, epochs=6)
    other = make_old(tmp_path / "other", epochs=6)
    configs = [
        with_old(tiny(epochs=4, seeds=Seeds(seed=seed), machine={"fuse": "on"}), one)
        for seed, one in ((1, old), (2, other))
    ]
    folders = [tmp_path / "one", tmp_path / "two"]
    assert train_several(configs, folders, monitor=LineMonitor(lambda _: None))
    for folder, one, count in zip(folders, (old, other), (52, 100), strict=True):
        path = Path("predictions") / "test.npz"
        result = compared(one.folder / path, folder / path)
        assert result.n == count
        check(history_of(folder)[-1]["test"], result)


def test_a_test_set_without_a_class_that_old_knows_has_no_rates(tmp_path: Path) -> None:
    drawn = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
    for name, classes in (("old", 2), ("new", 4)):
        np.savez(
            tmp_path / f"{name}.npz",
            train_inputs=drawn,
            train_targets=np.arange(40) % classes,
            test_inputs=drawn[:4],
            # All of new's test samples are of a class that old lacks.
            test_targets=np.array([0, 1, 0, 1]) if name == "old" else np.full(4, 3),
            class_names=np.array(["a", "b", "c", "d"][:classes]),
        )
    old = trained(tiny(data=str(tmp_path / "old.npz")), tmp_path / "old")
    config = with_old(tiny("fd-lm", data=str(tmp_path / "new.npz")), old)
    trained(config, tmp_path / "new")
    (rates,) = history_of(tmp_path / "new")[-1]["test"]["old"].values()
    assert rates == dict.fromkeys(RATES)


@pytest.fixture
def sorted_by_class(tmp_path: Path) -> str:
    """More training samples than are measured, of three classes one after the other."""
    drawn = np.random.default_rng(0)
    counts = (6000, 3000, 3000)
    targets = np.repeat(np.arange(3), counts)
    inputs = drawn.normal(size=(len(targets), 2)).astype("float32") + targets[:, None]
    np.savez(
        tmp_path / "sorted.npz",
        train_inputs=inputs,
        train_targets=targets,
        test_inputs=inputs[::60],
        test_targets=targets[::60],
    )
    return str(tmp_path / "sorted.npz")


def sorted_config(data: str, **changes: Any) -> Config:
    return tiny(data=data, model="mlp:hidden=4", recipe={"batch_size": 1000}, **changes)


def measured_on(run: Run, out: Path) -> float:
    """The error on the samples that stand for all training samples, by the prediction file."""
    predict(run, split="train", out=out)
    with np.load(out) as table:
        wrong = table["logits"].argmax(1) != table["targets"]
    places = stratified(load_data(run.config.data).train, SEEN)
    assert len(places) == SEEN
    return float(wrong[places.numpy()].mean())


def test_training_rates_are_those_of_all_classes(sorted_by_class: str, tmp_path: Path) -> None:
    train = load_data(sorted_by_class).train
    assert train.targets[stratified(train, SEEN)].bincount().tolist() == [2500, 1250, 1250]
    found = []
    for seed in (0, 1):
        run = trained(sorted_config(sorted_by_class, seeds=Seeds(seed=seed)), tmp_path / str(seed))
        found.append(history_of(run.folder)[-1]["train"]["error_rate"])
        assert found[-1] == pytest.approx(measured_on(run, tmp_path / "train.npz"), abs=1e-12)
    assert found[0] != found[1]


def test_the_same_samples_are_measured_however_a_run_is_trained(
    sorted_by_class: str, tmp_path: Path
) -> None:
    configs = [
        sorted_config(sorted_by_class, seeds=Seeds(seed=seed), machine={"fuse": "on"})
        for seed in (0, 1)
    ]
    folders = [tmp_path / "one", tmp_path / "two"]
    assert train_several(configs, folders, monitor=LineMonitor(lambda _: None))
    for folder in folders:
        run = Run.read(folder)
        told = history_of(folder)[-1]["train"]["error_rate"]
        # In one network a product may be rounded otherwise, and a sample lie on the border.
        assert told == pytest.approx(measured_on(run, tmp_path / "train.npz"), abs=2 / SEEN)
    hurried = dataclasses.replace(configs[0].machine, minutes=0.0, fuse="off")
    stopped = dataclasses.replace(configs[0], machine=hurried)
    assert not trained(stopped, tmp_path / "stopped").finished
    goes_on = dataclasses.replace(configs[0], machine=dataclasses.replace(hurried, minutes=None))
    trained(goes_on, tmp_path / "stopped", resume=True)
    trained(goes_on, tmp_path / "whole")
    assert history_of(tmp_path / "stopped") == history_of(tmp_path / "whole")


def test_small_data_is_measured_whole_and_in_order() -> None:
    train = load_data("mnist1d:train=200,test=10").train
    assert torch.equal(stratified(train, SEEN), torch.arange(200))
