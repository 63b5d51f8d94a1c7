"""Images as samples, encoded again so that no metadata of a file is kept; `samples_from`."""

from __future__ import annotations

import base64
import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flipguard.archives import read_arrays
from flipguard.comparison import Comparison
from flipguard.errors import InputError, MissingExtraError, listed, printable
from flipguard.predictions.formats import FORMATS
from flipguard.predictions.names import class_name
from flipguard.report.samples import Samples, text_column, text_file

if TYPE_CHECKING:
    from PIL.Image import Image


Array = npt.NDArray[Any]
SIDE = 96
# A larger picture could fill the memory, so it is not opened.
MOST_PIXELS = 100_000_000
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm"})
MOST_FILES = 5_000_000
IMAGE_KEYS = ("images", "image", "inputs", "x", "X", "x_test", "test_images", "data", "samples")
ID_KEYS = ("ids", "id")
CHANNELS = (1, 3, 4)
WIDE_MODES = ("I", "F")


class ImageFolder(Samples):
    """Image files named by id, in a folder or its subfolders."""

    def __init__(self, folder: Path) -> None:
        _pillow()
        self.kind = "image"
        self.source = str(folder)
        self._folder = folder

    def find(self, ids: list[str]) -> dict[int, Path]:
        # Ids are looked up among existing files and never joined to a path, so that an id such as
        # ../../secret finds nothing.
        wanted = {name: row for row, name in enumerate(ids)}
        # An id may be the path of a file in the folder, with folders before it.
        paths: dict[str, list[tuple[str, int]]] = {}
        for row, name in enumerate(ids):
            if "/" in name:
                paths.setdefault(name.rpartition("/")[2], []).append((name, row))
        found: dict[int, Path] = {}
        seen = 0
        for root, folders, files in os.walk(self._folder):
            folders.sort()
            for file in sorted(files):
                seen += 1
                path = Path(root, file)
                if path.suffix.lower() not in SUFFIXES:
                    continue
                inside = path.relative_to(self._folder).as_posix()
                for name in (inside, inside.removesuffix(path.suffix), file, path.stem):
                    # Reading a pipe or device could block forever.
                    if name in wanted and wanted[name] not in found and os.path.isfile(path):
                        found[wanted[name]] = path
                for name, row in paths.get(file, ()):
                    if name.endswith(f"/{inside}") and row not in found and os.path.isfile(path):
                        found[row] = path
            if seen > MOST_FILES:
                break
        return found

    def embedded(self, found: Path) -> str | None:
        from PIL import Image, ImageOps

        try:
            with _quiet(), Image.open(found) as picture:
                if picture.width * picture.height > MOST_PIXELS:
                    return None
                picture.draft("RGB", (2 * SIDE, 2 * SIDE))
                return thumbnail(ImageOps.exif_transpose(picture) or picture)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, MemoryError):
            return None  # damaged, or not an image; the page counts it as missing


class ImageArray(Samples):
    """An NPZ file with an array of pictures or signals, and their ids."""

    def __init__(self, path: Path) -> None:
        _pillow()
        self.kind = "image"
        self.source = str(path)
        arrays = read_arrays(path, always=(*IMAGE_KEYS, *ID_KEYS))
        key = next((k for k in IMAGE_KEYS if k in arrays and arrays[k].ndim >= 2), None)
        ids = next((arrays[k] for k in ID_KEYS if k in arrays), None)
        if key is None or arrays[key].dtype.kind not in "fiub":
            raise InputError(
                f"Expected {path} to hold pictures in an array 'images' of shape (samples, height, "
                f"width[, channels]), but its arrays are {listed(_names(path), most=8)}; "
                "rename one."
            )
        self._images = arrays[key]
        if ids is None or ids.shape != self._images.shape[:1]:
            told = "no array 'ids'"
            if ids is not None:
                told = f"{len(ids):,} ids" if ids.ndim == 1 else f"ids of shape {ids.shape}"
            raise InputError(
                f"Expected {path} to hold an id for each of its {len(self._images):,} pictures, "
                f"but it has {told}; save it with numpy.savez(file, images=…, ids=…)."
            )
        if self._images.ndim > 4 or 0 in self._images.shape[1:]:
            raise InputError(
                f"Expected {path} to hold pictures, but '{key}' has shape {self._images.shape}; "
                "give (samples, height, width[, channels])."
            )
        self._places = {class_name(name): i for i, name in enumerate(ids.tolist())}
        self._span = _span(self._images)

    def find(self, ids: list[str]) -> dict[int, int]:
        return {row: self._places[name] for row, name in enumerate(ids) if name in self._places}

    def embedded(self, found: int) -> str | None:
        values = self._images[found]
        if values.ndim == 1:
            return data_address(_signal(values.astype(np.float64), self._span))
        return thumbnail(_picture(values, self._span))


def _names(path: Path) -> list[str]:
    """The names of all arrays of a file, including those that are not read."""
    with np.load(path, allow_pickle=False) as archive:
        return list(archive.files)


def _span(images: Array) -> tuple[float, float]:
    """The values that are drawn black and white."""
    if images.dtype == np.bool_:
        return 0.0, 1.0
    if images.dtype == np.uint8:
        return 0.0, 255.0
    # A part is enough to find the scale; reading all of a large array would be slow.
    part = images[:: max(len(images) // 2_000, 1)].astype(np.float64)
    part = part[np.isfinite(part)]
    low, high = (float(part.min()), float(part.max())) if part.size else (0.0, 1.0)
    if images.ndim > 2 and low >= 0.0 and high <= 1.0:
        return 0.0, 1.0
    return low, high if high > low else low + 1.0


def _picture(values: Array, span: tuple[float, float]) -> Image:
    from PIL import Image

    if values.ndim == 3 and values.shape[0] in CHANNELS and values.shape[-1] not in CHANNELS:
        values = np.moveaxis(values, 0, -1)
    if values.ndim == 3 and values.shape[-1] not in CHANNELS:
        values = values[..., 0]
    if values.ndim == 3 and values.shape[-1] == 1:
        values = values[..., 0]
    return Image.fromarray(np.rint(_scaled(values, span) * 255).astype(np.uint8))


def _scaled(values: Array, span: tuple[float, float]) -> npt.NDArray[np.float64]:
    """The values scaled to 0 to 1; they are halved first so that differences do not overflow."""
    low, high = 0.5 * span[0], 0.5 * span[1]
    known = np.nan_to_num(values.astype(np.float64))
    scaled: npt.NDArray[np.float64] = np.clip((0.5 * known - low) / (high - low), 0, 1)
    return scaled


def _signal(values: npt.NDArray[np.float64], span: tuple[float, float]) -> Image:
    """A line plot of a signal, in colours that suit light and dark pages."""
    from PIL import Image, ImageDraw

    width, height, pad = 2 * SIDE, SIDE, 6
    picture = Image.new("P", (width, height), 0)
    picture.putpalette([247, 248, 250, 75, 77, 200])
    scaled = _scaled(values, span)
    xs = np.linspace(pad, width - pad, len(values))
    ys = height - pad - scaled * (height - 2 * pad)
    points = [(float(x), float(y)) for x, y in zip(xs, ys, strict=True)]
    ImageDraw.Draw(picture).line(points if len(points) > 1 else points * 2, fill=1, width=3)
    return picture


def thumbnail(picture: Image) -> str:
    """A data URL of the picture, made smaller if its longer side exceeds `SIDE` pixels."""
    from PIL import Image

    if picture.mode in WIDE_MODES or picture.mode.startswith("I;16"):
        # Pillow would clip more than eight bits at 255, so each picture is scaled by its span.
        values = np.asarray(picture)
        picture = _picture(values, _span(values[np.newaxis]))
    if picture.mode not in ("L", "RGB"):
        has_alpha = "A" in picture.getbands() or "transparency" in picture.info
        if has_alpha:
            ground = Image.new("RGBA", picture.size, "white")
            picture = Image.alpha_composite(ground, picture.convert("RGBA"))
        picture = picture.convert("RGB")
    if max(picture.size) > SIDE:
        picture.thumbnail((SIDE, SIDE))
    return data_address(picture)


def data_address(picture: Image) -> str:
    """A picture as a data URL without metadata: PNG if it is small, otherwise JPEG."""
    small = max(picture.size) <= 48 or picture.mode == "P"
    stream = io.BytesIO()
    if small:
        picture.save(stream, "PNG", optimize=True)
        kind = "png"
    else:
        picture.save(stream, "JPEG", quality=78, optimize=True)
        kind = "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress Pillow's warnings; pictures that are too large or damaged count as missing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _pillow() -> None:
    try:
        import PIL  # noqa: F401
    except ModuleNotFoundError as problem:
        raise MissingExtraError("Showing samples", package="pillow", extra="report") from problem


def samples_from(source: str | os.PathLike[str], result: Comparison) -> Samples:
    """The source of samples for a path, or for a column of the predictions."""
    text = os.fspath(source)
    if os.path.isdir(text):
        return ImageFolder(Path(text))
    if os.path.isfile(text):
        suffix = Path(text).suffix.lower()
        if suffix == ".npz":
            return ImageArray(Path(text))
        if suffix in FORMATS or Path(text).suffixes[-2:-1]:
            return text_file(Path(text))
        raise InputError(
            "Expected samples in a folder of images, an .npz, or a table (.csv, .jsonl, .parquet), "
            f"but got {printable(text)}; give one of these, or a column of the predictions."
        )
    sides = () if result.plan is None else (result.plan.new, result.plan.old)
    found = text_column(sides, text)
    if found is not None:
        return found
    columns = list(dict.fromkeys(c for side in sides for c in side.columns))
    raise InputError(
        f"Expected `samples` to be a folder of images, a file, or a column of the predictions, but "
        f"{printable(text, longest=80)} is none of these; columns are {listed(columns, most=8)}."
    )
