"""What all losses share: checks of tensors and options, precision, and values with gradients."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from flipguard.errors import InputError

# Shapes for the signatures. The last axis is the classes. The axes before it are the samples: one
# axis in most cases, [N, C], and more for tokens or pixels.
Logits: TypeAlias = Annotated[Tensor, "float [..., C]"]
OldLogits: TypeAlias = Annotated[Tensor, "float [..., C_old]"]
Target: TypeAlias = Annotated[Tensor, "int64 [...] class indices, or float [..., C] soft targets"]
Labels: TypeAlias = Annotated[Tensor, "int64 [...]"]
Features: TypeAlias = Annotated[Tensor, "float [N, D]"]
PerSample: TypeAlias = Annotated[Tensor, "float [...]"]
Loss: TypeAlias = Annotated[Tensor, "float [], or float [...] with reduction='none'"]

Reduction: TypeAlias = Literal["mean", "sum", "none"]
ClassReduction: TypeAlias = Literal["mean", "sum"]
Preset: TypeAlias = Literal["paper"]

REDUCTIONS = ("mean", "sum", "none")
CLASS_REDUCTIONS = ("mean", "sum")
IGNORED = -100
WIDE = (torch.float32, torch.float64)
NUMBER = (int, float)  # a tuple, because torch 2.5 compiles no other union

T = TypeVar("T")
# The default of an option whose value depends on the preset.
FROM_PRESET: Any = None


def one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    """Raise an error that lists the choices if `value` is not one of them."""
    if value not in known:
        listed = ", ".join(repr(option) for option in known)
        which = listed if len(known) == 1 else f"one of {listed}"
        raise InputError(f"Expected `{name}` to be {which}, but got {value!r}.")


def at_least(name: str, value: float, low: float) -> None:
    """Raise an error if `value` is not a finite number of at least `low`."""
    if not isinstance(value, NUMBER) or not low <= value < math.inf:
        raise InputError(
            f"Expected `{name}` to be a number of at least {low:g}, but got {value!r}."
        )


def positive(name: str, value: float) -> None:
    """Raise an error if `value` is not a finite number above 0."""
    if not isinstance(value, NUMBER) or not 0 < value < math.inf:
        raise InputError(f"Expected `{name}` to be a number above 0, but got {value!r}.")


def whole(name: str, value: int | None) -> None:
    """Raise an error if `value` is neither None nor a whole number of at least 1."""
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(
            f"Expected `{name}` to be a whole number of at least 1, or None for all classes, "
            f"but got {value!r}."
        )


def check_tensor(name: str, given: object) -> Tensor:
    """Return `given` if it is a tensor, else raise an error that says how to get one."""
    if isinstance(given, Tensor):
        return given
    way = "pass a tensor"
    if hasattr(given, "logits"):
        way = "pass its `.logits`"
    elif callable(given):
        way = "call it with the batch, and pass what it gives"
    raise InputError(f"Expected `{name}` to be a tensor, but got {type(given).__name__}; {way}.")


def check_scores(name: str, scores: object) -> None:
    """Raise an error if `scores` cannot be logits or features."""
    scores = check_tensor(name, scores)
    if not scores.is_floating_point():
        raise InputError(
            f"Expected `{name}` to be floating-point scores, but got {_dtype(scores)}; "
            "pass what the model gives before its softmax, not labels."
        )
    if scores.dim() < 1 or scores.shape[-1] < 1:
        raise InputError(
            f"Expected `{name}` to have the shape [samples, classes], but got {list(scores.shape)}."
        )


def check_same_samples(name: str, scores: Tensor, like_name: str, like: Tensor) -> None:
    """Raise an error if two tensors have different samples or devices."""
    check_scores(name, scores)
    if scores.shape[:-1] != like.shape[:-1]:
        raise InputError(
            f"Expected `{name}` to have the samples of `{like_name}`, {list(like.shape[:-1])}, "
            f"but got {list(scores.shape[:-1])}; both must come from the same batch."
        )
    if scores.device != like.device:
        raise InputError(
            f"Expected `{name}` to be on the device of `{like_name}`, {like.device}, but got "
            f"{scores.device}; move it there."
        )


def check_same_shape(name: str, scores: Tensor, like_name: str, like: Tensor) -> None:
    """Raise an error if two tensors have different samples, classes or devices."""
    check_same_samples(name, scores, like_name, like)
    if scores.shape != like.shape:
        raise InputError(
            f"Expected `{name}` to have the {like.shape[-1]} classes of `{like_name}`, but got "
            f"{scores.shape[-1]}; both must come from models of the same classes."
        )


def loss_precision(scores: Tensor) -> Tensor:
    """Return scores in the precision of losses: float64 if they have it, else float32."""
    # Half precision has three digits, so differences of close logits would be mostly rounding.
    return scores if is_wide(scores) else scores.float()


def is_wide(scores: Tensor) -> bool:
    """Whether scores have the precision of losses, so that `loss_precision` makes no copy."""
    return scores.dtype in WIDE


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


class ValueWithGradient(NamedTuple):
    """A distance per sample, and its gradient with respect to the logits of each student.

    Both still have to be multiplied by their factors. To multiply the sum is cheaper than to
    multiply a whole matrix, which is a pass over memory.
    """

    value: PerSample
    slopes: tuple[Logits, ...]
    value_factor: float = 1.0
    slope_factor: float = 1.0


class _Attached(torch.autograd.Function):
    """Values with a known gradient, which is all that is kept for the backward pass."""

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
        # The students' values are not needed, so they may be changed or freed.
        ctx.save_for_backward(weight, *rest[1::3], *rest[2::3])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weight, *rest = ctx.saved_tensors
        slopes, anchors = rest[: len(ctx.dtypes)], rest[len(ctx.dtypes) :]
        # A second derivative would treat the slopes as constants, and be wrong without an error.
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
    """A gradient that may be used, but not differentiated with respect to the student's logits."""

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


# Autograd reads the signature at every call. To compute it takes longer than a small loss.
_Attached.forward.__signature__ = inspect.signature(_Attached.forward)  # type: ignore[attr-defined]


def reduce_loss(
    students: tuple[Logits, ...],
    sloped: ValueWithGradient,
    *,
    reduction: Reduction,
    weight: PerSample | None = None,
    count: int | Tensor | None = None,
) -> Loss:
    """Return the weighted loss, reduced over the samples.

    A mean is divided by `count`, or by the number of samples if `count` is None.
    """
    one_of("reduction", reduction, REDUCTIONS)
    value, slopes, value_factor, slope_factor = sloped
    if weight is not None:
        # A sample with weight 0 may have any value, including nan, and 0 times nan is not 0.
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
    # An anchor stands for a student in the graph, without its memory.
    anchored = [
        tensor
        for student, slope in zip(students, slopes, strict=True)
        for tensor in (student, slope, student[..., :0].clone())
    ]
    loss: Tensor = _Attached.apply(value, weight, value_factor, slope_factor, scalar, *anchored)
    return loss


def averaged(value: PerSample, *, reduction: Reduction, count: int | Tensor) -> Loss:
    """Return the reduced loss of values that autograd has recorded."""
    one_of("reduction", reduction, REDUCTIONS)
    if reduction == "none":
        return value
    total = value.sum()
    if reduction == "sum":
        return total
    return total / count


def _summed(value: Tensor, weight: Tensor | None, factor: float, scalar: bool) -> Tensor:
    # Nothing in place: the compiler of torch 2.11 then loses the gradient of an output.
    if not scalar and weight is None:
        return value * factor
    weighted = value if weight is None else value * weight
    summed = weighted.sum() if scalar else weighted
    return summed if factor == 1 else summed * factor


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCard:
    """What the docs say about a loss in addition to its docstring.

    `section` is the loss's section of the API reference, and `use` says when to use it.
    """

    section: str
    formula: str
    use: str
    paper: str
    pitfalls: str


class LossTerm(nn.Module):
    """A loss as a module: it is constructed with options and called with tensors.

    A loss without parameters is a dataclass, whose fields are its options. Add a term to the
    task's loss, which no term includes. ``term.compile()`` fuses a term into a few kernels.
    """

    card: ClassVar[LossCard]
    reduction: Reduction

    def __post_init__(self) -> None:
        """Make the dataclass a module, and check the option that every loss has."""
        super().__init__()
        one_of("reduction", self.reduction, REDUCTIONS)

    def extra_repr(self) -> str:
        """Return the options as Python arguments."""
        options = ((name, value) for name, value in vars(self).items() if name != "training")
        return ", ".join(f"{name}={value!r}" for name, value in options if not name.startswith("_"))


def options_of(kind: type[LossTerm]) -> Callable[[Callable[..., Loss]], Callable[..., Loss]]:
    """Show the options of a loss in the signature of a function that takes ``**options``."""

    def shown(function: Callable[..., Loss]) -> Callable[..., Loss]:
        own = inspect.signature(function)
        tensors = [p for p in own.parameters.values() if p.kind is p.KEYWORD_ONLY]
        options = inspect.signature(kind).parameters.values()
        both = own.replace(parameters=[*tensors, *options])
        function.__signature__ = both  # type: ignore[attr-defined]
        return function

    return shown


def is_paper_preset(preset: Preset | None) -> bool:
    """Whether a preset asks for the paper's values."""
    if preset is not None:
        one_of("preset", preset, ("paper",))
    return preset == "paper"


def given_or(value: T | None, default: T) -> T:
    """Return an option, or `default` if it was not given."""
    return default if value is None else value
