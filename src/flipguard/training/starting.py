"""The model that a run starts with: new, or with given weights, and with its own preprocessing."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from flipguard.data import DataSet, Split, TextSplit, seen_by
from flipguard.errors import InputError
from flipguard.models import build_model
from flipguard.models.classes import rows_of_classes, tensors_by_class, with_classes
from flipguard.models.preprocessing import Preprocessing, preprocess_with, preprocessing_of
from flipguard.models.published import (
    Published,
    assumed_preprocessing,
    published_preprocessing,
    published_weights,
)
from flipguard.models.shapes import Shape
from flipguard.runs.config import Config, derive_seed
from flipguard.runs.folder import Run
from flipguard.runs.image_settings import ImageSettings
from flipguard.training.batches import input_shape_of
from flipguard.training.devices import in_precision

M = TypeVar("M", bound=nn.Module)
START = "flipguard_start"  # the attribute of a model that says what it started from


def preprocessing_for(config: Config) -> Preprocessing | None:
    """Return the preprocessing of a run's model; None if it takes batches as they are.

    It comes from the settings. Missing values come from the old model (fine-tuning) or from the
    library (published weights).
    """
    base = None
    if config.fine_tune and config.old:
        base = preprocessing_in(Run.read(Path(config.old[0])))
    elif config.pretrained or config.weights is not None:
        base = published_preprocessing(config.model, config.weights)
    return with_settings(base, config.preprocessing)


def notes_on_preprocessing(config: Config) -> list[str]:
    """Return a sentence if it is not known whether the preprocessing belongs to the weights."""
    if config.fine_tune and config.old:
        return []
    assumed = assumed_preprocessing(config.model, config.weights)
    return [] if assumed is None else [f"{assumed}; set `preprocessing` if that is not right"]


def with_settings(base: Preprocessing | None, settings: ImageSettings) -> Preprocessing | None:
    """Return a preprocessing with the values that settings change.

    With another input size, the resize before the crop grows or shrinks along with it.

    >>> base = Preprocessing(input_size=(224, 224), resize=(256,))
    >>> with_settings(base, ImageSettings(input_size=(112, 112))).resize
    (128,)
    """
    changes = {
        name: value for name, value in dataclasses.asdict(settings).items() if value is not None
    }
    if not changes:
        return base
    size = changes.get("input_size")
    if size is not None and len(size) == 1:
        size = changes["input_size"] = size * 2
    if base is None:
        return Preprocessing(**changes)
    if size is not None and "resize" not in changes and base.resize and base.input_size:
        shares = [new / old for new, old in zip(size, base.input_size, strict=False)]
        shares = shares if len(base.resize) == 2 else [max(shares)]
        changes["resize"] = tuple(
            math.floor(side * share) for side, share in zip(base.resize, shares, strict=True)
        )
    return dataclasses.replace(base, **changes)


def preprocessing_in(run: Run) -> Preprocessing | None:
    """Return the preprocessing that a run's `run.json` describes; None if there is none."""
    told = run.document.get("preprocessing")
    return None if told is None else Preprocessing.from_json(told)


def as_seen(data: DataSet, preprocessing: Preprocessing | None) -> DataSet:
    """Return data as a model with this preprocessing wants them; the fingerprint stays."""
    splits = {
        entry.name: seen_by(getattr(data, entry.name), preprocessing)
        for entry in dataclasses.fields(data)
        if isinstance(getattr(data, entry.name), Split)
    }
    return dataclasses.replace(data, **splits)  # type: ignore[arg-type]


def new_model(config: Config, data: DataSet, name: str = "") -> nn.Module:
    """Return the model of a run before training, for data as it sees them.

    A name changes the seed of the initial weights (for the second model of co-distillation).
    """
    seed = config.seeds.of("init")
    preprocessing = preprocessing_for(config)
    shape = input_shape_of(data)
    if preprocessing is not None:
        shape = preprocessing.shape(shape)
    published = config.pretrained and not isinstance(data.train, TextSplit)
    model = build_model(
        config.model,
        classes=len(data.class_names),
        input_shape=shape,
        seed=derive_seed(seed, name) if name else seed,
        pretrained=config.pretrained and config.weights is None and not published,
    )
    if config.weights is not None or published:
        _start(model, config, data.class_names, shape)
    return in_precision(with_own_inputs(model, preprocessing, shape), config.machine)


def with_own_inputs(model: M, preprocessing: Preprocessing | None, shape: Shape | None) -> M:
    """Return a model that scales its inputs by its preprocessing, if it has one."""
    if preprocessing is None:
        return model
    if shape is None or len(shape) not in (2, 3):
        raise InputError(
            "Expected images for a model with preprocessing, but got "
            f"{'texts' if shape is None else 'vectors'}; leave `preprocessing`, `pretrained` and "
            "`weights` out, or choose other data."
        )
    if preprocessing.channels not in (None, shape[0]):
        raise InputError(
            f"Expected images of {preprocessing.channels} channels, or of one, for the mean and "
            f"deviation of the model, but got {shape[0]}; set `preprocessing.mean` and "
            "`preprocessing.std`."
        )
    return preprocess_with(model, preprocessing)


def _start(model: nn.Module, config: Config, names: tuple[str, ...], shape: Shape | None) -> None:
    """Load the weights that a run starts from; the head stays if the classes are the same."""
    found = published_weights(
        config.model, weights=config.weights, classes=len(names), input_shape=shape
    )
    by_class = tensors_by_class(config.model, classes=found.classes, input_shape=shape)
    rows, told = _rows(found, names, by_class)
    own = model.state_dict()
    if by_class or found.classes == len(names):
        model.load_state_dict(with_classes(found.state, own, rows, by_class))
    else:
        raise InputError(
            f"Expected {config.model} to take its number of classes, but it gives "
            f"{found.classes} for the {len(names)} of the data; choose another model."
        )
    setattr(model, START, f"starts from {found.origin}, {told}")


def _rows(
    found: Published, names: tuple[str, ...], by_class: frozenset[str]
) -> tuple[list[int], str]:
    """Return the published row of each class, or -1 for all, and what that means in words."""
    new = [-1] * len(names)
    if by_class & set(found.missing):
        return new, "with a new head, because they have none"
    if found.labels is None:
        return new, "with a new head, because they name no classes"
    rows = rows_of_classes(found.labels, names)
    if min(rows) < 0:
        lost = names[rows.index(-1)]
        return new, f"with a new head, because its classes are others (none is '{lost}')"
    some = "" if len(rows) == found.classes else f"{len(rows)} of the {found.classes} classes of "
    return rows, f"with {some}its head, matched by the names of the classes"


def start_facts(model: nn.Module) -> dict[str, Any]:
    """Return what `run.json` says about a model's preprocessing and where its weights come from."""
    preprocessing, start = preprocessing_of(model), getattr(model, START, None)
    return {
        **({} if preprocessing is None else {"preprocessing": preprocessing.as_json()}),
        **({} if start is None else {"start": start}),
    }
