"""Stored logits: looked up by position, number or text, from memory, files and devices."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flipguard.errors import InputError
from flipguard.references import StoredLogits
from flipguard.references.sample_ids import IntegerIds, PositionIds, TextIds
from flipguard.references.stored_logits import MappedTable

N, C = 7, 3
LOGITS = torch.arange(N * C, dtype=torch.float32).reshape(N, C)
NUMBERS = [70, -10, 2**62, 0, 30, 31, 5]
TEXTS = ["a", "b", "", "ä", "70", "long name with spaces", "g"]
STORED = "Give the ids that the logits were stored with."
KEEP = "Store the logits of every sample that is asked for."


@pytest.fixture(autouse=True)
def every_warning() -> Iterator[None]:
    # torch tells once in a process that an array cannot be written; here it tells each time.
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


def refused(text: str) -> Any:
    return pytest.raises(InputError, match=f"^{re.escape(text)}$")


# -- lookups -------------------------------------------------------------------------------------


@pytest.mark.parametrize("places", [[0], [6, 0, 3], [2, 2, 2, 2], list(range(N))])
def test_rows_are_found_by_position_number_and_text(places: list[int]) -> None:
    expected = LOGITS[places]
    by_position, by_number, by_text = (
        StoredLogits(LOGITS),
        StoredLogits(LOGITS, ids=NUMBERS),
        StoredLogits(LOGITS, ids=TEXTS),
    )
    numbers, texts = [NUMBERS[i] for i in places], [TEXTS[i] for i in places]
    for stored, ids in ((by_position, places), (by_number, numbers)):
        for given in (ids, tuple(ids), torch.tensor(ids), np.array(ids)):
            assert torch.equal(stored(given), expected)
    for given in (texts, tuple(texts), np.array(texts), np.array(texts, dtype=object)):
        assert torch.equal(by_text(given), expected)
    assert len(by_text) == N


def test_ids_of_a_table_may_come_in_any_container() -> None:
    for ids in (NUMBERS, torch.tensor(NUMBERS), np.array(NUMBERS), [np.int64(i) for i in NUMBERS]):
        assert torch.equal(StoredLogits(LOGITS, ids=ids)([30, 70]), LOGITS[[4, 0]])
    for ids in (TEXTS, np.array(TEXTS), np.array(TEXTS, dtype=object)):
        assert torch.equal(StoredLogits(LOGITS, ids=ids)(["70", "a"]), LOGITS[[4, 0]])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_ids_may_be_narrow_integers(dtype: torch.dtype) -> None:
    assert torch.equal(StoredLogits(LOGITS)(torch.tensor([5, 1], dtype=dtype)), LOGITS[[5, 1]])


def test_ids_may_have_any_shape_and_be_none_at_all() -> None:
    stored = StoredLogits(LOGITS)
    assert torch.equal(stored(torch.tensor([[1, 2], [3, 4]])), LOGITS[1:5].reshape(2, 2, C))
    assert torch.equal(stored(torch.tensor(3)), LOGITS[3])
    for table in (stored, StoredLogits(LOGITS, ids=NUMBERS), StoredLogits(LOGITS, ids=TEXTS)):
        assert table([]).shape == (0, C)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_float_type_is_kept(dtype: torch.dtype) -> None:
    assert torch.equal(StoredLogits(LOGITS.to(dtype))([1]), LOGITS.to(dtype)[[1]])
    assert StoredLogits(LOGITS.to(dtype))([1]).dtype == dtype


@pytest.mark.parametrize("dtype", ["<f2", ">f2", "<f4", ">f4", "<f8", ">f8"])
def test_arrays_are_tables_too_whatever_their_layout(dtype: str, tmp_path: Path) -> None:
    array = LOGITS.numpy().astype(dtype)
    read_only = array.copy()
    read_only.flags.writeable = False
    np.save(tmp_path / "logits.npy", array)
    np.save(tmp_path / "columns.npy", np.asfortranarray(array))
    for table in (
        StoredLogits(array),
        StoredLogits(array[::-1, ::-1][::-1, ::-1]),
        StoredLogits(np.asfortranarray(array)),
        StoredLogits(read_only),
        StoredLogits.read(tmp_path / "logits.npy"),
        StoredLogits.read(tmp_path / "columns.npy"),
        StoredLogits.read(tmp_path / "logits.npy").to("cpu"),
    ):
        rows = table(torch.tensor([4, 1]))
        assert torch.equal(rows, LOGITS[[4, 1]].to(rows.dtype))
        assert rows.dtype == {"2": torch.float16, "4": torch.float32, "8": torch.float64}[dtype[-1]]
    assert torch.equal(StoredLogits(array[::-1])([0]), LOGITS[[6]].to(rows.dtype))


def test_what_is_given_is_a_copy_and_asks_for_no_gradient(tmp_path: Path) -> None:
    np.save(tmp_path / "logits.npy", LOGITS.numpy())
    for stored in (
        StoredLogits(LOGITS.clone().requires_grad_()),
        StoredLogits(LOGITS.clone().numpy()),
        StoredLogits.read(tmp_path / "logits.npy"),
    ):
        for ids in (list(range(N)), torch.arange(N)):
            rows = stored(ids)
            assert not rows.requires_grad
            rows.zero_()
            assert torch.equal(stored(ids), LOGITS)


def test_rows_are_where_the_ids_are() -> None:
    stored = StoredLogits(LOGITS).to("meta")
    assert stored([1, 2]).device.type == "meta"
    assert StoredLogits(LOGITS)([1]).device.type == "cpu"
    assert stored(torch.tensor([1, 2], device="meta")).device.type == "meta"
    assert stored(torch.tensor([1, 2], device="meta")).shape == (2, C)


@pytest.mark.parametrize(
    ("index", "known", "unknown"),
    [
        (PositionIds(N), [6, 0], [-1, N, 0]),
        (IntegerIds(torch.tensor(NUMBERS)), [5, 70], [6, -11, 70]),
    ],
)
def test_on_a_device_an_unknown_id_has_a_row_that_no_table_has(
    index: Any, known: list[int], unknown: list[int]
) -> None:
    # What a GPU does without a check on the host: the row is beyond the table, which torch stops.
    index.to(torch.device("cpu"))
    assert index.rows_on_device(torch.tensor(known)).tolist() == [6, 0]
    assert index.rows_on_device(torch.tensor(unknown)).tolist() == [N, N, 0]


# -- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [None, NUMBERS, TEXTS])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_archives_are_read_back(ids: list[Any] | None, dtype: Any, tmp_path: Path) -> None:
    arrays = {"logits": LOGITS.numpy().astype(dtype), "targets": np.zeros(N)}
    np.savez(tmp_path / "old.npz", **arrays, **({} if ids is None else {"ids": np.array(ids)}))
    stored = StoredLogits.read(tmp_path / "old.npz")
    names = list(range(N)) if ids is None else ids
    assert torch.equal(stored(names[::-1]), LOGITS.flip(0).to(stored([names[0]]).dtype))
    assert stored([names[0]]).numpy().dtype == dtype
    np.savez_compressed(tmp_path / "packed.npz", logits=arrays["logits"])
    assert torch.equal(StoredLogits.read(str(tmp_path / "packed.npz"))([3]), stored([names[3]]))


def test_a_file_by_position_is_not_read_before_it_is_asked(tmp_path: Path) -> None:
    # A file with a hole of 64 GB: reading or copying all of it would end the test.
    path, rows = tmp_path / "large.npy", 16_000_000_000 // C
    file = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(rows, C))
    file[rows - 5] = [1.0, 2.0, 3.0]
    file.flush()
    del file
    stored = StoredLogits.read(path)
    assert len(stored) == rows
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = stored(torch.tensor([rows - 5, 0]))
    assert found.tolist() == [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]
    with pytest.raises(InputError, match="to be positions from 0 to 5333333332, but got 53333333"):
        stored([rows])


def test_a_file_is_never_written(tmp_path: Path) -> None:
    path = tmp_path / "logits.npy"
    np.save(path, LOGITS.numpy())
    content = path.read_bytes()
    StoredLogits.read(path)(list(range(N))).zero_()
    StoredLogits.read(path).to("cpu")(list(range(N))).zero_()
    assert path.read_bytes() == content


def test_large_files_are_moved_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flipguard.references.stored_logits.PIECE", 2 * C)
    path = tmp_path / "logits.npy"
    np.save(path, LOGITS.numpy())
    assert torch.equal(StoredLogits.read(path).to("cpu")(list(range(N))), LOGITS)
    assert torch.equal(StoredLogits(LOGITS)(list(range(N))), LOGITS)
    strange = LOGITS.clone()
    strange[5, 1] = float("nan")
    with pytest.raises(InputError, match="nan in row 5"):
        StoredLogits(strange)


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "asked", "text"),
    [
        (
            None,
            [0, 7, -1, 9, 8],
            "Expected `ids` to be positions from 0 to 6, but got 7, -1, 9 and 1 more. Store the "
            "logits of every sample, or pass the samples' `ids` with them.",
        ),
        (
            NUMBERS,
            [70, 1, 2, 2**62 + 1, -11],
            f"Expected `ids` to be those of stored logits, but got 1, 2, {2**62 + 1} and 1 more. "
            + KEEP,
        ),
        (
            TEXTS,
            ["a", "A", "z"],
            f"Expected `ids` to be those of stored logits, but got 'A', 'z'. {KEEP}",
        ),
        (TEXTS, [70], f"Expected `ids` to be text, but got 70. {STORED}"),
        (NUMBERS, ["70"], f"Expected `ids` to be whole numbers, but got '70'. {STORED}"),
        (None, ["0"], f"Expected `ids` to be positions, but got '0'. {STORED}"),
        (None, "0", f"Expected `ids` to be a tensor or a list, but got '0'. {STORED}"),
        (None, 0, f"Expected `ids` to be a tensor or a list, but got 0. {STORED}"),
        (
            None,
            [0, 1.0],
            f"Expected `ids` to be whole numbers of 64 bits, or all text, but got 1.0. {STORED}",
        ),
        (
            NUMBERS,
            [70, "a"],
            f"Expected `ids` to be whole numbers of 64 bits, or all text, but got 'a'. {STORED}",
        ),
        (
            NUMBERS,
            [True],
            f"Expected `ids` to be whole numbers of 64 bits, or all text, but got True. {STORED}",
        ),
        (
            NUMBERS,
            [2**63],
            "Expected `ids` to be whole numbers of 64 bits, or all text, but got "
            f"{2**63}. {STORED}",
        ),
        (
            NUMBERS,
            torch.tensor([70.0]),
            "Expected `ids` to be whole numbers, but got 'a tensor of torch.float32'. " + STORED,
        ),
        (
            None,
            torch.tensor([True]),
            "Expected `ids` to be whole numbers, but got 'a tensor of torch.bool'. " + STORED,
        ),
    ],
)
def test_unknown_and_strange_ids_are_refused(ids: Any, asked: Any, text: str) -> None:
    with refused(text):
        StoredLogits(LOGITS, ids=ids)(asked)


def test_text_cannot_be_asked_for_on_a_device() -> None:
    with refused(
        f"Expected `ids` to be text, but got 'a tensor of torch.int64'. {STORED}",
    ):
        TextIds(TEXTS).rows_on_device(torch.tensor([1]))


@pytest.mark.parametrize(
    ("logits", "ids", "text"),
    [
        (
            LOGITS,
            [1, 2, 3, 1, 4, 2, 1],
            "Expected `ids` to differ, but got 1, 2 more than once. Give every sample its own id.",
        ),
        (
            LOGITS,
            ["a", "b", "c", "a", "d", "b", "a"],
            "Expected `ids` to differ, but got 'a', 'b' more than once. Give every sample its own "
            "id.",
        ),
        (
            LOGITS,
            [1, 2],
            "Expected `ids` to name the 7 rows of `logits`, but got (2,). Give one id for each "
            "row.",
        ),
        (
            LOGITS,
            torch.arange(14).reshape(7, 2),
            "Expected `ids` to name the 7 rows of `logits`, but got (7, 2). Give one id for each "
            "row.",
        ),
        (
            LOGITS.long(),
            None,
            "Expected `logits` to be floats of 16, 32 or 64 bits, but got torch.int64. Give the "
            "scores of all classes.",
        ),
        (
            np.zeros((2, 2), dtype=np.longdouble),
            None,
            "Expected `logits` to be floats of 16, 32 or 64 bits, but got float128. Give the "
            "scores of all classes.",
        ),
        (
            LOGITS[0],
            None,
            "Expected `logits` to be of shape [samples, classes], but got (3,). Give one row for "
            "each sample.",
        ),
        (
            np.zeros((4, 0)),
            None,
            "Expected `logits` to be of shape [samples, classes], but got (4, 0). Give one row for "
            "each sample.",
        ),
        (
            [[1.0, 2.0]],
            None,
            "Expected `logits` to be a tensor or an array, but got list. Give logits of shape "
            "[samples, classes].",
        ),
        (
            torch.tensor([[1.0], [float("nan")]]),
            None,
            "Expected `logits` to hold numbers only, but got nan in row 1. Compute the logits "
            "again with a model that gives none.",
        ),
    ],
)
def test_strange_tables_are_refused(logits: Any, ids: Any, text: str) -> None:
    with refused(text):
        StoredLogits(logits, ids=ids)


def test_infinite_logits_are_logits() -> None:
    masked = torch.tensor([[0.0, -float("inf")]])
    assert torch.equal(StoredLogits(masked)([0]), masked)


def test_nan_in_read_only_memory_is_refused_at_once() -> None:
    array = np.array([[0.0], [1.0], [np.nan]])
    array.flags.writeable = False
    with pytest.raises(
        InputError, match=r"^Expected `logits` to hold numbers only, but got nan in"
    ):
        StoredLogits(array)


def test_nan_in_a_file_is_refused_with_its_name(tmp_path: Path) -> None:
    strange = LOGITS.clone().numpy()
    strange[4, 1] = np.nan
    again = "Compute the logits again with a model that gives none."
    path = tmp_path / "old.npz"
    np.savez(path, logits=strange)
    with refused(f"{path}: Expected `logits` to hold numbers only, but got nan in row 4. {again}"):
        StoredLogits.read(path)
    path = tmp_path / "old.npy"
    np.save(path, strange)
    stored = StoredLogits.read(path)
    assert torch.equal(stored([0, 3, 5]), LOGITS[[0, 3, 5]])
    text = f"Expected {path} to hold numbers only, but got nan in row 4. {again}"
    with refused(text):
        stored([0, 4])
    with refused(text):
        stored.to("cpu")


def test_strange_files_are_refused_with_their_name(tmp_path: Path) -> None:
    path = tmp_path / "old.npz"
    with refused(f"{path} does not exist; check the path of the logits."):
        StoredLogits.read(path)
    np.savez(path, scores=LOGITS.numpy())
    with refused(
        f"{path} holds no array 'logits'; write it with numpy.savez(file, logits=…, ids=…)."
    ):
        StoredLogits.read(path)
    np.savez(path, logits=LOGITS.numpy(), ids=np.array([0] * N))
    with refused(
        f"{path}: Expected `ids` to differ, but got 0 more than once. Give every sample its own id."
    ):
        StoredLogits.read(path)
    np.save(tmp_path / "flat.npy", LOGITS.numpy()[0])
    with refused(
        f"{tmp_path / 'flat.npy'}: Expected `logits` to be of shape [samples, classes], but got "
        "(3,). Give one row for each sample."
    ):
        StoredLogits.read(tmp_path / "flat.npy")
    with refused(
        f"Expected `path` to end in .npz or .npy, but got {tmp_path / 'old.pt'}. Write the logits "
        "with numpy.savez(file, logits=…, ids=…) or numpy.save(file, logits)."
    ):
        StoredLogits.read(tmp_path / "old.pt")
    (tmp_path / "folder.npy").mkdir()
    with refused(f"{tmp_path / 'folder.npy'} cannot be read (Is a directory)."):
        StoredLogits.read(tmp_path / "folder.npy")


@pytest.mark.parametrize("name", ["logits", "ids"])
def test_pickles_are_never_loaded(name: str, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (pytest.fail, ("a pickle was loaded",))

    trapped = np.array([Trap()] * N, dtype=object)
    never = (
        "which are never loaded because they can run code; save numbers or fixed-width text (for "
        "example array.astype(str))."
    )
    path = tmp_path / "old.npz"
    np.savez(path, **{"logits": LOGITS.numpy(), name: trapped})
    with refused(f"{path} holds Python objects (a pickle) in array '{name}', {never}"):
        StoredLogits.read(path)
    path = tmp_path / "old.npy"
    np.save(path, trapped)
    with refused(f"{path} holds Python objects (a pickle), {never}"):
        StoredLogits.read(path)
    path.write_bytes(path.read_bytes()[128:])  # the pickle alone, without numpy's header
    with refused(
        f"{path} cannot be read as logits (its content is of another kind); it may be truncated or "
        "of another format."
    ):
        StoredLogits.read(path)


@pytest.mark.parametrize("name", ["old.npz", "old.npy"])
def test_damaged_files_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name.endswith("npz"):
        np.savez(path, logits=LOGITS.numpy())
    else:
        np.save(path, LOGITS.numpy())
    whole = path.read_bytes()
    for cut in (0, 1, 3, 7, 11, 40, 100, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(InputError) as caught:
            StoredLogits.read(path)
        text = str(caught.value)
        assert text.startswith(f"{path} cannot be read as logits ("), cut
        assert text.endswith("); it may be truncated or of another format."), cut
        assert "\n" not in text


def test_a_mapped_array_without_a_file_name_is_called_logits() -> None:
    rows: Tensor = torch.tensor([0])
    with pytest.raises(InputError, match=r"^Expected `logits` to hold"):
        MappedTable(np.array([[np.nan]])).rows(rows)


def test_names_of_classes_come_along(tmp_path):
    path = tmp_path / "old.npz"
    np.savez(path, logits=np.zeros((3, 2), np.float32), class_names=np.array(["cat", "dog"]))
    assert StoredLogits.read(path).class_names == ("cat", "dog")
    np.savez(path, logits=np.zeros((3, 2), np.float32))
    assert StoredLogits.read(path).class_names is None


def test_names_of_other_classes_are_refused(tmp_path):
    path = tmp_path / "old.npz"
    np.savez(path, logits=np.zeros((3, 2), np.float32), class_names=np.array(["cat"]))
    with pytest.raises(InputError, match="a name for each column of the logits"):
        StoredLogits.read(path)
