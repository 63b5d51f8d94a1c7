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


def as_pixels(library: Any, image: Any, *, size: int, resize: int) -> Tensor:
    """An image as uint8 [3, size, size]: its shorter side made `resize`, its middle kept."""
    image = image.convert("RGB")
    width, height = image.size
    if min(width, height) != resize:
        shorter = min(width, height)
        width, height = (max(resize, side * resize // shorter) for side in (width, height))
        image = image.resize((width, height), library.Resampling.BILINEAR)
    left, top = (width - size) // 2, (height - size) // 2
    image = image.crop((left, top, left + size, top + size))
    return torch.from_numpy(np.array(image, dtype=np.uint8)).permute(2, 0, 1)
