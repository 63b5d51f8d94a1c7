"""Augmentations by name: ``crop-flip:padding=4+cutout:size=8``, and the random crop of ImageNet."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

import torch
from torch import Tensor

from flipguard.data.augment import (
    BOX_COLUMN,
    BOX_MIRROR,
    BOX_ROW,
    BOX_TRIES,
    FILLS,
    FLIPS,
    Augmentation,
    CropFlip,
    Cutout,
    Fill,
    Flip,
    InTurn,
    NoAugmentation,
    ShiftScaleNoise,
    check_at_least,
    check_one_of,
    image_size,
    mirrored,
)
from flipguard.data.dataset import Split
from flipguard.data.image_folders import FolderSplit
from flipguard.data.resampling import Boxes, resampled
from flipguard.errors import InputError, listed
from flipguard.randomness import integers, uniform
from flipguard.specs import Options

WIDEST = 4 / 3  # width over height; the inverse is the narrowest
TRIES = 10
TERMS = 10  # of the exponential's series; the error is 3e-14


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomResizedCrop(Augmentation):
    """Crops a random box, resizes it to `size` by `size` pixels, and mirrors it left to right.

    The box is drawn as in torchvision: its share of the area is from `scale` to 1, and its width
    over its height is log-uniform from 3/4 to 4/3. If ten boxes do not fit, the largest box in the
    middle is used. It is resized bilinearly with antialiasing, to the same bytes as Pillow's.
    Without a `size`, images keep their size. For an image folder, `views` crops the whole images.

    >>> images = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8)
    >>> RandomResizedCrop(size=4)(images, ids_index=torch.tensor([3]), epoch=0, seed=0).shape
    torch.Size([1, 1, 4, 4])
    """

    size: int | None = None
    scale: float = 0.08
    flip: Flip = "random"

    def __post_init__(self) -> None:
        if self.size is not None:
            check_at_least("size", self.size, 1)
        if isinstance(self.scale, bool) or not 0 <= self.scale <= 1:
            raise InputError(
                f"Expected `scale` to be a number from 0 to 1, but got {self.scale!r}; give the "
                "least share of an image's area."
            )
        check_one_of("flip", self.flip, FLIPS)

    def __call__(
        self, inputs: Tensor, *, ids_index: Tensor, epoch: int | Tensor, seed: int
    ) -> Tensor:
        height, width = image_size(inputs, ids_index)
        ids = ids_index.to(inputs.device)
        boxes = self.boxes(
            torch.full_like(ids, height, dtype=torch.int64),
            torch.full_like(ids, width, dtype=torch.int64),
            ids_index=ids,
            epoch=epoch,
            seed=seed,
        )
        return resampled(
            inputs,
            boxes,
            height=self.size or height,
            width=self.size or width,
            mirrored=mirrored(self.flip, ids, epoch, seed, BOX_MIRROR),
        )

    def fetch(self, split: Split, indices: Tensor, *, epoch: int | Tensor, seed: int) -> Tensor:
        if not isinstance(split, FolderSplit):
            return Augmentation.fetch(self, split, indices, epoch=epoch, seed=seed)
        positions = split.positions(indices).cpu()
        ids = split.ids_index[positions]
        epochs = epoch.cpu() if isinstance(epoch, Tensor) else torch.tensor(epoch)
        epochs = epochs.expand(len(ids))

        def boxes_of(some: slice, shapes: Tensor) -> Boxes:
            return self.boxes(
                shapes[:, 0],
                shapes[:, 1],
                ids_index=ids[some],
                epoch=epochs[some],
                seed=seed,
            )

        turned = mirrored(self.flip, ids, epochs, seed, BOX_MIRROR)
        return split.crops(positions, boxes_of, size=self.size, mirrored=turned)

    def finish(
        self, inputs: Tensor, split: Split, indices: Tensor, *, epoch: int | Tensor, seed: int
    ) -> Tensor:
        if isinstance(split, FolderSplit):
            return inputs  # already cropped and mirrored
        return Augmentation.finish(self, inputs, split, indices, epoch=epoch, seed=seed)

    def boxes(
        self,
        heights: Tensor,
        widths: Tensor,
        *,
        ids_index: Tensor,
        epoch: int | Tensor,
        seed: int,
    ) -> Boxes:
        """Return the boxes for images of the given heights and widths, int64 [n] each."""
        draws = torch.arange(BOX_TRIES, BOX_TRIES + 2 * TRIES, 2, device=ids_index.device)[:, None]
        share = uniform(seed, epoch, ids_index, draws).to(torch.float64)
        slant = uniform(seed, epoch, ids_index, draws + 1).to(torch.float64)
        area = (heights * widths) * (share * (1 - self.scale) + self.scale)
        ratio = _exp((slant * 2 - 1) * math.log(WIDEST))
        tried_heights = (area / ratio).sqrt().round().to(torch.int64)
        tried_widths = (area * ratio).sqrt().round().to(torch.int64)
        fits = (tried_heights > 0) & (tried_heights <= heights)
        fits = fits & (tried_widths > 0) & (tried_widths <= widths)
        first = fits.to(torch.uint8).argmax(0, keepdim=True)  # the first one that fits
        found = fits.any(0)
        whole_heights, whole_widths = _largest(heights, widths)
        height = torch.where(found, tried_heights.gather(0, first)[0], whole_heights)
        width = torch.where(found, tried_widths.gather(0, first)[0], whole_widths)
        down, right = heights - height, widths - width
        top = integers(seed, epoch, ids_index, BOX_ROW, below=down + 1)
        left = integers(seed, epoch, ids_index, BOX_COLUMN, below=right + 1)
        return Boxes(
            top=torch.where(found, top, down // 2),
            left=torch.where(found, left, right // 2),
            height=height,
            width=width,
        )


def _largest(heights: Tensor, widths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sides of the largest boxes that are neither too wide nor too narrow."""
    highest = (widths.to(torch.float64) * WIDEST).round().to(torch.int64)
    widest = (heights.to(torch.float64) * WIDEST).round().to(torch.int64)
    return torch.minimum(heights, highest), torch.minimum(widths, widest)


def _exp(x: Tensor) -> Tensor:
    """Return the exponential of small numbers as a series, because torch's differs by device."""
    total = torch.ones_like(x)
    for term in range(TERMS, 0, -1):
        total = total * x * (1 / term) + 1
    return total


def _crop_flip(options: Options) -> Augmentation:
    return CropFlip(
        padding=options.whole("padding", 4, least=0),
        fill=cast(Fill, options.one_of("fill", "reflect", FILLS)),
        flip=cast(Flip, options.one_of("flip", "random", FLIPS)),
    )


def _alternating_flip(options: Options) -> Augmentation:
    return CropFlip(
        padding=options.whole("padding", 0, least=0),
        fill=cast(Fill, options.one_of("fill", "reflect", FILLS)),
        flip="alternating",
    )


def _random_resized_crop(options: Options) -> Augmentation:
    return RandomResizedCrop(
        size=options.whole("size", 0, least=1) or None,
        scale=options.number("scale", 0.08, most=1.0),
        flip=cast(Flip, options.one_of("flip", "random", FLIPS)),
    )


def _cutout(options: Options) -> Augmentation:
    return Cutout(size=options.whole("size", 8, least=1))


def _shift_scale_noise(options: Options) -> Augmentation:
    return ShiftScaleNoise(
        shift=options.whole("shift", 2, least=0),
        scale=options.number("scale", 0.1),
        noise=options.number("noise", 0.02),
    )


AUGMENTATIONS: Mapping[str, Callable[[Options], Augmentation]] = MappingProxyType(
    {
        "none": lambda _: NoAugmentation(),
        "crop-flip": _crop_flip,
        "alternating-flip": _alternating_flip,
        "random-resized-crop": _random_resized_crop,
        "cutout": _cutout,
        "shift-scale-noise": _shift_scale_noise,
    }
)


def build_augmentation(spec: str) -> Augmentation:
    """Return the augmentation of a spec: ``name[:key=value,...]``, several joined by ``+``.

    >>> build_augmentation("crop-flip:padding=2,flip=alternating")
    CropFlip(padding=2, fill='reflect', flip='alternating')
    """
    steps = []
    for one in spec.split("+"):
        options = Options.of(one.strip())
        build = AUGMENTATIONS.get(options.name)
        if build is None:
            raise InputError(
                f"Expected `augmentation` to be among {', '.join(AUGMENTATIONS)}, but got "
                f"{listed([options.name])}; join several with '+'."
            )
        steps.append(build(options))
        options.finish()
    kinds = [type(step) for step in steps]
    if len(set(kinds)) < len(kinds):
        # Both would draw the same numbers, and so make the same choices.
        raise InputError(
            f"Expected every augmentation once, but got {listed([spec])}; keep one of each kind."
        )
    return steps[0] if len(steps) == 1 else InTurn(tuple(steps))
