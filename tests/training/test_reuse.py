"""Members that are reused from the ensemble of the old model."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from flipguard.run_document import RUN
from flipguard.runs.folder import MODEL
from flipguard.training import Config, Run, Scope, Seeds
from tests.training.test_refusals import refused
from tests.training.tiny import bytes_of, everything_in, make_old, tiny, trained, with_old


def update(
    old: Run | None, seed: int, *, members: int = 3, reuse: int = 0, **changes: Any
) -> Config:
    """A link of a chain of updates."""
    options = {"members": members, "reuse": reuse, **changes.pop("options", {})}
    config = tiny("elodi", epochs=1, seeds=Seeds(seed=seed), options=options, **changes)
    return config if old is None else with_old(config, old)


def names(run: Run) -> list[str]:
    """The members of a run, as its `run.json` lists them."""
    return [Path(member).name for member in run.document["members"]]


def members_in(folder: Path) -> set[str]:
    return {path.name for path in (folder / "members").iterdir()}


def trained_less(members: int, reuse: int, out: Path, old: Run, **changes: Any) -> tuple[Run, int]:
    """An update, and how many members were trained for it."""
    before = members_in(out.parent)
    run = trained(update(old, 2, members=members, reuse=reuse, **changes), out)
    return run, len(members_in(out.parent) - before)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An old run with three members."""
    return trained(update(None, 1), tmp_path_factory.mktemp("chain") / "first")


@pytest.fixture
def old(first: Run, tmp_path: Path) -> Run:
    """A copy of it: a folder of runs that was moved as a whole."""
    shutil.copytree(first.folder.parent, tmp_path, dirs_exist_ok=True)
    return Run.read(tmp_path / "first")


def test_a_chain_of_three_updates(old: Run, tmp_path: Path) -> None:
    held = everything_in(tmp_path)
    second = trained(update(old, 2, reuse=2), tmp_path / "second")
    assert len(members_in(tmp_path)) == 3 + 1
    # What was there is as it was, to the byte; what is new comes first.
    assert held.items() <= everything_in(tmp_path).items()
    assert names(second)[1:] == names(old)[:2]
    assert names(second)[0] not in names(old)
    third = trained(update(second, 3, reuse=2), tmp_path / "third")
    assert len(members_in(tmp_path)) == 5
    # So the newest is reused first, and the oldest is dropped.
    assert names(third)[1:] == names(second)[:2]
    fourth = trained(update(third, 4, reuse=2), tmp_path / "fourth")
    assert len(members_in(tmp_path)) == 6
    assert not set(names(fourth)) & set(names(old))
    for run in (second, third, fourth):
        assert run.finished
        assert len(names(run)) == 3
        assert all(Run.read(run.folder / path).finished for path in run.document["members"])


@pytest.mark.parametrize("fuse", ["off", "on"])
@pytest.mark.parametrize("reuse", [0, 1, 3])
def test_only_the_others_are_trained(reuse: int, fuse: str, old: Run, tmp_path: Path) -> None:
    run, count = trained_less(3, reuse, tmp_path / "run", old, machine={"fuse": fuse})
    assert count == 3 - reuse
    assert len(set(names(run))) == 3


def test_what_is_taken_over_changes_the_student(old: Run, tmp_path: Path) -> None:
    found = {
        bytes_of(trained_less(3, reuse, tmp_path / str(reuse), old)[0].folder)[MODEL]
        for reuse in (0, 1, 2, 3)
    }
    assert len(found) == 4


def test_no_member_counts_twice(old: Run, tmp_path: Path) -> None:
    """An update of old's own seed and settings would train old's members again."""
    run = trained(update(old, 1, reuse=2), tmp_path / "run")
    assert len(set(names(run))) == 3
    assert members_in(tmp_path) == set(names(old))
    elsewhere = trained(update(old, 1, reuse=2), tmp_path / "elsewhere" / "run")
    assert len(set(names(elsewhere))) == 3
    assert bytes_of(elsewhere.folder) == bytes_of(run.folder)


def test_members_of_another_kind_that_saw_less(tmp_path: Path) -> None:
    less: dict[str, Any] = {"model": "mlp:hidden=8,depth=1", "scope": Scope(samples=0.5)}
    old = trained(update(None, 1, **less), tmp_path / "old")
    for fuse in ("off", "on"):
        run, count = trained_less(4, 2, tmp_path / fuse, old, machine={"fuse": fuse})
        assert run.finished
        assert count == (2 if fuse == "off" else 0)


def test_a_folder_of_runs_is_moved_in_mid_chain(old: Run, tmp_path: Path) -> None:
    trained(update(old, 2, reuse=2), tmp_path / "second")
    moved = tmp_path.with_name(f"{tmp_path.name}-moved")
    shutil.move(tmp_path, moved)
    second = Run.read(moved / "second")
    third = trained(update(second, 3, reuse=3), moved / "deeper" / "third")
    assert names(third) == names(second)
    assert not (moved / "deeper" / "members").exists()
    assert all((third.folder / path / RUN).exists() for path in third.document["members"])


def test_members_of_an_ensemble_and_guides_are_taken_over_too(old: Run, tmp_path: Path) -> None:
    paragon = trained(
        tiny("ensemble", epochs=1, options={"members": 3}, seeds=Seeds(seed=1)), tmp_path / "p"
    )
    assert names(paragon) == names(old)
    by_paragon = trained(update(paragon, 2, reuse=2), tmp_path / "by_paragon")
    assert names(by_paragon)[1:] == names(old)[:2]


def test_views_are_those_of_all_members(old: Run, tmp_path: Path) -> None:
    """Stored views depend on all members, including reused ones."""
    found = [
        trained_less(3, reuse, tmp_path / str(reuse), old, options={"views": 1})[0]
        for reuse in (1, 2)
    ]
    assert len({str(run.document["views"]) for run in found}) == 2
    assert all(run.finished for run in found)


def test_stopped_and_resumed_equals_uninterrupted(old: Run, tmp_path: Path) -> None:
    config = dataclasses.replace(
        update(old, 2, reuse=2), recipe=dataclasses.replace(old.config.recipe, epochs=3)
    )
    machine = dataclasses.replace(config.machine, minutes=1e-9)
    whole = trained(config, tmp_path / "whole")
    stopped = trained(dataclasses.replace(config, machine=machine), tmp_path / "stopped")
    assert stopped.status == "stopped"
    resumed = trained(config, stopped.folder, resume=True)
    assert bytes_of(resumed.folder) == bytes_of(whole.folder)
    assert resumed.document["members"] == whole.document["members"]


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reuse": 4}, "at most `members`, 3, but got 4"),
        ({"reuse": -1}, "`reuse` of `elodi` to be a finite number of at least 0, but got -1"),
        ({"reuse": 1, "guides": ("x",)}, "`reuse` without `guides`"),
        ({"reuse": 1, "options": {"guide": "calibrated"}}, "'calibrated'"),
        ({"reuse": 1, "scope": Scope(classes=8)}, "has other classes"),
        ({"members": 5, "reuse": 4}, "to have 4 members to reuse, but it has 3"),
    ],
)
def test_what_cannot_be_taken_over(
    changes: dict[str, Any], said: str, old: Run, tmp_path: Path
) -> None:
    assert said in refused(update(old, 2, **changes), tmp_path / "run")


def test_one_old_run_is_needed(old: Run, tmp_path: Path) -> None:
    said = refused(update(None, 2, reuse=1), tmp_path / "run")
    assert "one `old=` with `reuse`, but got 0" in said
    two = with_old(update(None, 2, reuse=1), old, old)
    assert "one `old=` with `reuse`, but got 2" in refused(two, tmp_path / "run")


def test_an_old_run_without_members(tmp_path: Path) -> None:
    plain = make_old(tmp_path / "plain")
    assert "lists none" in refused(update(plain, 2, reuse=1), tmp_path / "run")


def test_members_that_are_gone_unfinished_or_damaged(old: Run, tmp_path: Path) -> None:
    folder = old.folder / old.document["members"][0]
    config = update(old, 2, reuse=1)
    weights = (folder / MODEL).read_bytes()
    (folder / MODEL).write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    assert "missing or damaged" in refused(config, tmp_path / "run")
    (folder / MODEL).write_bytes(weights)
    document = json.loads((folder / RUN).read_text())
    (folder / RUN).write_text(json.dumps({**document, "status": "stopped"}))
    assert "is not finished" in refused(config, tmp_path / "run")
    shutil.rmtree(folder)
    assert "is missing" in refused(config, tmp_path / "run")
    # Alone in its new place: a run that was moved without its members.
    shutil.copytree(old.folder, tmp_path / "apart" / "first")
    apart = Run.read(tmp_path / "apart" / "first")
    assert "is missing" in refused(update(apart, 2, reuse=1), tmp_path / "run")
