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

from flipguard.errors import InputError
from flipguard.losses.inputs import REDUCTIONS, Logits, Loss, PerSample, Reduction, one_of


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
        *students_slopes_anchors: Tensor,  # noqa: ARG004
    ) -> Tensor:
        return _summed(value, weight, value_factor, scalar)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        _, weight, _, slope_factor, _, *rest = inputs
        ctx.slope_factor = slope_factor
        ctx.dtypes = [student.dtype for student in rest[::3]]
        # Not the students: they may be changed or freed, since no value of theirs is needed.
        ctx.save_for_backward(weight, *rest[1::3], *rest[2::3])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weight, *rest = ctx.saved_tensors
        slopes, anchors = rest[: len(ctx.dtypes)], rest[len(ctx.dtypes) :]
        # A second derivative would take the slopes for constants, and be wrong without a word.
        twice = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        if ctx.slope_factor != 1:
            gradient = gradient * ctx.slope_factor
        if weight is not None:
            gradient = gradient * weight
        if gradient.dim():
            gradient = gradient.unsqueeze(-1)
        gradients: list[Tensor | None] = [None] * 5
        for dtype, slope, anchor in zip(ctx.dtypes, slopes, anchors, strict=True):
            found = (slope * gradient).to(dtype)
            gradients += [_Once.apply(found, anchor) if twice else found, None, None]
        return tuple(gradients)


class _Once(torch.autograd.Function):
    """A gradient that may be used, but not differentiated for the student's logits."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: Tensor, anchor: Tensor) -> Tensor:  # noqa: ARG004
        return gradient.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:  # noqa: ARG004
        raise InputError(
            "Expected to be differentiated once, but a second derivative was asked for; losses of "
            "flipguard have none, so leave them out of what is differentiated twice."
        )


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
    one_of("reduction", reduction, REDUCTIONS)
    value, slopes, value_factor, slope_factor = sloped
    if weight is not None:
        # A sample that weighs nothing may hold anything, nan too: 0 times nan is not 0.
        nothing = weight == 0
        value = value.masked_fill(nothing, 0)
        slopes = tuple(slope.masked_fill(nothing.unsqueeze(-1), 0) for slope in slopes)
    if reduction == "mean":
        if weight is not None and isinstance(count, Tensor):
            weight = weight / count
        else:
            samples = count if isinstance(count, int) else max(value.numel(), 1)
            value_factor, slope_factor = value_factor / samples, slope_factor / samples
    scalar = reduction != "none"
    if not any(student.requires_grad for student in students):
        return _summed(value, weight, value_factor, scalar)
    # An anchor has a student's place in the graph, and none of its memory.
    anchored = [
        tensor
        for student, slope in zip(students, slopes, strict=True)
        for tensor in (student, slope, student[..., :0].clone())
    ]
    loss: Tensor = _Attached.apply(value, weight, value_factor, slope_factor, scalar, *anchored)
    return loss


def averaged(value: PerSample, *, reduction: Reduction, count: int | Tensor) -> Loss:
    """The same for values that autograd has followed."""
    one_of("reduction", reduction, REDUCTIONS)
    if reduction == "none":
        return value
    total = value.sum()
    if reduction == "sum":
        return total
    return total / count


def _summed(value: Tensor, weight: Tensor | None, factor: float, scalar: bool) -> Tensor:
    # Nothing in place: the compiler of torch 2.11 loses the gradient of an output changed so.
    if not scalar and weight is None:
        return value * factor
    weighted = value if weight is None else value * weight
    summed = weighted.sum() if scalar else weighted
    return summed if factor == 1 else summed * factor
