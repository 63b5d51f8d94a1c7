"""Random boxes against torchvision's rule, their pixels against Pillow's, whatever the batch."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from flipguard.data import (
    ArraySplit,
    CropFlip,
    Cutout,
    FolderSplit,
    InTurn,
    RandomResizedCrop,
    TextSplit,
    build_augmentation,
    load_data,
    resampling,
)
from flipguard.data.augment import BOX_COLUMN, BOX_MIRROR, BOX_ROW, BOX_TRIES, MIRROR
from flipguard.data.readers import box_as_pixels
from flipguard.data.resampling import Boxes, resampled
from flipguard.errors import InputError
from flipguard.randomness import integers, uniform
from tests.data.test_folders import draw
from tests.effort import tries

SIDES = st.integers(1, 300)
SCALES = st.floats(0, 1)
ANY: Any = "up"


def one_box(change: RandomResizedCrop, height: int, width: int, **where: int) -> list[int]:
    """Top, left, height and width."""
    boxes = change.boxes(
        torch.tensor([height]),
        torch.tensor([width]),
        ids_index=torch.tensor([where["id"]]),
        epoch=where["epoch"],
        seed=where["seed"],
    )
    return [int(side) for side in (boxes.top, boxes.left, boxes.height, boxes.width)]


def plain_box(
    scale: float, height: int, width: int, *, id: int, epoch: int, seed: int
) -> list[int]:
    """torchvision's `RandomResizedCrop.get_params`, with numbers of a counter for its stream."""
    ids = torch.tensor([id])
    for attempt in range(10):
        area = float(uniform(seed, epoch, ids, BOX_TRIES + 2 * attempt))
        slant = float(uniform(seed, epoch, ids, BOX_TRIES + 2 * attempt + 1))
        target = height * width * (scale + area * (1 - scale))
        low, high = math.log(3 / 4), math.log(4 / 3)
        ratio = math.exp(low + slant * (high - low))
        w, h = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < w <= width and 0 < h <= height:
            top = int(integers(seed, epoch, ids, BOX_ROW, below=height - h + 1))
            left = int(integers(seed, epoch, ids, BOX_COLUMN, below=width - w + 1))
            return [top, left, h, w]
    w, h = width, height
    if width / height < 3 / 4:
        h = round(w / (3 / 4))
    elif width / height > 4 / 3:
        w = round(h * (4 / 3))
    return [(height - h) // 2, (width - w) // 2, h, w]


# -- boxes ---------------------------------------------------------------------------------------


@settings(max_examples=tries(100))
@given(SIDES, SIDES, SCALES, st.integers(0, 9), st.integers(-(2**63), 2**63 - 1))
def test_a_box_is_as_the_plain_rule_says_and_inside_the_image(
    height: int, width: int, scale: float, epoch: int, id: int
) -> None:
    change = RandomResizedCrop(scale=scale)
    top, left, h, w = one_box(change, height, width, id=id, epoch=epoch, seed=3)
    assert [top, left, h, w] == plain_box(scale, height, width, id=id, epoch=epoch, seed=3)
    assert 0 <= top < top + h <= height
    assert 0 <= left < left + w <= width


@settings(max_examples=tries(40))
@given(st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=20), st.randoms())
def test_a_box_does_not_depend_on_its_company(shapes: list[tuple[int, int]], mixer: Any) -> None:
    change, sizes, ids = RandomResizedCrop(), torch.tensor(shapes), torch.arange(len(shapes)) * 7
    whole = change.boxes(sizes[:, 0], sizes[:, 1], ids_index=ids, epoch=1, seed=2).corners()
    order = list(range(len(shapes)))
    mixer.shuffle(order)
    mixed = change.boxes(
        sizes[order, 0],
        sizes[order, 1],
        ids_index=ids[order],
        epoch=torch.tensor(1),
        seed=2,
    )
    assert mixed.corners() == [whole[place] for place in order]


@pytest.mark.parametrize(("height", "width"), [(300, 400), (64, 64), (500, 200)])
def test_boxes_are_spread_as_those_of_torchvision(height: int, width: int) -> None:
    from torchvision import transforms

    count = 4000
    ours = RandomResizedCrop().boxes(
        torch.full((count,), height),
        torch.full((count,), width),
        ids_index=torch.arange(count),
        epoch=0,
        seed=0,
    )
    found = torch.stack([ours.top, ours.left, ours.height, ours.width], dim=1).double()
    image = torch.empty(3, height, width)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        theirs = torch.tensor(
            [
                transforms.RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3])
                for _ in range(count)
            ]
        ).double()
    for of in (
        lambda box: box[:, 2] * box[:, 3],
        lambda box: box[:, 3] / box[:, 2],
        lambda box: box[:, 0] / (height - box[:, 2] + 1),
        lambda box: box[:, 1] / (width - box[:, 3] + 1),
    ):
        # Kolmogorov and Smirnov's distance; one in a hundred thousand is above 2.47.
        assert distance(of(found), of(theirs)) * math.sqrt(count / 2) < 2.47


def distance(one: Tensor, other: Tensor) -> float:
    """The greatest distance of two samples' distribution functions."""
    places = torch.cat([one, other]).unique()
    below = [torch.searchsorted(x.sort().values, places, right=True) / len(x) for x in (one, other)]
    return float((below[0] - below[1]).abs().max())


def test_areas_and_ratios_are_uniform_where_every_box_fits() -> None:
    ids = torch.arange(20_000)
    side = torch.full_like(ids, 10_000)
    boxes = RandomResizedCrop(scale=0.2).boxes(side, side, ids_index=ids, epoch=0, seed=0)
    area = (boxes.height * boxes.width).double() / 10_000**2
    # Above 3/4 of the area some ratios do not fit.
    low = area[area < 0.75]
    assert float(low.mean()) == pytest.approx((0.2 + 0.75) / 2, abs=0.01)
    slant = (boxes.width / boxes.height).double().log()[area < 0.75] / math.log(4 / 3)
    assert float(slant.mean()) == pytest.approx(0, abs=0.02)
    assert float(slant.square().mean()) == pytest.approx(1 / 3, abs=0.01)
    assert float(slant.abs().max()) < 1.001


# -- pixels --------------------------------------------------------------------------------------


@st.composite
def cuts(draw: st.DrawFn) -> tuple[Tensor, Boxes, int, int]:
    height, width = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    h, w = draw(st.integers(1, height)), draw(st.integers(1, width))
    top, left = draw(st.integers(0, height - h)), draw(st.integers(0, width - w))
    pixels = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 256, (3, height, width))
    box = Boxes(
        top=torch.tensor([top]),
        left=torch.tensor([left]),
        height=torch.tensor([h]),
        width=torch.tensor([w]),
    )
    images = torch.from_numpy(pixels.astype(np.uint8))[None]
    return images, box, draw(st.integers(1, 50)), draw(st.integers(1, 50))


def as_image(images: Tensor) -> Any:
    return Image.fromarray(images[0].permute(1, 2, 0).numpy())


@settings(max_examples=tries(150))
@given(cuts())
def test_pixels_are_those_of_pillow(cut: tuple[Tensor, Boxes, int, int]) -> None:
    images, box, height, width = cut
    found = resampled(images, box, height=height, width=width)[0].permute(1, 2, 0).numpy()
    inner = as_image(images).crop(box.corners()[0])
    bilinear = Image.Resampling.BILINEAR
    by_axis = inner.resize((width, inner.height), bilinear).resize((width, height), bilinear)
    assert np.array_equal(found, np.asarray(by_axis))
    # At once, Pillow may take the other axis first; a rounding in between is all that differs.
    at_once = np.asarray(inner.resize((width, height), bilinear)).astype(int)
    assert abs(found.astype(int) - at_once).max() <= 1


@settings(max_examples=tries(60))
@given(cuts())
def test_files_give_the_pixels_that_tensors_give(cut: tuple[Tensor, Boxes, int, int]) -> None:
    images, box, size, _ = cut
    found = box_as_pixels(as_image(images), box.corners()[0], sizes=(size, size))
    assert torch.equal(found, resampled(images, box, height=size, width=size)[0])


@settings(max_examples=tries(60))
@given(cuts())
def test_other_numbers_are_the_weighted_means_of_the_definition(
    cut: tuple[Tensor, Boxes, int, int],
) -> None:
    images, box, height, width = cut
    floats = images.float() / 127.5 - 1
    found = resampled(floats, box, height=height, width=width)[0].double()
    left, top, right, bottom = box.corners()[0]
    across, down = weights(right - left, width), weights(bottom - top, height)
    inner = floats[0, :, top:bottom, left:right].double()
    expected = torch.einsum("ih,jw,chw->cij", down, across, inner)
    assert torch.allclose(found, expected, atol=1e-5)
    bytes_found = resampled(images, box, height=height, width=width)[0].double()
    assert float((bytes_found - (found + 1) * 127.5).abs().max()) <= 1.01
    half = resampled(floats.half(), box, height=height, width=width)
    assert half.dtype == torch.float16
    assert torch.allclose(half[0].double(), found, atol=2e-3)
    wide = resampled(floats.double(), box, height=height, width=width)
    assert wide.dtype == torch.float64
    assert torch.allclose(wide[0], expected, atol=1e-12)


def weights(length: int, size: int) -> Tensor:
    """How much each of `length` pixels counts for each of `size`: a triangle over it."""
    rows = []
    for place in range(size):
        scale = length / size
        centre, reach = (place + 0.5) * scale, max(scale, 1.0)
        row = [max(0.0, 1 - abs(pixel + 0.5 - centre) / reach) for pixel in range(length)]
        rows.append([one / sum(row) for one in row])
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_the_host_takes_large_batches_piece_by_piece(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, ids = torch.randint(0, 256, (11, 3, 20, 30)).to(dtype), torch.arange(11)
    change = RandomResizedCrop(size=16)
    whole = change(images, ids_index=ids, epoch=0, seed=0)
    for values in (1, 3 * 20 * 30 * 4):
        monkeypatch.setattr(resampling, "HOST_VALUES", values)
        assert torch.equal(change(images, ids_index=ids, epoch=0, seed=0), whole)


@pytest.mark.parametrize("flip", ["random", "alternating"])
def test_a_flip_turns_the_same_boxes_round(flip: Any) -> None:
    images, ids = torch.randint(0, 256, (200, 3, 12, 17), dtype=torch.uint8), torch.arange(200)
    for epoch in range(3):
        still = RandomResizedCrop(flip="none")(images, ids_index=ids, epoch=epoch, seed=1)
        found = RandomResizedCrop(flip=flip)(images, ids_index=ids, epoch=epoch, seed=1)
        toss = integers(1, epoch if flip == "random" else 0, ids, BOX_MIRROR, below=2)
        turned = (toss + (epoch if flip == "alternating" else 0)) % 2 == 1
        assert 70 < int(turned.sum()) < 130
        assert torch.equal(found, torch.where(turned[:, None, None, None], still.flip(3), still))
        # Its own toss: after a crop-flip that mirrors too, half of the images are mirrored.
        other = integers(1, epoch, ids, MIRROR, below=2) == 1
        assert 70 < int((turned != other).sum()) < 130


def test_a_size_is_that_of_the_images_or_the_one_asked_for() -> None:
    images, ids = torch.rand(4, 1, 9, 7), torch.arange(4)
    for size, shape in ((None, (4, 1, 9, 7)), (5, (4, 1, 5, 5)), (24, (4, 1, 24, 24))):
        change = RandomResizedCrop(size=size)
        assert change(images, ids_index=ids, epoch=0, seed=0).shape == shape
    whole = RandomResizedCrop(scale=1.0, flip="none")
    square = torch.randint(0, 256, (4, 1, 9, 9), dtype=torch.uint8)
    assert torch.equal(whole(square, ids_index=ids, epoch=0, seed=0), square)
    none = torch.zeros(0, 3, 8, 8, dtype=torch.uint8)
    assert RandomResizedCrop(size=4)(none, ids_index=ids[:0], epoch=0, seed=0).shape == (0, 3, 4, 4)


# -- whole images --------------------------------------------------------------------------------

SHAPES = [(30, 20), (17, 40), (8, 8), (90, 11), (5, 3), (33, 34)]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for place, shape in enumerate(SHAPES):
        draw(tmp_path / f"train/dog/{place}.png", size=shape, seed=place)
    draw(tmp_path / "test/dog/0.png")
    return tmp_path


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("flip", ["random", "none"])
def test_boxes_are_cut_from_whole_images(photos: Path, workers: int, flip: Any) -> None:
    split = load_data(f"{photos}:size=8,resize=10,workers={workers}").train
    assert isinstance(split, FolderSplit)
    change = RandomResizedCrop(flip=flip)
    for indices in (torch.arange(6), torch.tensor([4, 1, 1]), torch.tensor([3]), torch.arange(0)):
        found = change.views(split, indices, epoch=2, seed=5)
        assert (found.dtype, found.shape) == (torch.uint8, (len(indices), 3, 8, 8))
        for view, place in zip(found, indices.tolist(), strict=True):
            pixels = np.asarray(Image.open(photos / split.paths[place])).transpose(2, 0, 1)
            whole = torch.from_numpy(pixels.copy())[None]
            alone = RandomResizedCrop(size=8, flip=flip)(
                whole, ids_index=split.ids_index[place : place + 1], epoch=2, seed=5
            )
            assert torch.equal(view, alone[0])
    assert RandomResizedCrop(size=12).views(split, indices, epoch=0, seed=0).shape == (0, 3, 12, 12)


def test_what_comes_after_the_cut_is_changed_too(photos: Path) -> None:
    split, indices = load_data(f"{photos}:size=8").train, torch.tensor([5, 0, 3])
    crop, hole = RandomResizedCrop(), Cutout(size=3)
    cut = crop.views(split, indices, epoch=torch.tensor(1), seed=2, device="cpu")
    expected = hole(cut, ids_index=split.ids_index[indices], epoch=1, seed=2)
    both = InTurn((crop, hole)).views(split, indices, epoch=1, seed=2)
    assert torch.equal(both, expected)
    assert not torch.equal(both, cut)


def test_other_samples_are_changed_as_by_a_call(photos: Path) -> None:
    indices = torch.tensor([5, 0, 3])
    arrays = ArraySplit(
        inputs=torch.randint(0, 256, (6, 3, 9, 9), dtype=torch.uint8), targets=torch.arange(6)
    )
    for split in (arrays, load_data(f"{photos}:size=9").train):
        inputs = split.inputs(indices)
        assert isinstance(inputs, Tensor)
        ids = split.ids_index[indices]
        for change in (CropFlip(), InTurn((CropFlip(), Cutout())), InTurn(())):
            found = change.views(split, indices, epoch=1, seed=2, device="cpu")
            assert torch.equal(found, change(inputs, ids_index=ids, epoch=1, seed=2))
    found = RandomResizedCrop().views(arrays, indices, epoch=1, seed=2)
    assert torch.equal(
        found, RandomResizedCrop()(arrays.inputs(indices), ids_index=indices, epoch=1, seed=2)
    )
    texts = TextSplit(texts=["good"], targets=torch.tensor([0]))
    with pytest.raises(InputError, match="`split` to hold images or vectors, but got texts"):
        RandomResizedCrop().views(texts, torch.tensor([0]), epoch=0, seed=0)


def test_images_held_at_their_own_size_are_seen_as_from_the_files(tmp_path: Path) -> None:
    for place in range(5):
        draw(tmp_path / f"train/dog/{place}.png", size=(16, 16), seed=place)
    draw(tmp_path / "test/dog/0.png", size=(16, 16))
    later, now = (load_data(f"{tmp_path}:size=16,decode={when}").train for when in ("later", "now"))
    assert isinstance(now, ArraySplit)
    change, indices = build_augmentation("random-resized-crop"), torch.tensor([4, 0, 2])
    for epoch in range(4):
        one, other = (change.views(s, indices, epoch=epoch, seed=3) for s in (later, now))
        assert torch.equal(one, other)


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: RandomResizedCrop(size=0), "`size` to be a number of at least 1, but got 0"),
        (lambda: RandomResizedCrop(scale=1.5), "`scale` to be a number from 0 to 1, but got 1.5"),
        (lambda: RandomResizedCrop(scale=math.nan), "`scale` to be a number from 0 to 1, but got"),
        (lambda: RandomResizedCrop(flip=ANY), "`flip` to be one of 'random', 'alternating', "),
        (lambda: build_augmentation("random-resized-crop:size=0"), "of at least 1, but got '0'"),
        (lambda: build_augmentation("random-resized-crop:scale=2"), "from 0 to 1, but got '2'"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(build: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        build()


def test_whole_numbers_that_are_no_bytes_are_refused() -> None:
    images = torch.zeros(2, 3, 8, 8, dtype=torch.int64)
    with pytest.raises(InputError, match=r"`inputs` to be uint8 or floating-point images, but got"):
        RandomResizedCrop()(images, ids_index=torch.arange(2), epoch=0, seed=0)
