"""Data sets and their splits: inputs by position, targets, and one id per sample."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import torch
from torch import Tensor

from flipguard.errors import InputError, listed

Ids: TypeAlias = list[str] | Tensor
"""The ids of samples: a list of text, or int64 [n]."""

Kind: TypeAlias = Literal["vector", "image", "text"]
KINDS: Final = ("vector", "image", "text")


def ids_index_of(ids: Ids) -> Tensor:
    """Return one int64 per id, from which random choices are computed; a number is kept.

    >>> ids_index_of(torch.tensor([5, 2]))
    tensor([5, 2])
    >>> ids_index_of(["a.png"])
    tensor([6266261796961190882])
    """
    if isinstance(ids, Tensor):
        if ids.dim() != 1 or ids.is_floating_point() or ids.dtype == torch.bool:
            raise InputError(
                "Expected `ids` to be whole numbers [samples] or a list of text, but got "
                f"{ids.dtype} {list(ids.shape)}; give one id for each sample."
            )
        return ids.to(torch.int64)
    return torch.tensor([_number_of(name) for name in ids], dtype=torch.int64)


def must_differ(ids: Ids) -> None:
    """Raise an error if two samples have the same id."""
    if isinstance(ids, Tensor):
        ordered = ids.sort().values
        twice: list[object] = ordered[1:][ordered[1:] == ordered[:-1]].tolist()
    elif len(set(ids)) == len(ids):
        twice = []
    else:
        twice = [name for name, count in Counter(ids).items() if count > 1]
    if twice:
        raise InputError(
            f"Expected `ids` to differ, but got {listed(dict.fromkeys(twice))} more than once; "
            "give every sample its own id."
        )


def _number_of(name: str) -> int:
    # Python's hash of text differs from run to run.
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


class Split(ABC):
    """One part of a data set, such as the training samples: inputs on demand, targets and ids.

    `targets` is int64 [n]; `ids` is a list of text or int64 [n], unique per sample; `ids_index` is
    int64 [n], one number per id, from which random choices are computed.
    """

    def __init__(self, *, targets: Tensor, ids: Ids | None = None) -> None:
        if targets.dim() != 1 or targets.is_floating_point() or targets.dtype == torch.bool:
            raise InputError(
                "Expected `targets` to be one class index for each sample, but got "
                f"{targets.dtype} {list(targets.shape)}; pass int64 [samples]."
            )
        self.targets: Final = targets.to(torch.int64)
        if ids is None:
            ids = torch.arange(len(targets), device=targets.device)
        self.ids: Final[Ids] = ids
        if len(ids) != len(targets):
            raise InputError(
                f"Expected `ids` to name the {len(targets):,} samples, but got {len(ids):,}; give "
                "one id for each sample."
            )
        self.ids_index: Final = ids_index_of(ids).to(targets.device)
        must_differ(ids)

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self):,} samples>"

    @abstractmethod
    def inputs(self, indices: Tensor) -> Tensor | list[str]:
        """Return the raw inputs of the samples at these positions, in this order."""

    @abstractmethod
    def subset(self, indices: Tensor) -> Split:
        """Return the samples at these positions, or where a mask is true, with their ids."""

    @abstractmethod
    def with_targets(self, targets: Tensor) -> Split:
        """Return the same samples with other class indices, after classes were left out."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a sha256 over the contents: inputs, targets and ids."""

    def positions(self, indices: Tensor) -> Tensor:
        """Return positions or a mask as checked positions."""
        if indices.dtype == torch.bool and tuple(indices.shape) == (len(self),):
            return indices.nonzero().squeeze(1)
        if indices.dim() != 1 or indices.is_floating_point() or indices.dtype == torch.bool:
            raise InputError(
                f"Expected `indices` to be positions or a mask of {len(self):,} samples, but got "
                f"{indices.dtype} {list(indices.shape)}; pass int64 [k] or bool [{len(self)}]."
            )
        outside = indices[(indices < 0) | (indices >= len(self))]
        if len(outside):
            raise InputError(
                f"Expected `indices` to be from 0 to {len(self) - 1}, but got "
                f"{listed(outside.tolist())}; ask for samples that the split holds."
            )
        return indices.to(torch.int64)

    def picked_ids(self, positions: Tensor) -> Ids:
        """Return the ids at some positions."""
        if isinstance(self.ids, Tensor):
            return self.ids[positions.to(self.ids.device)]
        return [self.ids[position] for position in positions.tolist()]

    def hashed(self) -> hashlib._Hash:
        """Return a sha256 of targets and ids, to which the inputs are still to be added."""
        seen = hashlib.sha256()
        feed_tensor(seen, self.targets)
        if isinstance(self.ids, Tensor):
            feed_tensor(seen, self.ids)
        else:
            feed_texts(seen, self.ids)
        return seen


class ArraySplit(Split):
    """Samples in one tensor, uint8 or float32 [n, ...], on any device.

    >>> split = ArraySplit(inputs=torch.rand(4, 40), targets=torch.tensor([0, 1, 1, 0]))
    >>> part = split.subset(split.targets == 1)
    >>> part.ids, part.inputs(torch.tensor([0])).shape
    (tensor([1, 2]), torch.Size([1, 40]))
    """

    def __init__(self, *, inputs: Tensor, targets: Tensor, ids: Ids | None = None) -> None:
        super().__init__(targets=targets, ids=ids)
        if inputs.dtype not in (torch.uint8, torch.float32) or inputs.dim() < 2:
            raise InputError(
                "Expected `inputs` to be uint8 or float32 [samples, ...], but got "
                f"{inputs.dtype} {list(inputs.shape)}; convert them first."
            )
        if len(inputs) != len(targets):
            raise InputError(
                f"Expected `inputs` to be {len(targets):,} samples, one for each target, but got "
                f"{len(inputs):,}; give both in the same order."
            )
        self.all_inputs: Final = inputs

    def inputs(self, indices: Tensor) -> Tensor:
        # Positions are moved to the samples' device, never the samples to the CPU.
        return self.all_inputs[indices.to(self.all_inputs.device)]

    def subset(self, indices: Tensor) -> ArraySplit:
        positions = self.positions(indices).to(self.targets.device)
        return ArraySplit(
            inputs=self.inputs(positions),
            targets=self.targets[positions],
            ids=self.picked_ids(positions),
        )

    def with_targets(self, targets: Tensor) -> ArraySplit:
        return ArraySplit(inputs=self.all_inputs, targets=targets, ids=self.ids)

    def to(self, device: torch.device | str) -> ArraySplit:
        """Return the same samples on a device."""
        ids = self.ids.to(device) if isinstance(self.ids, Tensor) else self.ids
        return ArraySplit(
            inputs=self.all_inputs.to(device), targets=self.targets.to(device), ids=ids
        )

    def fingerprint(self) -> str:
        seen = self.hashed()
        feed_tensor(seen, self.all_inputs)
        return seen.hexdigest()


class TextSplit(Split):
    """Samples with text inputs.

    >>> TextSplit(texts=["good", "bad"], targets=torch.tensor([1, 0])).inputs(torch.tensor([1]))
    ['bad']
    """

    def __init__(self, *, texts: Sequence[str], targets: Tensor, ids: Ids | None = None) -> None:
        super().__init__(targets=targets, ids=ids)
        if len(texts) != len(targets):
            raise InputError(
                f"Expected `texts` to be {len(targets):,} samples, one for each target, but got "
                f"{len(texts):,}; give both in the same order."
            )
        self.texts: Final = list(texts)

    def inputs(self, indices: Tensor) -> list[str]:
        return [self.texts[position] for position in self.positions(indices).tolist()]

    def subset(self, indices: Tensor) -> TextSplit:
        positions = self.positions(indices)
        return TextSplit(
            texts=self.inputs(positions),
            targets=self.targets[positions.to(self.targets.device)],
            ids=self.picked_ids(positions),
        )

    def with_targets(self, targets: Tensor) -> TextSplit:
        return TextSplit(texts=self.texts, targets=targets, ids=self.ids)

    def fingerprint(self) -> str:
        seen = self.hashed()
        feed_texts(seen, self.texts)
        return seen.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingLabels:
    """The ids and classes of all training samples, before a part of them was chosen.

    From these it is known which of them another run with another part was trained on.
    """

    ids_index: Tensor
    targets: Tensor
    class_names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """Training and test samples of one task, and the names of its classes by index.

    `validation` is the split that rates are measured on while a model is trained, or None.
    `own_validation` reads the data's own validation split; None if the data have none. `whole` is
    None if no part was chosen. `fingerprint` is a sha256 over the contents of the splits;
    `DataSet.of` computes it.
    """

    name: str
    kind: Kind
    class_names: tuple[str, ...]
    train: Split
    test: Split
    fingerprint: str
    validation: Split | None = None
    own_validation: Callable[[], Split] | None = None
    whole: TrainingLabels | None = None

    @classmethod
    def of(
        cls,
        *,
        name: str,
        kind: Kind,
        class_names: Sequence[str],
        train: Split,
        test: Split,
        validation: Split | None = None,
        own_validation: Callable[[], Split] | None = None,
        whole: TrainingLabels | None = None,
    ) -> DataSet:
        """Return a data set with checked targets and its fingerprint.

        >>> split = TextSplit(texts=["good", "bad"], targets=torch.tensor([1, 0]))
        >>> data = DataSet.of(
        ...     name="mood", kind="text", class_names=["-", "+"], train=split, test=split
        ... )
        >>> len(data.fingerprint)
        64
        """
        again = [name for name, count in Counter(class_names).items() if count > 1]
        if again:
            raise InputError(
                f"Expected `class_names` to differ, but got {listed(again)} more than "
                "once; give every class its own name."
            )
        splits = {"train": train, "test": test}
        if validation is not None:
            splits["validation"] = validation
        for part, split in splits.items():
            _check_split(part, split, name, class_names)
        seen = hashlib.sha256()
        feed_texts(seen, class_names)
        feed_texts(seen, [split.fingerprint() for split in splits.values()])
        return cls(
            name=name,
            kind=kind,
            class_names=tuple(class_names),
            train=train,
            test=test,
            fingerprint=seen.hexdigest(),
            validation=validation,
            own_validation=own_validation,
            whole=whole,
        )

    @property
    def splits(self) -> dict[str, Split]:
        """The splits by name; `validation` only if there is one."""
        some = {} if self.validation is None else {"validation": self.validation}
        return {"train": self.train, **some, "test": self.test}

    @property
    def measured(self) -> str:
        """The name of the split that rates are measured on while a model is trained."""
        return "test" if self.validation is None else "validation"

    @property
    def predicted(self) -> tuple[str, ...]:
        """The splits whose predictions a finished run has."""
        return tuple(name for name in self.splits if name != "train")

    @property
    def training_labels(self) -> TrainingLabels:
        """The ids and classes of all training samples, before a part of them was chosen."""
        if self.whole is not None:
            return self.whole
        return TrainingLabels(
            ids_index=self.train.ids_index,
            targets=self.train.targets,
            class_names=self.class_names,
        )


def _check_split(part: str, split: Split, name: str, class_names: Sequence[str]) -> None:
    """Raise if a split is empty, or has targets without a class name."""
    if not len(split):
        raise InputError(
            f"Expected the {part} split of {name} to hold samples, but got none; add some, "
            "or split the data another way."
        )
    outside = split.targets[(split.targets < 0) | (split.targets >= len(class_names))]
    if len(outside):
        got = listed(sorted(set(outside.tolist())))
        raise InputError(
            f"Expected the {part} targets of {name} to be from 0 to "
            f"{len(class_names) - 1}, one for each of its {len(class_names)} class names, "
            f"but got {got}; fix the targets or the names."
        )


def feed_tensor(seen: hashlib._Hash, tensor: Tensor) -> None:
    """Add the type, shape and contents of a tensor to a hash."""
    array = tensor.detach().cpu().contiguous().numpy()
    seen.update(f"{array.dtype.str}{array.shape}".encode())
    seen.update(array.reshape(-1).view("u1").data)


def feed_texts(seen: hashlib._Hash, texts: Sequence[str]) -> None:
    """Add texts to a hash, each with its length, so that ["ab"] differs from ["a", "b"]."""
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        seen.update(f"{len(encoded)}:".encode())
        seen.update(encoded)
