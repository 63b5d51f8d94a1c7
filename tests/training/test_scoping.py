"""The part of the data that a run sees: what is trained on, held out, and left out."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flipguard.data import DataSet, FolderSplit, Split, load_data, part
from flipguard.errors import InputError
from flipguard.training import Scope
from flipguard.training.scoping import held_out_of, scoped, without_held_out
from tests.data.test_hub import Table, library

DATA = "mnist1d:train=403,test=100"


@pytest.fixture(scope="module")
def data() -> DataSet:
    return load_data(DATA)


def rows(split: Split, data: DataSet) -> set[tuple[Any, str]]:
    """The ids of a split, each with the name of its class."""
    ids = split.ids if isinstance(split.ids, list) else split.ids.tolist()
    names = [data.class_names[target] for target in split.targets.tolist()]
    return set(zip(ids, names, strict=True))


def sizes(split: Split, data: DataSet) -> Counter[str]:
    return Counter(name for _, name in rows(split, data))


def held(data: DataSet) -> Split:
    assert data.validation is not None
    return data.validation


def test_everything_is_the_data_as_they_are(data: DataSet) -> None:
    whole = scoped(data, Scope())
    assert whole.train is data.train
    assert whole.test is data.test
    assert (whole.fingerprint, whole.measured, whole.predicted) == (
        data.fingerprint,
        "test",
        ("test",),
    )


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_a_validation_split_is_a_share_of_each_class(data: DataSet, share: float) -> None:
    found = scoped(data, Scope(validation=share))
    assert rows(found.train, found) | rows(held(found), found) == rows(data.train, data)
    assert not rows(found.train, found) & rows(held(found), found)
    for name, size in sizes(data.train, data).items():
        assert sizes(held(found), found)[name] == int(size * share + 0.5)
    assert rows(found.test, found) == rows(data.test, data)
    assert (found.measured, found.predicted) == ("validation", ("validation", "test"))
    assert found.fingerprint != data.fingerprint


def test_another_seed_holds_out_others(data: DataSet) -> None:
    first, again, second = (
        rows(held(scoped(data, Scope(validation=0.2, seed=seed))), data) for seed in (0, 0, 1)
    )
    assert first == again
    assert len(first & second) < 0.5 * len(first)


def test_old_and_new_hold_out_the_same_samples(data: DataSet) -> None:
    """An old model with fewer samples or classes has no sample that the new one holds out."""
    new = scoped(data, Scope(validation=0.2))
    for choice in ("random", "first"):
        for per_class in (True, False):
            scope = Scope(samples=0.5, classes=6, class_choice=choice, per_class=per_class)
            old = scoped(data, dataclasses.replace(scope, validation=0.2))
            known = {row for row in rows(held(new), new) if row[1] in old.class_names}
            assert rows(held(old), old) == known
            assert rows(old.train, old) <= rows(new.train, new)


@pytest.mark.parametrize("validation", [None, 0.2])
def test_half_of_each_class(data: DataSet, validation: float | None) -> None:
    all_of_it = scoped(data, Scope(validation=validation))
    half = scoped(data, Scope(samples=0.5, validation=validation))
    assert rows(half.train, half) <= rows(all_of_it.train, all_of_it)
    for name, size in sizes(all_of_it.train, all_of_it).items():
        assert sizes(half.train, half)[name] == int(size * 0.5 + 0.5)


def test_samples_by_id_alone_are_those_of_the_hash(data: DataSet) -> None:
    found = scoped(data, Scope(samples=0.5, per_class=False, seed=3))
    assert torch.equal(found.train.ids_index, data.train.ids_index[part(data.train.ids, 3, 0.5)])


def test_random_classes_keep_their_names_and_samples(data: DataSet) -> None:
    chosen = set()
    for seed in range(5):
        found = scoped(data, Scope(classes=4, seed=seed))
        chosen.add(found.class_names)
        for split, whole in ((found.train, data.train), (found.test, data.test)):
            expected = {row for row in rows(whole, data) if row[1] in found.class_names}
            assert rows(split, found) == expected
        more = scoped(data, Scope(classes=7, seed=seed)).class_names
        assert set(found.class_names) < set(more)
    assert len(chosen) > 1


def test_the_first_classes(data: DataSet) -> None:
    found = scoped(data, Scope(classes=4, class_choice="first"))
    assert found.class_names == data.class_names[:4]
    assert rows(found.train, found) == {
        row for row in rows(data.train, data) if row[1] in data.class_names[:4]
    }


@pytest.mark.parametrize(
    "scope",
    [
        Scope(),
        Scope(validation=0.2),
        Scope(samples=0.5, validation=0.2, classes=5),
        Scope(samples=0.5, per_class=False),
    ],
)
def test_a_method_holds_out_samples_that_are_in_no_other_split(data: DataSet, scope: Scope) -> None:
    found = scoped(data, scope)
    learned, apart = held_out_of(found, scope)
    assert rows(learned, found) | rows(apart, found) == rows(found.train, found)
    assert not rows(learned, found) & rows(apart, found)
    # What is learned from is what a run with this scope sees.
    member = scoped(data, without_held_out(scope))
    assert rows(member.train, member) == rows(learned, found)
    if found.validation is not None:
        assert not rows(found.validation, found) & rows(found.train, found)


@pytest.mark.parametrize(
    ("scope", "said"),
    [
        (Scope(validation=0.0), r"`scope\.validation` to be a share above 0 and below 1, or 'own'"),
        (Scope(validation=1.0), r"`scope\.validation` to be a share above 0 and below 1, or 'own'"),
        (Scope(validation=0.001), r"`scope\.validation` to hold out samples, but 0\.001 of each"),
        (Scope(validation="own"), "data with a validation split for `scope.validation=own`, but "),
        (Scope(classes=11), r"`scope\.classes` to be from 1 to 10, but got 11"),
        (Scope(samples=0.0), r"`scope\.samples` to be a share above 0 and at most 1, but got 0; 1"),
    ],
)
def test_what_makes_no_sense_is_refused(data: DataSet, scope: Scope, said: str) -> None:
    with pytest.raises(InputError, match=said):
        scoped(data, scope)


def arrays(folder: Path) -> str:
    drawn = np.random.default_rng(0)
    parts = {"train": 12, "validation": 6, "test": 9}
    inputs = {f"{name}_inputs": drawn.random((size, 4)) for name, size in parts.items()}
    targets = {f"{name}_targets": np.arange(size) % 3 for name, size in parts.items()}
    np.savez(folder / "own.npz", **inputs, **targets)
    return str(folder / "own.npz")


def texts(folder: Path) -> str:
    for name, size in (("train", 12), ("valid", 6), ("test", 9)):
        lines = [json.dumps({"text": f"{name} {i}", "label": i % 3}) for i in range(size)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return str(folder)


def images(folder: Path) -> str:
    from PIL import Image

    for name, size in (("train", 12), ("val", 6), ("test", 9)):
        for index in range(size):
            path = folder / name / f"class {index % 3}" / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (index, index, index)).save(path)
    return f"{folder}:size=8"


def decoded(folder: Path) -> str:
    return f"{images(folder)},decode=now"


@pytest.mark.parametrize("write", [arrays, texts, images, decoded])
def test_the_datas_own_split(write: Any, tmp_path: Path) -> None:
    data = load_data(write(tmp_path))
    assert (len(data.train), len(data.test)) == (12, 9)
    plain, own = scoped(data, Scope()), scoped(data, Scope(validation="own"))
    assert plain.fingerprint == data.fingerprint != own.fingerprint
    assert plain.validation is None
    assert rows(own.train, own) == rows(data.train, data)
    assert sizes(held(own), own) == dict.fromkeys(data.class_names, 2)
    fewer = scoped(data, Scope(validation="own", classes=2, seed=1))
    for split, size in ((fewer.train, 4), (held(fewer), 2), (fewer.test, 3)):
        assert sizes(split, fewer) == dict.fromkeys(fewer.class_names, size)
    if isinstance(data.train, FolderSplit):
        ids = [str(one) for one in held(fewer).ids]
        assert {one.split("/")[1] for one in ids} == set(fewer.class_names)
        assert {one.split("/")[0] for one in ids} == {"val"}


@pytest.mark.parametrize("write", [arrays, texts, images])
def test_a_split_that_serves_as_the_test_split_is_no_validation_split(
    write: Any, tmp_path: Path
) -> None:
    spec = write(tmp_path)
    if write is arrays:
        with np.load(spec) as found:
            kept = {name: found[name] for name in found.files if "validation" not in name}
        np.savez(spec, **kept)
    for path in tmp_path.glob("test*"):
        path.rename(path.with_name("put away"))
    with pytest.raises(InputError, match="data with a validation split"):
        scoped(load_data(spec), Scope(validation="own"))


def test_damage_in_a_validation_split_that_is_not_used_harms_nothing(tmp_path: Path) -> None:
    spec = texts(tmp_path)
    (tmp_path / "valid.jsonl").write_text("no json")
    assert len(scoped(load_data(spec), Scope()).train) == 12
    with pytest.raises(InputError, match="to be one JSON object"):
        scoped(load_data(spec), Scope(validation="own"))


def test_the_own_split_of_a_data_set_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {
        name: Table({"text": [f"{name} {i}" for i in range(size)], "label": [0, 1] * (size // 2)})
        for name, size in (("train", 8), ("validation", 4), ("test", 6))
    }
    library(monkeypatch, tables)
    own = scoped(load_data("hf:news"), Scope(validation="own"))
    assert [len(split) for split in (own.train, held(own), own.test)] == [8, 4, 6]
    assert held(own).inputs(torch.tensor([0])) == ["validation 0"]
