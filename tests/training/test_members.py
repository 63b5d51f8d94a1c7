"""Ensembles: what their members are, and that they are trained once."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flipguard.errors import InputError
from flipguard.runs.folder import MODEL
from flipguard.training import Run, Scope, Seeds, load_model, predict
from flipguard.training.checkpoint import EnsembleModel
from flipguard.training.checks import check_folder
from flipguard.training.members import member_config, member_folder
from tests.training.tiny import bytes_of, everything_in, tiny, trained


def members_in(folder: Path) -> dict[str, int]:
    """The members in a folder, and when their weights were written."""
    return {
        run.name: (run / MODEL).stat().st_mtime_ns for run in sorted((folder / "members").iterdir())
    }


def logits_in(path: Path) -> np.ndarray:
    with np.load(path) as archive:
        logits: np.ndarray = archive["logits"]
        return logits


def test_members_are_trained_once_and_used_by_later_students(tmp_path: Path) -> None:
    first = trained(tiny("elodi"), tmp_path / "first")
    before = members_in(tmp_path)
    held = everything_in(tmp_path / "members")
    assert len(before) == 2
    second = trained(tiny("elodi", options={"alpha": 0.5, "k": 3}), tmp_path / "second")
    assert members_in(tmp_path) == before
    paragon = trained(tiny("ensemble"), tmp_path / "paragon")
    assert members_in(tmp_path) == before
    assert everything_in(tmp_path / "members") == held
    assert paragon.finished
    assert bytes_of(first.folder) != bytes_of(second.folder)
    # One more member is one more run.
    trained(tiny("elodi", options={"members": 3}), tmp_path / "third")
    after = members_in(tmp_path)
    assert len(after) == 3
    assert before.items() <= after.items()
    # Members of another seed are others.
    trained(tiny("elodi", seeds=Seeds(seed=1)), tmp_path / "fourth")
    assert len(members_in(tmp_path)) == 5


@pytest.mark.parametrize("method", ["ensemble", "elodi"])
def test_members_of_other_data_are_not_used(method: str, tmp_path: Path) -> None:
    """A member's folder is named after the data's name, which says nothing of their content."""
    path, drawn = tmp_path / "data.npz", np.random.default_rng(0)

    def write() -> None:
        np.savez(
            path,
            train_inputs=drawn.normal(size=(100, 5)).astype(np.float32),
            train_targets=np.arange(100) % 3,
            test_inputs=drawn.normal(size=(20, 5)).astype(np.float32),
            test_targets=np.arange(20) % 3,
        )

    options = {"guide": "calibrated"} if method == "elodi" else {}
    config = tiny(method, data=str(path), options=options)
    write()
    trained(config, tmp_path / "runs" / "a")
    again = trained(config, tmp_path / "runs" / "b")  # the same data, so the same members
    assert len(members_in(tmp_path / "runs")) == 2
    write()
    said = r"has changed since .* began; choose another parent folder for `out=`, or remove"
    with pytest.raises(InputError, match=said):
        trained(config, tmp_path / "runs" / "c")
    assert not (tmp_path / "runs" / "c").exists()
    other = trained(config, tmp_path / "other" / "c")
    assert bytes_of(other.folder) != bytes_of(again.folder)


def test_cached_members_give_the_same_student(tmp_path: Path) -> None:
    trained(tiny("ensemble"), tmp_path / "cached" / "paragon")
    cached = trained(tiny("elodi"), tmp_path / "cached" / "run")
    fresh = trained(tiny("elodi"), tmp_path / "fresh" / "run")
    assert bytes_of(cached.folder) == bytes_of(fresh.folder)


def test_an_ensemble_gives_the_mean_of_its_members(tmp_path: Path) -> None:
    run = trained(tiny("ensemble", options={"members": 3}), tmp_path / "run")
    folders = sorted((tmp_path / "members").iterdir())
    assert len(folders) == 3
    logits = [logits_in(folder / "predictions" / "test.npz") for folder in folders]
    assert not np.allclose(logits[0], logits[1])
    mean = logits_in(run.folder / "predictions" / "test.npz")
    np.testing.assert_allclose(mean, np.mean(logits, axis=0), atol=1e-5)
    predict(Run.read(run.folder), split="test", out=tmp_path / "again.npz")
    assert np.array_equal(logits_in(tmp_path / "again.npz"), mean)
    model = load_model(run)
    assert isinstance(model, EnsembleModel)
    assert len(model.members) == 3
    assert not torch.equal(next(model.members[0].parameters()), next(model.members[1].parameters()))


def test_an_ensemble_can_be_an_old_model(tmp_path: Path) -> None:
    old = trained(tiny("ensemble"), tmp_path / "old")
    run = trained(tiny("fd-lm", old=(str(old.folder),)), tmp_path / "run")
    assert run.finished


def test_given_runs_guide_a_student(tmp_path: Path) -> None:
    """An ensemble of other architectures, which is not trained again."""
    guides = tuple(
        str(trained(tiny(model=model, seeds=Seeds(seed=i)), tmp_path / f"guide{i}").folder)
        for i, model in enumerate(("mlp:hidden=8", "mlp:hidden=12,depth=3"))
    )
    options = {"guide": "heterogeneous"}
    run = trained(tiny("elodi", options=options, guides=guides), tmp_path / "run")
    assert run.finished
    assert not (tmp_path / "members").exists()
    one = trained(tiny("elodi", options=options, guides=guides[:1]), tmp_path / "one")
    assert bytes_of(run.folder) != bytes_of(one.folder)


def test_members_of_a_calibrated_guide_do_not_see_what_it_is_calibrated_on(tmp_path: Path) -> None:
    trained(tiny("elodi", options={"guide": "calibrated"}), tmp_path / "run")
    for folder in (tmp_path / "members").iterdir():
        member = Run.read(folder)
        assert member.config.scope.samples == pytest.approx(0.9)
        assert member.document["data"]["train"] < 200


LEARNED = (
    r"Expected %s not to be trained on the 25 samples that are held out to calibrate the "
    r"ensemble, but \S+ was trained on %d of them; %s, or give runs that were trained with "
    r"`scope\.samples=0\.9`, `scope\.per_class=false` and `scope\.seed=0`\."
)


def test_given_members_that_learned_what_they_are_calibrated_on_are_refused(
    tmp_path: Path,
) -> None:
    scopes = {
        "all": Scope(),
        "other": Scope(samples=0.9, seed=1, per_class=False),
        "apart": Scope(samples=0.9, per_class=False),
    }
    guides = {
        name: str(trained(tiny(scope=scope), tmp_path / name).folder)
        for name, scope in scopes.items()
    }
    # Apart by itself, but it began as a model that had learned all.
    begun = tiny(scope=scopes["apart"], old=(guides["all"],), fine_tune=True)
    guides["begun"] = str(trained(begun, tmp_path / "begun").folder)
    for name, learned in (("all", 25), ("other", 21), ("begun", 25)):
        config = tiny(
            "elodi", options={"guide": "calibrated"}, guides=(guides["apart"], guides[name])
        )
        way_out = "leave `guides` out, so that members are trained without them"
        with pytest.raises(InputError, match=LEARNED % ("`guides`", learned, way_out)):
            trained(config, tmp_path / "run")
        assert not (tmp_path / "run").exists()
    config = tiny("elodi", options={"guide": "calibrated"}, guides=(guides["apart"],))
    assert trained(config, tmp_path / "run").finished


def test_members_that_start_from_what_learned_it_are_refused(tmp_path: Path) -> None:
    options = {"guide": "calibrated"}
    old = trained(tiny(), tmp_path / "old")
    role = "`old=`, whose weights members start from,"
    config = tiny("elodi", options=options, old=(str(old.folder),), fine_tune=True)
    with pytest.raises(InputError, match=LEARNED % (role, 25, "leave `fine_tune` out")):
        trained(config, tmp_path / "run")
    half = trained(tiny(scope=Scope(samples=0.5, per_class=False)), tmp_path / "half")
    config = tiny("elodi", options=options, old=(str(half.folder),), fine_tune=True)
    assert trained(config, tmp_path / "run").finished


def test_an_ensemble_asked_once_differs_only_where_inputs_are_augmented(tmp_path: Path) -> None:
    for augment, same in (("none", True), ("shift-scale-noise", False)):
        recipe = {"augment": augment}
        folder = tmp_path / augment
        online = trained(tiny("elodi", recipe=recipe), folder / "online")
        offline = trained(
            tiny("elodi", recipe=recipe, options={"online": False}), folder / "offline"
        )
        first, second = (
            logits_in(run.folder / "predictions" / "test.npz") for run in (online, offline)
        )
        assert np.allclose(first, second, rtol=1e-4, atol=1e-5) == same


@pytest.mark.parametrize(
    ("method", "changes", "said"),
    [
        (
            "none",
            {"guides": ("x",)},
            "Expected `guides` with ensemble, elodi, but got them with `none`",
        ),
        (
            "elodi",
            {"options": {"guide": "heterogeneous"}},
            "Expected `guides` for the option guide=",
        ),
        ("elodi", {"guides": ("nowhere",)}, "to be a run, but there is no run.json in it"),
    ],
)
def test_guides_that_cannot_guide(tmp_path: Path, method: str, changes: Any, said: str) -> None:
    with pytest.raises(InputError) as refusal:
        trained(tiny(method, **changes), tmp_path / "run")
    assert said in str(refusal.value)
    assert not (tmp_path / "run").exists()


def test_moved_data_leave_members_where_they_are(tmp_path: Path) -> None:
    config = member_config(tiny("ensemble"), 0)
    moved = dataclasses.replace(config, data_root="/elsewhere")
    assert member_folder(moved, tmp_path / "run") == member_folder(config, tmp_path / "run")
    trained(tiny(), tmp_path / "one")
    check_folder(tmp_path / "one", tiny(data_root="/elsewhere"), resume=True)
