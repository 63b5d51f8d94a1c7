"""What happens to an image before a model sees it: resize, centre crop, mean and deviation.

A batch holds the same images for all models, as numbers from -1 to 1. A model with its own
preprocessing scales them in its own way, in a hook in front of it, so that its weights keep their
names. Where the data are image files, `Preprocessing.pixels` decodes them as the model's library
does. Reading the preprocessing of a library belongs to `published`.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flipguard.errors import InputError, MissingExtraError, listed
from flipguard.models.calling import unwrapped
from flipguard.models.shapes import Shape

M = TypeVar("M", bound=nn.Module)

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]
INTERPOLATIONS: tuple[Interpolation, ...] = get_args(Interpolation)
HALF = 0.5  # with this mean and deviation, images stay numbers from -1 to 1
# Of images that are no files; torch has no other filters with antialiasing.
FILTERS = {"nearest": "nearest-exact", "bicubic": "bicubic", "lanczos": "bicubic"}
SCALE, SHIFT = "preprocessing_scale", "preprocessing_shift"  # the names of a model's buffers


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocessing:
    """How a model wants its images.

    Args:
        input_size: Height and width; None for the size of the data.
        resize: How image files are resized before the centre crop: (shorter side,), or
            (height, width), ignoring the aspect ratio. None: the shorter side becomes that of the
            crop.
        interpolation: The filter of the resizing, as Pillow names it.
        mean: Subtracted from each channel, for values from 0 to 1; one value stands for all.
        std: The deviation that each channel is divided by.
        centre: How the centre crop rounds half a pixel: to even as torchvision does, or down.

    >>> Preprocessing(input_size=(2, 2), mean=(0.0,), std=(1.0,)).scaled(torch.ones(1, 3, 2, 2))
    tensor([[[[1., 1.],
              [1., 1.]],
    ...
    """

    input_size: tuple[int, int] | None = None
    resize: tuple[int, ...] | None = None
    interpolation: Interpolation = "bilinear"
    mean: tuple[float, ...] = (HALF,)
    std: tuple[float, ...] = (HALF,)
    centre: Literal["even", "down"] = "down"

    def __post_init__(self) -> None:
        sizes = [("input_size", self.input_size, (2,)), ("resize", self.resize, (1, 2))]
        for name, value, lengths in sizes:
            if value is not None and (len(value) not in lengths or min(value) < 1):
                raise InputError(
                    f"Expected `preprocessing.{name}` to be {' or '.join(map(str, lengths))} whole "
                    f"numbers of at least 1, but got {listed(value)}."
                )
        if self.interpolation not in INTERPOLATIONS:
            raise InputError(
                f"Expected `preprocessing.interpolation` to be one of {', '.join(INTERPOLATIONS)}, "
                f"but got {listed([self.interpolation])}."
            )
        channels = {len(self.mean), len(self.std)} - {1}
        if not self.mean or not self.std or len(channels) > 1:
            raise InputError(
                "Expected `preprocessing.mean` and `preprocessing.std` to have one number per "
                f"channel, but got {len(self.mean)} and {len(self.std)}."
            )
        if not all(np.isfinite(self.mean)) or not all(0 < one < np.inf for one in self.std):
            raise InputError(
                "Expected `preprocessing.mean` to be numbers and `preprocessing.std` to be numbers "
                f"above 0, but got {listed(self.mean)} and {listed(self.std)}."
            )
        if self.resize is not None and self.input_size is None:
            raise InputError(
                "Expected `preprocessing.input_size` together with `preprocessing.resize`, but got "
                "none; give the size of the crop, too."
            )

    @property
    def channels(self) -> int | None:
        """The number of channels; None if any number will do."""
        most = max(len(self.mean), len(self.std))
        return most if most > 1 else None

    def shape(self, given: Shape | None) -> Shape | None:
        """Return the shape of the inputs that reach the model, for the shape of the data."""
        if given is None or len(given) not in (2, 3):
            return given
        channels = given[0] if len(given) == 3 else 1
        return (self.channels or channels, *(self.input_size or given[-2:]))

    def pixels(self, image: Any) -> Tensor:
        """Return an image of Pillow resized and cropped, as uint8 [3, height, width].

        >>> from PIL import Image
        >>> Preprocessing(input_size=(8, 6), resize=(9,)).pixels(Image.new("L", (20, 10))).shape
        torch.Size([3, 8, 6])
        """
        assert self.input_size is not None
        height, width = self.input_size
        # Converting copies all pixels, also of an image that has the right mode.
        image = image if image.mode == "RGB" else image.convert("RGB")
        wanted = self._resized(image.width, image.height)
        if wanted != image.size:
            image = image.resize(wanted, _filter(self.interpolation))
        left, top = self._start(image.width - width), self._start(image.height - height)
        # Pillow fills what lies outside with zeros.
        image = image.crop((left, top, left + width, top + height))
        return torch.from_numpy(np.array(image, dtype=np.uint8)).permute(2, 0, 1)

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height after the resizing."""
        assert self.input_size is not None
        resize = self.resize or (max(self.input_size),)
        if len(resize) == 2:
            return resize[1], resize[0]
        (shorter,) = resize
        longer = int(shorter * max(width, height) / min(width, height))
        return (shorter, longer) if width <= height else (longer, shorter)

    def _start(self, spare: int) -> int:
        if spare < 0:  # both libraries put the larger half of the padding at the end
            return -(-spare // 2)
        return round(spare / 2) if self.centre == "even" else spare // 2

    def scaled(self, images: Tensor) -> Tensor:
        """Return images [n, c, h, w] of numbers from -1 to 1 as the model wants them."""
        scale, shift = (t.to(images) for t in self._affine())
        return self._fitted(images, scale, shift)

    def _fitted(self, images: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        if images.dim() == 3:  # images without a channel axis
            images = images.unsqueeze(1)
        if self.channels is not None and images.shape[1] == 1:
            images = images.expand(-1, self.channels, -1, -1)
        if self.input_size is not None and tuple(images.shape[-2:]) != self.input_size:
            mode = FILTERS.get(self.interpolation, "bilinear")
            smooth = mode != "nearest-exact"
            images = F.interpolate(
                images,
                self.input_size,
                mode=mode,
                antialias=smooth,
                align_corners=False if smooth else None,
            )
            if mode == "bicubic":
                images = images.clamp(-1, 1)
        return images if self._is_plain else images * scale + shift

    @property
    def _is_plain(self) -> bool:
        return {*self.mean, *self.std} == {HALF}

    def _affine(self) -> tuple[Tensor, Tensor]:
        """Return the factor and the summand of each channel, [c, 1, 1], for numbers from -1 to 1.

        An image x from 0 to 1 becomes (x - mean) / std.
        """
        mean, std = (torch.tensor(one, dtype=torch.float64) for one in (self.mean, self.std))
        scale, shift = HALF / std + 0 * mean, (HALF - mean) / std
        return scale.view(-1, 1, 1), shift.view(-1, 1, 1)

    def as_json(self) -> dict[str, Any]:
        """Return the values as JSON has them."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(self).items()
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Preprocessing:
        """Return the preprocessing that `as_json` wrote."""
        found: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
        }
        return cls(**found)


def preprocess_with(model: M, preprocessing: Preprocessing) -> M:
    """Make a model scale its inputs itself, and return it; its state dict stays as it is.

    >>> model = preprocess_with(nn.Flatten(), Preprocessing(mean=(0.0,), std=(0.25,)))
    >>> model(torch.tensor([[[[-1.0, 1.0]]]])), list(model.state_dict())
    (tensor([[0., 4.]]), [])
    """
    if preprocessing_of(model) is not None:
        raise InputError(
            f"Expected {type(model).__name__} without preprocessing, but it has some; "
            "build the model again."
        )
    kind = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    for name, values in zip((SCALE, SHIFT), preprocessing._affine(), strict=True):
        model.register_buffer(name, values.to(device, kind), persistent=False)
    model.register_forward_pre_hook(_Preprocess(preprocessing), with_kwargs=True)
    return model


def preprocessing_of(model: nn.Module) -> Preprocessing | None:
    """Return a model's own preprocessing; None if it takes batches as they are."""
    hooks = unwrapped(model)._forward_pre_hooks.values()
    return next((hook.preprocessing for hook in hooks if isinstance(hook, _Preprocess)), None)


class _Preprocess:
    """The hook in front of a model; its numbers are buffers, which move with the model."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.preprocessing = preprocessing

    def __call__(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        scale, shift = getattr(model, SCALE), getattr(model, SHIFT)
        if args:
            return (self.preprocessing._fitted(args[0], scale, shift), *args[1:]), kwargs
        name = "pixel_values"  # what Transformers calls images
        return args, {**kwargs, name: self.preprocessing._fitted(kwargs[name], scale, shift)}


def _filter(name: Interpolation) -> Any:
    try:
        image = importlib.import_module("PIL.Image")
    except ImportError as problem:
        raise MissingExtraError("Decoding images", package="pillow", extra="train") from problem
    return image.Resampling[name.upper()]
