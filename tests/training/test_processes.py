"""Two processes that share every batch end where one would."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from flipguard.errors import InputError
from flipguard.runs.folder import CHECKPOINT, MODEL
from flipguard.training import Machine, train
from tests.training.tiny import history_of, make_old, needs_old, tiny, trained, with_old

TWO = Machine(processes=2, device="cpu", threads=1)
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("method", ["none", "bct", "elodi"])
def test_two_processes_equal_one(method: str, tmp_path: Path) -> None:
    config = tiny(method, recipe={"batch_size": 51, "optimizer": "sgd"})  # no even shares
    if needs_old(method):
        config = with_old(config, make_old(tmp_path / "old"))
    one = trained(config, tmp_path / "one" / "run")
    lines: list[str] = []
    two = train(
        dataclasses.replace(config, machine=TWO), tmp_path / "two" / "run", report=lines.append
    )
    assert two.finished
    assert sum("epoch 2/2" in line for line in lines) == (3 if method == "elodi" else 1)
    first, second = load_file(one.folder / MODEL), load_file(two.folder / MODEL)
    for name, weight in first.items():
        torch.testing.assert_close(second[name], weight, atol=1e-5, rtol=0)
    for row, other in zip(history_of(one.folder), history_of(two.folder), strict=True):
        assert other["losses"] == pytest.approx(row["losses"], abs=1e-5)


def test_accumulated_batches_are_shared(tmp_path: Path) -> None:
    """Three batches of three samples: processes that split 5 and 4 by themselves would differ."""
    recipe = {"batch_size": 3, "accumulate": 4, "optimizer": "sgd"}
    config = tiny(epochs=1, data="mnist1d:train=9,test=10", recipe=recipe)
    one = load_file(trained(config, tmp_path / "one").folder / MODEL)
    two = trained(dataclasses.replace(config, machine=TWO), tmp_path / "two")
    for name, weight in load_file(two.folder / MODEL).items():
        torch.testing.assert_close(weight, one[name], atol=1e-5, rtol=0)


def test_begun_by_two_and_ended_by_one(tmp_path: Path) -> None:
    config = tiny(epochs=3)
    hurried = dataclasses.replace(config, machine=dataclasses.replace(TWO, minutes=1e-9))
    assert trained(hurried, tmp_path / "run").status == "stopped"
    assert trained(config, tmp_path / "run", resume=True).finished
    whole = load_file(trained(config, tmp_path / "whole").folder / MODEL)
    for name, weight in load_file(tmp_path / "run" / MODEL).items():
        torch.testing.assert_close(weight, whole[name], atol=1e-5, rtol=0)


def test_processes_that_refuse_say_one_sentence(tmp_path: Path) -> None:
    config = tiny(recipe={"learning_rate": 1e30, "optimizer": "sgd"})
    with pytest.raises(InputError) as problem:
        trained(dataclasses.replace(config, machine=TWO), tmp_path / "run")
    assert re.fullmatch(r"Expected finite [^\n]*\.", str(problem.value))
    assert not (tmp_path / "run" / CHECKPOINT).exists()
