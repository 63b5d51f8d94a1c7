"""Temperature scaling: the temperature at which a model is as sure as it is right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from scipy.optimize import brentq
from torch import Tensor

from flipguard.errors import InputError, listed

Batch = tuple[Any, Tensor]
LogitsOf = Callable[..., Tensor]
COLDEST, HOTTEST = 0.05, 20.0
IGNORED = -100
# Rows that are worked on at a time, in float64.
ROWS = 8_192


def fitted_temperatures(members: Sequence[LogitsOf], batches: Iterable[Batch]) -> tuple[float, ...]:
    """For each member the temperature that minimises the negative log-likelihood of the batches."""
    logits: list[list[Tensor]] = [[] for _ in members]
    targets: list[list[Tensor]] = [[] for _ in members]
    for batch in batches:
        inputs, target = _pair(batch)
        args, kwargs = _arguments(inputs)
        for i, member in enumerate(members):
            scores = member(*args, **kwargs)
            kept, classes = _samples(scores, target, i)
            logits[i].append(kept)
            targets[i].append(classes)
    if not sum(len(part) for part in targets[0]):
        raise InputError(
            "Expected `batches` to hold samples with a target, but got none. Give held-out data "
            "with its targets."
        )
    return tuple(
        fitted_temperature(torch.cat(z), torch.cat(y)) for z, y in zip(logits, targets, strict=True)
    )


def fitted_temperature(logits: Tensor, target: Tensor) -> float:
    """The temperature from 0.05 to 20 at which the negative log-likelihood is least.

    In the inverse temperature b the likelihood is convex, and its slope is the mean, over the
    samples, of the expected logit under softmax(b * z) less the logit of the target.

    >>> fitted_temperature(torch.zeros(2, 3), torch.tensor([0, 1]))
    1.0
    """

    def slope(inverse: float) -> float:
        return sum(_excess(z, y, inverse) for z, y in _parts(logits, target)) / len(target)

    least, most = 1.0 / HOTTEST, 1.0 / COLDEST
    at_least, at_most = slope(least), slope(most)
    if at_least == at_most == 0.0:
        return 1.0  # every temperature is as good as another
    if at_least >= 0.0:
        return HOTTEST
    if at_most <= 0.0:
        return COLDEST
    return float(1.0 / brentq(slope, least, most, xtol=1e-12, rtol=1e-12))


def _parts(logits: Tensor, target: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    for z, y in zip(torch.split(logits, ROWS), torch.split(target, ROWS), strict=True):
        wide = z.double()
        yield wide - wide.amax(dim=1, keepdim=True), y


def _excess(logits: Tensor, target: Tensor, inverse: float) -> float:
    expected = ((logits * inverse).softmax(dim=1) * logits).sum(dim=1)
    return float((expected - logits.gather(1, target[:, None])[:, 0]).sum())


def _pair(batch: Any) -> tuple[Any, Tensor]:
    if isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[1], Tensor):
        return batch[0], batch[1]
    shape = f"{type(batch).__name__}"
    if isinstance(batch, tuple | list):
        shape += f" of {len(batch)}"
    raise InputError(
        f"Expected `batches` to give pairs (inputs, target tensor), but got a {shape}. Give inputs "
        "as a tensor, a tuple of arguments or a mapping of keyword arguments."
    )


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, tuple | list):
        return tuple(inputs), {}
    return (inputs,), {}


def _samples(scores: Tensor, target: Tensor, i: int) -> tuple[Tensor, Tensor]:
    """The logits and targets of the samples that count, one row each."""
    if target.is_floating_point() or target.dtype == torch.bool:
        raise InputError(
            f"Expected `target` to be class indices, but got {target.dtype}. Calibrate with hard "
            "targets."
        )
    if scores.ndim < 1 or target.shape != scores.shape[:-1]:
        raise InputError(
            f"Expected `target` to be of shape {tuple(scores.shape[:-1])}, a class for each row "
            f"that `models[{i}]` gives, but got {tuple(target.shape)}. Give one class index for "
            "each sample."
        )
    classes = target.reshape(-1).to(scores.device, torch.int64)
    counts = classes != IGNORED
    kept, classes = scores.reshape(-1, scores.shape[-1])[counts], classes[counts]
    if not bool(torch.isfinite(kept).all()):
        raise InputError(
            f"Expected `models[{i}]` to give finite logits, but got nan or infinity. Calibrate a "
            "model that scores every class."
        )
    strange = classes[(classes < 0) | (classes >= scores.shape[-1])]
    if len(strange):
        raise InputError(
            f"Expected `target` to be from 0 to {scores.shape[-1] - 1}, but got "
            f"{listed(sorted(set(strange.tolist())))}. Give indices of the models' classes, and "
            f"{IGNORED} for samples to leave out."
        )
    return kept, classes
