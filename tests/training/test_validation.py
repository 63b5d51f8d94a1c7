"""Runs with a validation split: it is measured on, and the test split is used once, at the end."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from flipguard.data import load_data
from flipguard.errors import InputError
from flipguard.report.group_charts import curve_chart
from flipguard.run_document import RUN
from flipguard.runs.folder import MODEL, is_whole
from flipguard.runs.history import read_run
from flipguard.training import Config, Machine, Run, Scope, Seeds, predict, train
from flipguard.training.batches import data_of
from tests.training.tiny import bytes_of, history_of, needs_old, tiny, trained, with_old

HALF, TENTH = Scope(samples=0.5, validation=0.2), Scope(validation=0.2)
FILES = ("validation", "test")
HELD = 39  # a fifth of each class of 200 samples, rounded


def table(run: Run, split: str) -> dict[int, tuple[str, str]]:
    """The target and the predicted class of each sample of a split, by name."""
    with np.load(run.folder / "predictions" / f"{split}.npz") as found:
        names = found["class_names"]
        rows = zip(
            found["ids"].tolist(),
            found["targets"].astype(str),
            names[found["logits"].argmax(1)],
            strict=True,
        )
        return {one: (str(target), str(said)) for one, target, said in rows}


def error_rate(run: Run, split: str) -> float:
    rows = table(run, split).values()
    return sum(target != said for target, said in rows) / len(rows)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tiny(scope=TENTH, seeds=Seeds(seed=7)), tmp_path_factory.mktemp("old") / "old")


def test_rates_are_those_of_the_validation_split(old: Run, tmp_path: Path) -> None:
    lines: list[str] = []
    config = with_old(tiny("fd-lm", scope=TENTH, epochs=3), old)
    run = train(config, tmp_path / "run", report=lines.append)
    rows = history_of(run.folder)
    assert [sorted(row.keys() & {"train", "validation", "test"}) for row in rows] == [
        ["train", "validation"]
    ] * 3
    assert sum("validation error" in line for line in lines) == 3
    assert not any("test error" in line or "was trained on" in line for line in lines)
    for split, size in (("validation", HELD), ("test", 100)):
        assert len(table(run, split)) == size
    last = rows[-1]["validation"]
    assert last["error_rate"] == error_rate(run, "validation")
    # The old run held out the same samples, so flips are counted by plain Python from both files.
    before, after = table(old, "validation"), table(run, "validation")
    assert before.keys() == after.keys()
    broken = sum(before[one] == (t, t) and said != t for one, (t, said) in after.items())
    assert last["old"][str(old.folder)]["negative_flip_rate"] == broken / HELD
    assert (
        run.document["data"] | {"train": 200 - HELD, "validation": HELD, "test": 100}
        == (run.document["data"])
    )


def test_a_report_draws_the_rates_of_the_validation_split(old: Run) -> None:
    points = [point for point in read_run(old.folder).points if point.what == "error_rate"]
    assert [point.split for point in points] == ["train", "validation"] * 2
    assert points[-1].value == error_rate(old, "validation")
    scale = curve_chart([read_run(old.folder)], "error_rate")["layer"][0]["encoding"]["strokeDash"]
    assert scale["scale"]["domain"] == ["validation", "train"]


def test_predict_gives_the_files_of_the_run(old: Run, tmp_path: Path) -> None:
    for split in FILES:
        predict(old, split=split, out=tmp_path / f"{split}.npz")
        first = old.folder / "predictions" / f"{split}.npz"
        assert (tmp_path / f"{split}.npz").read_bytes() == first.read_bytes()
    assert is_whole(old)
    plain = trained(tiny(), tmp_path / "plain")
    assert not (plain.folder / "predictions" / "validation.npz").exists()
    with pytest.raises(InputError, match="`split='validation'` of a run with a validation split"):
        predict(plain, split="validation", out=tmp_path / "none.npz")
    with pytest.raises(InputError, match="`split=` to be train, validation or test, but got 'x'"):
        predict(plain, split="x", out=tmp_path / "none.npz")


@pytest.mark.parametrize("method", ["none", "elodi", "bu-cr", "codistill-skl"])
def test_stopped_and_resumed_equals_uninterrupted(method: str, old: Run, tmp_path: Path) -> None:
    config = tiny(method, epochs=3, scope=TENTH, recipe={"augment": "shift-scale-noise"})
    config = with_old(config, old) if needs_old(method) else config
    whole = trained(config, tmp_path / "whole" / "run")
    hurried = Machine(threads=1, device="cpu", minutes=1e-9)
    stopped = trained(dataclasses.replace(config, machine=hurried), tmp_path / "stopped" / "run")
    assert stopped.status == "stopped"
    assert not (stopped.folder / "predictions").exists()
    resumed = trained(config, stopped.folder, resume=True)
    assert bytes_of(resumed.folder) == bytes_of(whole.folder)
    validation = (run.folder / "predictions" / "validation.npz" for run in (whole, resumed))
    assert len({path.read_bytes() for path in validation}) == 1


def test_a_run_without_its_validation_predictions_is_not_whole(tmp_path: Path) -> None:
    config = tiny(scope=TENTH)
    run = trained(config, tmp_path / "run")
    path = run.folder / "predictions" / "validation.npz"
    before = path.read_bytes()
    path.unlink()
    assert not is_whole(run)
    assert is_whole(trained(config, run.folder, resume=True))
    assert path.read_bytes() == before


@pytest.mark.parametrize("fuse", ["on", "off"])
def test_members_hold_out_the_same_samples(fuse: str, tmp_path: Path) -> None:
    run = trained(tiny("ensemble", scope=TENTH, machine={"fuse": fuse}), tmp_path / "run")
    assert history_of(run.folder)[-1]["validation"]["error_rate"] == error_rate(run, "validation")
    members = [Run.read(folder) for folder in sorted((tmp_path / "members").iterdir())]
    members = [member for member in members if member.finished]
    assert len(members) == 2
    for member in members:
        assert table(member, "validation").keys() == table(run, "validation").keys()
        last = history_of(member.folder)[-1]
        assert last["validation"]["error_rate"] == pytest.approx(error_rate(member, "validation"))
        assert "test" not in last


def test_what_a_method_holds_out_is_not_of_the_validation_split(tmp_path: Path) -> None:
    """A calibrated ensemble holds out training samples, so validation is of no use to it."""
    run = trained(
        tiny("elodi", scope=TENTH, options={"guide": "calibrated"}), tmp_path / "runs" / "run"
    )
    validation = table(run, "validation").keys()
    assert len(validation) == HELD
    for folder in (tmp_path / "runs" / "members").iterdir():
        learned = data_of(Run.read(folder).config).train.ids_index.tolist()
        assert len(learned) < 200 - HELD
        assert not validation & set(learned)


def test_fine_tuning(old: Run, tmp_path: Path) -> None:
    config = with_old(tiny("ewc", scope=TENTH, seeds=Seeds(seed=1)), old)
    run = trained(config, tmp_path / "run")
    assert run.config.fine_tune
    assert history_of(run.folder)[-1]["validation"]["error_rate"] == error_rate(run, "validation")


def test_random_classes_grow_by_name(tmp_path: Path) -> None:
    names = load_data(tiny().data).class_names
    few = dataclasses.replace(TENTH, classes=5)
    old = trained(tiny(scope=few, seeds=Seeds(seed=7)), tmp_path / "old")
    assert set(old.class_names) < set(names)
    assert old.class_names != names[:5]
    run = trained(with_old(tiny("fd-lm", scope=TENTH), old), tmp_path / "run")
    for split in FILES:
        before, after = table(old, split), table(run, split)
        assert before.keys() == {one for one, (t, _) in after.items() if t in old.class_names}
        assert all(before[one][0] == after[one][0] for one in before)
    before, after = table(old, "validation"), table(run, "validation")
    rates = history_of(run.folder)[-1]["validation"]["old"][str(old.folder)]
    assert rates["churn"] == sum(before[k][1] != after[k][1] for k in before) / len(before)


def test_an_old_run_that_learned_held_out_samples_is_noted(tmp_path: Path) -> None:
    def notes(old: Run, name: str) -> list[str]:
        lines: list[str] = []
        train(with_old(tiny("kd", scope=TENTH), old), tmp_path / name, report=lines.append)
        return [line for line in lines if "was trained on" in line]

    every = trained(tiny(), tmp_path / "every")
    (said,) = notes(every, "of every")
    assert (
        f"{every.folder} was trained on {HELD} of the {HELD} samples of the validation split"
        in said
    )
    other = trained(tiny(scope=Scope(validation=0.2, seed=1)), tmp_path / "other")
    held = set(table(trained(tiny(scope=TENTH), tmp_path / "same"), "validation"))
    (said,) = notes(other, "of other")
    assert f"on {len(held - set(table(other, 'validation')))} of the {HELD} samples" in said
    assert not notes(trained(tiny(scope=HALF), tmp_path / "half"), "of half")
    lines: list[str] = []
    guided = tiny("elodi", scope=TENTH, guides=(str(every.folder), str(other.folder)))
    train(guided, tmp_path / "guided", report=lines.append)
    assert sum("was trained on" in line for line in lines) == 2


def without(run: Run, *names: str) -> None:
    """Leave settings out of `run.json`, as runs wrote it before there were these settings."""
    path = run.folder / RUN
    document = json.loads(path.read_text())
    for name in names:
        del document["config"]["scope"][name]
    path.write_text(json.dumps(document))


@pytest.mark.parametrize("part", [{"samples": 0.5}, {"classes": 4}, {"samples": 0.4, "classes": 6}])
def test_a_run_of_before_sees_the_samples_that_it_was_trained_on(
    part: dict[str, Any], tmp_path: Path
) -> None:
    scope = Scope(**part, per_class=False, class_choice="first")
    config = tiny(scope=scope)
    run = trained(config, tmp_path / "run")
    for split in ("train", "test"):
        predict(run, split=split, out=tmp_path / f"before.{split}.npz")
    without(run, "per_class", "class_choice", "validation")
    run = Run.read(run.folder)
    assert run.config.scope == dataclasses.replace(
        scope,
        per_class=False,
        class_choice="first",
    )
    for split in ("train", "test"):
        predict(run, split=split, out=tmp_path / f"after.{split}.npz")
        before, after = (tmp_path / f"{when}.{split}.npz" for when in ("before", "after"))
        assert before.read_bytes() == after.read_bytes()
    # And it goes on as what it was.
    assert trained(config, run.folder, resume=True).finished


def test_a_stopped_run_of_before_is_resumed_as_it_was(tmp_path: Path) -> None:
    scope = Scope(samples=0.5, per_class=False)
    config = tiny(scope=scope, epochs=3)
    whole = trained(config, tmp_path / "whole")
    hurried = Machine(threads=1, device="cpu", minutes=1e-9)
    stopped = trained(dataclasses.replace(config, machine=hurried), tmp_path / "stopped")
    without(stopped, "per_class", "class_choice", "validation")
    now: Config = dataclasses.replace(config, scope=Scope(samples=0.5))
    with pytest.raises(InputError, match=r"but 'scope\.per_class' changed"):
        trained(now, stopped.folder, resume=True)
    begun = dataclasses.replace(Run.read(stopped.folder).config, machine=config.machine)
    assert bytes_of(trained(begun, stopped.folder, resume=True).folder) == bytes_of(whole.folder)


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path) -> None:
    config = tiny(scope=TENTH, recipe={"batch_size": 51, "optimizer": "sgd"})
    one = trained(config, tmp_path / "one" / "run")
    two = Machine(processes=2, device="cpu", threads=1)
    both = trained(dataclasses.replace(config, machine=two), tmp_path / "two" / "run")
    assert table(one, "validation").keys() == table(both, "validation").keys()
    first, second = load_file(one.folder / MODEL), load_file(both.folder / MODEL)
    for name, weight in first.items():
        torch.testing.assert_close(second[name], weight, atol=1e-5, rtol=0)
