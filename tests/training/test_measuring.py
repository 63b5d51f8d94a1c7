"""Epochs that are not measured: their rows are left out, and nothing else is."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flipguard.errors import DivergedError, InputError
from flipguard.runs.config import Config, is_measured
from flipguard.runs.folder import is_finished, read_lines
from flipguard.runs.history import TIMING
from flipguard.training import Seeds
from flipguard.training.monitor import LineMonitor
from flipguard.training.several import train_several
from tests.training.tiny import bytes_of, history_of, make_old, tiny, trained, with_old


def rarely(config: Config, every: int = 3, **machine: Any) -> Config:
    """A configuration of which only some epochs are measured."""
    return dataclasses.replace(
        config, machine=dataclasses.replace(config.machine, measure_every=every, **machine)
    )


def test_some_epochs_and_always_the_last() -> None:
    config = rarely(tiny(epochs=8))
    assert [epoch for epoch in range(1, 9) if is_measured(config, epoch)] == [3, 6, 8]


@pytest.mark.parametrize("method", ["none", "fd-lm", "elodi"])
def test_weights_and_the_rows_that_are_left_are_the_same(method: str, tmp_path: Path) -> None:
    old = make_old(tmp_path / "old")
    config = with_old(tiny(method, epochs=5), old) if method == "fd-lm" else tiny(method, epochs=5)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    trained(config, tmp_path / "a" / "run")
    trained(rarely(config), tmp_path / "b" / "run")
    every, some = history_of(tmp_path / "a" / "run"), history_of(tmp_path / "b" / "run")
    assert [row["epoch"] for row in some] == [3, 5]
    assert some == [row for row in every if row["epoch"] in (3, 5)]
    first, second = bytes_of(tmp_path / "a" / "run"), bytes_of(tmp_path / "b" / "run")
    assert [name for name in first if first[name] != second[name]] == ["history.jsonl"]
    assert len(read_lines(tmp_path / "b" / "run" / TIMING)) == 5


def test_stopped_between_two_rows_it_goes_on(tmp_path: Path) -> None:
    config = rarely(tiny(epochs=5))
    run = trained(rarely(tiny(epochs=5), minutes=0.0), tmp_path / "stopped")
    assert not run.finished
    assert history_of(tmp_path / "stopped") == []
    trained(config, tmp_path / "stopped", resume=True)
    trained(config, tmp_path / "whole")
    assert bytes_of(tmp_path / "stopped") == bytes_of(tmp_path / "whole")


def test_lines_are_told_of_every_epoch(tmp_path: Path) -> None:
    from flipguard.training import train

    told: list[str] = []
    train(rarely(tiny(epochs=4)), tmp_path / "run", report=told.append)
    epochs = [line for line in told if line.startswith("epoch ")]
    assert ["test error" in line for line in epochs] == [False, False, True, True]


def test_members_that_are_one_network(tmp_path: Path) -> None:
    configs = [rarely(tiny(epochs=4, seeds=Seeds(seed=s)), fuse="on") for s in (1, 2)]
    folders = [tmp_path / "one", tmp_path / "two"]
    told: list[str] = []
    assert train_several(configs, folders, monitor=LineMonitor(told.append))
    for folder in folders:
        assert [row["epoch"] for row in history_of(folder)] == [3, 4]
        assert len(read_lines(folder / TIMING)) == 4
    epochs = [line.strip() for line in told if line.strip().startswith("epoch ")]
    assert ["test error" in line for line in epochs] == [False, False, True, True]


@pytest.mark.parametrize("fuse", ["on", "off"])
def test_several_that_are_stopped_in_time_go_on(fuse: str, tmp_path: Path) -> None:
    configs = [rarely(tiny(epochs=3, seeds=Seeds(seed=s)), fuse=fuse, minutes=0.0) for s in (1, 2)]
    folders = [tmp_path / "one", tmp_path / "two"]
    assert not train_several(configs, folders, monitor=LineMonitor(lambda _: None))
    assert not any(map(is_finished, folders))
    without = [rarely(config, minutes=None) for config in configs]
    assert train_several(without, folders, monitor=LineMonitor(lambda _: None))
    assert all(map(is_finished, folders))


def test_of_several_that_are_one_network_one_that_diverges_loses_none_of_the_others(
    tmp_path: Path,
) -> None:
    steep = {"optimizer": "sgd", "learning_rate": 30.0, "momentum": 0.9}
    configs = [
        tiny(epochs=3, seeds=Seeds(seed=s), recipe=steep, machine={"fuse": "on"}) for s in range(5)
    ]
    alone = [tmp_path / "alone" / str(seed) for seed in range(5)]
    for config, folder in zip(configs, alone, strict=True):
        with suppress(DivergedError):
            trained(config, folder)
    fine = [is_finished(folder) for folder in alone]
    assert set(fine) == {False, True}
    folders = [tmp_path / "together" / str(seed) for seed in range(5)]
    told: list[str] = []
    with pytest.raises(DivergedError, match="Expected finite losses and weights"):
        train_several(configs, folders, monitor=LineMonitor(told.append))
    assert [is_finished(folder) for folder in folders] == fine
    assert [line for line in told if line.startswith("one by one: Expected finite losses")]
    assert not list((tmp_path / "together").glob(".together-*"))
    kept = [(a, b) for a, b, is_fine in zip(alone, folders, fine, strict=True) if is_fine]
    assert all(bytes_of(one) == bytes_of(other) for one, other in kept)


def test_every_epoch_or_some(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"`machine\.measure_every` to be from 1 on, but got 0"):
        trained(rarely(tiny(), every=0), tmp_path / "run")
