"""Decoding images with Pillow."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from flipguard.errors import MissingExtraError


def pillow() -> Any:
    """Pillow's module of images."""
    try:
        from PIL import Image
    except ImportError as problem:
        raise MissingExtraError("Decoding images", package="pillow", extra="train") from problem
    return Image


def as_pixels(image: Any, *, size: int, resize: int) -> Tensor:
    """An image as uint8 [3, size, size]: its shorter side made `resize`, its middle kept."""
    image = image.convert("RGB")
    width, height = image.size
    if min(width, height) != resize:
        shorter = min(width, height)
        width, height = (max(resize, side * resize // shorter) for side in (width, height))
        image = image.resize((width, height), pillow().Resampling.BILINEAR)
    left, top = (width - size) // 2, (height - size) // 2
    return _pixels(image.crop((left, top, left + size, top + size)))


def box_as_pixels(image: Any, corners: tuple[int, int, int, int], *, size: int) -> Tensor:
    """A box (left, top, right, bottom) of an image as uint8 [3, size, size]."""
    # Cut before it is resized: Pillow's own `box` takes in pixels from beyond its edges.
    image = image.crop(corners).convert("RGB")
    # Axis by axis: which one Pillow takes first depends on its version, and on the image.
    for shape in ((size, image.height), (size, size)):
        image = image.resize(shape, pillow().Resampling.BILINEAR)
    return _pixels(image)


def _pixels(image: Any) -> Tensor:
    return torch.from_numpy(np.array(image, dtype=np.uint8)).permute(2, 0, 1)
