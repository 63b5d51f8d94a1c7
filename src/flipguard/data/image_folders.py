"""Images in folders, one folder per class, which are decoded on demand."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from flipguard.data.dataset import ArraySplit, DataSet, Split, feed_texts
from flipguard.data.readers import absent, as_pixels, box_as_pixels, indices_of, pillow
from flipguard.data.resampling import Boxes
from flipguard.errors import InputError, listed
from flipguard.models.preprocessing import Preprocessing
from flipguard.specs import Options

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
TEST_FOLDERS = ("test", "val", "validation", "valid")
ANNOTATIONS = "val_annotations.txt"
MOST_WORKERS = 32
OPENED = 16  # images that one thread has open
SIZED = 5000

Pixels: TypeAlias = Callable[[Any], Tensor]
"""What turns a decoded image into uint8 [3, height, width]."""

Labelled: TypeAlias = list[tuple[str, str]]
"""The path below a root, and the class name, of each image."""


class FolderSplit(Split):
    """Images that are decoded on demand to uint8 [k, 3, size, size]; ids are relative paths.

    The shorter side is resized to `resize` pixels, and the middle `size` by `size` pixels are kept.
    With `preprocessing`, images are resized and cropped as a model wants them. `crops` returns
    other boxes of the whole images. `workers` threads decode at once, which changes only the time.
    """

    def __init__(
        self,
        *,
        root: Path,
        paths: Sequence[str],
        targets: Tensor,
        size: int,
        resize: int | None = None,
        workers: int | None = None,
        preprocessing: Preprocessing | None = None,
    ) -> None:
        super().__init__(targets=targets, ids=list(paths))
        self.preprocessing: Final = preprocessing
        self.root: Final = root
        self.paths: Final = list(paths)
        self.size: Final = size
        self.resize: Final = size if resize is None else resize
        self.workers: Final = usable_workers() if workers is None else workers
        if size < 1 or self.resize < size:
            raise InputError(
                f"Expected `resize` to be at least `size`, {size} pixels, but got {self.resize}; "
                "raise it, or leave it out."
            )

    @property
    def sizes(self) -> tuple[int, int]:
        """Height and width of the inputs."""
        wanted = None if self.preprocessing is None else self.preprocessing.input_size
        return wanted or (self.size, self.size)

    def inputs(self, indices: Tensor) -> Tensor:
        wanted = self.preprocessing
        if wanted is not None and wanted.input_size is not None:
            pixels = wanted.pixels
        else:
            pixels = partial(as_pixels, size=self.size, resize=self.resize)
        return self._decoded(indices, self.sizes, lambda _, images: [pixels] * len(images))

    def seen_by(self, preprocessing: Preprocessing | None) -> FolderSplit:
        """Return the same images as a model with this preprocessing wants them."""
        return self._of(torch.arange(len(self)), preprocessing)

    def crops(
        self,
        indices: Tensor,
        boxes_of: Callable[[slice, Tensor], Boxes],
        *,
        size: int | None = None,
        mirrored: Tensor | None = None,
    ) -> Tensor:
        """Return one box of each whole image, as uint8 [k, 3, height, width].

        `boxes_of` is called with some of the indices, as a slice, and with the heights and widths
        of their images, int64 [n, 2]. Each file is opened and decoded once. Where `mirrored`,
        bool [k], is true, left and right are swapped.
        """
        sizes = (size, size) if size else self.sizes
        turned = [False] * len(indices) if mirrored is None else mirrored.tolist()

        def cuts(some: slice, images: Sequence[Any]) -> list[Pixels]:
            shapes = torch.tensor([(one.height, one.width) for one in images])
            corners = boxes_of(some, shapes).corners()
            return [
                partial(box_as_pixels, corners=box, sizes=sizes, mirrored=turn)
                for box, turn in zip(corners, turned[some], strict=True)
            ]

        return self._decoded(indices, sizes, cuts)

    def subset(self, indices: Tensor) -> FolderSplit:
        return self._of(self.positions(indices), self.preprocessing)

    def _of(self, positions: Tensor, preprocessing: Preprocessing | None) -> FolderSplit:
        return FolderSplit(
            root=self.root,
            paths=[self.paths[place] for place in positions.tolist()],
            targets=self.targets[positions],
            size=self.size,
            resize=self.resize,
            workers=self.workers,
            preprocessing=preprocessing,
        )

    def with_targets(self, targets: Tensor) -> FolderSplit:
        return FolderSplit(
            root=self.root,
            paths=self.paths,
            targets=targets,
            size=self.size,
            resize=self.resize,
            workers=self.workers,
            preprocessing=self.preprocessing,
        )

    def decoded(self) -> DecodedSplit:
        """Return all images decoded in memory, for sets that fit and are used in many epochs."""
        return DecodedSplit(files=self, inputs=self.inputs(torch.arange(len(self))))

    def fingerprint(self) -> str:
        """Return a sha256 over targets, relative paths, the crop, and sizes of files.

        Of more than `SIZED` files, the sizes of only that many are looked up, evenly spaced,
        because looking up a million sizes at each start takes minutes on a network drive.
        """
        seen = self.hashed()
        every = -(-len(self.paths) // SIZED) or 1
        # Without pathlib, which takes longer than the file system.
        sizes = [
            str(os.stat(os.path.join(self.root, path)).st_size) for path in self.paths[::every]
        ]
        feed_texts(seen, [f"{self.size} {self.resize}", *sizes])
        return seen.hexdigest()

    def _decoded(
        self,
        indices: Tensor,
        sizes: tuple[int, int],
        pixels_of: Callable[[slice, Sequence[Any]], list[Pixels]],
    ) -> Tensor:
        """Open some images at a time, ask for what turns each into pixels, and do that."""
        positions = self.positions(indices).tolist()
        # Pixel by pixel, as Pillow stores them and as convolutions want them.
        found = torch.empty((len(positions), *sizes, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
        library = pillow()

        def decode(some: slice) -> None:
            paths = [self.root / self.paths[position] for position in positions[some]]
            with ExitStack() as stack:
                images = []
                for path in paths:
                    with _named(path):
                        images.append(stack.enter_context(library.open(path)))
                found_here = found[some]
                for place, pixels in enumerate(pixels_of(some, images)):
                    with _named(paths[place]):
                        found_here[place] = pixels(images[place])

        at_once = min(OPENED, -(-len(positions) // max(self.workers, 1)) or 1)
        some = [slice(start, start + at_once) for start in range(0, len(positions), at_once)]
        if self.workers < 2 or len(some) < 2:
            for one in some:
                decode(one)
        else:
            list(_threads(self.workers).map(decode, some))
        return found


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn the exceptions of a damaged image into an error that names its file."""
    try:
        yield
    # Pillow's decoders may raise any exception for a damaged file.
    except Exception as problem:
        raise InputError(
            f"Expected {path} to be an image, but got a file that cannot be decoded "
            f"({' '.join(str(problem).split()).rstrip('.')}); replace or remove it."
        ) from problem


@cache
def _threads(workers: int) -> ThreadPoolExecutor:
    """Return the threads that decode. Pillow lets others run while it decodes."""
    return ThreadPoolExecutor(workers, thread_name_prefix="decode")


if hasattr(os, "register_at_fork"):
    # A forked process has no threads.
    os.register_at_fork(after_in_child=_threads.cache_clear)


class DecodedSplit(ArraySplit):
    """Images of folders, decoded once and kept; the fingerprint is that of their files."""

    def __init__(
        self, *, files: FolderSplit, inputs: Tensor, device: torch.device | str = "cpu"
    ) -> None:
        inputs = inputs.contiguous().to(device)
        super().__init__(inputs=inputs, targets=files.targets.to(device), ids=files.ids)
        self.files: Final = files

    def subset(self, indices: Tensor) -> DecodedSplit:
        positions = self.positions(indices)
        return DecodedSplit(
            files=self.files.subset(positions.cpu()),
            inputs=self.inputs(positions),
            device=self.all_inputs.device,
        )

    def seen_by(self, preprocessing: Preprocessing | None) -> DecodedSplit:
        """Return the same images, decoded again as a model with this preprocessing wants them."""
        files = self.files.seen_by(preprocessing)
        inputs = files.inputs(torch.arange(len(files)))
        return DecodedSplit(files=files, inputs=inputs, device=self.all_inputs.device)

    def with_targets(self, targets: Tensor) -> DecodedSplit:
        return DecodedSplit(
            files=self.files.with_targets(targets.cpu()),
            inputs=self.all_inputs,
            device=self.all_inputs.device,
        )

    def to(self, device: torch.device | str) -> DecodedSplit:
        return DecodedSplit(files=self.files, inputs=self.all_inputs, device=device)

    def fingerprint(self) -> str:
        return self.files.fingerprint()


def is_files(split: Split) -> bool:
    """Return whether the samples of a split are image files."""
    return isinstance(split, FolderSplit | DecodedSplit)


def seen_by(split: Split, preprocessing: Preprocessing | None) -> Split:
    """Return a split as a model with this preprocessing wants it; only image files change.

    Without preprocessing, the split stays as it is.
    """
    files = split.files if isinstance(split, DecodedSplit) else split
    if preprocessing is None or preprocessing.input_size is None:
        return split
    if not isinstance(files, FolderSplit) or files.preprocessing == preprocessing:
        return split
    assert isinstance(split, FolderSplit | DecodedSplit)
    return split.seen_by(preprocessing)


def usable_workers() -> int:
    """Return the number of threads that may decode at once."""
    cores = getattr(os, "sched_getaffinity", None)
    return min(MOST_WORKERS, len(cores(0)) if cores else os.cpu_count() or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """How the images of a set are decoded: the options size, resize, workers and decode."""

    size: int
    resize: int
    workers: int
    now: bool  # all at once, and kept in memory

    @classmethod
    def of(cls, options: Options, *, size: int = 224, wider: float = 1.0) -> Pictures:
        """Take the options of a spec; `wider` is the default of resize over size."""
        size = options.whole("size", size, least=1)
        return cls(
            size=size,
            resize=options.whole("resize", round(size * wider), least=size),
            workers=options.whole("workers", usable_workers(), least=0),
            now=options.one_of("decode", "later", ("later", "now")) == "now",
        )

    def split(
        self, root: Path, class_names: Sequence[str], images: Labelled, *, where: Path
    ) -> Split:
        """Return some images below a root; `where` is the place that errors about classes name."""
        split = FolderSplit(
            root=root,
            paths=[path for path, _ in images],
            targets=indices_of([label for _, label in images], class_names, where=str(where)),
            size=self.size,
            resize=self.resize,
            workers=self.workers,
        )
        return split.decoded() if self.now else split

    def data_set(
        self, name: str, root: Path, class_names: Sequence[str], parts: Mapping[Path, Labelled]
    ) -> DataSet:
        """Return a data set of its training and its test images, by the place that lists them."""
        train, test = (
            self.split(root, class_names, images, where=where) for where, images in parts.items()
        )
        return DataSet.of(name=name, kind="image", class_names=class_names, train=train, test=test)


def load_image_folder(
    path: Path,
    options: Options,
    *,
    name: str | None = None,
    size: int = 224,
    wider: float = 1.0,
    test_folders: Sequence[str] = TEST_FOLDERS,
) -> DataSet:
    """Read ``train/<class>/…`` and ``test/<class>/…``; `wider` is the default resize over size."""
    pictures = Pictures.of(options, size=size, wider=wider)
    options.finish()
    if not (path / "train").is_dir():
        raise _without(path, "train")
    there = [folder for folder in test_folders if (path / folder).is_dir()]
    if not there:
        raise _without(path, " or ".join(test_folders))
    names = class_folders(path / "train")
    # A test folder may have no labels, while another one has them.
    labelled = [folder for folder in there if is_labelled(path / folder, names)]
    tested, *others = labelled or there

    def split(part: str) -> Split:
        annotated = path / part / ANNOTATIONS
        images = (
            _annotated(path, annotated)
            if annotated.is_file()
            else files_by_class(path, path / part)
        )
        return pictures.split(path, names, images, where=path / part)

    return DataSet.of(
        name=name or path.name,
        kind="image",
        class_names=names,
        train=split("train"),
        test=split(tested),
        own_validation=partial(split, others[0]) if labelled and others else None,
    )


def load_tiny_imagenet(options: Options, root: Path) -> DataSet:
    """Read Tiny-ImageNet from the folder with its name."""
    for folder in (root / options.name, root / "tiny-imagenet-200"):
        if folder.is_dir():
            # The test folder has no labels.
            return load_image_folder(
                folder, options, name=options.name, size=64, test_folders=("val",)
            )
    raise absent(
        options.name,
        root / options.name,
        "put the folders train and val of Tiny-ImageNet there",
    )


def _without(path: Path, wanted: str) -> InputError:
    return InputError(
        f"Expected {path} to hold a folder {wanted}, but got {listed(_names(path)) or 'nothing'}; "
        "lay the images out as train/<class>/<image> and test/<class>/<image>."
    )


def _names(folder: Path) -> list[str]:
    return sorted(one for one in os.listdir(folder) if not one.startswith("."))


def class_folders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted: one per class."""
    names = [name for name in _names(folder) if (folder / name).is_dir()]
    if not names:
        raise InputError(
            f"Expected {folder} to hold one folder for each class, but got none; lay the images "
            "out as train/<class>/<image>."
        )
    return names


def is_labelled(folder: Path, names: Sequence[str]) -> bool:
    """Whether a folder of images says their classes, by folders or by a table."""
    return (folder / ANNOTATIONS).is_file() or any((folder / name).is_dir() for name in names)


def files_by_class(root: Path, part: Path) -> Labelled:
    """Return all images of a folder of class folders, in order: path below root, and class."""
    found: Labelled = []
    for name in class_folders(part):
        count = len(found)
        for folder, inner, files in os.walk(part / name):
            inner.sort()
            relative = Path(folder).relative_to(root).as_posix()
            found.extend((f"{relative}/{file}", name) for file in image_names(files))
        if len(found) == count:
            raise InputError(
                f"Expected {part / name} to hold images of the class {name!r}, but got "
                f"none; add some ({', '.join(ENDINGS)}), or remove the folder."
            )
    return found


def image_names(files: Iterable[str]) -> list[str]:
    """Return the file names that belong to images, sorted."""
    return sorted(
        file for file in files if file.lower().endswith(ENDINGS) and not file.startswith(".")
    )


def _annotated(root: Path, table: Path) -> Labelled:
    """Return images of one folder with the classes of a table, as Tiny-ImageNet has them."""
    found = []
    lines = table.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        file, tab, rest = line.partition("\t")
        image = table.parent / "images" / file
        if not tab or not image.is_file():
            raise InputError(
                f"Expected line {number} of {table} to name an image in {image.parent} and its "
                f"class, but got {listed([line])}; copy the data set again."
            )
        found.append((image.relative_to(root).as_posix(), rest.split("\t")[0].strip()))
    return found
