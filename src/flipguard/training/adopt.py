"""Adopt a model: turn one that flipguard did not train into a finished run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flipguard.data import DataSet, TextSplit
from flipguard.data.image_folders import is_files
from flipguard.errors import InputError, listed, printable
from flipguard.files import sha256_of
from flipguard.formatting import format_percent
from flipguard.locks import alone_in
from flipguard.models import build_model
from flipguard.models.classes import given_labels, rows_of_classes, tensors_by_class, with_classes
from flipguard.models.code import allowing_code, check_code
from flipguard.models.libraries import refusing
from flipguard.models.preprocessing import Preprocessing
from flipguard.models.published import (
    Published,
    assumed_preprocessing,
    published_preprocessing,
    published_weights,
)
from flipguard.models.registry import check_spec
from flipguard.models.shapes import Shape
from flipguard.run_document import RUN
from flipguard.runs.config import Config, Machine
from flipguard.runs.folder import (
    MODEL,
    Run,
    begun_or_nothing,
    check_place,
    forget,
    remove_leftovers,
)
from flipguard.runs.image_settings import ImageSettings
from flipguard.runs.key import digest_of
from flipguard.training.batches import BatchSource, data_of, input_shape_of
from flipguard.training.checkpoint import save_model
from flipguard.training.checks import check_folder, check_model
from flipguard.training.devices import fabric_of, to_device
from flipguard.training.evaluate import logits_on
from flipguard.training.jobs import run_of_job
from flipguard.training.monitor import Report
from flipguard.training.predict import write_test_predictions
from flipguard.training.record import run_facts, write_run
from flipguard.training.starting import as_seen, with_own_inputs, with_settings
from flipguard.worker_process import JobContext

SIGMAS = 3  # by which an error rate must be below chance
FEW = 10  # from this many classes on, less than twice chance counts as about chance
# How a caller says what reaches the network.
IMAGES = (
    "`preprocessing.input_size`, `preprocessing.resize`, `preprocessing.mean` and "
    "`preprocessing.std`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """An adopted model: its run, its error rate on the test set, and what was noted."""

    run: Run
    error_rate: float
    notes: tuple[str, ...]


def adopt(
    model: str,
    data: str,
    out: Path,
    *,
    weights: str | None = None,
    classes: Path | Sequence[str] | None = None,
    preprocessing: ImageSettings | None = None,
    data_root: str | None = None,
    device: str = "auto",
    allow_code: bool = False,
    report: Report = print,
) -> Adopted:
    """Turn a model into a finished run, without training it.

    Args:
        model: The model: ``timm:NAME``, ``torchvision:NAME``, ``hf:PATH``,
            ``python:module:function``, or a network of flipguard.
        data: The data set; its test split is predicted.
        out: The folder of the run.
        weights: A file with a state dict, or the name of weights of torchvision. By default those
            that the library publishes, or those that the function gives.
        classes: The classes of the model's outputs, in order, or a file that lists them. By default
            the model's own names, or else the data's classes in their order.
        preprocessing: Values that differ from what the library tells.
        data_root: The folder of named data sets.
        device: Where the predictions are computed.
        allow_code: Whether ``python:`` may run code.
        report: Called with each line.
    """
    config = Config(
        data=data,
        model=model,
        data_root=data_root,
        preprocessing=preprocessing or ImageSettings(),
        machine=Machine(device=device),
    )
    names = given_labels(classes) if isinstance(classes, Path) else classes
    with allowing_code(allow_code):
        return _adopted(config, out, weights, names, report)


def adopt_job(arguments: Mapping[str, Any], context: JobContext) -> bool:
    """Adopt the model of a job from `adopt_job_for`, in a worker process.

    The run has the key that its folder is named after, because it was planned without weights.
    """
    config, folder = run_of_job(arguments, None)
    _adopted(config, folder, None, None, context.note, key=folder.name)
    return True


def _adopted(
    config: Config,
    out: Path,
    weights: str | None,
    names: Sequence[str] | None,
    report: Report,
    *,
    key: str | None = None,
) -> Adopted:
    check_place(out)
    _check_free(out, config)
    check_spec(config.model)
    with alone_in(out, report=report):
        _check_free(out, config)  # another process may have adopted it in the meantime
        remove_leftovers(out)
        forget(out)  # of a process that was killed
        with begun_or_nothing(out):
            check_code(config.model)
            found = _Adoption(config, data_of(config), weights, names)
            return found.finish(out, report, key)


def _check_free(out: Path, config: Config) -> None:
    """Raise if a folder holds something else than a model whose adoption was interrupted."""
    if not (out / RUN).exists():
        check_folder(out, config, resume=False)
        return
    run = Run.read(out)
    if run.finished or "adopted" not in run.document:
        raise InputError(
            f"Expected {printable(str(out))} to be a new folder, but there is a run in it; choose "
            "another `out=`."
        )


class _Adoption:
    """A model with its weights, its classes in the order of the data, and its preprocessing."""

    def __init__(
        self, config: Config, data: DataSet, weights: str | None, names: Sequence[str] | None
    ) -> None:
        check_model(config, data)
        self.config = config
        self.notes: list[str] = []
        self.preprocessing = self._preprocessing(data, weights)
        self.crops = data.kind == "image" and is_files(data.test)
        self.data = as_seen(data, self.preprocessing)
        self.shape = input_shape_of(self.data)
        if self.preprocessing is not None:
            self.shape = self.preprocessing.shape(self.shape)
        labels = None if names is None else [(name,) for name in names]
        self.found = published_weights(
            config.model,
            weights=weights,
            classes=len(names or data.class_names),
            input_shape=self.shape,
            named=names is not None,
        )
        self._refuse_missing(self.found, names)
        rows, self.classes = self._matched(labels or self.found.labels, given=names is not None)
        self.class_names = tuple(
            name for name, row in zip(data.class_names, rows, strict=True) if row >= 0
        )
        self.model = self._model([row for row in rows if row >= 0])

    def _preprocessing(self, data: DataSet, weights: str | None) -> Preprocessing | None:
        settings, spec = self.config.preprocessing, self.config.model
        if isinstance(data.train, TextSplit):
            return with_settings(None, settings)
        if settings.resize is not None and not is_files(data.test):
            raise InputError(
                "Expected image files for `preprocessing.resize`, because images in arrays are not "
                f"cropped, but got {printable(self.config.data)}; leave it out. "
                "`preprocessing.input_size` resizes arrays, too."
            )
        base = published_preprocessing(spec, weights)
        told = with_settings(base, settings)
        scaled = base is not None or (settings.mean is not None and settings.std is not None)
        if data.kind == "image" and not scaled:
            if spec.startswith("hf:"):
                raise InputError(
                    f"Expected {printable(spec)} to have a preprocessor_config.json, which says "
                    "how it wants its images, but it has none; give `preprocessing.mean` and "
                    "`preprocessing.std` (and `preprocessing.input_size`, if it is not that of the "
                    "data)."
                )
            self.notes.append(
                "its images are scaled to numbers from -1 to 1; give `preprocessing.mean` and "
                "`preprocessing.std` if it was trained with other values"
            )
        if (assumed := assumed_preprocessing(spec, weights)) is not None:
            self.notes.append(f"{assumed}; give {IMAGES} if it was trained with other values")
        return told

    def _refuse_missing(self, found: Published, names: Sequence[str] | None) -> None:
        if found.missing:
            raise InputError(
                f"Expected {printable(self.config.model)} to have all weights of a classifier, but "
                f"it lacks {listed(found.missing)}; train a head first: "
                "`flipguard train --set pretrained=true`."
            )
        if names is not None and len(names) != found.classes:
            raise InputError(
                f"Expected `classes=` to list the {found.classes} classes of "
                f"{printable(self.config.model)}, but got {len(names)}; list them in the order of "
                "its outputs."
            )

    def _matched(
        self, labels: Sequence[Sequence[str]] | None, *, given: bool
    ) -> tuple[list[int], str]:
        """Return the model's output for each class of the data, or -1, and how it was found."""
        names, count = self.data.class_names, self.found.classes
        in_order = list(range(len(names)))
        if labels is None:
            if count != len(names):
                raise InputError(
                    f"Expected the model to have the {len(names)} classes of "
                    f"{printable(self.config.data)}, but it has {count}, and names none; list its "
                    "classes in order with `classes=`."
                )
            return in_order, "the data's classes in their order"
        rows = rows_of_classes(labels, names)
        lost = [name for name, row in zip(names, rows, strict=True) if row < 0]
        how = "listed" if given else "the model's own names"
        if len(lost) == len(names) and count == len(names) and not given:
            self.notes.append(
                f"its own names of classes ({listed([one[0] for one in labels][:3])}) are not the "
                "data's; the data's order is assumed"
            )
            return in_order, "the data's classes in their order"
        # As many names as classes, and not all equal: usually one is spelled in another way.
        misspelled = lost and len(labels) == len(names) and not given
        if len(lost) == len(names) or misspelled:
            where = "but `classes=`" if given else "but it"
            raise InputError(
                f"Expected the model to name the classes of {printable(self.config.data)}, {where} "
                f"has no {listed(lost)}; list its classes in order, by the data's names, with "
                "`classes=`."
            )
        if lost:
            self.notes.append(
                f"it does not know the class{'es' * (len(lost) > 1)} {listed(lost)}; its "
                "predictions have no samples of "
                f"{'it' if len(lost) == 1 else f'these {len(lost):,} classes'}"
            )
        if spare := [one[0] for index, one in enumerate(labels) if index not in set(rows)]:
            self.notes.append(f"its outputs for other classes are left out: {listed(spare)}")
        return rows, how

    def _model(self, rows: list[int]) -> nn.Module:
        spec, found = self.config.model, self.found
        model = build_model(spec, classes=len(rows), input_shape=self.shape, seed=0)
        state = found.state
        if rows != list(range(found.classes)):
            by_class = tensors_by_class(spec, classes=found.classes, input_shape=self.shape)
            if not by_class:
                raise InputError(
                    f"Expected {printable(spec)} to use its argument `classes`, but it does not; "
                    "make the function use it, or put its outputs in the order of the data's "
                    "classes."
                )
            state = with_classes(found.state, model.state_dict(), rows, by_class)
        model.load_state_dict(state)
        return with_own_inputs(model, self.preprocessing, self.shape)

    def _try(self, model: nn.Module, device: torch.device) -> None:
        """Raise if the model cannot predict a sample, or has other classes than it should."""
        source = BatchSource(self.data.test, device=device, model=self.config.model)
        with refusing(self.config.model, self.shape, expected="a classifier"):
            width = logits_on(model, source, torch.tensor([0])).shape[-1]
        if width != len(self.class_names):
            raise InputError(
                f"Expected {printable(self.config.model)} to have {len(self.class_names)} classes, "
                f"but it gives {width} logits; list its classes with `classes=`, or use the "
                "argument `classes` in its function."
            )

    def finish(self, out: Path, report: Report, key: str | None) -> Adopted:
        """Write the folder of the run; without a key, it gets one by its weights."""
        device = fabric_of(self.config.machine).device
        model = to_device(self.model, device)
        self._try(model, device)
        notes = [*self.found.notes, *self.notes]
        facts = run_facts(self.config, out, self.data, self.model, [])
        facts["data"]["class_names"] = list(self.class_names)
        facts["adopted"] = {
            "weights": self.found.origin,
            "sha256": self.found.sha256,
            "classes": self.classes,
            "notes": notes,
        }
        facts["key"] = key or digest_of(
            [facts["key"], self.found.sha256, facts["adopted"], facts.get("preprocessing")]
        )
        write_run(out, self.config, status="training", **facts)
        report(f"{out}: {self.config.model} with {self.found.origin}; classes: {self.classes}")
        report(f"{out}: {_inputs(self.preprocessing, self.shape, crops=self.crops)}")
        for note in notes:
            report(f"{out}: {note}")
        save_model(out, model)
        error = write_test_predictions(out, model, self.data, split="test", device=device)
        write_run(out, self.config, status="finished", **facts, weights=sha256_of(out / MODEL))
        count = len(self.data.test)
        report(f"{out}: error rate {format_percent(error)} on the test set")
        images = self.data.kind == "image"
        classes = len(self.class_names)
        if warning := near_chance(error, classes=classes, samples=count, images=images):
            report(f"{out}: {warning}")
            notes.append(warning)
        return Adopted(run=Run.read(out), error_rate=error, notes=tuple(notes))


def near_chance(error: float, *, classes: int, samples: int, images: bool = True) -> str | None:
    """Return a warning if an error rate is no better than guessing, else None.

    >>> near_chance(0.2, classes=10, samples=100)
    >>> near_chance(0.89, classes=10, samples=100)[:29]
    'warning: that is about chance'
    """
    chance = 1 / classes
    bound = chance + SIGMAS * math.sqrt(chance * (1 - chance) / max(samples, 1))
    if classes >= FEW:
        bound = max(bound, 2 * chance)
    if classes < 2 or 1 - error > bound:
        return None
    scaled = f" or the images are scaled in another way (give {IMAGES})"
    return (
        f"warning: that is about chance ({format_percent(1 - chance)} with {classes:,} classes). "
        f"Usually the classes are in another order (give `classes=`){scaled * images}"
    )


def _inputs(preprocessing: Preprocessing | None, shape: Shape | None, *, crops: bool) -> str:
    """Return in words what reaches the network; `crops` is whether images are cropped for it."""
    size = " x ".join(map(str, shape or ()))
    if preprocessing is None:
        return "texts as its tokenizer encodes them" if shape is None else f"inputs of {size}"
    first = ""
    if preprocessing.resize is not None and crops:
        sides = " x ".join(map(str, preprocessing.resize))
        first = f"image files are resized to {sides} ({preprocessing.interpolation}) and cropped; "
    mean, std = (
        ", ".join(f"{value:g}" for value in values)
        for values in (preprocessing.mean, preprocessing.std)
    )
    return f"{first}inputs of {size}, mean {mean}, deviation {std}"
