"""The mean logits of several models as a reference, and the temperatures that calibrate them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import torch
from scipy.optimize import brentq
from torch import Tensor, nn

from flipguard.errors import InputError, listed
from flipguard.references.reference import Frozen, Output, Reference

Member = nn.Module | Callable[..., Any] | Reference

Batch = tuple[Any, Tensor]
LogitsOf = Callable[..., Tensor]
COLDEST, HOTTEST = 0.05, 20.0
IGNORED = -100
# Number of rows that are processed at once, in float64.
ROWS = 8_192


class Ensemble(Reference):
    """The weighted mean of the members' logits: sum of w_i * z_i / T_i, where the w_i sum to 1.

    Members may have different architectures, and may be references. All must return logits of the
    same classes. `output` selects the logits of every member that is not a reference; if members
    need different ones, give each as `OldModel(model, output=…)`. Modules are moved to the batch's
    device.

    The mean is summed in float32 (float64 if a member returns float64), one member at a time.

    >>> first, second = (lambda x: x, lambda x: 3.0 * x)
    >>> Ensemble([first, second], weights=[1.0, 3.0])(torch.tensor([[1.0, -1.0]]))
    tensor([[ 2.5000, -2.5000]])
    """

    def __init__(
        self,
        models: Iterable[Member],
        *,
        weights: Sequence[float] | None = None,
        temperatures: Sequence[float] | None = None,
        output: Output | None = None,
    ) -> None:
        single = isinstance(models, nn.Module) and not isinstance(models, nn.ModuleList)
        if single or isinstance(models, Reference) or not isinstance(models, Iterable):
            raise InputError(
                f"Expected `models` to be a list of models, but got {type(models).__name__}. "
                "Give [model, …]; one model alone is an OldModel."
            )
        self._members = tuple(Frozen(model, output=output) for model in models)
        if not self._members:
            raise InputError(
                "Expected `models` to hold at least one model, but got none. Give the models "
                "whose logits are averaged."
            )
        self.weights = _weights(weights, len(self))
        self.temperatures = _temperatures(temperatures, len(self))

    def __len__(self) -> int:
        return len(self._members)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} models>"

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        total = torch.empty(0)
        for i, member in enumerate(self._members):
            logits = member(*args, **kwargs)
            wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
            if i == 0:
                total = torch.zeros_like(logits, dtype=wide)
            elif logits.shape != total.shape:
                raise InputError(
                    f"Expected `models[{i}]` to give logits of shape {tuple(total.shape)} as "
                    f"`models[0]` does, but got {tuple(logits.shape)}. Average models of the same "
                    "classes only."
                )
            if wide == torch.float64:
                total = total.double()
            total.add_(logits.to(total.dtype), alpha=self.weights[i] / self.temperatures[i])
        return total

    def to(self, device: torch.device | str) -> Self:
        for member in self._members:
            member.to(device)
        return self

    def calibrate(self, batches: Iterable[Batch]) -> Ensemble:
        """Return a new ensemble of the same members, each with a fitted temperature.

        For each member the temperature minimises the negative log-likelihood of held-out samples
        (Guo et al. 2017). `batches` yields pairs of inputs and targets; inputs are a tensor, a
        tuple of arguments or a mapping of keyword arguments. Samples with the target -100 are
        left out. The logits of all batches are kept in memory until the end.

        >>> z = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
        >>> sure = Ensemble([lambda x: x])
        >>> calm = sure.calibrate([(z, torch.tensor([0, 0, 0, 1]))])
        >>> [round(t, 3) for t in calm.temperatures]  # softmax(4 / T) = 3 / 4
        [3.641]
        """
        members: list[LogitsOf] = list(self._members)
        calibrated = object.__new__(type(self))
        calibrated._members = self._members
        calibrated.weights = self.weights
        calibrated.temperatures = fitted_temperatures(members, batches)
        return calibrated


def _weights(given: Sequence[float] | None, count: int) -> tuple[float, ...]:
    if given is None:
        return (1.0 / count,) * count
    weights = _numbers(given, count, "weights")
    total = math.fsum(weights)
    if min(weights) < 0.0 or not 0.0 < total < math.inf:
        raise InputError(
            "Expected `weights` to be numbers from 0 on, one of them above 0, but got "
            f"{_shown(weights)}. Leave `weights` out to weigh all models alike."
        )
    return tuple(weight / total for weight in weights)


def _temperatures(given: Sequence[float] | None, count: int) -> tuple[float, ...]:
    if given is None:
        return (1.0,) * count
    temperatures = _numbers(given, count, "temperatures")
    if min(temperatures) <= 0.0:
        raise InputError(
            f"Expected `temperatures` to be above 0, but got {_shown(temperatures)}. Temperatures "
            "divide the logits; 1 leaves them as they are."
        )
    return temperatures


def _numbers(given: Sequence[float], count: int, name: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(number) for number in given)
    except (TypeError, ValueError) as problem:
        raise InputError(
            f"Expected `{name}` to be a list of numbers, but got {listed([given])}. Give one "
            "number for each model."
        ) from problem
    if len(numbers) != count:
        raise InputError(
            f"Expected `{name}` to hold {count} numbers, one for each model, but got "
            f"{len(numbers)}. Give one number for each model."
        )
    if not all(math.isfinite(number) for number in numbers):
        raise InputError(
            f"Expected `{name}` to be finite, but got {_shown(numbers)}. Give one number for each "
            "model."
        )
    return numbers


def _shown(numbers: Sequence[float]) -> str:
    return f"[{listed(numbers, most=8)}]"


def fitted_temperatures(members: Sequence[LogitsOf], batches: Iterable[Batch]) -> tuple[float, ...]:
    """Return each member's temperature that minimises the negative log-likelihood."""
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
    """Return the temperature from 0.05 to 20 that minimises the negative log-likelihood.

    As a function of the inverse temperature b, the negative log-likelihood is convex. Its slope is
    the mean over samples of the expected logit under softmax(b * z), minus the target's logit.

    >>> fitted_temperature(torch.zeros(2, 3), torch.tensor([0, 1]))
    1.0
    """

    def slope(inverse: float) -> float:
        return sum(_excess(z, y, inverse) for z, y in _parts(logits, target)) / len(target)

    least, most = 1.0 / HOTTEST, 1.0 / COLDEST
    at_least, at_most = slope(least), slope(most)
    if at_least == at_most == 0.0:
        return 1.0  # all temperatures are equally good
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
    """Return the logits and targets of the samples that are not ignored, one row per sample."""
    if target.is_floating_point() or target.dtype == torch.bool:
        raise InputError(
            f"Expected `target` to be class indices, but got {target.dtype}. Calibrate with hard "
            "targets."
        )
    if scores.ndim < 1 or target.shape != scores.shape[:-1]:
        raise InputError(
            f"Expected `target` to be of shape {tuple(scores.shape[:-1])}, one class per row of "
            f"the output of `models[{i}]`, but got {tuple(target.shape)}. Give one class index "
            "per sample."
        )
    classes = target.reshape(-1).to(scores.device, torch.int64)
    labelled = classes != IGNORED
    kept, classes = scores.reshape(-1, scores.shape[-1])[labelled], classes[labelled]
    if not bool(torch.isfinite(kept).all()):
        raise InputError(
            f"Expected `models[{i}]` to give finite logits, but got nan or infinity. Calibrate a "
            "model that scores every class."
        )
    invalid = classes[(classes < 0) | (classes >= scores.shape[-1])]
    if len(invalid):
        raise InputError(
            f"Expected `target` to be from 0 to {scores.shape[-1] - 1}, but got "
            f"{listed(sorted(set(invalid.tolist())))}. Give indices of the models' classes, and "
            f"{IGNORED} for samples to leave out."
        )
    return kept, classes
