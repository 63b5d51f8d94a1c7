"""Augmentations of batches. All random choices are functions of seed, epoch and sample.

So a sample is changed in the same way in any batch, order, worker or device. All arithmetic is on
whole numbers, or is one rounding that is equal on all devices. An old and a new model, or two runs
of one model, can therefore be given the same changed inputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from flipguard.data.dataset import Split
from flipguard.errors import InputError
from flipguard.randomness import bell, integers, uniform

Fill: TypeAlias = Literal["reflect", "zero"]
Flip: TypeAlias = Literal["random", "alternating", "none"]
FILLS, FLIPS = ("reflect", "zero"), ("random", "alternating", "none")
# Each choice has its own draw, so that combined augmentations are independent. The last draw of
# each line is the first of many.
ROW, COLUMN, MIRROR, HOLE_ROW, HOLE_COLUMN, SHIFT, SCALE, NOISE = range(8)
BOX_ROW, BOX_COLUMN, BOX_MIRROR, BOX_TRIES = range(2**32, 2**32 + 4)


class Augmentation(ABC):
    """Base class: changes a batch of inputs, depending on seed, epoch and sample."""

    @abstractmethod
    def __call__(
        self, inputs: Tensor, *, ids_index: Tensor, epoch: int | Tensor, seed: int
    ) -> Tensor:
        """Return the changed inputs [n, ...]; `ids_index` is int64 [n], from `Split.ids_index`."""

    def views(
        self,
        split: Split,
        indices: Tensor,
        *,
        epoch: int | Tensor,
        seed: int,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Return the changed samples at some positions of a split, on a device."""
        inputs = self.fetch(split, indices, epoch=epoch, seed=seed)
        inputs = inputs if device is None else inputs.to(device)
        return self.finish(inputs, split, indices, epoch=epoch, seed=seed)

    def fetch(
        self,
        split: Split,
        indices: Tensor,
        *,
        epoch: int | Tensor,  # noqa: ARG002
        seed: int,  # noqa: ARG002
    ) -> Tensor:
        """Return the samples at some positions of a split, where the split has them.

        By default, these are the split's inputs. An augmentation that crops images can crop the
        whole images instead, if the split has more than its inputs show.
        """
        inputs = split.inputs(indices)
        if not isinstance(inputs, Tensor):
            raise InputError(
                "Expected `split` to hold images or vectors, but got texts; an augmentation "
                "changes numbers."
            )
        return inputs

    def finish(
        self, inputs: Tensor, split: Split, indices: Tensor, *, epoch: int | Tensor, seed: int
    ) -> Tensor:
        """Return fetched samples with all changes that `fetch` has not made, on their device."""
        ids = split.ids_index[indices.to(split.ids_index.device)]
        return self(inputs, ids_index=ids.to(inputs.device), epoch=epoch, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoAugmentation(Augmentation):
    """Returns the inputs unchanged.

    >>> batch = torch.zeros(2, 40)
    >>> NoAugmentation()(batch, ids_index=torch.arange(2), epoch=0, seed=0) is batch
    True
    """

    def __call__(
        self,
        inputs: Tensor,
        *,
        ids_index: Tensor,  # noqa: ARG002
        epoch: int | Tensor,  # noqa: ARG002
        seed: int,  # noqa: ARG002
    ) -> Tensor:
        return inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class CropFlip(Augmentation):
    """Shifts images by up to `padding` pixels in each direction, and mirrors them left to right.

    Pixels from beyond an edge are the mirrored image (``"reflect"``) or 0. A ``"random"`` flip is
    drawn again in every epoch. An ``"alternating"`` flip is drawn once per image and then changes
    from epoch to epoch, so that two epochs show both sides.

    >>> images = torch.arange(9, dtype=torch.uint8).view(1, 1, 3, 3)
    >>> turn = CropFlip(padding=0, flip="alternating")
    >>> one, other = (turn(images, ids_index=torch.tensor([0]), epoch=e, seed=0) for e in (0, 1))
    >>> torch.equal(one, other.flip(3))
    True
    """

    padding: int = 4
    fill: Fill = "reflect"
    flip: Flip = "random"

    def __post_init__(self) -> None:
        check_at_least("padding", self.padding, 0)
        check_one_of("fill", self.fill, FILLS)
        check_one_of("flip", self.flip, FLIPS)

    def __call__(
        self, inputs: Tensor, *, ids_index: Tensor, epoch: int | Tensor, seed: int
    ) -> Tensor:
        height, width = image_size(inputs, ids_index)
        if self.fill == "reflect" and self.padding >= min(height, width):
            raise InputError(
                f"Expected `padding` to be below the image's {min(height, width)} pixels, but got "
                f"{self.padding}; lower it, or fill with 'zero'."
            )
        ids = ids_index.to(inputs.device)
        grid = torch.arange(width, device=inputs.device)
        rows = torch.arange(height, device=inputs.device).expand(len(ids), height)
        columns = grid.expand(len(ids), width)
        turned = mirrored(self.flip, ids, epoch, seed, MIRROR)
        if turned is not None:
            columns = torch.where(turned[:, None], width - 1 - grid, grid)
        if self.padding:
            reach = 2 * self.padding + 1
            down = integers(seed, epoch, ids, ROW, below=reach) - self.padding
            right = integers(seed, epoch, ids, COLUMN, below=reach) - self.padding
            rows, columns = rows + down[:, None], columns + right[:, None]
        return _picked(inputs, rows, columns, self.fill)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutout(Augmentation):
    """Sets a square of `size` pixels to 0; the square may reach beyond an edge.

    >>> images = torch.ones(1, 3, 8, 8)
    >>> int(Cutout(size=1)(images, ids_index=torch.tensor([0]), epoch=0, seed=0).sum())
    189
    """

    size: int = 8

    def __post_init__(self) -> None:
        check_at_least("size", self.size, 1)

    def __call__(
        self, inputs: Tensor, *, ids_index: Tensor, epoch: int | Tensor, seed: int
    ) -> Tensor:
        height, width = image_size(inputs, ids_index)
        ids = ids_index.to(inputs.device)
        rows = self._hidden(integers(seed, epoch, ids, HOLE_ROW, below=height), height)
        columns = self._hidden(integers(seed, epoch, ids, HOLE_COLUMN, below=width), width)
        return inputs.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0)

    def _hidden(self, middle: Tensor, length: int) -> Tensor:
        away = torch.arange(length, device=middle.device) - middle[:, None] + self.size // 2
        return (away >= 0) & (away < self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftScaleNoise(Augmentation):
    """Rolls a signal by up to `shift` positions, scales it by up to 1 ± `scale`, and adds noise.

    `noise` is the standard deviation of the noise that is added to every value.

    >>> signals = torch.arange(40.0).view(1, 40)
    >>> turn = ShiftScaleNoise(shift=3, scale=0.0, noise=0.0)
    >>> turn(signals, ids_index=torch.tensor([1]), epoch=0, seed=0)[0, :4]
    tensor([38., 39.,  0.,  1.])
    """

    shift: int = 2
    scale: float = 0.1
    noise: float = 0.02

    def __post_init__(self) -> None:
        check_at_least("shift", self.shift, 0)
        check_at_least("scale", self.scale, 0)
        check_at_least("noise", self.noise, 0)

    def __call__(
        self, inputs: Tensor, *, ids_index: Tensor, epoch: int | Tensor, seed: int
    ) -> Tensor:
        if inputs.dim() != 2 or not inputs.is_floating_point():
            raise InputError(
                "Expected `inputs` to be floating-point [samples, features], but got "
                f"{inputs.dtype} {list(inputs.shape)}; this augmentation is for vectors."
            )
        must_match(inputs, ids_index)
        ids = ids_index.to(inputs.device)
        length = inputs.shape[1]
        if self.shift:
            by = integers(seed, epoch, ids, SHIFT, below=2 * self.shift + 1) - self.shift
            places = (torch.arange(length, device=inputs.device) - by[:, None]) % length
            inputs = inputs.gather(1, places)
        if self.scale:
            centred = uniform(seed, epoch, ids, SCALE) * 2 - 1
            inputs = inputs * (centred * self.scale + 1).to(inputs.dtype)[:, None]
        if self.noise:
            draws = torch.arange(NOISE, NOISE + length, device=inputs.device)[:, None]
            added = bell(seed, epoch, ids, draws).T * self.noise
            inputs = inputs + added.to(inputs.dtype)
        return inputs


@dataclass(frozen=True, slots=True)
class InTurn(Augmentation):
    """Applies several augmentations, one after the other."""

    steps: tuple[Augmentation, ...]

    def __call__(
        self, inputs: Tensor, *, ids_index: Tensor, epoch: int | Tensor, seed: int
    ) -> Tensor:
        for step in self.steps:
            inputs = step(inputs, ids_index=ids_index, epoch=epoch, seed=seed)
        return inputs

    def fetch(self, split: Split, indices: Tensor, *, epoch: int | Tensor, seed: int) -> Tensor:
        first = self.steps[0] if self.steps else NoAugmentation()
        return first.fetch(split, indices, epoch=epoch, seed=seed)

    def finish(
        self, inputs: Tensor, split: Split, indices: Tensor, *, epoch: int | Tensor, seed: int
    ) -> Tensor:
        for step in self.steps[:1]:
            inputs = step.finish(inputs, split, indices, epoch=epoch, seed=seed)
        ids = split.ids_index[indices.to(split.ids_index.device)].to(inputs.device)
        return InTurn(self.steps[1:])(inputs, ids_index=ids, epoch=epoch, seed=seed)


def mirrored(flip: Flip, ids: Tensor, epoch: int | Tensor, seed: int, draw: int) -> Tensor | None:
    """Return which samples are mirrored, bool [n]; None if the flip is off."""
    if flip == "none":
        return None
    if flip == "random":
        return integers(seed, epoch, ids, draw, below=2) == 1
    return (integers(seed, 0, ids, draw, below=2) + epoch) % 2 == 1


def _picked(images: Tensor, rows: Tensor, columns: Tensor, fill: Fill) -> Tensor:
    """Return the pixels at rows [n, h] and columns [n, w] per image, also beyond its edges."""
    count, channels, height, width = images.shape
    if fill == "reflect":
        inner_rows, inner_columns = _reflected(rows, height), _reflected(columns, width)
    else:
        inner_rows, inner_columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    places = (inner_rows[:, :, None] * width + inner_columns[:, None, :]).view(count, 1, -1)
    flat = images.reshape(count, channels, height * width)
    picked = flat.gather(2, places.expand(count, channels, -1)).view(images.shape)
    if fill == "zero":
        outside = (inner_rows != rows)[:, :, None] | (inner_columns != columns)[:, None, :]
        picked = picked.masked_fill(outside[:, None], 0)
    return picked


def _reflected(places: Tensor, length: int) -> Tensor:
    return (length - 1) - ((length - 1) - places.abs()).abs()


def image_size(inputs: Tensor, ids_index: Tensor) -> tuple[int, int]:
    """Return height and width of a batch of images, or raise an error if it is none."""
    if inputs.dim() != 4:
        raise InputError(
            "Expected `inputs` to be images [samples, channels, height, width], but got "
            f"{list(inputs.shape)}; choose an augmentation for this kind of data."
        )
    must_match(inputs, ids_index)
    return inputs.shape[2], inputs.shape[3]


def must_match(inputs: Tensor, ids_index: Tensor) -> None:
    """Raise an error if a batch does not have one id per sample."""
    if tuple(ids_index.shape) != (len(inputs),):
        raise InputError(
            f"Expected `ids_index` to be [{len(inputs)}], one for each input, but got "
            f"{list(ids_index.shape)}; pass `split.ids_index[indices]`."
        )


def check_at_least(name: str, value: float, low: int) -> None:
    """Raise an error if an option is too small, or not a number."""
    if isinstance(value, bool) or not low <= value < 2**31:
        raise InputError(
            f"Expected `{name}` to be a number of at least {low}, but got {value!r}; change it."
        )


def check_one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    """Raise an error if an option is not one of the known words."""
    if value not in known:
        options = ", ".join(repr(option) for option in known)
        raise InputError(
            f"Expected `{name}` to be one of {options}, but got {value!r}; choose one of them."
        )
