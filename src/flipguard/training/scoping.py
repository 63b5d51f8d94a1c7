"""Choose the part of the data that a run may see, and know what another run has seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from flipguard.data import DataSet, Split, held_out_per_class, part, part_per_class, random_classes
from flipguard.data.dataset import TrainingLabels
from flipguard.errors import InputError, listed, printable
from flipguard.methods import method_of
from flipguard.methods.base import HELD_OUT
from flipguard.runs.config import Config
from flipguard.runs.folder import Run
from flipguard.runs.scope import OWN, Scope


def scoped(data: DataSet, scope: Scope) -> DataSet:
    """Return the part of the data in a scope; the test set has all samples of its classes.

    The validation split is chosen from all training samples, before classes and samples are. So
    runs with the same seed hold out the same samples of the classes that they share.
    """
    _check(scope, data)
    labels = data.training_labels
    chosen = _chosen_classes(scope, data.class_names)
    known = torch.zeros(len(data.class_names), dtype=torch.bool)
    known[chosen] = True
    seen, held_out = _masks(labels, scope, known)
    return DataSet.of(
        name=data.name,
        kind=data.kind,
        class_names=[data.class_names[index] for index in chosen],
        train=_of_classes(data.train.subset(seen) if not bool(seen.all()) else data.train, chosen),
        test=_of_classes(data.test, chosen, known),
        validation=_validation(data, scope, held_out, chosen, known),
        whole=labels,
    )


def held_out_of(data: DataSet, scope: Scope) -> tuple[Split, Split]:
    """Return the training samples to learn from, and those that a method holds out.

    The samples to learn from are those that a run with the scope of `without_held_out` sees. The
    validation split has none of them.
    """
    whole = data.training_labels
    known = _known(whole, data.class_names)
    seen, _ = _masks(whole, without_held_out(scope), known)
    learned = torch.isin(data.train.ids_index, whole.ids_index[seen])
    if bool(learned.all()) or not bool(learned.any()):
        raise InputError(
            f"Expected training samples enough to hold some of them out, but got {len(learned)}."
        )
    return data.train.subset(learned), data.train.subset(~learned)


def without_held_out(scope: Scope) -> Scope:
    """Return the scope without the training samples that some methods hold out.

    If the scope takes a share of each class, so does the result. Otherwise each sample is drawn by
    its id.
    """
    return dataclasses.replace(
        scope,
        samples=scope.samples * (1 - HELD_OUT),
        per_class=scope.per_class and scope.samples != 1,
    )


def count_learned(run: Run, data: DataSet, samples: Split) -> int:
    """Return how many of some training samples a run is known to have been trained on.

    The run that it started from counts too, if there is one.
    """
    whole = data.training_labels
    learned = whole.ids_index[_learned(run, whole)]
    return int(torch.isin(samples.ids_index, learned).sum())


def knows_training_samples(run: Run) -> bool:
    """Return whether it is known which samples a run was trained on.

    It is not known of adopted models, and of runs that start from one or average one.
    """
    config = run.config
    before = [*(config.old if config.fine_tune else ())]
    before += config.guides if method_of(config.method)[0].is_mean else ()
    return "adopted" not in run.document and all(
        knows_training_samples(Run.read(Path(folder))) for folder in before
    )


def notes_on_validation(config: Config, data: DataSet, olds: Sequence[Run]) -> list[str]:
    """Return a sentence for each old run or guide that may have seen validation samples."""
    if data.validation is None or config.scope.validation == OWN:
        return []
    notes = []
    for run in [*olds, *(Run.read(Path(folder)) for folder in config.guides)]:
        if run.config.data != config.data:
            continue
        learned = count_learned(run, data, data.validation)
        if learned:
            notes.append(
                f"{printable(str(run.folder))} was trained on {learned:,} of the "
                f"{len(data.validation):,} samples of the validation split, so its "
                "error rate there is lower than on new samples; for an unbiased rate, "
                "train it with the same scope.validation and scope.seed"
            )
        elif not knows_training_samples(run):
            notes.append(
                f"it is not known whether {printable(str(run.folder))} was trained on samples of "
                "the validation split; if it was, its error rate there is lower than on new samples"
            )
    return notes


def _learned(run: Run, whole: TrainingLabels) -> Tensor:
    """Return a mask of the samples that a run, or the run that it started from, was trained on.

    An adopted model counts as trained on none.
    """
    known = _known(whole, () if "adopted" in run.document else run.class_names)
    found, _ = _masks(whole, run.config.scope, known)
    for old in run.config.old if run.config.fine_tune else ():
        found |= _learned(Run.read(Path(old)), whole)
    return found


def _masks(whole: TrainingLabels, scope: Scope, known: Tensor) -> tuple[Tensor, Tensor]:
    """Return which samples of the known classes are learned from, and which are held out."""
    inside = known[whole.targets]
    held_out = torch.zeros_like(inside)
    if isinstance(scope.validation, float):
        held_out = held_out_per_class(whole, scope.seed, scope.validation)
    seen = inside & ~held_out
    if scope.samples == 1:
        return seen, inside & held_out
    if scope.per_class:
        left = TrainingLabels(
            ids_index=whole.ids_index[seen],
            targets=whole.targets[seen],
            class_names=whole.class_names,
        )
        seen[seen.clone()] = part_per_class(left, scope.seed, scope.samples)
    else:
        seen &= part(whole.ids_index, scope.seed, scope.samples)
    return seen, inside & held_out


def _known(whole: TrainingLabels, class_names: Sequence[str]) -> Tensor:
    """Return which classes of the data are among some names."""
    names = set(class_names)
    return torch.tensor([name in names for name in whole.class_names])


def _chosen_classes(scope: Scope, names: Sequence[str]) -> list[int]:
    if scope.classes is None:
        return list(range(len(names)))
    if scope.class_choice == "random":
        return random_classes(names, scope.classes, scope.seed)
    return list(range(scope.classes))


def _of_classes(split: Split, chosen: list[int], known: Tensor | None = None) -> Split:
    """Return the samples of the chosen classes, whose new indices are those in `chosen`.

    If `known` is None, there are no samples of other classes.
    """
    if known is not None and not bool(known.all()):
        split = split.subset(known[split.targets])
    if chosen == list(range(len(chosen))):
        return split
    new_index = torch.zeros(max(chosen) + 1, dtype=torch.int64)
    new_index[chosen] = torch.arange(len(chosen))
    return split.with_targets(new_index[split.targets])


def _validation(
    data: DataSet, scope: Scope, held_out: Tensor, chosen: list[int], known: Tensor
) -> Split | None:
    if scope.validation is None:
        return None
    if scope.validation != OWN:
        if not bool(held_out.any()):
            raise InputError(
                f"Expected `scope.validation` to hold out samples, but {scope.validation:g} of "
                f"each class of {data.name} is none; raise it."
            )
        return _of_classes(data.train.subset(held_out), chosen)
    if data.own_validation is None:
        raise InputError(
            f"Expected data with a validation split for `scope.validation={OWN}`, but {data.name} "
            "has none; give the share of the training samples to hold out, such as 0.1."
        )
    return _of_classes(data.own_validation(), chosen, known)


def _check(scope: Scope, data: DataSet) -> None:
    """Raise if a number of the scope is out of range."""
    count = len(data.class_names)
    if scope.classes is not None and not 1 <= scope.classes <= count:
        raise InputError(
            f"Expected `scope.classes` to be from 1 to {count}, but got {scope.classes}."
        )
    if not 0 < scope.samples <= 1:
        raise InputError(
            "Expected `scope.samples` to be a share above 0 and at most 1, but got "
            f"{scope.samples:g}; 1 takes all training samples."
        )
    share = scope.validation
    if isinstance(share, float) and not 0 < share < 1:
        raise InputError(
            "Expected `scope.validation` to be a share above 0 and below 1, or "
            f"{OWN!r} for the data's own split, but got {listed([share])}; give one of them."
        )
