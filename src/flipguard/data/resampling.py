"""Crops boxes from images and resizes them, to the same bits on every device.

The filter is bilinear, and as wide as the image shrinks (antialiased). Bytes are summed in whole
numbers with weights of 22 bits, first across and then down, and rounded each time, which gives the
same bytes as Pillow for one axis after the other. Other numbers are summed in float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from flipguard.errors import InputError

WEIGHT_BITS = 22
# Numbers that the CPU processes at once. More than fit its caches take several times as long.
HOST_VALUES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes:
    """One box per image, in pixels: int64 [n] each."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor

    def corners(self) -> list[tuple[int, int, int, int]]:
        """Return left, top, right and bottom of each box, as Pillow expects them."""
        sides = (self.left, self.top, self.left + self.width, self.top + self.height)
        return [(a, b, c, d) for a, b, c, d in torch.stack(sides, dim=1).tolist()]


class Tap(NamedTuple):
    """One of the pixels that an output pixel is summed from: its index [n, k] and weight."""

    places: Tensor
    weights: Tensor

    def of(self, some: slice) -> Tap:
        """Return the tap for some of the images."""
        return Tap(self.places[some], self.weights[some])


def resampled(
    images: Tensor, boxes: Boxes, *, height: int, width: int, mirrored: Tensor | None = None
) -> Tensor:
    """Return the boxes of images [n, c, h, w], as [n, c, height, width] of the same type.

    Where `mirrored`, bool [n], is true, left and right are swapped.

    >>> images = torch.tensor([[[[0, 100], [200, 100]]]], dtype=torch.uint8)
    >>> corner, two = torch.tensor([0]), torch.tensor([2])
    >>> whole = Boxes(top=corner, left=corner, height=two, width=two)
    >>> resampled(images, whole, height=1, width=1), resampled(images, whole, height=1, width=2)
    (tensor([[[[100]]]], dtype=torch.uint8), tensor([[[[100, 100]]]], dtype=torch.uint8))
    """
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise InputError(
            f"Expected `inputs` to be uint8 or floating-point images, but got {images.dtype}; "
            "convert them first."
        )
    count, channels, rows, columns = images.shape
    down, right = (torch.arange(size, device=images.device) for size in (height, width))
    rightward = right.expand(count, width)
    if mirrored is not None:
        rightward = torch.where(mirrored[:, None], width - 1 - right, right)
    across = _taps(boxes.left, boxes.width, rightward, most=columns)
    downward = _taps(boxes.top, boxes.height, down.expand(count, height), most=rows)
    if images.device.type != "cpu":
        return _summed_both(images, across, downward)
    at_once = max(HOST_VALUES // (channels * max(rows, height) * max(columns, width)), 1)
    found = images.new_empty((count, channels, height, width))
    for start in range(0, count, at_once):
        some = slice(start, start + at_once)
        taps = ([tap.of(some) for tap in axis] for axis in (across, downward))
        found[some] = _summed_both(images[some], *taps)
    return found


def _taps(start: Tensor, length: Tensor, wanted: Tensor, *, most: int) -> list[Tap]:
    """Return the taps of the wanted pixels along one axis of boxes of at most `most` pixels."""
    size, start, length = wanted.shape[1], start[:, None], length[:, None]
    # Divided by a tensor, because a device may replace a plain divisor by its inverse.
    scale = length.to(torch.float64) / torch.full_like(length, size, dtype=torch.float64)
    reach = scale.clamp(min=1.0)
    inverse = reach.reciprocal()
    centre = (wanted.to(torch.float64) + 0.5) * scale
    first = (centre - reach + 0.5).to(torch.int64).clamp(min=0)
    end = torch.minimum((centre + reach + 0.5).to(torch.int64), length)
    taps, total = [], torch.zeros_like(centre)
    for step in range(math.ceil(2 * max(most / size, 1.0))):
        place = first + step
        away = (place - centre + 0.5) * inverse
        weight = torch.where(place < end, 1 - away.abs(), 0.0).clamp(min=0)
        total = total + weight
        taps.append(Tap(start + torch.minimum(place, length - 1), weight))
    return [Tap(places, weights / total) for places, weights in taps]


def _summed_both(images: Tensor, across: list[Tap], down: list[Tap]) -> Tensor:
    # Rows are selected, because they are contiguous; so the image is transposed, and back.
    turned = _summed(images.transpose(2, 3).contiguous(), across)
    return _summed(turned.transpose(2, 3).contiguous(), down).to(images.dtype)


def _summed(images: Tensor, taps: list[Tap]) -> Tensor:
    """Return weighted sums of rows: bytes for bytes, float64 for float64, else float32."""
    count, channels, height, width = images.shape
    whole = images.dtype == torch.uint8
    kind = torch.float64 if images.dtype == torch.float64 else torch.float32
    kind = torch.int32 if whole else kind
    rows = images.reshape(count * channels * height, width)
    first = torch.arange(count * channels, device=images.device).view(count, channels, 1) * height
    shape = (count, channels, taps[0].places.shape[1], width)
    half = 2 ** (WEIGHT_BITS - 1) if whole else 0
    total = torch.full(shape, half, dtype=kind, device=images.device)
    for places, weights in taps:
        picked = rows.index_select(0, (first + places[:, None]).view(-1)).view(shape).to(kind)
        if whole:
            share = (weights * 2.0**WEIGHT_BITS + 0.5).to(kind)
            total.addcmul_(picked, share[:, None, :, None])
        else:
            # In two steps, because a device that does both at once rounds only once.
            total += picked * weights.to(kind)[:, None, :, None]
    return (total >> WEIGHT_BITS).to(torch.uint8) if whole else total
