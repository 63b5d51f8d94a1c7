"""MNIST-1D: ten small waves, moved, stretched and buried in noise (Greydanus and Kobak).

Nothing is downloaded: the samples are drawn. They follow the public generator's distribution, with
two differences that comparisons of models need. A sample depends on its seed, part and position
alone, so more training samples change neither the ones before them nor the test set; and inputs
are centred and scaled by constants of the distribution, not by those of the samples drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from flipguard.data.base import ArraySplit, DataSet
from flipguard.data.options import Options

Floats = npt.NDArray[np.float64]
CLASSES, WAVE, LEAST_PADDING, MOST_PADDING, LENGTH = 10, 12, 36, 60, 40
WIDE = WAVE + MOST_PADDING
MOST = 10_000_000  # samples of a part, which are 1.6 GB
BLOCK = 1000  # samples that are drawn together; a part is a row of blocks
TRAIN, TEST, TYPICAL = 0, 1, 2
# Not 0: between the wave's end, which is at height 0, and the padding is still wave, not noise.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How far the waves are changed; the defaults and names are the public generator's."""

    scale_coeff: float = 0.4
    max_translation: int = 48
    corr_noise_scale: float = 0.25
    iid_noise_scale: float = 0.02
    shear_scale: float = 0.75


def load_mnist1d(options: Options) -> DataSet:
    """Draws the data set that the options describe.

    >>> data = load_mnist1d(Options.of("mnist1d:train=20,test=10"))
    >>> data.train.inputs(torch.tensor([0, 1])).shape, len(data.test)
    (torch.Size([2, 40]), 10)
    """
    train = options.whole("train", 4000, least=1, most=MOST)
    test = options.whole("test", 1000, least=1, most=MOST)
    seed = options.whole("seed", 0, least=0)
    usual = Recipe()
    recipe = Recipe(
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
        class_names=[str(label) for label in range(CLASSES)],
        train=split(TRAIN, train),
        test=split(TEST, test),
    )


def _drawn(
    recipe: Recipe, seed: int, part: int, count: int
) -> tuple[Floats, npt.NDArray[np.int64]]:
    blocks = [_block(recipe, (seed, part, block)) for block in range(-(-count // BLOCK))]
    signals = np.concatenate([signal for signal, _ in blocks])[:count]
    return signals, np.concatenate([labels for _, labels in blocks])[:count]


def _block(recipe: Recipe, key: tuple[int, int, int]) -> tuple[Floats, npt.NDArray[np.int64]]:
    random = np.random.Generator(np.random.PCG64(key))
    labels = random.permutation(np.arange(BLOCK, dtype=np.int64) % CLASSES)
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
    """The ten waves, each of variance 1 before it is lifted to start at 0, and made small."""
    heights = np.array(HEIGHTS)
    heights = (heights - heights.mean(1, keepdims=True)) / heights.std(1, keepdims=True)
    waves: Floats = (heights - heights[:, :1]) / 6
    return waves


def _stretched(waves: Floats, lengths: npt.NDArray[np.int64]) -> Floats:
    """Waves with nothing behind them up to their lengths, stretched to one length."""
    padded = np.zeros((len(waves), WIDE))
    padded[:, :WAVE] = waves + LIFT
    return _sampled(padded, np.linspace(0, 1, WIDE) * (lengths[:, None] - 1))


def _sampled(signals: Floats, places: Floats) -> Floats:
    """The values at places between the points of each signal, on straight lines."""
    left = np.minimum(places.astype(np.int64), signals.shape[1] - 2)
    share = places - left
    low = np.take_along_axis(signals, left, axis=1)
    high = np.take_along_axis(signals, left + 1, axis=1)
    values: Floats = low * (1 - share) + high * share
    return values


def _smoothed(noise: Floats) -> Floats:
    """Convolved with a normal bell cut at four deviations, the noise mirrored at its ends."""
    reach = round(4 * SMOOTHING)
    weights = [math.exp(-0.5 * (step / SMOOTHING) ** 2) for step in range(-reach, reach + 1)]
    total = sum(weights)
    mirrored = np.concatenate([noise[:, reach - 1 :: -1], noise, noise[:, : -reach - 1 : -1]], 1)
    smooth = np.zeros_like(noise)
    # Tap by tap, in this order: a matrix product may round differently on another machine.
    for step, weight in enumerate(weights):
        smooth += (weight / total) * mirrored[:, step : step + noise.shape[1]]
    return smooth
