"""Settings of a model's preprocessing; what they leave out comes with its weights."""

from __future__ import annotations

from dataclasses import dataclass

from flipguard.runs.key import keyed


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSettings:
    """How the model wants its images, where that is not what comes with its weights."""

    input_size: tuple[int, ...] | None = keyed(None, key_default=None)  # height and width
    # The shorter side before the centre crop, or height and width, ignoring the aspect ratio.
    resize: tuple[int, ...] | None = keyed(None, key_default=None)
    interpolation: str | None = keyed(None, key_default=None)
    mean: tuple[float, ...] | None = keyed(None, key_default=None)  # for values from 0 to 1
    std: tuple[float, ...] | None = keyed(None, key_default=None)
