"""The matching of the old and the new model's classes, if they have different ones."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from flipguard.errors import InputError, listed
from flipguard.losses.base import IGNORED, Labels, check_same_samples, check_scores

# Stands for an old prediction that is not a class of the new model. No target has this value.
NO_CLASS = -(2**62)
SHOWN = 20


class ClassIndices(NamedTuple):
    """A matching of classes as index tensors on one device."""

    shared_old: Tensor  # int64 [S]: indices of the shared classes in the old model
    shared_new: Tensor  # int64 [S]: their indices in the new model
    old_to_new: Tensor  # int64 [C_old]: new index of each old class, or NO_CLASS
    new_to_old: Tensor  # int64 [C_new]: old index of each new class, or -1
    known: Tensor  # bool [C_new]: whether the old model has the class


@final
class SharedClasses:
    """The matching of the old and the new model's classes, by name or by an index map.

    Distances are taken over the shared classes only. The old model is never right on a sample of a
    class that it lacks. If an equation gives a weight to all samples, such a sample has it too.

    >>> shared = SharedClasses.by_name(old=["cat", "dog"], new=["ant", "dog", "cat"])
    >>> shared
    SharedClasses([-1, 1, 0], old_count=2)
    >>> shared == SharedClasses.by_index([-1, 1, 0], old_count=2)
    True
    """

    __slots__ = ("_on_device", "new_to_old", "old_count")

    def __init__(self, new_to_old: Sequence[int], *, old_count: int) -> None:
        self.new_to_old = tuple(operator.index(index) for index in _whole(new_to_old))
        self.old_count = operator.index(old_count)
        wrong = [index for index in self.new_to_old if not -1 <= index < self.old_count]
        if wrong:
            raise InputError(
                f"Expected the index map to hold -1 or classes of old, 0 to {self.old_count - 1}, "
                f"but got {listed(wrong)}; write -1 for a class that old lacks."
            )
        used = [index for index in self.new_to_old if index >= 0]
        if not used:
            raise InputError(
                "Expected old and new to share a class, but got none in common; without one there "
                "is nothing to be congruent with."
            )
        twice = sorted(_repeated(used))
        if twice:
            raise InputError(
                f"Expected each class of old to be one class of new, but got {listed(twice)} twice "
                "in the index map."
            )
        # Index tensors are made once per device, so that no call copies from the CPU.
        self._on_device: dict[torch.device, ClassIndices] = {}

    @classmethod
    def by_name(cls, *, old: Sequence[Hashable], new: Sequence[Hashable]) -> SharedClasses:
        """Match classes that have the same name."""
        for side, names in (("old", old), ("new", new)):
            twice = sorted(_repeated(names), key=repr)
            if twice:
                raise InputError(
                    f"Expected the class names of `{side}` to be unique, but got {listed(twice)} "
                    "more than once."
                )
        place = {name: index for index, name in enumerate(old)}
        return cls([place.get(name, -1) for name in new], old_count=len(old))

    @classmethod
    def by_index(cls, new_to_old: Sequence[int], *, old_count: int) -> SharedClasses:
        """Match classes by a list: for each new class, its index in the old model, or -1."""
        return cls(new_to_old, old_count=old_count)

    def old_target(self, target: Labels, *, unknown: int = IGNORED) -> Labels:
        """Return targets as indices of the old model's classes; `unknown` for those it lacks.

        >>> shared = SharedClasses.by_name(old=["cat", "dog"], new=["ant", "dog", "cat"])
        >>> shared.old_target(torch.tensor([0, 1, 2, -100]))
        tensor([-100,    1,    0, -100])
        """
        inside = (target >= 0) & (target < self.new_count)
        place = self.on(target.device).new_to_old[target.clamp(0, self.new_count - 1)]
        return place.masked_fill(~inside | (place < 0), unknown)

    @property
    def new_count(self) -> int:
        """The number of classes of the new model."""
        return len(self.new_to_old)

    def on(self, device: torch.device) -> ClassIndices:
        """Return the matching as index tensors on a device."""
        if device in self._on_device:
            return self._on_device[device]
        if torch.compiler.is_compiling():
            return self._made(device)  # part of the graph, so it cannot be kept outside
        # Tensors made in inference mode could not be used in training.
        with torch.inference_mode(False):
            made = self._made(device)
        if type(made.known) is Tensor:  # and not a fake tensor of a tracer
            self._on_device[device] = made
        return made

    def _made(self, device: torch.device) -> ClassIndices:
        pairs = [(old, new) for new, old in enumerate(self.new_to_old) if old >= 0]
        old_to_new = [NO_CLASS] * self.old_count
        for old, new in pairs:
            old_to_new[old] = new
        return ClassIndices(
            shared_old=torch.tensor([old for old, _ in pairs], device=device),
            shared_new=torch.tensor([new for _, new in pairs], device=device),
            old_to_new=torch.tensor(old_to_new, device=device),
            new_to_old=torch.tensor(self.new_to_old, device=device),
            known=torch.tensor([old >= 0 for old in self.new_to_old], device=device),
        )

    def __repr__(self) -> str:
        some = ", ".join(map(str, self.new_to_old[:SHOWN]))
        more = f", … {self.new_count} in all" if self.new_count > SHOWN else ""
        return f"SharedClasses([{some}{more}], old_count={self.old_count})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SharedClasses) and (
            (self.new_to_old, self.old_count) == (other.new_to_old, other.old_count)
        )

    def __hash__(self) -> int:
        return hash((self.new_to_old, self.old_count))

    def __reduce__(self) -> tuple[object, ...]:
        # Index tensors are left out when a loss is pickled or copied.
        return (_rebuilt, (self.new_to_old, self.old_count))


def _whole(indices: Sequence[int]) -> Sequence[int]:
    wrong = [index for index in indices if not hasattr(index, "__index__")]
    if wrong:
        raise InputError(
            f"Expected the index map to hold whole numbers, but got {listed(wrong)}; write old's "
            "index of each class of new, or -1."
        )
    return indices


def _repeated(values: Sequence[Hashable]) -> list[Any]:
    return [value for value, times in Counter(values).items() if times > 1]


def _rebuilt(new_to_old: tuple[int, ...], old_count: int) -> SharedClasses:
    return SharedClasses(new_to_old, old_count=old_count)


def check_class_match(
    name: str, *, old: Tensor, new: Tensor, classes: SharedClasses | None
) -> None:
    """Raise an error if the classes of old and new scores cannot be matched."""
    check_scores("new", new)
    check_same_samples(name, old, "new", new)
    if torch.is_grad_enabled() and old.requires_grad and not new.requires_grad:
        raise InputError(
            f"Expected `new` to be what is trained, but got a `{name}` with a gradient and a `new` "
            f"without; swap the two, or detach `{name}` if neither is trained."
        )
    if classes is not None and not isinstance(classes, SharedClasses):
        raise InputError(
            f"Expected `classes` to be SharedClasses, but got {type(classes).__name__}; make one "
            "with `SharedClasses.by_name` or `SharedClasses.by_index`."
        )
    if classes is None:
        if old.shape[-1] != new.shape[-1]:
            raise InputError(
                f"Expected `{name}` to have the {new.shape[-1]} classes of `new`, but got "
                f"{old.shape[-1]}; say which are the same with "
                "`classes=SharedClasses.by_name(old=..., new=...)`."
            )
        return
    for side, scores, count in ((name, old, classes.old_count), ("new", new, classes.new_count)):
        if scores.shape[-1] != count:
            raise InputError(
                f"Expected `{side}` to have the {count} classes that `classes` speaks of, but got "
                f"{scores.shape[-1]}; match the classes of these two models."
            )


def shared_scores(new: Tensor, old: Tensor, classes: SharedClasses | None) -> tuple[Tensor, Tensor]:
    """Return both scores for the shared classes, in the same order."""
    if classes is None:
        return new, old
    positions = classes.on(new.device)
    return new.index_select(-1, positions.shared_new), old.index_select(-1, positions.shared_old)


def old_prediction(old: Tensor, classes: SharedClasses | None) -> Tensor:
    """Return the old prediction as an index of the new model's classes, or NO_CLASS."""
    predicted = old.argmax(-1)
    return predicted if classes is None else classes.on(old.device).old_to_new[predicted]
