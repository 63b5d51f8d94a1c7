"""Checks of the shape of one sample, without the batch axis, that a model is built for."""

from __future__ import annotations

from typing import NamedTuple

from flipguard.errors import InputError

Shape = tuple[int, ...]
SIGNAL_AXES = ("length",)
IMAGE_AXES = ("height", "width")
WANTED = {SIGNAL_AXES: "signals", IMAGE_AXES: "images"}


class Grid(NamedTuple):
    """A sample's channels and sizes, and whether its shape has no channel axis."""

    channels: int
    sizes: Shape
    bare: bool


def check_class_count(classes: int) -> None:
    """Raise an error if a number of classes is not valid."""
    if not isinstance(classes, int) or isinstance(classes, bool) or classes < 1:
        raise InputError(
            f"Expected `classes` to be a whole number of at least 1, but got {classes!r}; "
            "give the number of classes of the data."
        )


def check_shape(input_shape: Shape | None) -> Shape | None:
    """Return the checked shape of a sample as plain numbers, or None."""
    if input_shape is None:
        return None
    whole = isinstance(input_shape, tuple | list) and all(
        isinstance(size, int) and not isinstance(size, bool) and size >= 1 for size in input_shape
    )
    if not whole or len(input_shape) == 0:
        raise InputError(
            "Expected `input_shape` to be the sizes of one sample, such as (3, 32, 32), but got "
            f"{input_shape!r}; leave the batch axis out."
        )
    return tuple(input_shape)


def needed(name: str, input_shape: Shape | None) -> Shape:
    """Return the shape of a sample, or raise an error if it is missing."""
    if input_shape is None:
        raise InputError(
            f"Expected `input_shape` to be given for '{name}', but got None; pass the shape of one "
            "sample, without the batch axis."
        )
    return input_shape


def signal(name: str, input_shape: Shape | None, *, least: int) -> Grid:
    """Return a sample's shape as channels of one axis.

    >>> signal("conv1d", (40,), least=8)
    Grid(channels=1, sizes=(40,), bare=True)
    """
    return _grid(name, needed(name, input_shape), axes=SIGNAL_AXES, least=least)


def image(name: str, input_shape: Shape | None, *, least: int = 1) -> Grid:
    """Return a sample's shape as channels of two axes.

    >>> image("conv2d", (3, 32, 32), least=4)
    Grid(channels=3, sizes=(32, 32), bare=False)
    """
    return _grid(name, needed(name, input_shape), axes=IMAGE_AXES, least=least)


def full_image(name: str, input_shape: Shape) -> Grid:
    """Return a sample's shape for a library's model of images, which adds no channel axis."""
    if len(input_shape) != 3:
        raise InputError(
            f"Expected images with a channel axis for '{name}', but got "
            f"{describe_shape(input_shape)}; add the axis, or choose a model for such inputs."
        )
    return Grid(channels=input_shape[0], sizes=input_shape[1:], bare=False)


def describe_shape(shape: Shape) -> str:
    """Return the kind of samples with a shape, in words.

    >>> describe_shape((40,)), describe_shape((3, 32, 32))
    ('vectors of 40 numbers', 'images of 32 × 32 with 3 channels')
    """
    if len(shape) == 1:
        return f"vectors of {shape[0]:,} number{'s' * (shape[0] != 1)}"
    if len(shape) == 3:
        channels, height, width = shape
        return f"images of {height} × {width} with {channels} channel{'s' * (channels != 1)}"
    return f"samples of the shape {' × '.join(map(str, shape))}"


def _grid(name: str, shape: Shape, *, axes: tuple[str, ...], least: int) -> Grid:
    bare = len(shape) == len(axes)
    sizes = shape if bare else shape[1:]
    if len(sizes) != len(axes):
        raise InputError(
            f"Expected {WANTED[axes]} for '{name}', with or without a channel axis, but got "
            f"{describe_shape(shape)}; choose a model for such inputs, or 'mlp', which takes any."
        )
    if min(sizes) < least:
        raise InputError(
            f"Expected {WANTED[axes]} of at least {' × '.join([str(least)] * len(axes))} for "
            f"'{name}', but got {describe_shape(shape)}; enlarge them, or use 'mlp', which "
            "takes any."
        )
    return Grid(channels=1 if bare else shape[0], sizes=sizes, bare=bare)
