"""A loss from its value and its slope a sample.

Each distance is computed together with its gradient, in closed form and without a tape: one tensor
of the logits' size is kept for the backward pass, and that pass is one multiplication. The tests
compare both with what autograd makes of the formula written out in loops.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from flipguard.losses.inputs import Logits, Loss, PerSample, Reduction


class Sloped(NamedTuple):
    """A distance a sample, and its gradient for the logits of each student.

    The factors are numbers that both still have to be multiplied by: doing that to a whole
    matrix is a pass over memory, and doing it to the sum is not.
    """

    value: PerSample
    slopes: tuple[Logits, ...]
    value_factor: float = 1.0
    slope_factor: float = 1.0


class _Attached(torch.autograd.Function):
    """Values whose gradient is known: what is kept for the backward pass is the slopes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        value: Tensor,
        weight: Tensor | None,
        value_factor: float,
        slope_factor: float,  # noqa: ARG004 - autograd passes all to both methods
        scalar: bool,
        *students_and_slopes: Tensor,  # noqa: ARG004
    ) -> Tensor:
        return _summed(value, weight, value_factor, scalar)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        _, weight, _, slope_factor, _, *students_and_slopes = inputs
        ctx.slope_factor = slope_factor
        ctx.dtype = students_and_slopes[0].dtype
        ctx.save_for_backward(weight, *students_and_slopes[1::2])

    @staticmethod
    @once_differentiable  # a second derivative would take the slopes for constants
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weight, *slopes = ctx.saved_tensors
        if ctx.slope_factor != 1:
            gradient = gradient * ctx.slope_factor
        if weight is not None:
            gradient = gradient * weight
        if gradient.dim():
            gradient = gradient.unsqueeze(-1)
        gradients: list[Tensor | None] = [None] * 5
        for slope in slopes:
            gradients += [(slope * gradient).to(ctx.dtype), None]
        return tuple(gradients)


# Autograd asks for this at every call, and making it anew takes longer than a small loss.
_Attached.forward.__signature__ = inspect.signature(_Attached.forward)  # type: ignore[attr-defined]


def reduced(
    students: tuple[Logits, ...],
    sloped: Sloped,
    *,
    reduction: Reduction,
    weight: PerSample | None = None,
    count: int | Tensor | None = None,
) -> Loss:
    """The loss: weighted, summed over samples, for a mean divided by their number."""
    value, slopes, value_factor, slope_factor = sloped
    if reduction == "mean":
        if isinstance(count, Tensor):
            weight = count.reciprocal() if weight is None else weight / count
        else:
            samples = max(value.numel(), 1) if count is None else count
            value_factor, slope_factor = value_factor / samples, slope_factor / samples
    scalar = reduction != "none"
    if not any(student.requires_grad for student in students):
        return _summed(value, weight, value_factor, scalar)
    pairs = [tensor for pair in zip(students, slopes, strict=True) for tensor in pair]
    loss: Tensor = _Attached.apply(value, weight, value_factor, slope_factor, scalar, *pairs)
    return loss


def averaged(value: PerSample, *, reduction: Reduction, count: int | Tensor | None = None) -> Loss:
    """The same for values that autograd has followed."""
    if reduction == "none":
        return value
    total = value.sum()
    if reduction == "sum":
        return total
    return total / (max(value.numel(), 1) if count is None else count)


def _summed(value: Tensor, weight: Tensor | None, factor: float, scalar: bool) -> Tensor:
    # Nothing in place: the compiler of torch 2.11 loses the gradient of an output changed so.
    if not scalar and weight is None:
        return value * factor
    weighted = value if weight is None else value * weight
    summed = weighted.sum() if scalar else weighted
    return summed if factor == 1 else summed * factor
