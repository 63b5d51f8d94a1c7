"""Members of a fine-tuned run: each starts from the member of old's that is its own."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from flipguard.run_document import RUN
from flipguard.runs.folder import MODEL
from flipguard.training import Config, Machine, Run, Scope, Seeds, pool_strategy
from tests.training.test_fine_tune import NARROW, first_weights
from tests.training.test_refusals import refused
from tests.training.tiny import bytes_of, history_of, make_old, tiny, trained, with_old

Weights = dict[str, Tensor]
MEMBERS = 3


def old_run(method: str, out: Path, **changes: Any) -> Run:
    """An old run with members."""
    options = {"members": MEMBERS, **changes.pop("options", {})}
    return trained(tiny(method, epochs=1, seeds=Seeds(seed=7), options=options, **changes), out)


@pytest.fixture(scope="module")
def olds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("olds")
    return {
        "ensemble": old_run("ensemble", folder / "ensemble"),
        "elodi": old_run("elodi", folder / "elodi"),
        "narrow": old_run(
            "ensemble", folder / "narrow", scope=Scope(classes=NARROW, class_choice="first")
        ),
        "other": old_run("ensemble", folder / "other", model="mlp:hidden=12"),
    }


def tuned(method: str, old: Run, *, fuse: str = "off", **changes: Any) -> Config:
    """A run that starts from another one."""
    options = {"members": MEMBERS} if method in ("ensemble", "elodi") else {}
    options |= changes.pop("options", {})
    config = tiny(method, fine_tune=True, options=options, machine={"fuse": fuse}, **changes)
    return with_old(config, old)


def members_of(run: Run) -> list[Run]:
    """In the order in which a run lists them."""
    return [Run.read(run.folder / place) for place in run.document["members"]]


def weights_of(*runs: Run) -> list[Weights]:
    return [load_file(run.folder / MODEL) for run in runs]


def equal(first: Weights, second: Weights) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


def test_a_path_of_old_is_no_part_of_a_member(
    olds: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the path of the same old run is written, its members are the same runs."""
    old = tmp_path / "v1"
    shutil.copytree(olds["elodi"].folder.parent, tmp_path, dirs_exist_ok=True)
    shutil.copytree(olds["elodi"].folder, old)
    monkeypatch.chdir(tmp_path)
    configs = [
        tuned("elodi", dataclasses.replace(Run.read(old), folder=Path(path)), options={"k": k})
        for k, path in enumerate(["v1", "./v1", str(old)], start=1)
    ]
    whole = [trained(config, tmp_path / f"new{i}") for i, config in enumerate(configs)]
    assert whole[0].document["members"] == whole[1].document["members"]
    assert whole[0].document["members"] == whole[2].document["members"]
    # The runs themselves are the same too, but for the option that was changed.
    resumed = dataclasses.replace(configs[0], old=(str(old),))
    assert trained(resumed, whole[0].folder, resume=True).finished


@pytest.mark.parametrize("fuse", ["off", "on"])
def test_members_of_a_moved_old_run_are_known_by_its_key(
    fuse: str, olds: dict[str, Run], tmp_path: Path
) -> None:
    """Plain runs have no members, so that each member starts from the old run itself."""
    first = make_old(tmp_path / "a")
    shutil.copytree(first.folder, tmp_path / "b")
    configs = [
        tuned("ensemble", Run.read(tmp_path / name), fuse=fuse, options={"members": 2})
        for name in ("a", "b")
    ]
    runs = [trained(config, tmp_path / f"of{i}") for i, config in enumerate(configs)]
    assert runs[0].document["members"] == runs[1].document["members"]
    for member in members_of(runs[0]):
        assert member.folder.name == member.document["key"]


def test_members_of_an_old_run_with_other_weights_are_refused(tmp_path: Path) -> None:
    """The same settings on changed data give the same key."""
    first = make_old(tmp_path / "a")
    config = tuned("ensemble", first, options={"members": 1})
    trained(config, tmp_path / "run")
    other = make_old(tmp_path / "b", seed=8)
    document = json.loads((other.folder / RUN).read_text())
    document["key"] = first.document["key"]
    (other.folder / RUN).write_text(json.dumps(document))
    said = refused(with_old(config, other), tmp_path / "other")
    assert "was started with, but 'old' changed" in said


# -- where they start ----------------------------------------------------------------------------


def test_old_is_found_behind_a_link(olds: dict[str, Run], tmp_path: Path) -> None:
    link = tmp_path / "service" / "current"
    link.parent.mkdir()
    link.symlink_to(olds["ensemble"].folder)
    run = trained(tuned("ensemble", Run.read(link)), tmp_path / "run")
    starts = [Path(member.config.old[0]) for member in members_of(run)]
    assert starts == [member.folder.resolve() for member in members_of(olds["ensemble"])]


@pytest.mark.parametrize(
    ("method", "old"), [("ensemble", "ensemble"), ("ensemble", "elodi"), ("elodi", "elodi")]
)
def test_each_member_starts_from_its_own(
    method: str,
    old: str,
    olds: dict[str, Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = first_weights(monkeypatch)
    run = trained(tuned(method, olds[old]), tmp_path / "run")
    starts = weights_of(*members_of(olds[old]))
    assert not equal(starts[0], starts[1])
    assert [equal(*pair) for pair in zip(seen[:MEMBERS], starts, strict=True)] == [True] * MEMBERS
    if method == "elodi":  # whose student comes after its members, and starts from old's student
        (student,) = weights_of(olds[old])
        assert equal(seen[MEMBERS], student)
    assert len(seen) == MEMBERS + (method == "elodi")
    for member, start in zip(members_of(run), members_of(olds[old]), strict=True):
        (place,) = member.config.old
        assert Path(place).samefile(start.folder)
        assert list(history_of(member.folder)[0]["test"]["old"]) == [place]


def test_with_more_classes_too(
    olds: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = first_weights(monkeypatch)
    trained(tuned("ensemble", olds["narrow"]), tmp_path / "run")
    starts = weights_of(*members_of(olds["narrow"]))
    for begun, start in zip(seen, starts, strict=True):
        for name, tensor in start.items():
            assert torch.equal(begun[name][: len(tensor)], tensor)
    assert {len(begun["head.weight"]) for begun in seen} == {10}


def test_fewer_members_start_from_the_first_of_more(
    olds: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = first_weights(monkeypatch)
    trained(tuned("ensemble", olds["ensemble"], options={"members": 2}), tmp_path / "run")
    starts = weights_of(*members_of(olds["ensemble"]))
    assert [equal(*pair) for pair in zip(seen, starts[:2], strict=True)] == [True, True]


def test_all_start_from_an_old_one_without_members_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that were given as guides are not old's own members."""
    guides = tuple(
        str(make_old(tmp_path / f"guide{width}", model=f"mlp:hidden={width}").folder)
        for width in (8, 12)
    )
    guided = trained(
        tiny("elodi", epochs=1, options={"guide": "heterogeneous"}, guides=guides),
        tmp_path / "guided",
    )
    assert guided.document["members"]
    seen = first_weights(monkeypatch)
    trained(tuned("ensemble", guided), tmp_path / "from-guided")
    (start,) = weights_of(guided)
    assert [equal(begun, start) for begun in seen] == [True] * MEMBERS


def test_what_is_taken_over_is_not_started_from(
    olds: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = first_weights(monkeypatch)
    run = trained(tuned("elodi", olds["elodi"], options={"reuse": 1}), tmp_path / "run")
    taken, *others = weights_of(*members_of(olds["elodi"]))
    assert [equal(*pair) for pair in zip(seen[:2], others, strict=True)] == [True, True]
    assert equal(weights_of(*members_of(run))[-1], taken)
    assert len(seen) == 2 + 1
    # With all of them taken over, only the student starts.
    seen.clear()
    trained(tuned("elodi", olds["elodi"], options={"reuse": 3}), tmp_path / "all")
    assert len(seen) == 1


# -- as one network, side by side, and resumed ---------------------------------------------------


def test_side_by_side_they_are_those_of_the_loop(
    olds: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_strategy, "cores", lambda: 2)
    monkeypatch.setattr(pool_strategy, "WORTH", -1.0)
    beside, alone = (
        trained(tuned("ensemble", olds["ensemble"], fuse=fuse), tmp_path / fuse / "run")
        for fuse in ("auto", "off")
    )
    for first, second in zip(members_of(beside), members_of(alone), strict=True):
        assert first.folder.name == second.folder.name
        assert bytes_of(first.folder) == bytes_of(second.folder)
    assert bytes_of(beside.folder) == bytes_of(alone.folder)


@pytest.mark.parametrize("fuse", ["on", "off"])
def test_they_are_stopped_and_go_on(fuse: str, olds: dict[str, Run], tmp_path: Path) -> None:
    config = tuned("ensemble", olds["ensemble"], fuse=fuse, epochs=3)
    whole = trained(config, tmp_path / "whole" / "run")
    machine = Machine(threads=1, device="cpu", save_seconds=0.0, fuse=config.machine.fuse)
    hurried = dataclasses.replace(config, machine=dataclasses.replace(machine, minutes=1e-9))
    folder = tmp_path / "stopped" / "run"
    assert not trained(hurried, folder).finished
    again = trained(config, folder, resume=True)
    assert bytes_of(again.folder) == bytes_of(whole.folder)
    assert again.document["members"] == whole.document["members"]


def test_a_folder_of_runs_is_moved_before(olds: dict[str, Run], tmp_path: Path) -> None:
    """Old lists its members by where they lie beside it."""
    shutil.copytree(olds["ensemble"].folder.parent, tmp_path / "moved")
    moved = Run.read(tmp_path / "moved" / "ensemble")
    runs = [
        trained(tuned("ensemble", old), tmp_path / name / "run")
        for name, old in (("here", olds["ensemble"]), ("there", moved))
    ]
    assert bytes_of(runs[0].folder)[MODEL] == bytes_of(runs[1].folder)[MODEL]


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "old"), [("ensemble", "ensemble"), ("elodi", "elodi")])
def test_old_has_too_few(method: str, old: str, olds: dict[str, Run], tmp_path: Path) -> None:
    config = tuned(method, olds[old], options={"members": 4})
    said = refused(config, tmp_path / "run")
    assert f"Expected {olds[old].folder} to have 4 members for as many new ones" in said
    assert "but it has 3; set `options.members` to 3 or less" in said
    # Without fine-tuning it makes no difference how many old has.
    assert trained(dataclasses.replace(config, fine_tune=False), tmp_path / "run").finished


@pytest.mark.parametrize("method", ["none", "fd-lm", "elodi", "dropout", "l2-sp", "ewc", "mixout"])
def test_one_model_does_not_start_from_several(
    method: str, olds: dict[str, Run], tmp_path: Path
) -> None:
    said = refused(tuned(method, olds["ensemble"]), tmp_path / "run")
    assert f"Expected `{method}` to start from one model's weights, but " in said
    assert "is an ensemble; give one of its members as `old=`" in said
    assert ("leave `fine_tune` out" in said) == (method not in ("l2-sp", "ewc", "mixout"))


def test_members_of_another_architecture(olds: dict[str, Run], tmp_path: Path) -> None:
    for fuse in ("off", "on", "auto"):
        said = refused(tuned("ensemble", olds["other"], fuse=fuse), tmp_path / "run")
        assert "Expected fine-tuning to have the old model's architecture, but " in said


def test_members_that_are_gone(olds: dict[str, Run], tmp_path: Path) -> None:
    shutil.copytree(olds["ensemble"].folder, tmp_path / "alone")
    said = refused(tuned("ensemble", Run.read(tmp_path / "alone")), tmp_path / "run")
    assert f"the members of {tmp_path / 'alone'} to be finished runs for new ones to start" in said
    assert f"found none in '{olds['ensemble'].document['members'][0]}'" in said
    assert "leave `fine_tune` out" in said
