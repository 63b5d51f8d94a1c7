"""From the labels of a file, numbers or text, to class indices and class names."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flipguard.errors import InputError, listed

Label = int | str
# More classes than this need names, or as many samples: a stray number is not a class.
MOST_UNNAMED = 1000


def class_names_of(labels: Sequence[Label], *, where: str) -> list[str]:
    """The classes that labels tell of: text in order, or numbers from 0 to the greatest.

    >>> class_names_of(["dog", "cat", "dog"], where="pets.jsonl"), class_names_of([2, 0], where="")
    (['cat', 'dog'], ['0', '1', '2'])
    """
    texts = [label for label in labels if isinstance(label, str)]
    numbers = [label for label in labels if not isinstance(label, str)]
    if texts and numbers:
        raise InputError(
            f"Expected the labels of {where} to be all numbers or all text, but got "
            f"{listed([numbers[0], texts[0]])}; write them in one way."
        )
    if texts:
        return sorted(set(texts))
    most = max(numbers, default=-1)
    if most >= max(MOST_UNNAMED, len(numbers)):
        raise InputError(
            f"Expected the labels of {where} to be class indices that count from 0, but got "
            f"{most}; number the classes from 0, or write the labels as text."
        )
    return [str(number) for number in range(most + 1)]


def indices_of(labels: Sequence[Label], class_names: Sequence[str], *, where: str) -> Tensor:
    """The class index of each label, int64 [n]; a label that is no class is refused.

    >>> indices_of(["dog", "cat"], ["cat", "dog"], where="pets.jsonl")
    tensor([1, 0])
    """
    places = {name: place for place, name in enumerate(class_names)}
    unknown: dict[Label, None] = {}
    found = []
    for label in labels:
        if isinstance(label, str):
            place = places.get(label, -1)
        else:
            place = label if 0 <= label < len(class_names) else -1
        if place < 0:
            unknown[label] = None
        found.append(place)
    if unknown:
        raise InputError(
            f"Expected the labels of {where} to be among its {len(class_names)} classes "
            f"({listed(class_names)}), but got {listed(unknown)}; mend the labels, or add the "
            "class to the names and to the training samples."
        )
    return torch.tensor(found, dtype=torch.int64)
