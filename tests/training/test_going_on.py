"""A run is resumed with its own checkpoint and the same old models and members, or not at all."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from flipguard.errors import InputError
from flipguard.run_document import PREDICTIONS, RUN
from flipguard.runs.config import PRESETS
from flipguard.runs.folder import CHECKPOINT, MODEL
from flipguard.runs.history import HISTORY, TIMING
from flipguard.training import Config, Run, Seeds, train
from tests.training.test_refusals import refused, sentence, stopped_run
from tests.training.tiny import bytes_of, images_file, make_old, tiny, trained, with_old

DIVERGES: dict[str, Any] = {"learning_rate": 1e30, "optimizer": "sgd"}


def hurried(config: Config) -> Config:
    """The same, with time for one epoch only."""
    machine = dataclasses.replace(config.machine, minutes=1e-9)
    return dataclasses.replace(config, machine=machine)


# -- states ---------------------------------------------------------------------------------------


def test_a_state_of_another_seed(tmp_path: Path) -> None:
    config = stopped_run(tmp_path / "run")
    own = (tmp_path / "run" / CHECKPOINT).read_bytes()
    stopped_run(tmp_path / "other", seeds=Seeds(seed=7))
    shutil.copy(tmp_path / "other" / CHECKPOINT, tmp_path / "run" / CHECKPOINT)
    with pytest.raises(InputError) as problem:
        trained(config, tmp_path / "run", resume=True)
    assert "but it was saved with other settings" in sentence(problem)
    (tmp_path / "run" / CHECKPOINT).write_bytes(own)
    whole = trained(config, tmp_path / "whole")
    assert bytes_of(trained(config, tmp_path / "run", resume=True).folder) == bytes_of(whole.folder)


def test_an_old_that_was_trained_again(tmp_path: Path) -> None:
    old = make_old(tmp_path / "old")
    config = with_old(tiny("fd-lm", epochs=3), old)
    whole = trained(config, tmp_path / "whole")
    trained(hurried(config), tmp_path / "run")
    old.folder.rename(tmp_path / "kept")
    make_old(tmp_path / "old", seed=8)
    said = refused(config, tmp_path / "run", resume=True)
    assert "but those of '../old' (paths relative to it) have changed" in said
    # What is finished is a sound result all the same.
    lines: list[str] = []
    before = bytes_of(whole.folder)
    assert train(config, whole.folder, resume=True, report=lines.append).finished
    assert lines[0].endswith("is finished; nothing to do")
    assert "the weights in '../old' (paths relative to it) have changed" in lines[1]
    assert bytes_of(whole.folder) == before
    shutil.rmtree(tmp_path / "old")
    (tmp_path / "kept").rename(tmp_path / "old")
    assert bytes_of(trained(config, tmp_path / "run", resume=True).folder) == bytes_of(whole.folder)


@pytest.mark.parametrize("fuse", ["off", "on"])
def test_members_that_started_from_an_old_that_was_trained_again(fuse: str, tmp_path: Path) -> None:
    old = make_old(tmp_path / "old")
    config = with_old(tiny("elodi", epochs=1, fine_tune=True, machine={"fuse": fuse}), old)
    first = trained(config, tmp_path / "first")
    shutil.rmtree(old.folder)
    other = make_old(tmp_path / "old", seed=8)
    # With other settings old has another key, and so have the members that start from it.
    second = trained(config, tmp_path / "other")
    assert not {*first.document["members"]} & {*second.document["members"]}
    document = {**other.document, "key": old.document["key"]}  # the same settings, other data
    (other.folder / RUN).write_text(json.dumps(document))
    # A new run, which would find its members finished.
    with pytest.raises(InputError) as problem:
        trained(config, tmp_path / "second")
    assert "but those of '../../old' (paths relative to it) have changed" in sentence(problem)
    assert not (tmp_path / "second").exists()


def test_a_member_that_was_trained_again(tmp_path: Path) -> None:
    config = tiny("elodi", epochs=3)
    stopped = trained(dataclasses.replace(config), tmp_path / "run")
    member = tmp_path / stopped.document["members"][0].removeprefix("../")
    for path in (tmp_path / "run" / MODEL, tmp_path / "run" / PREDICTIONS):
        path.unlink()
    document = json.loads((member / RUN).read_text())
    (member / RUN).write_text(json.dumps({**document, "weights": "0" * 64}))
    assert member.name in refused(config, tmp_path / "run", resume=True)


def test_stored_views_of_others(tmp_path: Path) -> None:
    config = tiny("elodi", options={"views": 1}, recipe={"augment": "shift-scale-noise"})
    trained(config, tmp_path / "first")
    (described,) = (tmp_path / "views").glob("*/views.json")
    document = json.loads(described.read_text())
    document["of"]["seed"] += 1
    described.write_text(json.dumps(document))
    assert "views.json" in refused(config, tmp_path / "second")


# -- what is damaged or missing -------------------------------------------------------------------


@pytest.mark.parametrize("name", [TIMING, HISTORY])
@pytest.mark.parametrize("damage", [b"", b"{", b"[1]\n", b"\xff\n" * 3, None])
def test_what_is_told_of_epochs_is_written_again(
    damage: bytes | None, name: str, tmp_path: Path
) -> None:
    config = stopped_run(tmp_path / "run")
    path = tmp_path / "run" / name
    path.write_bytes(path.read_bytes()[:-9] if damage is None else damage)
    whole = trained(config, tmp_path / "whole")
    assert bytes_of(trained(config, tmp_path / "run", resume=True).folder) == bytes_of(whole.folder)
    rows = [json.loads(line) for line in (tmp_path / "run" / TIMING).read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2, 3]


def test_members_whose_timing_is_damaged_go_on(tmp_path: Path) -> None:
    config = tiny("elodi", epochs=2)
    whole = trained(config, tmp_path / "whole" / "run")
    trained(hurried(config), tmp_path / "run")
    for path in (tmp_path / "members").glob(f"*/{TIMING}"):
        path.write_text("{")
    assert bytes_of(trained(config, tmp_path / "run", resume=True).folder) == bytes_of(whole.folder)


@pytest.mark.parametrize("name", [MODEL, PREDICTIONS])
def test_a_finished_run_that_lost_what_it_ended_in(name: str, tmp_path: Path) -> None:
    run = trained(tiny(), tmp_path / "run")
    before = bytes_of(run.folder)
    (run.folder / name).unlink()
    assert bytes_of(trained(tiny(), run.folder, resume=True).folder) == before
    (run.folder / name).unlink()
    (run.folder / CHECKPOINT).unlink()
    with pytest.raises(InputError) as problem:
        trained(tiny(), run.folder, resume=True)
    assert CHECKPOINT in sentence(problem)


@pytest.mark.parametrize("name", [MODEL, HISTORY, PREDICTIONS, CHECKPOINT])
def test_files_of_an_unknown_run_are_not_overwritten(name: str, tmp_path: Path) -> None:
    path = tmp_path / "run" / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    assert f"it contains '{name}' and no {RUN}" in refused(tiny(), tmp_path / "run")


# -- refusals leave nothing -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"recipe": {"augment": "cutout"}},
        {"recipe": PRESETS["churn-cifar"]},
        {"recipe": DIVERGES},
        {"recipe": DIVERGES, "machine": {"processes": 2}},
        {"method": "elodi", "recipe": DIVERGES, "machine": {"fuse": "off"}},
        {"method": "elodi", "recipe": DIVERGES, "machine": {"fuse": "on"}},
        {"method": "elodi", "recipe": {"augment": "cutout"}, "machine": {"fuse": "on"}},
    ],
)
def test_a_run_that_keeps_nothing_leaves_nothing(changes: dict[str, Any], tmp_path: Path) -> None:
    method = changes.get("method", "none")
    with pytest.raises(InputError) as problem:
        trained(tiny(**changes), tmp_path / "runs" / "run")
    assert "\n" not in str(problem.value)
    assert list(tmp_path.iterdir()) == []
    assert trained(tiny(method, epochs=1), tmp_path / "runs" / "run").finished


def test_a_refusal_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes").write_text("mine")
    with pytest.raises(InputError):
        trained(tiny(recipe=DIVERGES), tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes"]
    images = tiny(data=images_file(tmp_path / "images.npz"), model="mlp:hidden=2")
    assert trained(images, tmp_path / "run").finished
    assert Run.read(tmp_path / "run").finished


# -- what of the machine decides a run ------------------------------------------------------------


@pytest.mark.parametrize("other", [{"precision": "64-true"}, {"deterministic": True}])
def test_a_run_goes_on_in_its_own_precision(other: dict[str, Any], tmp_path: Path) -> None:
    config = stopped_run(tmp_path / "run")
    changed = dataclasses.replace(config, machine=dataclasses.replace(config.machine, **other))
    name = next(iter(other))
    assert f"but 'machine.{name}' changed" in refused(changed, tmp_path / "run", resume=True)
    more = dataclasses.replace(config, machine=dataclasses.replace(config.machine, threads=2))
    assert trained(more, tmp_path / "run", resume=True).finished


def test_members_of_another_precision_are_others(tmp_path: Path) -> None:
    trained(tiny("elodi", epochs=1), tmp_path / "single")
    double = tiny("elodi", epochs=1, machine={"precision": "64-true"})
    run = trained(double, tmp_path / "double")
    for place in run.document["members"]:
        assert Run.read(run.folder / place).config.machine.precision == "64-true"
    assert bytes_of(run.folder) == bytes_of(trained(double, tmp_path / "alone" / "run").folder)
