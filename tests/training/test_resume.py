"""A run that was stopped, however, ends in the bytes of one that was not."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from flipguard.methods import METHODS
from flipguard.runs.config import Config, as_dict, fix_randomness, from_dict
from flipguard.runs.folder import MODEL
from flipguard.training import Machine, Run, Seeds
from tests.children import script
from tests.training.tiny import bytes_of, images_file, make_old, needs_old, tiny, trained, with_old

ALL = [*METHODS, "codistill-skl+entropy", "codistill-ce+skl"]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_old(tmp_path_factory.mktemp("old") / "old")


def hurried(config: Config) -> Config:
    """The same, with time for one epoch only."""
    return dataclasses.replace(config, machine=Machine(threads=1, device="cpu", minutes=1e-9))


@pytest.mark.parametrize("method", ALL)
def test_stopped_and_resumed_equals_uninterrupted(method: str, old: Run, tmp_path: Path) -> None:
    config = tiny(method, epochs=3, recipe={"augment": "shift-scale-noise", "label_smoothing": 0.1})
    if needs_old(method):
        config = with_old(config, old)
    whole = trained(config, tmp_path / "whole" / "run")
    stopped = trained(hurried(config), tmp_path / "stopped" / "run")
    assert stopped.status == "stopped"
    assert not (stopped.folder / MODEL).exists()
    if method == "none":
        # Time runs out after every epoch, again and again.
        again = trained(hurried(config), stopped.folder, resume=True)
        assert again.status == "stopped"
    resumed = trained(config, stopped.folder, resume=True)
    assert resumed.finished
    assert len(bytes_of(whole.folder)) == 3
    assert bytes_of(resumed.folder) == bytes_of(whole.folder)
    if method == "none":
        assert trained(config, resumed.folder, resume=True).finished
        assert bytes_of(resumed.folder) == bytes_of(whole.folder)


@pytest.mark.parametrize("model", ["mlp:hidden=16,dropout=0.5", "conv1d:width=4", "resnet20"])
def test_dropout_batch_norm_and_augmentation_are_resumed(model: str, tmp_path: Path) -> None:
    data, recipe = tiny().data, {}
    if model == "resnet20":
        data = images_file(tmp_path / "images.npz")
        recipe = {"optimizer": "sgd", "batch_size": 20, "augment": "crop-flip:padding=2"}
    config = tiny(model=model, data=data, epochs=2, recipe=recipe)
    whole = trained(config, tmp_path / "whole")
    trained(hurried(config), tmp_path / "stopped")
    resumed = trained(config, tmp_path / "stopped", resume=True)
    assert bytes_of(resumed.folder) == bytes_of(whole.folder)


def test_two_runs_of_one_seed_are_equal_and_another_seed_is_not(tmp_path: Path) -> None:
    first = bytes_of(trained(tiny(), tmp_path / "first").folder)
    second = bytes_of(trained(tiny(), tmp_path / "second").folder)
    other = bytes_of(trained(tiny(seeds=Seeds(seed=1)), tmp_path / "other").folder)
    assert first == second
    assert all(first[name] != other[name] for name in first)


def test_fixed_sources_are_shared_by_other_seeds(tmp_path: Path) -> None:
    found = {}
    for sources in ((), ("init",), ("init", "order", "augment", "dropout")):
        for seed in (1, 2):
            values = fix_randomness(as_dict(tiny(epochs=1, seeds=Seeds(seed=seed))), sources)
            values["recipe"]["learning_rate"] = 0.0 if sources == ("init",) else 5e-3
            out = tmp_path / f"{len(sources)}-{seed}"
            found[len(sources), seed] = load_file(trained(from_dict(values), out).folder / MODEL)

    def equal(sources: int) -> bool:
        first, second = found[sources, 1], found[sources, 2]
        return all(torch.equal(first[name], second[name]) for name in first)

    assert not equal(0)
    assert equal(1)  # nothing is learned at a rate of 0: what is equal is the initialisation
    assert equal(4)


def test_state_that_was_kept_but_not_told_is_told_when_resumed(tmp_path: Path) -> None:
    """Killed between the last checkpoint and the last line of the history."""
    whole = bytes_of(trained(tiny(epochs=2), tmp_path / "whole").folder)
    run = trained(tiny(epochs=2), tmp_path / "killed")
    history, described = run.folder / "history.jsonl", run.folder / "run.json"
    history.write_text("".join(history.read_text().splitlines(keepends=True)[:-1]))
    document = json.loads(described.read_text())
    described.write_text(json.dumps({**document, "status": "training"}))
    for name in (MODEL, "predictions/test.npz"):
        (run.folder / name).unlink()
    assert bytes_of(trained(tiny(epochs=2), run.folder, resume=True).folder) == whole


def test_what_a_killed_process_was_writing_is_swept_away(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    config = tiny()
    out = trained(hurried(config), tmp_path / "run").folder
    (out / "predictions").mkdir()
    dead = [
        out / f".history.jsonl.{gone.pid}",
        out / "checkpoints" / f".last.pt.{gone.pid}",
        out / "predictions" / f"..test.npz.{gone.pid}.0a1b2c3d.partial",
    ]
    others = [out / f".run.json.{os.getppid()}", out / ".notes", out / "notes.1"]
    for path in (*dead, *others):
        path.write_bytes(b"half")
    assert trained(config, out, resume=True).finished
    assert not any(path.exists() for path in dead)
    assert all(path.exists() for path in others)  # another process may still be writing


def kill(folder: Path, moments: int, *, method: str, epochs: int, seed: int = 0) -> None:
    given = [folder, str(moments), str(seed), method, str(epochs)]
    assert script("tests.training.killing", *given) == f"{moments} of {moments} equal\n"


def test_killed_at_three_moments(tmp_path: Path) -> None:
    kill(tmp_path, 3, method="codistill-ce", epochs=8)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["none", "bu-cr", "elodi", "ensemble"])
def test_killed_at_twenty_moments(method: str, tmp_path: Path) -> None:
    kill(tmp_path, 20, method=method, epochs=20)
