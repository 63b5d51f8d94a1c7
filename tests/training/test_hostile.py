"""Absurd settings: each is accepted or refused in one sentence, and a refusal leaves nothing."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from flipguard.errors import InputError
from flipguard.run_document import RUN
from flipguard.runs.config import Config, fix_randomness, from_dict, read_toml, set_values
from flipguard.runs.folder import Run
from flipguard.training.checks import complete_config
from tests.training.test_refusals import sentence
from tests.training.tiny import tiny, trained

# What is trained if a value is accepted: an epoch of two steps.
TINY: dict[str, Any] = {
    "data": "mnist1d:train=20,test=10",
    "model": "mlp:hidden=2,depth=1",
    "recipe": {"epochs": 2, "batch_size": 10},
    "machine": {"threads": 1, "device": "cpu", "minutes": 0.0},
}
NESTED: list[Any] = []
for _ in range(500):
    NESTED = [NESTED]
HOSTILE: dict[str, Any] = {
    "a large number": 10**30,
    "the largest number of 64 bits": 2**63 - 1,
    "more than any float": 10**400,
    "more digits than Python prints": 10**5000,
    "a billion": 10**9,
    "below nothing": -1,
    "far below nothing": -(2**63),
    "nothing": 0,
    "a large float": 1e300,
    "as much as a float32": 3e38,
    "a small float": 5e-324,
    "below nothing, a float": -0.5,
    "no number": math.nan,
    "infinite": math.inf,
    "minus infinite": -math.inf,
    "true": True,
    "null": None,
    "empty": "",
    "blank": " ",
    "none": "none",
    "a null character": "a\0b",
    "a surrogate": "a\ud800b",
    "two lines": "a\nb",
    "a long text": "a" * 5000,
    "a home of an unknown user": "~no-such-user/x",
    "options": "a:b=c,d",
    "signs": "../\x1b[31m",
    "an empty list": [],
    "a list": [1, "a"],
    "a list of the large": [10**30],
    "nested": NESTED,
    "an empty table": {},
    "a table": {"a": {"b": 1}},
    "a date": datetime.date(2000, 1, 1),
}


def keys_of(kind: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key of a configuration, of its tables too."""
    hints = typing.get_type_hints(kind)
    for entry in dataclasses.fields(kind):
        yield (*above, entry.name)
        if dataclasses.is_dataclass(hints[entry.name]):
            yield from keys_of(hints[entry.name], (*above, entry.name))


def with_value(values: Mapping[str, Any], key: tuple[str, ...], value: Any) -> dict[str, Any]:
    first, *rest = key
    if not rest:
        return {**values, first: value}
    return {**values, first: with_value(values.get(first, {}), tuple(rest), value)}


def is_accepted(values: Mapping[str, Any], folder: Path) -> bool:
    """Whether a run can be trained so; if not, nothing may be left, and one sentence is said."""
    try:
        trained(from_dict(values), folder / "run")
    except InputError as problem:
        said = str(problem)
        assert "\n" not in said
        assert len(said) < 1000
        assert list(folder.iterdir()) == [], said
        return False
    return True


@pytest.mark.parametrize("key", list(keys_of(Config)), ids=".".join)
def test_every_setting(key: tuple[str, ...], tmp_path: Path) -> None:
    accepted = 0
    for number, value in enumerate(HOSTILE.values()):
        folder = tmp_path / str(number)
        folder.mkdir()
        accepted += is_accepted(with_value(TINY, key, value), folder)
    assert accepted < len(HOSTILE)


# -- settings in files and in assignments ---------------------------------------------------------

TEXTS = {
    "nested deep": "[" * 5000,
    "more digits than Python reads": "9" * 5000,
    "two lines": "3\nfoo=1",
    "a second table": "3\n[recipe]\nepochs = 4",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_assignments(text: str) -> None:
    with pytest.raises(InputError) as problem:
        from_dict(set_values({}, [f"recipe.epochs={text}"]))
    assert "`recipe.epochs` to be a whole number, but got '" in sentence(problem)


@pytest.mark.parametrize("text", ["[" * 5000, "9" * 5000], ids=["nested", "digits"])
def test_configuration_files(text: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(f"seeds = {text}")
    with pytest.raises(InputError) as problem:
        read_toml(tmp_path / "c.toml")
    assert "c.toml to be a TOML file" in sentence(problem)


def test_tables_that_are_none() -> None:
    for change in (
        lambda: fix_randomness({"seeds": 3}, ["init"]),
        lambda: set_values({"a": 1}, ["a.b=2"]),
    ):
        with pytest.raises(InputError) as problem:
            change()
        assert "to be a table" in sentence(problem)


def test_none_is_what_the_setting_makes_of_it() -> None:
    told = ["method=none", "recipe.augment=none", "recipe.clip=none", "recipe.preset=none"]
    config = from_dict(set_values({"recipe": {"clip": 1.0}}, told))
    assert (config.method, config.recipe.augment) == ("none", "none")
    assert (config.recipe.clip, config.recipe.preset) == (None, None)
    config = from_dict(set_values({"method": "elodi"}, ["options.views=none", "options.k=none"]))
    _, config = complete_config(config)
    assert (config.options["views"], config.options["k"]) == (None, None)


def test_a_schedule_of_steps_without_steps(tmp_path: Path) -> None:
    with pytest.raises(InputError) as problem:
        trained(tiny(recipe={"schedule": "steps"}), tmp_path / "run")
    assert "`recipe.milestones`" in sentence(problem)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a" * 300, "a\0b", "a/" * 3000, "a\ud800b"])
def test_folders_that_cannot_be(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as problem:
        trained(tiny(), tmp_path / name)
    assert "the path of a folder" in sentence(problem)


# -- run.json -------------------------------------------------------------------------------------

DESCRIPTIONS: dict[str, Any] = {
    "nested": "[" * 100_000,
    "digits": '{"schema": ' + "9" * 5000 + "}",
    "schema": {"schema": "flipguard.run/99"},
    "status": {"status": "magic"},
    "names": {"data": {"class_names": "abc", "input_shape": [40], "fingerprint": "x"}},
    "shape": {"data": {"class_names": ["a", "b"], "input_shape": [0.5], "fingerprint": "x"}},
    "data": {"data": []},
    "members": {"members": [1]},
    "follows": {"follows": [1]},
    "config": {"config": {"recipe": {"epochs": "x"}}},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tiny(epochs=1), tmp_path_factory.mktemp("run") / "run")


@pytest.mark.parametrize("change", DESCRIPTIONS.values(), ids=DESCRIPTIONS)
def test_descriptions_of_runs(change: Any, run: Run, tmp_path: Path) -> None:
    text = change
    if isinstance(change, dict):
        text = json.dumps({**json.loads((run.folder / RUN).read_text()), **change})
    (tmp_path / RUN).write_text(text)
    with pytest.raises(InputError) as problem:
        Run.read(tmp_path)
    assert f"{RUN} to describe a run" in sentence(problem)
