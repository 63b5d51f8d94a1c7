"""Differences from the papers are declared once, with the option, and shown everywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flipguard.cli.methods import methods_command as shown
from flipguard.errors import InputError
from flipguard.methods import METHODS
from flipguard.methods.base import Fact, Revision
from flipguard.run_document import RUN
from flipguard.runs.config import Config, Recipe
from flipguard.runs.folder import Run
from flipguard.runs.key import run_key
from flipguard.training import train
from flipguard.training.checks import complete_config
from tests.training.tiny import make_old, tiny, trained

# Differences from the paper by default, by option.
DEPARTING = {
    "dropout": {"rate": 0.2},
    "fd-kl": {"direction": "reverse", "t_squared": False},
    "fd-lm": {"class_reduction": "sum"},
    "ensemble": {"members": 16},
    "elodi": {"k": 10, "class_reduction": "sum"},
    "skl": {"floor": 0.0},
}
# Methods that always differ: they hold samples out, or leave a part of the loss out.
ALWAYS = ("bu-cr", "ewc", "muscle")


@pytest.mark.parametrize("name", METHODS)
def test_a_preset_takes_the_papers_values(name: str) -> None:
    method = METHODS[name]
    if not method.options:
        with pytest.raises(InputError, match="Expected no options, because `none` has none"):
            method.complete({"preset": "paper"})
        return
    usual, printed = method.complete({}), method.complete({"preset": "paper"})
    changed = {option: printed[option] for option in usual if printed[option] != usual[option]}
    assert "preset" not in printed
    assert method.complete({"preset": "none"}) == method.complete(usual) == usual
    if name.startswith("codistill-"):
        changed.pop("floor")  # has no effect unless the regulariser is skl
    assert changed == DEPARTING.get(name, {})
    assert [one.partition(" = ")[0] for one in method.default_departures() if " = " in one] == list(
        changed
    )
    assert bool(list(method.departures(printed))) == (name in ALWAYS)


def test_an_option_that_is_given_wins_over_the_preset() -> None:
    options = METHODS["elodi"].complete({"preset": "paper", "k": 3})
    assert (options["k"], options["class_reduction"]) == (3, "sum")
    assert list(METHODS["elodi"].departures(options)) == ["k = 3, 10 in the paper"]
    with pytest.raises(InputError, match="Expected `preset` of `elodi` to be one of paper"):
        METHODS["elodi"].complete({"preset": "print"})


def test_a_floor_departs_only_where_it_is_used() -> None:
    method = METHODS["codistill-skl"]
    assert method.default_departures() == []
    (said,) = method.departures(method.complete({"plus": "skl"}))
    assert said.startswith("floor = 1e-07, 0.0 in the paper: ")


def test_another_margin_or_way_of_updating_departs() -> None:
    elodi = METHODS["elodi"]
    (said,) = elodi.departures(elodi.complete({"preset": "paper", "margin": 0.5}))
    assert said.startswith("margin = 0.5, 0.0 in the paper: ")
    for name, updates, ramp in (
        ("codistill-skl", "independent", "step"),
        ("codistill-l1", "independent", "step"),
        ("codistill-ce", "joint", "linear"),
    ):
        method = METHODS[name]
        options = method.complete({"updates": updates, "ramp_kind": ramp})
        assert [one.split(",")[0] for one in method.departures(options)] == [
            f"updates = {updates}",
            f"ramp_kind = {ramp}",
        ]


def test_a_card_knows_what_its_name_adds(capsys: pytest.CaptureFixture[str]) -> None:
    rows = []
    for name in ("codistill-skl", "codistill-skl+skl"):
        shown(name, json=True)
        rows += json.loads(capsys.readouterr().out)
    plain, added = rows
    assert (plain["name"], plain["departures"]) == ("codistill-skl", [])
    assert (added["name"], added["options"]["plus"]) == ("codistill-skl+skl", "skl")
    assert added["departures"][0].startswith("floor = 1e-07, 0.0 in the paper")
    shown("codistill-skl+skl")
    assert "floor = 1e-07, 0.0 in the paper" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["views", "views_top", "guide", "online", "reuse"])
def test_a_cheaper_or_another_ensemble_departs(option: str) -> None:
    """Also where the paper's value is none."""
    elodi = METHODS["elodi"]
    other = {"views": 4, "views_top": 3, "guide": "calibrated", "online": False}
    value = other.get(option, 1 if option == "reuse" else True)
    said = elodi.departures(elodi.complete({"preset": "paper", option: value}))
    assert next(said).startswith(f"{option} = {str(value).lower()}, ")


def test_a_run_says_what_differs_with_its_settings(tmp_path: Path) -> None:
    usual = trained(tiny("skl", epochs=1), tmp_path / "usual")
    printed = trained(tiny("skl", epochs=1, options={"preset": "paper"}), tmp_path / "printed")
    said = [json.loads((run.folder / RUN).read_text())["departures"] for run in (usual, printed)]
    assert said == [METHODS["skl"].default_departures(), []]
    assert printed.config.options["floor"] == 0.0


def test_a_changed_formula_is_another_run() -> None:
    """A run trained with another version of the formula has another name."""
    method = METHODS["codistill-skl"]
    true: set[Fact] = {"clip"}
    assert (method.formula(true), method.formula(set())) == (1, 0)
    _, config = complete_config(Config(method="codistill-skl", recipe=Recipe(clip=1.0)))
    keys = [
        run_key(config, option_defaults=method.key_defaults, key_of_run=str, formula=formula)
        for formula in (0, 1)
    ]
    assert keys[0] != keys[1]
    later = Revision(words="another", where=frozenset())
    assert sum(one.where <= true for one in (*method.revisions, later)) == 2


def test_a_run_notes_its_formula(tmp_path: Path) -> None:
    old = make_old(tmp_path / "old", classes=8)
    for method, recipe, olds, formula in (
        ("codistill-skl", {"clip": 1.0}, (), 1),
        ("codistill-skl", {}, (), 0),
        ("fd-lm", {}, (str(old.folder),), 1),
    ):
        config = tiny(method, epochs=1, recipe=recipe, old=olds)
        run = trained(config, tmp_path / f"{method}-{len(recipe)}")
        assert run.document["formula"] == formula


def test_members_note_their_formula(tmp_path: Path) -> None:
    config = tiny("ensemble", epochs=1, machine={"fuse": "on"})
    whole = trained(config, tmp_path / "whole")
    for member in whole.document["members"]:
        assert Run.read(whole.folder / member).document["formula"] == 0


def test_a_finished_run_says_that_its_formula_has_changed(tmp_path: Path) -> None:
    old = make_old(tmp_path / "old", classes=8)
    config = tiny("fd-lm", epochs=1, old=(str(old.folder),))
    folder = trained(config, tmp_path / "new").folder
    document = json.loads((folder / RUN).read_text())
    for formula, lines in ((1, 1), (None, 2)):
        document["formula"] = formula
        if formula is None:
            del document["formula"]  # as before formulas were noted
        (folder / RUN).write_text(json.dumps(document))
        said: list[str] = []
        train(config, folder, resume=True, report=said.append)
        assert len(said) == lines
    assert "before a change of the method (samples of classes that the old model lacks" in said[1]
