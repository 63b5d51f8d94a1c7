"""What all readers of files share: folders, missing files, labels, and decoded images."""

from __future__ import annotations

import gzip
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flipguard.archives import DAMAGE
from flipguard.errors import InputError, MissingExtraError, listed

VARIABLE = "FLIPGUARD_DATA"

Label = int | str
# More classes than this need names or as many samples, so that one wrong label is found.
MOST_UNNAMED = 1000


def data_root(root: Path | None) -> Path:
    """Return the folder of named data sets: `root`, or the environment's, or ``data``."""
    if root is not None:
        return located(root)
    return located(os.environ.get(VARIABLE) or "data")


def located(place: str | Path) -> Path:
    """Return a path with the home folder in place of ``~``, or raise an error for a bad path."""
    try:
        path = Path(place).expanduser()
        with suppress(FileNotFoundError, NotADirectoryError):
            os.stat(path)
    except (OSError, RuntimeError, ValueError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else problem
        raise InputError(
            f"Expected {listed([str(place)])} to be the path of data, but it cannot be looked up "
            f"({str(why).rstrip('.')}); check its spelling and who may read it."
        ) from problem
    return path


class AbsentError(InputError):
    """Raised if the files of a named data set are not on this machine."""


def absent(name: str, path: Path, how: str) -> AbsentError:
    """Return the error for a named data set whose files are missing."""
    return AbsentError(
        f"Expected `{name}` to be at {path}, but got no such file; {how}, or name the parent "
        f"folder with `data_root=DIR` or {VARIABLE}."
    )


def unreadable_file(path: Path, kind: str, problem: BaseException | str) -> InputError:
    """Return the error for a file that exists but cannot be read."""
    why = " ".join(str(problem).split()).rstrip(".") or type(problem).__name__
    return InputError(
        f"Expected {path} to be {kind}, but got a file that cannot be read ({why}); it may be "
        "truncated or of another format, so copy it again."
    )


def read_bytes(path: Path, kind: str) -> bytes:
    """Return the content of a file, unpacked if its name ends in .gz."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rb") as file:
                return file.read()
        return path.read_bytes()
    except FileNotFoundError as problem:
        raise InputError(
            f"Expected {path} to be {kind}, but got no such file; check the path."
        ) from problem
    except MemoryError as problem:
        raise unreadable_file(path, kind, "it holds more than fits in memory") from problem
    except DAMAGE as problem:
        raise unreadable_file(path, kind, problem) from problem


def packed_or_not(folder: Path, *names: str) -> Path | None:
    """Return the first of some files that is in a folder, with or without .gz, or None."""
    for name in names:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    return None


def class_names_of(labels: Sequence[Label], *, where: str) -> list[str]:
    """Return the class names of labels: sorted text, or numbers from 0 to the largest.

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
    """Return the class index of each label, int64 [n], or raise an error for an unknown label.

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
            f"({listed(class_names)}), but got {listed(unknown)}; fix the labels, or add the "
            "class to the names and to the training samples."
        )
    return torch.tensor(found, dtype=torch.int64)


def pillow() -> Any:
    """Return Pillow's module of images."""
    try:
        from PIL import Image
    except ImportError as problem:
        raise MissingExtraError("Decoding images", package="pillow", extra="train") from problem
    return Image


def as_pixels(image: Any, *, size: int, resize: int) -> Tensor:
    """Return the middle of an image with the shorter side `resize`, as uint8 [3, size, size]."""
    image = in_colour(image)
    width, height = image.size
    if min(width, height) != resize:
        shorter = min(width, height)
        width, height = (max(resize, side * resize // shorter) for side in (width, height))
        image = image.resize((width, height), pillow().Resampling.BILINEAR)
    left, top = (width - size) // 2, (height - size) // 2
    return _pixels(image.crop((left, top, left + size, top + size)))


def box_as_pixels(
    image: Any,
    corners: tuple[int, int, int, int],
    *,
    sizes: tuple[int, int],
    mirrored: bool = False,
) -> Tensor:
    """Return a box (left, top, right, bottom) of an image as uint8 [3, height, width]."""
    # Cropped before it is resized, because Pillow's `box` uses pixels from beyond its edges.
    image = in_colour(image.crop(corners))
    # One axis after the other, because Pillow's order depends on its version and on the image.
    for shape in ((sizes[1], image.height), (sizes[1], sizes[0])):
        image = image.resize(shape, pillow().Resampling.BILINEAR)
    return _pixels(image.transpose(pillow().Transpose.FLIP_LEFT_RIGHT) if mirrored else image)


def in_colour(image: Any) -> Any:
    """Return an image with the channels red, green and blue."""
    # Converting copies all pixels, also of an image that has the right mode.
    return image if image.mode == "RGB" else image.convert("RGB")


def _pixels(image: Any) -> Tensor:
    return torch.from_numpy(np.array(image, dtype=np.uint8)).permute(2, 0, 1)
