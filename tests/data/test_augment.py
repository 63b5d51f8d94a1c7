"""Augmentations against plain loops, and bit for bit the same whatever the batch."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from flipguard.data import (
    AUGMENTATIONS,
    Augmentation,
    CropFlip,
    Cutout,
    InTurn,
    NoAugmentation,
    RandomResizedCrop,
    ShiftScaleNoise,
    build_augmentation,
)
from flipguard.data.augment import COLUMN, HOLE_COLUMN, HOLE_ROW, MIRROR, ROW, SCALE, SHIFT
from flipguard.errors import InputError
from flipguard.randomness import integers, uniform
from tests.effort import tries

SPECS = {
    "image": [
        "none",
        "crop-flip",
        "crop-flip:padding=3,fill=zero",
        "crop-flip:flip=alternating,padding=2",
        "crop-flip:flip=none",
        "alternating-flip",
        "cutout:size=3",
        "crop-flip+cutout",
        "random-resized-crop",
        "random-resized-crop:scale=0.5,flip=alternating+cutout",
    ],
    "vector": ["none", "shift-scale-noise", "shift-scale-noise:shift=0,noise=0.5"],
}
ANY: Any = "grey"
EVERY = [(kind, spec) for kind, specs in SPECS.items() for spec in specs]


def batch(kind: str, count: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    if kind == "vector":
        return torch.randn(count, 37, generator=generator)
    images = torch.randint(1, 256, (count, 3, 9, 7), generator=generator, dtype=torch.uint8)
    return images if dtype == torch.uint8 else images.to(dtype) / 255


def drawn(draw: int, below: int, *, seed: int, epoch: int, id: int) -> int:
    return int(integers(seed, epoch, torch.tensor([id]), draw, below=below))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16])
@pytest.mark.parametrize(("kind", "spec"), EVERY)
def test_a_sample_is_changed_alike_in_every_batch(kind: str, spec: str, dtype: torch.dtype) -> None:
    change = build_augmentation(spec)
    inputs, ids = batch(kind, 67, dtype), torch.randperm(1000)[:67]
    whole = change(inputs, ids_index=ids, epoch=2, seed=5)
    assert whole.dtype == inputs.dtype
    assert whole.shape == inputs.shape
    order = torch.randperm(67)
    shuffled = change(inputs[order], ids_index=ids[order], epoch=2, seed=5)
    assert torch.equal(shuffled, whole[order])
    alone = [
        change(inputs[i : i + 1], ids_index=ids[i : i + 1], epoch=2, seed=5) for i in range(67)
    ]
    assert torch.equal(torch.cat(alone), whole)
    assert torch.equal(change(inputs, ids_index=ids, epoch=torch.tensor(2), seed=5), whole)


@pytest.mark.parametrize(("kind", "spec"), EVERY)
def test_the_inputs_themselves_are_left_alone(kind: str, spec: str) -> None:
    inputs = batch(kind, 5)
    before = inputs.clone()
    build_augmentation(spec)(inputs, ids_index=torch.arange(5), epoch=0, seed=0)
    assert torch.equal(inputs, before)


@pytest.mark.parametrize(("kind", "spec"), [one for one in EVERY if one[1] != "none"])
def test_epochs_seeds_and_samples_differ(kind: str, spec: str) -> None:
    change, ids = build_augmentation(spec), torch.arange(64)
    inputs = batch(kind, 1).expand(64, *batch(kind, 1).shape[1:])
    first = change(inputs, ids_index=ids, epoch=0, seed=0)
    for epoch, seed, index in ((1, 0, ids), (0, 1, ids), (0, 0, ids + 64)):
        assert not torch.equal(first, change(inputs, ids_index=index, epoch=epoch, seed=seed))
    assert len({tuple(one.flatten().tolist()) for one in first}) > 1


def test_none_gives_the_inputs_themselves() -> None:
    inputs = batch("image", 3)
    assert build_augmentation("none")(inputs, ids_index=torch.arange(3), epoch=0, seed=0) is inputs


@settings(max_examples=tries(40))
@given(
    st.integers(0, 5),
    st.sampled_from(["reflect", "zero"]),
    st.sampled_from(["random", "alternating", "none"]),
    st.integers(0, 9),
    st.integers(0, 2**40),
)
def test_crop_and_flip_are_as_a_plain_loop_says(
    padding: int, fill: str, flip: str, epoch: int, id: int
) -> None:
    change = CropFlip(padding=padding, fill=fill, flip=flip)  # type: ignore[arg-type]
    image = batch("image", 1)
    found = change(image, ids_index=torch.tensor([id]), epoch=epoch, seed=3)[0]
    down = drawn(ROW, 2 * padding + 1, seed=3, epoch=epoch, id=id) - padding
    right = drawn(COLUMN, 2 * padding + 1, seed=3, epoch=epoch, id=id) - padding
    mirrored = False
    if flip == "random":
        mirrored = drawn(MIRROR, 2, seed=3, epoch=epoch, id=id) == 1
    if flip == "alternating":
        mirrored = (drawn(MIRROR, 2, seed=3, epoch=0, id=id) + epoch) % 2 == 1
    _, channels, height, width = image.shape
    for channel in range(channels):
        for row in range(height):
            for column in range(width):
                from_row, from_column = row + down, width - 1 - column if mirrored else column
                from_column += right
                inside = 0 <= from_row < height and 0 <= from_column < width
                if fill == "reflect":
                    from_row = reflected(from_row, height)
                    from_column = reflected(from_column, width)
                expected = 0
                if inside or fill == "reflect":
                    expected = int(image[0, channel, from_row, from_column])
                assert int(found[channel, row, column]) == expected


def reflected(place: int, length: int) -> int:
    if place < 0:
        return -place
    return 2 * (length - 1) - place if place >= length else place


def test_every_move_and_both_sides_come_up_equally_often() -> None:
    ids = torch.arange(20_000)
    images = torch.zeros(1, 1, 9, 9, dtype=torch.uint8)
    images[0, 0, 4, 4] = 1
    change = CropFlip(padding=2, fill="zero", flip="none")
    moved = change(images.expand(len(ids), 1, 9, 9), ids_index=ids, epoch=0, seed=0)
    counts = moved.sum(0)[0].double()
    assert int((counts > 0).sum()) == 25
    assert float((counts[counts > 0] - 800).abs().max()) < 5 * 28
    flipped = integers(0, 0, ids, MIRROR, below=2).double().mean()
    assert float(flipped) == pytest.approx(0.5, abs=0.02)


def test_an_alternating_flip_shows_both_sides_in_two_epochs() -> None:
    change, images, ids = (
        build_augmentation("alternating-flip"),
        batch("image", 50),
        torch.arange(50),
    )
    epochs = [change(images, ids_index=ids, epoch=epoch, seed=1) for epoch in range(4)]
    assert torch.equal(epochs[0], epochs[1].flip(3))
    assert torch.equal(epochs[0], epochs[2])
    assert torch.equal(epochs[1], epochs[3])
    same = (epochs[0] == images).flatten(1).all(1)
    assert 10 < int(same.sum()) < 40


@settings(max_examples=tries(40))
@given(st.integers(1, 12), st.integers(0, 9), st.integers(0, 2**40))
def test_cutout_is_as_a_plain_loop_says(size: int, epoch: int, id: int) -> None:
    image = batch("image", 1)
    found = Cutout(size=size)(image, ids_index=torch.tensor([id]), epoch=epoch, seed=3)[0]
    top = drawn(HOLE_ROW, 9, seed=3, epoch=epoch, id=id) - size // 2
    left = drawn(HOLE_COLUMN, 7, seed=3, epoch=epoch, id=id) - size // 2
    for row in range(9):
        for column in range(7):
            hidden = top <= row < top + size and left <= column < left + size
            expected = [0, 0, 0] if hidden else image[0, :, row, column].tolist()
            assert found[:, row, column].tolist() == expected


@settings(max_examples=tries(40))
@given(st.integers(0, 50), st.floats(0, 2), st.integers(0, 9), st.integers(0, 2**40))
def test_shift_and_scale_are_as_a_plain_loop_says(
    shift: int, scale: float, epoch: int, id: int
) -> None:
    signal = batch("vector", 1)
    change = ShiftScaleNoise(shift=shift, scale=scale, noise=0.0)
    found = change(signal, ids_index=torch.tensor([id]), epoch=epoch, seed=3)[0]
    by = drawn(SHIFT, 2 * shift + 1, seed=3, epoch=epoch, id=id) - shift
    factor = 1 + scale * (2 * float(uniform(3, epoch, torch.tensor([id]), SCALE)) - 1)
    for place in range(37):
        expected = factor * float(signal[0, (place - by) % 37])
        assert float(found[place]) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_noise_has_the_deviation_asked_for_and_is_independent() -> None:
    change = ShiftScaleNoise(shift=0, scale=0.0, noise=0.5)
    noise = change(torch.zeros(4000, 10), ids_index=torch.arange(4000), epoch=0, seed=0)
    assert float(noise.std()) == pytest.approx(0.5, rel=0.02)
    between = torch.corrcoef(noise.T) - torch.eye(10)
    assert float(between.abs().max()) < 5 / 4000**0.5


def test_nothing_to_change_changes_nothing() -> None:
    signals, images, ids = batch("vector", 4), batch("image", 4), torch.arange(4)
    still = ShiftScaleNoise(shift=0, scale=0.0, noise=0.0)
    assert torch.equal(still(signals, ids_index=ids, epoch=0, seed=0), signals)
    crop = CropFlip(padding=0, flip="none")
    assert torch.equal(crop(images, ids_index=ids, epoch=0, seed=0), images)


def test_specs_build_what_they_say() -> None:
    built = build_augmentation("crop-flip:padding=2,fill=zero + cutout:size=5")
    assert built == InTurn((CropFlip(padding=2, fill="zero"), Cutout(size=5)))
    assert build_augmentation("none") == NoAugmentation()
    assert build_augmentation("random-resized-crop") == RandomResizedCrop()
    assert build_augmentation(
        "random-resized-crop:size=224,scale=0.08,flip=none"
    ) == RandomResizedCrop(size=224, scale=0.08, flip="none")
    assert build_augmentation("alternating-flip") == CropFlip(padding=0, flip="alternating")
    assert build_augmentation("shift-scale-noise:shift=1,scale=0,noise=0.25") == ShiftScaleNoise(
        shift=1, scale=0.0, noise=0.25
    )
    for name in AUGMENTATIONS:
        assert isinstance(build_augmentation(name), Augmentation)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("crop", "to be among none, crop-flip, alternating-flip, random-resized-crop, cutout, "),
        ("crop-flip:pad=3", "options of `crop-flip` to be among padding, fill, flip, but got"),
        ("crop-flip:fill=grey", "`fill` to be one of reflect, zero, but got 'grey'"),
        ("cutout:size=0", "`size` to be a whole number of at least 1, but got '0'"),
        ("cutout+cutout:size=3", "every augmentation once, but got 'cutout+cutout:size=3'"),
        ("alternating-flip+crop-flip", "every augmentation once, but got"),
        ("shift-scale-noise:noise=-1", "`noise` to be a number of at least 0, but got '-1'"),
    ],
)
def test_a_spec_that_is_none_is_refused(spec: str, sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        build_augmentation(spec)


@pytest.mark.parametrize(
    ("change", "inputs", "ids", "sentence"),
    [
        (CropFlip(), torch.zeros(2, 40), 2, "Expected `inputs` to be images [samples, channels,"),
        (Cutout(), torch.zeros(2, 8, 8), 2, "Expected `inputs` to be images [samples, channels,"),
        (CropFlip(), torch.zeros(2, 1, 8, 8), 3, "Expected `ids_index` to be [2], one for each"),
        (CropFlip(), torch.zeros(2, 1, 4, 8), 2, "Expected `padding` to be below the image's 4"),
        (ShiftScaleNoise(), torch.zeros(2, 1, 4, 8), 2, "to be floating-point [samples, features]"),
        (ShiftScaleNoise(), torch.zeros(2, 4), 1, "Expected `ids_index` to be [2], one for each"),
    ],
)
def test_a_batch_of_another_kind_is_refused(
    change: Augmentation, inputs: Tensor, ids: int, sentence: str
) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        change(inputs, ids_index=torch.arange(ids), epoch=0, seed=0)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: CropFlip(padding=-1), "Expected `padding` to be a number of at least 0, but got"),
        (lambda: CropFlip(fill=ANY), "Expected `fill` to be one of 'reflect', 'zero', but got"),
        (lambda: CropFlip(flip=ANY), "Expected `flip` to be one of 'random', 'alternating', "),
        (lambda: Cutout(size=0), "Expected `size` to be a number of at least 1, but got 0"),
        (lambda: ShiftScaleNoise(noise=float("nan")), "Expected `noise` to be a number of at"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(build: object, sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        build()  # type: ignore[operator]


class Counted(TorchDispatchMode):
    """Counts the operations of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("kind", "spec"), EVERY)
def test_a_large_batch_takes_no_more_operations(kind: str, spec: str) -> None:
    """No loop over the samples: what a GPU has to be told does not grow with them."""
    counts = []
    for size in (16, 512):
        change, inputs = build_augmentation(spec), batch(kind, size, torch.float32)
        with Counted() as counted:
            change(inputs, ids_index=torch.arange(size), epoch=1, seed=0)
        counts.append(counted.count)
    assert counts[0] == counts[1]
    assert counts[0] < 1000
