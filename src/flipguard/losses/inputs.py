"""What every loss asks of its tensors and options, and the precision that it computes in."""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypeAlias

import torch
from torch import Tensor

from flipguard.errors import InputError

# Shapes as they stand in the signatures. The class axis is the last; before it come the samples,
# usually one axis [N, C], for tokens or pixels more.
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
NUMBER = (int, float)  # a tuple: the compiler of torch 2.5 knows no other union


def one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    """Refuses an option that does not exist, and lists those that do."""
    if value not in known:
        listed = ", ".join(repr(option) for option in known)
        which = listed if len(known) == 1 else f"one of {listed}"
        raise InputError(f"Expected `{name}` to be {which}, but got {value!r}.")


def at_least(name: str, value: float, low: float) -> None:
    """Refuses a number below its least value, or one that is none."""
    if not isinstance(value, NUMBER) or not low <= value < math.inf:
        raise InputError(
            f"Expected `{name}` to be a number of at least {low:g}, but got {value!r}."
        )


def positive(name: str, value: float) -> None:
    """Refuses a number that is not above zero."""
    if not isinstance(value, NUMBER) or not 0 < value < math.inf:
        raise InputError(f"Expected `{name}` to be a number above 0, but got {value!r}.")


def whole(name: str, value: int | None) -> None:
    """Refuses a number of classes that is neither None nor 1 or more."""
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(
            f"Expected `{name}` to be a whole number of at least 1, or None for all classes, "
            f"but got {value!r}."
        )


def check_tensor(name: str, given: object) -> Tensor:
    """Refuses what is no tensor, and says how to come by one."""
    if isinstance(given, Tensor):
        return given
    way = "pass a tensor"
    if hasattr(given, "logits"):
        way = "pass its `.logits`"
    elif callable(given):
        way = "call it with the batch, and pass what it gives"
    raise InputError(f"Expected `{name}` to be a tensor, but got {type(given).__name__}; {way}.")


def check_scores(name: str, scores: object) -> None:
    """Refuses what cannot be logits or features."""
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
    """Refuses two tensors that do not speak of the same samples."""
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
    """Refuses two tensors that do not speak of the same samples and classes."""
    check_same_samples(name, scores, like_name, like)
    if scores.shape != like.shape:
        raise InputError(
            f"Expected `{name}` to have the {like.shape[-1]} classes of `{like_name}`, but got "
            f"{scores.shape[-1]}; both must come from models of the same classes."
        )


def computed(scores: Tensor) -> Tensor:
    """Scores in the precision that losses are computed in: float32, or float64 if given."""
    # Half precision has three digits: differences of close logits would be mostly rounding.
    return scores if is_wide(scores) else scores.float()


def is_wide(scores: Tensor) -> bool:
    """Whether scores have that precision already, so that `computed` makes no copy of them."""
    return scores.dtype in WIDE


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
