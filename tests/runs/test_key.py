"""The key of a run: what is part of it, and what leaves it as it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from flipguard.errors import InputError
from flipguard.methods import METHODS
from flipguard.methods.base import Method, Option
from flipguard.runs.config import Config, Machine, Recipe, Seeds, as_dict, from_dict
from flipguard.runs.image_settings import ImageSettings
from flipguard.runs.key import (
    KEY_DEFAULT,
    NO_KEY,
    key_settings,
    keyed,
    run_key,
    unkeyed,
    with_recorded_defaults,
)
from flipguard.runs.scope import Scope
from flipguard.training.checks import complete_config

ELODI = METHODS["elodi"]


def key(config: Config, method: Method | None = None, **more: Any) -> str:
    """The key of a configuration whose old runs count by the last part of their path."""
    row = method or METHODS[config.method]
    complete = dataclasses.replace(config, options=row.complete(config.options))
    given = {"key_of_run": lambda run: run.rpartition("/")[2], **more}
    return run_key(complete, option_defaults=row.key_defaults, **given)


def with_option(default: Any, key_default: Any) -> Method:
    """`elodi` with one more option."""
    option = Option(name="new", default=default, key_default=key_default, sentence="New.")
    return dataclasses.replace(ELODI, options=(*ELODI.options, option))


def test_keys_stay_as_they_are() -> None:
    """Whoever changes these renames every run that was trained before."""
    assert key(Config()) == "9e8f95ae45748e5b"
    tuned = Config(
        method="elodi",
        options={"members": 4, "k": 10},
        old=("runs/v1",),
        fine_tune=True,
        recipe=Recipe(epochs=3, clip=1.0),
        scope=Scope(classes=5, class_choice="first"),
        seeds=Seeds(seed=1, init=0),
        machine=Machine(precision="64-true"),
    )
    assert key(tuned) == "1c4f6b66cb29bb7e"


def test_a_new_option_renames_no_run() -> None:
    config = Config(method="elodi")
    assert key(config, with_option(default=0, key_default=0)) == key(config)
    one = dataclasses.replace(config, options={"new": 1})
    assert key(one, with_option(default=0, key_default=0)) != key(config)


def test_a_changed_default_never_gives_two_different_runs_one_key() -> None:
    before, after = with_option(default=0, key_default=0), with_option(default=1, key_default=0)
    config = Config(method="elodi")
    zero, one = (dataclasses.replace(config, options={"new": value}) for value in (0, 1))
    assert key(config, before) != key(config, after)  # they are trained with 0 and with 1
    # The same values have the same key before and after.
    assert key(zero, before) == key(zero, after) == key(config, before)
    assert key(one, before) == key(one, after) == key(config, after)


def test_a_removed_option_renames_no_run_that_did_not_use_it() -> None:
    fewer = dataclasses.replace(ELODI, options=ELODI.options[:-1])
    config = Config(method="elodi")
    assert key(config, fewer) == key(config)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaterRecipe(Recipe):
    """A recipe with settings that were added later."""

    swing: float = keyed(0.5, key_default=0.0)
    place: str = unkeyed("here")


def test_a_new_setting_renames_no_run() -> None:
    usual = Config()
    for swing, same in ((0.0, True), (0.5, False)):
        later = dataclasses.replace(usual, recipe=LaterRecipe(swing=swing, place="there"))
        assert (key(later) == key(usual)) == same


def test_what_a_field_is() -> None:
    """A new field has to say by `keyed` or `unkeyed` what it means for runs from before."""

    def fields(kind: Any, of: Mapping[str, Any] | None = None) -> set[str]:
        def is_kind(entry: dataclasses.Field[Any]) -> bool:
            kinds = {KEY_DEFAULT, *NO_KEY} & entry.metadata.keys()
            return not kinds if of is None else bool(kinds & of.keys())

        return {entry.name for entry in dataclasses.fields(kind) if is_kind(entry)}

    assert fields(Recipe) == {
        *("epochs", "batch_size", "optimizer", "learning_rate", "momentum", "nesterov"),
        *("weight_decay", "schedule", "milestones", "decay", "warmup", "label_smoothing"),
        *("augment", "accumulate", "linear_scaling", "clip", "member_order"),
    }
    assert fields(Recipe, {KEY_DEFAULT: None}) == {"decay_biases_and_norms"}
    assert fields(Recipe, NO_KEY) == {"preset"}
    assert fields(Scope) == {"samples", "classes", "seed"}
    assert fields(Scope, {KEY_DEFAULT: None}) == {"class_choice", "per_class", "validation"}
    assert fields(Seeds) == {"seed", "init", "order", "augment", "dropout"}
    assert fields(Machine) == set()
    assert fields(Machine, {KEY_DEFAULT: None}) == {"precision", "deterministic"}
    images = {"input_size", "resize", "interpolation", "mean", "std"}
    assert fields(ImageSettings, {KEY_DEFAULT: None}) == images
    tables = {"recipe", "scope", "seeds", "machine", "preprocessing"}
    assert fields(Config) - tables == {"method", "data", "model", "pretrained", "fine_tune"}
    # Options, old runs, guides and weights are counted by rules of their own.
    unkeyed_ones = {"options", "old", "guides", "data_root", "weights"}
    assert fields(Config, NO_KEY) == unkeyed_ones


@pytest.mark.parametrize(
    "change",
    [
        {"method": "dropout"},
        {"data": "digits"},
        {"model": "mlp:hidden=8"},
        {"pretrained": True},
        {"weights": "IMAGENET1K_V1"},
        {"preprocessing": ImageSettings(mean=(0.5,))},
        {"fine_tune": True},
        {"old": ("runs/a",)},
        {"guides": ("runs/a",)},
        {"recipe": Recipe(epochs=31)},
        {"recipe": Recipe(milestones=(3,))},
        {"recipe": Recipe(decay_biases_and_norms=True)},
        {"scope": Scope(seed=1)},
        {"scope": Scope(validation=0.1)},
        {"scope": Scope(validation="own")},
        {"seeds": Seeds(order=0)},
        {"machine": Machine(precision="bf16-mixed")},
        {"machine": Machine(deterministic=True)},
    ],
)
def test_what_decides_a_run_changes_its_key(change: dict[str, Any]) -> None:
    assert key(Config(**change)) != key(Config())


@pytest.mark.parametrize(
    "change",
    [
        {"data_root": "/elsewhere"},
        {"recipe": Recipe(preset="churn-cifar")},  # which only stands for values of the recipe
        {"machine": Machine(device="cuda", threads=4, fuse="on", minutes=1.0, measure_every=5)},
    ],
)
def test_what_decides_nothing_leaves_the_key(change: dict[str, Any]) -> None:
    assert key(Config(**change)) == key(Config())


@pytest.mark.parametrize(
    ("part", "choice"),
    [({"samples": 0.5}, {"per_class": False}), ({"classes": 5}, {"class_choice": "first"})],
)
def test_a_choice_counts_only_where_something_is_chosen(
    part: dict[str, Any], choice: dict[str, Any]
) -> None:
    assert key(Config(scope=Scope(**choice))) == key(Config())
    assert key(Config(scope=Scope(**part, **choice))) != key(Config(scope=Scope(**part)))


def test_a_recorded_run_keeps_the_choices_of_its_time() -> None:
    values = as_dict(Config(scope=Scope(samples=0.5, classes=5)))
    for name in ("class_choice", "per_class", "validation"):
        del values["scope"][name]
    before = from_dict(with_recorded_defaults(values, Config()))
    assert before.scope == Scope(samples=0.5, classes=5, class_choice="first", per_class=False)
    # A setting that was recorded stays as it is.
    assert from_dict(with_recorded_defaults(as_dict(before), Config())) == before
    now = Config(scope=Scope(samples=0.5, validation=0.1))
    assert from_dict(with_recorded_defaults(as_dict(now), Config())) == now


def test_old_runs_and_guides_count_by_their_keys_in_their_order() -> None:
    def of(*old: str, guides: tuple[str, ...] = ()) -> str:
        return key(Config(old=old, guides=guides))

    assert of("runs/a") == of("/srv/runs/a")
    assert len({of("a"), of("b"), of("a", "b"), of("b", "a"), of(guides=("a",))}) == 5


def test_weights_count_by_the_contents_of_their_file(tmp_path: Path) -> None:
    for name, contents in (("a.pt", b"one"), ("b.pt", b"one"), ("c.pt", b"two")):
        (tmp_path / name).write_bytes(contents)
    first, same, other = (key(Config(weights=str(tmp_path / f"{name}.pt"))) for name in "abc")
    assert first == same != other
    with pytest.raises(InputError, match=r"cannot be read \(No such file"):
        key(Config(weights=str(tmp_path / "d.pt")))


def test_a_changed_formula_has_another_key() -> None:
    assert len({key(Config(), formula=formula) for formula in (0, 1, 2)}) == 3


@pytest.mark.parametrize("name", METHODS)
def test_options_at_their_key_defaults_are_left_out(name: str) -> None:
    """So far no default has changed; where one does, its runs say so in their keys."""
    method, config = complete_config(Config(method=name))
    settings = key_settings(config, option_defaults=method.key_defaults)
    assert not [setting for setting in settings if setting.startswith("options.")]
