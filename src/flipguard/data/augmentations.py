"""Augmentations by name: ``crop-flip:padding=4+cutout:size=8``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import cast

from flipguard.data.augment import (
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
)
from flipguard.data.crops import RandomResizedCrop
from flipguard.data.options import Options
from flipguard.errors import InputError, listed


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
    """The augmentation that a spec names: ``name[:key=value,...]``, several joined by ``+``.

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
        # Both would draw the same numbers, and so make the same choice twice.
        raise InputError(
            f"Expected every augmentation once, but got {listed([spec])}; keep one of each kind."
        )
    return steps[0] if len(steps) == 1 else InTurn(tuple(steps))
