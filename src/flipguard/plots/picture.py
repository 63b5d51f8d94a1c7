"""A picture file: how all of them look, and how they are written."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flipguard.errors import InputError, MissingExtraError
from flipguard.predictions.replacing import replacing

# Dates are left out, so that the same numbers give the same bytes.
UNDATED: dict[str, dict[str, None]] = {
    ".png": {},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
DOTS_PER_INCH = 160
INK, FAINT = "#1f2430", "#6b7280"
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "svg.hashsalt": "flipguard",
}


@contextmanager
def picture(
    path: str | os.PathLike[str], *, of: str, style: Mapping[Any, Any] | None = None
) -> Iterator[Any]:
    """A figure to draw on, which becomes a PNG, SVG or PDF file by its suffix."""
    file = check_picture(path, of=of)
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context({**STYLE, **(style or {})}), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes; that is no reason to fail.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = Figure()
        FigureCanvasAgg(figure)
        yield figure
        with replacing(file) as partial:
            figure.savefig(
                partial,
                format=file.suffix[1:].lower(),
                dpi=DOTS_PER_INCH,
                bbox_inches="tight",
                pad_inches=0.2,
                metadata=UNDATED[file.suffix.lower()],
            )


def check_picture(path: str | os.PathLike[str], *, of: str) -> Path:
    """Refuse a picture that could not be drawn, before any work is done for it."""
    file = Path(path)
    if file.suffix.lower() not in UNDATED:
        raise InputError(f"{file} does not end in the suffix of a picture; use .png, .svg or .pdf.")
    try:
        import matplotlib  # noqa: F401
    except ImportError as problem:
        raise MissingExtraError(
            f"The picture of {of}", package="matplotlib", extra="report"
        ) from problem
    return file
