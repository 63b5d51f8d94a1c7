"""Samples: found by id wherever they lie, within a budget, sampled fairly when it is too small."""

from __future__ import annotations

import base64
import io
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from PIL import Image

from flipguard import Comparison, InputError, Predictions, compare
from flipguard.archives import read_arrays
from flipguard.report.flips import flip_table
from flipguard.report.sample_images import ImageArray, ImageFolder, samples_from
from flipguard.report.samples import bytes_of
from flipguard.report.write import report_html
from tests.report import made


def ten(**slices: list[object]) -> Comparison:
    """Ten samples that all break."""
    ids = [f"{i:03d}" for i in range(10)]
    shared = {"targets": list("ab") * 5, "ids": ids}
    return compare(
        old=Predictions.from_arrays(labels=list("ab") * 5, slices=slices, **shared),
        new=Predictions.from_arrays(labels=list("ba") * 5, **shared),
    )


IDS = [f"{i:03d}" for i in range(10)]


def picture(address: str) -> Image.Image:
    kind, data = address.split(";base64,")
    assert kind in ("data:image/png", "data:image/jpeg")
    return Image.open(io.BytesIO(base64.b64decode(data)))


def all_of(source: object, ids: list[str] = IDS) -> dict[int, str]:
    return source.of(ids, order=list(range(len(ids))), budget=10**9).items  # type: ignore[attr-defined]


def test_an_archive_without_pictures_tells_all_that_it_holds(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", ids=np.array(IDS), pictures=np.zeros((10, 4, 4)), other=np.eye(3))
    with pytest.raises(InputError, match="its arrays are 'ids', 'pictures', 'other'; rename one"):
        samples_from(tmp_path / "s.npz", ten())


# -- pictures --------------------------------------------------------------------------------------


def test_a_folder_of_images_named_by_id(tmp_path: Path) -> None:
    made.write_images(tmp_path / "images", IDS[:9], side=20)
    source = samples_from(tmp_path / "images", ten())
    sampled = source.of(IDS, order=list(range(10)), budget=10**6)
    assert (sampled.kind, len(sampled.items), sampled.missing, sampled.left_out) == (
        "image",
        9,
        1,
        0,
    )
    original = np.asarray(Image.open(tmp_path / "images" / "003.png"))
    assert np.array_equal(np.asarray(picture(sampled.items[3])), original), "tiny ones are exact"


def test_images_below_the_folder_are_found_by_path_or_name(tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()
    Image.new("RGB", (300, 200), "red").save(tmp_path / "cats" / "1.jpg")
    source = ImageFolder(tmp_path)
    for name in ("cats/1.jpg", "cats/1", "1.jpg", "1"):
        found = picture(all_of(source, [name])[0])
        assert found.size == (96, 64)


@pytest.mark.parametrize("name", ["../secret", "../secret.png", "/etc/hostname", "a/../../secret"])
def test_an_id_cannot_lead_out_of_the_folder(name: str, tmp_path: Path) -> None:
    Image.new("RGB", (9, 9)).save(tmp_path / "secret.png")
    (tmp_path / "images").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "images" / "a.png")
    assert ImageFolder(tmp_path / "images").find([name, "a"]).keys() == {1}


def test_pictures_that_cannot_be_shown_are_counted(tmp_path: Path) -> None:
    images = made.write_images(tmp_path / "images", IDS, side=16)
    (images / "004.png").write_bytes(b"no picture")
    (images / "005.png").write_bytes((images / "006.png").read_bytes()[:60])
    # A small file that would be a hundred thousand pixels wide and high.
    header = (images / "007.png").read_bytes()
    (images / "007.png").write_bytes(header[:16] + b"\x00\x01\x86\xa0" * 2 + header[24:])
    sampled = ImageFolder(images).of(IDS, order=list(range(10)), budget=10**6)
    assert sampled.missing == 3
    assert set(sampled.items) == {0, 1, 2, 3, 6, 8, 9}


@pytest.mark.parametrize("mode", ["RGBA", "P", "L", "1", "CMYK", "I;16", "LA"])
def test_pictures_of_every_mode(mode: str, tmp_path: Path) -> None:
    path = tmp_path / ("a.tif" if mode in ("CMYK", "I;16") else "a.png")
    Image.new(mode, (150, 100)).save(path)
    assert picture(all_of(ImageFolder(tmp_path), ["a"])[0]).size == (96, 64)


@pytest.mark.parametrize(
    ("dtype", "highest"), [(np.uint16, 65_535), (np.uint16, 4_095), (np.int32, 70_000),
                           (np.float32, 1.0), (np.float32, 900.0)],
)  # fmt: skip
def test_pictures_of_more_than_eight_bits_keep_their_shades(
    dtype: type, highest: float, tmp_path: Path
) -> None:
    ramp = np.linspace(0, highest, 32 * 32).reshape(32, 32)
    Image.fromarray(ramp.astype(dtype)).save(tmp_path / "a.tif")
    shown = np.asarray(picture(all_of(ImageFolder(tmp_path), ["a"])[0]), dtype=float)
    assert np.abs(shown - 255 * ramp / highest).max() < 1.5


def test_a_large_picture_says_nothing_beside_the_page(tmp_path: Path) -> None:
    """Pillow warns from 89 million pixels on, which here would be an error."""
    Image.new("1", (12_000, 8_000)).save(tmp_path / "a.png")
    assert picture(all_of(ImageFolder(tmp_path), ["a"])[0]).size == (96, 64)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names are of Unix")
def test_an_id_may_be_a_path_that_ends_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "day").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "day" / "a.png")
    ids = ["/mnt/old/day/a.png", "/mnt/old/night/a.png", "elsewhere/day/a.png"]
    assert sorted(ImageFolder(tmp_path).find(ids)) == [0, 2]


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    Image.new("L", (9, 9)).save(tmp_path / "b.png")
    assert ImageFolder(tmp_path).find(["a", "b"]).keys() == {1}


def test_links_to_images_are_followed_and_links_to_folders_are_not(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "images").mkdir()
    Image.new("L", (9, 9)).save(tmp_path / "store" / "blob.png")
    (tmp_path / "images" / "a.png").symlink_to(tmp_path / "store" / "blob.png")
    (tmp_path / "images" / "more").symlink_to(tmp_path / "store")
    assert ImageFolder(tmp_path / "images").find(["a", "blob"]).keys() == {0}


def test_one_candidate_may_have_no_sample_but_not_all(tmp_path: Path) -> None:
    ids = {"ids": IDS, "targets": list("ab") * 5}
    old, right = Predictions.from_arrays(labels=list("ab") * 5, **ids), list("ab") * 5
    results = {}
    for name, broken in (("first", 0), ("second", 9)):
        labels = [("b" if t == "a" else "a") if i == broken else t for i, t in enumerate(right)]
        results[name] = compare(old=old, new=Predictions.from_arrays(labels=labels, **ids))
    images = made.write_images(tmp_path / "images", ["000"])
    page = report_html(results, samples=images)
    assert "1 of 1 sample is shown with its picture" in page
    assert "0 of 1 sample are shown with their picture" in page
    (images / "000.png").rename(images / "other.png")
    with pytest.raises(InputError, match="has none of them"):
        report_html(results, samples=images)


def test_an_array_is_read_once_for_all_candidates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "s.npz", images=np.zeros((10, 4, 4)), ids=IDS)
    reads = []

    def counted(*given: Any, **more: Any) -> Any:
        reads.append(given)
        return read_arrays(*given, **more)

    monkeypatch.setattr("flipguard.report.sample_images.read_arrays", counted)
    report_html({"a": ten(), "b": ten()}, samples=tmp_path / "s.npz")
    assert len(reads) == 1


def test_nothing_of_a_file_but_its_pixels_is_embedded(tmp_path: Path) -> None:
    from PIL.PngImagePlugin import PngInfo

    told = PngInfo()
    told.add_text("comment", "a secret of the photographer")
    Image.new("RGB", (20, 20)).save(tmp_path / "a.png", pnginfo=told)
    data = base64.b64decode(all_of(ImageFolder(tmp_path), ["a"])[0].split(",")[1])
    assert b"secret" not in data


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((10, 8, 12), (12, 8)),
        ((10, 8, 12, 1), (12, 8)),
        ((10, 8, 12, 3), (12, 8)),
        ((10, 3, 8, 12), (12, 8)),
        ((10, 200, 100, 3), (48, 96)),
        ((10, 40), (192, 96)),
    ],
)
@pytest.mark.parametrize("dtype", ["uint8", "float32", "bool"])
def test_an_array_of_pictures_or_signals(
    shape: tuple[int, ...], size: tuple[int, int], dtype: str, tmp_path: Path
) -> None:
    values = np.random.default_rng(0).random(shape)
    values = (values * 255).astype(dtype) if dtype == "uint8" else (values > 0.5).astype(dtype)
    np.savez(tmp_path / "samples.npz", images=values, ids=IDS)
    found = all_of(samples_from(tmp_path / "samples.npz", ten()))
    assert len(found) == 10
    assert picture(found[0]).size == size
    if dtype == "uint8" and shape == (10, 8, 12, 3):
        assert np.array_equal(np.asarray(picture(found[4])), values[4])


def test_ids_of_an_array_may_be_numbers(tmp_path: Path) -> None:
    np.savez(tmp_path / "samples.npz", images=np.zeros((3, 4, 4)), ids=np.array([7, 8, 9]))
    assert ImageArray(tmp_path / "samples.npz").find(["9", "7", "x"]) == {0: 2, 1: 0}


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"images": np.zeros((3, 4, 4))}, "for each of its 3 pictures, but it has no array 'ids'"),
        ({"images": np.zeros((3, 4, 4)), "ids": [1, 2]}, "but it has 2 ids"),
        ({"ids": [1, 2]}, "Expected .* to hold pictures in an array 'images'"),
        ({"images": np.zeros((1, 2, 3, 4, 5)), "ids": [1]}, "has shape"),
        ({"images": np.zeros((2, 0, 0)), "ids": [1, 2]}, "has shape"),
        ({"images": np.zeros((2, 0)), "ids": [1, 2]}, "has shape"),
        ({"images": np.zeros((2, 3, 3)), "ids": 7}, "ids of shape"),
        ({"images": np.zeros((2, 3, 3)), "ids": np.zeros((2, 2))}, "ids of shape"),
    ],
)  # fmt: skip
def test_arrays_that_are_no_samples_are_refused(arrays: dict, told: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "samples.npz", **arrays)
    with pytest.raises(InputError, match=told):
        samples_from(tmp_path / "samples.npz", ten())


# -- texts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.jsonl", "t.parquet", "t.arrow"])
def test_a_table_of_ids_and_texts(name: str, tmp_path: Path) -> None:
    texts = [f"text {i}, with a comma\nand a line" for i in range(10)]
    frame = pl.DataFrame({"other": range(10), "id": IDS, "text": texts})
    path = tmp_path / name
    writers = {
        ".csv": frame.write_csv,
        ".tsv": lambda p: frame.write_csv(p, separator="\t"),
        ".jsonl": frame.write_ndjson,
        ".parquet": frame.write_parquet,
        ".arrow": frame.write_ipc,
    }
    writers[path.suffix](path)
    source = samples_from(path, ten())
    assert source.kind == "text"
    assert all_of(source) == dict(enumerate(texts)), "007 is an id, not a number"


def test_a_column_of_the_predictions() -> None:
    source = samples_from("words", ten(words=[f"w{i}" for i in range(10)]))
    assert all_of(source) == {i: f"w{i}" for i in range(10)}
    page = report_html(ten(words=[f"w{i}" for i in range(10)]), samples="words")
    assert "10 of 10 samples are shown with their text, from column words of predictions." in page


def test_a_column_of_files_without_ids() -> None:
    words = [f"w{i}" for i in range(4)]
    old = Predictions.from_arrays(
        labels=list("aaaa"), targets=list("aaaa"), slices={"words": words}
    )
    new = Predictions.from_arrays(labels=list("abab"), targets=list("aaaa"))
    result = compare(old=old, new=new)
    source = samples_from("words", result)
    assert all_of(source, result.flips()["id"].cast(pl.String).to_list()) == {0: "w1", 1: "w3"}


def test_a_column_of_addresses_is_left_as_links() -> None:
    links = [f"https://example.org/{i}.png" for i in range(10)]
    source = samples_from("url", ten(url=links))
    assert source.kind == "link"
    assert all_of(source) == dict(enumerate(links))
    mixed = samples_from("url", ten(url=[*links[:9], "javascript:alert(1)"]))
    assert mixed.kind == "text", "one that is no address makes them all texts"


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("t.csv", "name,words\n1,a\n", "to have a column 'id' and a column 'text'"),
        ("t.csv", "id,a,b\n1,2,3\n", "to have a column 'id' and a column 'text'"),
        ("t.parquet", "no parquet", "cannot be read"),
        ("t.docx", "x", "Expected samples in a folder of images, an .npz, or a table"),
        ("t.csv", "id,text\nzzz,a\n", "it has none of them"),
    ],
)
def test_files_that_are_no_samples_are_refused(
    name: str, content: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=re.escape(told)):
        report_html(ten(), samples=tmp_path / name)


def test_what_is_neither_file_nor_column_is_refused() -> None:
    with pytest.raises(InputError, match="nothing is none of these; columns are 'id', 'target'"):
        samples_from("nothing", ten())


# -- the budget ------------------------------------------------------------------------------------


def test_a_budget_that_is_too_small_is_shared_fairly_and_told(tmp_path: Path) -> None:
    result, _ = made.judged()
    flips = result.flips()
    images = made.write_images(tmp_path / "images", flips["id"].to_list(), side=32)
    source = samples_from(images, result)
    table = flip_table(flips, samples=source, budget=120_000)
    sampled = table.sampled
    assert sampled is not None
    assert sampled.used <= 120_000
    assert 120_000 - sampled.used < 6_000, "the budget is used"
    assert 0 < len(sampled.items) < len(table)
    assert sampled.left_out == len(table) - len(sampled.items)
    strata = {(table.kinds[row], table.target[row]) for row in sampled.items}
    assert len(strata) >= min(len(sampled.items), 18) - 1, "every kind and class has its turn"
    again = flip_table(flips, samples=source, budget=120_000).sampled
    assert again == sampled, "the same again, to the byte"
    page = report_html(result, samples=images, samples_budget="120KB")
    assert "did not fit into the budget of 0.12 MB, and those shown were drawn from every " in page
    assert len(page) < len(report_html(result, samples=images, samples_budget="10MB"))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("5MB", 5_000_000),
        ("800 kB", 800_000),
        ("1.5mb", 1_500_000),
        ("0", 0),
        (77, 77),
        ("1MiB", 1 << 20),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["much", "-5MB", "5 TB", "", "9999GB", "5MB5", -3])
def test_sizes_that_are_none_are_refused(text: str | int) -> None:
    with pytest.raises(InputError, match="Expected the budget of samples to be a size"):
        bytes_of(text)


def test_where_samples_are_refused_nothing_else_is_written(tmp_path: Path, run: Any) -> None:
    made.written(tmp_path)
    (tmp_path / "pictures.npz").write_bytes(b"no archive")
    done = run(
        *("compare", "old.parquet", "new.parquet", "--html", "page.html"),
        *("--samples", "pictures.npz", "--flips", "flips.csv", "--json", "out.json"),
    )
    assert done.code == 2
    assert "pictures.npz cannot be read" in done.err
    left = {path.name for path in tmp_path.iterdir()}
    assert left.isdisjoint({"page.html", "flips.csv", "out.json"})
