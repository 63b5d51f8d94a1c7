"""Stored views: what a method is told about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from flipguard.errors import InputError
from flipguard.methods.base import Option, Printed, Scalar

if TYPE_CHECKING:
    from flipguard.references.views import Kept

VIEWS = Option(
    name="views",
    default=None,
    sentence=(
        "Store the ensemble's logits for so many augmented views of every sample, which the epochs "
        "take in turn (one view where nothing is augmented); ask at every step if none."
    ),
    printed=Printed(value=None, words="stored logits, where ELODI asks the ensemble at every step"),
)
VIEWS_TOP = Option(
    name="views_top",
    default=None,
    sentence="Store so many of the highest logits, and the mean of the others; all if none.",
    printed=Printed(value=None),
)
VIEWS_DTYPE = Option(
    name="views_dtype",
    default="float16",
    sentence="How exact stored logits are.",
    choices=("float16", "float32"),
)
MOST_CLASSES = 2**16  # that two bytes can name


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """How many views are stored, and what of each."""

    count: int
    top: int | None
    kept: Kept


def views_of(options: Mapping[str, Scalar], *, classes: int) -> Views | None:
    """What options say about stored views, checked; None if none are to be stored."""
    count, top = options.get("views"), options.get("views_top")
    kept = cast("Kept", options.get("views_dtype", VIEWS_DTYPE.default))
    if count is None:
        for name, told in (("views_top", top), ("views_dtype", kept)):
            if told not in (None, VIEWS_DTYPE.default):
                raise InputError(
                    f"Expected `{name}` beside `views`, but got it alone; say how many `views` are "
                    "stored, or leave it out."
                )
        return None
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InputError(
            f"Expected `views` to be a whole number from 1 on or none, but got {count!r}."
        )
    if not options.get("online", True):
        raise InputError(
            "Expected `views` with an ensemble that sees augmented inputs, but got `online=false`; "
            "leave one of them out."
        )
    if top is not None:
        if isinstance(top, bool) or not isinstance(top, int) or not 1 <= top < classes:
            raise InputError(
                f"Expected `views_top` to be a whole number from 1 to {classes - 1} or none, but "
                f"got {top!r}; leave it out to store the logits of all {classes} classes."
            )
        if kept == "float16" and classes > MOST_CLASSES:
            raise InputError(
                f"Expected `views_top` in float16 with up to {MOST_CLASSES:,} classes, but got "
                f"{classes:,}; set `views_dtype=float32`."
            )
    return Views(count=count, top=top, kept=kept)
