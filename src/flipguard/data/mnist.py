"""MNIST and Fashion-MNIST from idx files, scikit-learn's digits, and MNIST-1D."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flipguard.data.dataset import ArraySplit, DataSet
from flipguard.data.readers import absent, indices_of, packed_or_not, read_bytes, unreadable_file
from flipguard.data.subsets import part
from flipguard.errors import InputError
from flipguard.specs import Options

IDX_WHAT = "an idx file of bytes"
FASHION = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
FASHION_CLASSES = {"mnist": tuple("0123456789"), "fashion-mnist": FASHION}
TORCHVISION = {
    "mnist": "MNIST/raw",
    "fashion-mnist": "FashionMNIST/raw",
}  # where torchvision stores them

Floats = npt.NDArray[np.float64]
WAVE_CLASSES, WAVE, LEAST_PADDING, MOST_PADDING, LENGTH = 10, 12, 36, 60, 40
WIDE = WAVE + MOST_PADDING
MOST = 10_000_000  # samples of a part, 1.6 GB
BLOCK = 1000  # samples that are drawn together; a part has several blocks
TRAIN, TEST, TYPICAL = 0, 1, 2
# Not 0, because values between the wave's end, which is 0, and the padding belong to the wave.
LIFT = 1e-8
SMOOTHING = 2.0
HEIGHTS = (
    (5, 6, 6.5, 6.75, 7, 7, 7, 7, 6.75, 6.5, 6, 5),
    (5, 3, 3, 3.4, 3.8, 4.2, 4.6, 5, 5.4, 5.8, 5, 5),
    (5, 6, 6.5, 6.5, 6, 5.25, 4.75, 4, 3.5, 3.5, 4, 5),
    (5, 6, 6.5, 6.5, 6, 5, 5, 6, 6.5, 6.5, 6, 5),
    (5, 4.4, 3.8, 3.2, 2.6, 2.6, 5, 5, 5, 5, 5, 5),
    (5, 3, 3, 3, 3, 5, 6, 6.5, 6.5, 6, 4.5, 5),
    (5, 4, 3.5, 3.25, 3, 3, 3, 3, 3.25, 3.5, 4, 5),
    (5, 7, 7, 6.6, 6.2, 5.8, 5.4, 5, 4.6, 4.2, 5, 5),
    (5, 4, 3.5, 3.5, 4, 5, 5, 4, 3.5, 3.5, 4, 5),
    (5, 4, 3.5, 3.5, 4, 5, 5, 5, 5, 4.7, 4.3, 5),
)


def load_idx(options: Options, root: Path) -> DataSet:
    """Read the four files from a folder with the data set's name, or torchvision's name."""
    options.finish()
    name = options.name
    names = FASHION_CLASSES[name]
    splits = []
    for prefix in ("train", "t10k"):
        images = read_idx(_found(name, root, f"{prefix}-images", 3), axes=3)
        path = _found(name, root, f"{prefix}-labels", 1)
        targets = indices_of(read_idx(path, axes=1).tolist(), names, where=str(path))
        if len(targets) != len(images):
            raise unreadable_file(
                path, IDX_WHAT, f"{len(targets):,} labels for {len(images):,} images"
            )
        splits.append(ArraySplit(inputs=images[:, None], targets=targets))
    return DataSet.of(name=name, kind="image", class_names=names, train=splits[0], test=splits[1])


def read_idx(path: Path, *, axes: int) -> Tensor:
    """Return the bytes of an idx file as uint8 with `axes` axes."""
    content = read_bytes(path, IDX_WHAT)
    start = 4 + 4 * axes
    if content[:4] != bytes((0, 0, 8, axes)) or len(content) < start:
        raise unreadable_file(
            path, IDX_WHAT, f"its first bytes are not those of {axes} axes of bytes"
        )
    shape = [int(size) for size in np.frombuffer(content, ">u4", axes, 4)]
    expected = int(np.prod([1, *shape], dtype=object))
    if len(content) - start != expected:
        raise unreadable_file(
            path, IDX_WHAT, f"it holds {len(content) - start:,} of {expected:,} values"
        )
    values = np.frombuffer(content, np.uint8, offset=start).reshape(shape)
    return torch.from_numpy(values.copy())


def _found(name: str, root: Path, stem: str, axes: int) -> Path:
    file = f"{stem}-idx{axes}-ubyte"
    for folder in (root / name, root / TORCHVISION[name]):
        found = packed_or_not(folder, file, f"{stem}.idx{axes}-ubyte")
        if found is not None:
            return found
    title = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}[name]
    raise absent(name, root / name / f"{file}.gz", f"put the four idx files of {title} there")


def load_digits(options: Options) -> DataSet:
    """Split the digits by id with a seed; values are from -1 to 1, float32 [n, 1, 8, 8]."""
    test_share, seed = options.share("test", 0.25), options.whole("seed", 0)
    options.finish()
    try:
        found = importlib.import_module("sklearn.datasets").load_digits()
    except ImportError as problem:
        raise InputError(
            "Expected `digits` to come from scikit-learn, but got no such package; install it "
            "with: pip install scikit-learn."
        ) from problem
    whole = ArraySplit(
        inputs=torch.from_numpy(found.images).to(torch.float32).unsqueeze(1) / 8 - 1,
        targets=torch.from_numpy(found.target),
    )
    tested = part(whole.ids, seed, test_share)
    return DataSet.of(
        name="digits",
        kind="image",
        class_names=[str(label) for label in range(10)],
        train=whole.subset(~tested),
        test=whole.subset(tested),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveSettings:
    """Settings of the waves, with the names and defaults of the public generator."""

    scale_coeff: float = 0.4
    max_translation: int = 48
    corr_noise_scale: float = 0.25
    iid_noise_scale: float = 0.02
    shear_scale: float = 0.75


def load_mnist1d(options: Options) -> DataSet:
    """Draw the data set that the options describe.

    >>> data = load_mnist1d(Options.of("mnist1d:train=20,test=10"))
    >>> data.train.inputs(torch.tensor([0, 1])).shape, len(data.test)
    (torch.Size([2, 40]), 10)
    """
    train = options.whole("train", 4000, least=1, most=MOST)
    test = options.whole("test", 1000, least=1, most=MOST)
    seed = options.whole("seed", 0, least=0)
    usual = WaveSettings()
    recipe = WaveSettings(
        scale_coeff=options.number("scale_coeff", usual.scale_coeff),
        max_translation=options.whole("max_translation", usual.max_translation, least=1),
        corr_noise_scale=options.number("corr_noise_scale", usual.corr_noise_scale),
        iid_noise_scale=options.number("iid_noise_scale", usual.iid_noise_scale),
        shear_scale=options.number("shear_scale", usual.shear_scale),
    )
    options.finish()
    typical, _ = _drawn(recipe, 0, TYPICAL, 5 * BLOCK)
    centre, spread = float(typical.mean()), float(typical.std())

    def split(part: int, count: int) -> ArraySplit:
        signals, labels = _drawn(recipe, seed, part, count)
        inputs = ((signals - centre) / spread).astype(np.float32)
        return ArraySplit(inputs=torch.from_numpy(inputs), targets=torch.from_numpy(labels))

    return DataSet.of(
        name="mnist1d",
        kind="vector",
        class_names=[str(label) for label in range(WAVE_CLASSES)],
        train=split(TRAIN, train),
        test=split(TEST, test),
    )


def _drawn(
    recipe: WaveSettings, seed: int, part: int, count: int
) -> tuple[Floats, npt.NDArray[np.int64]]:
    blocks = [_block(recipe, (seed, part, block)) for block in range(-(-count // BLOCK))]
    signals = np.concatenate([signal for signal, _ in blocks])[:count]
    return signals, np.concatenate([labels for _, labels in blocks])[:count]


def _block(recipe: WaveSettings, key: tuple[int, int, int]) -> tuple[Floats, npt.NDArray[np.int64]]:
    random = np.random.Generator(np.random.PCG64(key))
    labels = random.permutation(np.arange(BLOCK, dtype=np.int64) % WAVE_CLASSES)
    padding = random.integers(LEAST_PADDING, MOST_PADDING + 1, BLOCK)
    wave = _stretched(_templates()[labels], WAVE + padding)
    wave *= 1 + recipe.scale_coeff * (random.random((BLOCK, 1)) - 0.5)
    moved = random.integers(0, recipe.max_translation, (BLOCK, 1))
    wave = np.take_along_axis(wave, (np.arange(WIDE) - moved) % WIDE, axis=1)
    smooth = _smoothed(recipe.corr_noise_scale * random.standard_normal((BLOCK, WIDE)))
    signal = np.where(wave != 0, wave, smooth)
    signal += recipe.iid_noise_scale * random.standard_normal((BLOCK, WIDE))
    slope = recipe.shear_scale * (random.random((BLOCK, 1)) - 0.5)
    signal -= slope * np.linspace(-0.5, 0.5, WIDE)
    return _sampled(signal, np.linspace(0, WIDE - 1, LENGTH)[None].repeat(BLOCK, 0)), labels


def _templates() -> Floats:
    """Return the ten waves: scaled to variance 1, shifted to start at 0, and made small."""
    heights = np.array(HEIGHTS)
    heights = (heights - heights.mean(1, keepdims=True)) / heights.std(1, keepdims=True)
    waves: Floats = (heights - heights[:, :1]) / 6
    return waves


def _stretched(waves: Floats, lengths: npt.NDArray[np.int64]) -> Floats:
    """Return waves, padded to their lengths and stretched to one length."""
    padded = np.zeros((len(waves), WIDE))
    padded[:, :WAVE] = waves + LIFT
    return _sampled(padded, np.linspace(0, 1, WIDE) * (lengths[:, None] - 1))


def _sampled(signals: Floats, places: Floats) -> Floats:
    """Return the linearly interpolated values of each signal at some positions."""
    left = np.minimum(places.astype(np.int64), signals.shape[1] - 2)
    share = places - left
    low = np.take_along_axis(signals, left, axis=1)
    high = np.take_along_axis(signals, left + 1, axis=1)
    values: Floats = low * (1 - share) + high * share
    return values


def _smoothed(noise: Floats) -> Floats:
    """Return noise, mirrored at its ends, smoothed by a Gaussian cut at four deviations."""
    reach = round(4 * SMOOTHING)
    weights = [math.exp(-0.5 * (step / SMOOTHING) ** 2) for step in range(-reach, reach + 1)]
    total = sum(weights)
    mirrored = np.concatenate([noise[:, reach - 1 :: -1], noise, noise[:, : -reach - 1 : -1]], 1)
    smooth = np.zeros_like(noise)
    # Summed in this order, because a matrix product may round differently on another machine.
    for step, weight in enumerate(weights):
        smooth += (weight / total) * mirrored[:, step : step + noise.shape[1]]
    return smooth
