"""Prediction files, policies and samples that the evidence cases read: the same from a seed."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet

SEED = 20
CLASSES = ("cat", "dog", "bird", "fox", "owl")
MORE = (*CLASSES, "wolf", "été")
MODELS = ("old", "new", "c1", "c2", "c3")
Table = dict[str, list[Any]]


def write_inputs(folder: Path) -> None:
    """Write all of them into an empty folder."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(SEED)
    for name, rows, ids in (("text", 1200, "text"), ("int", 900, "int"), ("few", 40, "text")):
        models = _models(rng, rows, ids, CLASSES)
        for model in MODELS:
            _write_looks(folder, f"{name}_{model}", models[model])
        _write_variants(folder, name, models, rng)
    growing = _models(rng, 700, "int", MORE)
    _write(folder / "grown_new.parquet", _wide(growing["new"], "logits"))
    _write(folder / "grown_old.parquet", _wide(_without(growing["old"], len(CLASSES)), "logits"))
    _write(folder / "grown_old.csv", _labels(_without(growing["old"], len(CLASSES))))
    _write_dense(folder, rng)
    _write_bad(folder)
    _write_policies(folder)
    _write_samples(folder)


class _Model(dict[str, Any]):
    """One model's predictions: ids, targets, groups and logits by class."""


def _models(
    rng: np.random.Generator, rows: int, ids: str, classes: Sequence[str]
) -> dict[str, _Model]:
    count = len(classes)
    target = rng.integers(0, count, rows)
    user = rng.integers(0, max(rows // 8, 5), rows)
    hard = rng.normal(0, 0.7, rows) + rng.normal(0, 0.7, user.max() + 1)[user]
    shared = rng.normal(0, 1.0, (rows, count))
    common: dict[str, Any] = {
        "id": [f"s-{i:05d}" if ids == "text" else int(i) * 3 + 1 for i in range(rows)],
        "target": [classes[i] for i in target],
        "site": rng.choice(["north", "south", "east"], rows, p=[0.6, 0.3, 0.1]).tolist(),
        "weather": rng.choice(["rain", "clear"], rows).tolist(),
        "user": [f"u{i}" for i in user],
        "classes": tuple(classes),
    }
    models = {}
    for model, skill in zip(MODELS, (2.0, 2.3, 2.0, 2.1, 1.9), strict=True):
        logits = 0.9 * shared + rng.normal(0, 0.7, (rows, count))
        logits[np.arange(rows), target] += skill - hard
        models[model] = _Model(**common, logits=np.round(logits, 3).astype(np.float32))
    return models


def _taken(model: _Model, places: Sequence[int]) -> _Model:
    taken: dict[str, Any] = {
        key: value if key == "classes" else [value[i] for i in places]
        for key, value in model.items()
        if key != "logits"
    }
    return _Model(**taken, logits=model["logits"][list(places)])


def _without(model: _Model, classes: int) -> _Model:
    return _Model(
        model, classes=model["classes"][:classes], logits=model["logits"][:, :classes].copy()
    )


def _groups(model: _Model) -> Table:
    return {name: list(model[name]) for name in ("site", "weather", "user")}


def _label_of(model: _Model) -> list[str]:
    return [model["classes"][i] for i in model["logits"].argmax(1)]


def _labels(model: _Model) -> Table:
    return {
        "id": list(model["id"]),
        "target": list(model["target"]),
        "label": _label_of(model),
        **_groups(model),
    }


def _scores(model: _Model, kind: str) -> np.ndarray:
    logits: np.ndarray = model["logits"]
    if kind == "logits":
        return logits
    powers = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def _wide(model: _Model, kind: str) -> Table:
    prefix = "logit" if kind == "logits" else "probability"
    columns = _scores(model, kind).T
    return {
        "id": list(model["id"]),
        "target": list(model["target"]),
        **_groups(model),
        **{
            f"{prefix}_{name}": column.tolist()
            for name, column in zip(model["classes"], columns, strict=True)
        },
    }


def _write_looks(folder: Path, name: str, model: _Model) -> None:
    _write(folder / f"{name}_labels.csv", _labels(model))
    _write(folder / f"{name}_labels.jsonl", _labels(model))
    _write(folder / f"{name}_logits.parquet", _wide(model, "logits"))
    _write(folder / f"{name}_logits.csv", _wide(model, "logits"))
    _write(folder / f"{name}_probabilities.parquet", _wide(model, "probabilities"))
    _write(folder / f"{name}_probabilities.arrow", _wide(model, "probabilities"))
    arrays = {
        "ids": np.array(model["id"]),
        "targets": np.array(model["target"]),
        "class_names": np.array(model["classes"]),
        **{key: np.array(value) for key, value in _groups(model).items()},
    }
    np.savez(folder / f"{name}_logits.npz", logits=model["logits"], **arrays)
    without = {key: value for key, value in arrays.items() if key != "ids"}
    np.savez(folder / f"{name}_noids.npz", logits=model["logits"], **without)


def _write_variants(
    folder: Path, name: str, models: Mapping[str, _Model], rng: np.random.Generator
) -> None:
    new, rows = models["new"], len(models["new"]["id"])
    shuffled = _taken(new, rng.permutation(rows).tolist())
    _write(folder / f"{name}_shuffled.parquet", _wide(shuffled, "logits"))
    _write(folder / f"{name}_shuffled.csv", _labels(shuffled))
    kept = sorted(rng.permutation(rows)[: rows - rows // 12].tolist())
    _write(folder / f"{name}_missing.csv", _labels(_taken(new, kept)))
    _write(folder / f"{name}_missing.parquet", _wide(_taken(new, kept[::-1]), "logits"))
    for model in ("old", "new"):
        table = _labels(models[model])
        _write(folder / f"{name}_{model}_untargeted.csv", _but(table, "target"))
        some = [t if i % 3 else None for i, t in enumerate(table["target"])]
        _write(folder / f"{name}_{model}_partial.parquet", {**table, "target": some})
        renamed = {"id": "sample", "target": "truth", "label": "guess"}
        _write(
            folder / f"{name}_{model}_renamed.tsv",
            {renamed.get(key, key): column for key, column in table.items()},
        )
        own = [label if i % 9 else "dog" for i, label in enumerate(table["label"])]
        _write(
            folder / f"{name}_{model}_own.parquet",
            {**_wide(models[model], "logits"), "label": own},
        )
        _write(folder / f"{name}_{model}_labels.csv.gz", table)
        far = _Model(models[model], logits=models[model]["logits"] * 40)
        _write(folder / f"{name}_{model}_far.parquet", _wide(far, "logits"))
        sites = [site if i % 5 else None for i, site in enumerate(table["site"])]
        _write(folder / f"{name}_{model}_nulls.parquet", {**table, "site": sites})


def _write_dense(folder: Path, rng: np.random.Generator) -> None:
    """Classes that are 0 to 9, scores as arrays or lists."""
    models = _models(rng, 800, "int", [str(i) for i in range(10)])
    for model in MODELS:
        one = models[model]
        target = [int(name) for name in one["target"]]
        np.savez(folder / f"dense_{model}.npz", logits=one["logits"], targets=np.array(target))
        lists = {"id": list(one["id"]), "target": target, "logits": one["logits"].tolist()}
        _write(folder / f"dense_{model}.parquet", lists)
        _write(folder / f"dense_{model}.jsonl", lists)
        plain = {"id": list(one["id"]), "target": target, "label": [int(x) for x in _label_of(one)]}
        _write(folder / f"dense_{model}.csv", plain)


def _write_bad(folder: Path) -> None:
    good: Table = {"id": ["a", "b", "c"], "target": ["x", "y", "x"], "label": ["x", "y", "y"]}
    bad: dict[str, Table] = {
        "noid": _but(good, "id"),
        "nolabel": _but(good, "label"),
        "twice": {**good, "id": ["a", "a", "c"]},
        "other_targets": {**good, "target": ["y", "x", "x"]},
        "never_right": {**good, "label": ["q", "q", "q"]},
        "other_ids": {**good, "id": ["d", "e", "f"]},
        "no_rows": {key: [] for key in good},
        "nan": {**_but(good, "label"), "logit_x": [1.0, float("nan"), 2], "logit_y": [1, 2, 3.5]},
        "sums": {**_but(good, "label"), "probability_x": [0.5, 2, 0.1], "probability_y": [0.5] * 3},
    }
    _write(folder / "bad_good.csv", good)
    for name, table in bad.items():
        _write(folder / f"bad_{name}.csv", table)
    (folder / "bad_empty.csv").write_text("")
    (folder / "bad_ragged.csv").write_text("id,target,label\na,x,x\nb,y\nc,x,y,z\n")
    (folder / "bad_text.parquet").write_text("this is no parquet file")
    (folder / "bad_object.jsonl").write_text('{"id": "a", "label": "x"}\n[1, 2]\n')
    (folder / "bad_suffix.doc").write_text("id,label\na,x\n")
    (folder / "bad_array.npz").write_bytes(b"PK\x03\x04 nothing more")


def _write_policies(folder: Path) -> None:
    (folder / "pinned.txt").write_text("s-00003\ns-00010\ns-00025\n")
    policies = {
        "pass": '[[rule]]\nmetric = "negative_flip_rate"\nmax = 0.6\n',
        "fail": '[[rule]]\nmetric = "negative_flip_rate"\nmax = 0.001\n',
        "near": '[[rule]]\nmetric = "negative_flip_rate"\nmax = 0.09\n'
        '[[rule]]\nmetric = "accuracy_gain"\nmin = -0.01\nmax = 0.05\n',
        "groups": 'correction = "holm"\nconfidence = 0.9\n'
        '[[rule]]\nmetric = "negative_flip_rate"\nby = "target"\nmax = 0.12\nmin_n = 30\n'
        'correction = "holm"\n'
        '[[rule]]\nmetric = "accuracy_gain"\nby = "site"\nonly = ["north", "east"]\nmin = -0.02\n'
        'correction = "benjamini-hochberg"\n',
        "point": '[[rule]]\nmetric = "negative_flip_rate"\nmax = 0.0\njudge = "point"\n'
        '[[rule]]\nmetric = "churn"\nmax = 0.5\n',
        "pinned": '[[rule]]\nmetric = "churn"\nmax = 0.9\n[pinned]\nids = "pinned.txt"\n',
        "control": '[[rule]]\nmetric = "negative_flip_ratio"\nmax = 1.5\n'
        '[[rule]]\nmetric = "churn_ratio"\nmax = 0.9\n',
        "many": "".join(
            f'[[rule]]\nmetric = "{name}"\nmax = {limit}\n'
            for name, limit in (
                ("relative_negative_flip_rate", 0.9),
                ("negative_flip_impact", 0.5),
                ("error_rate_new", 0.3),
                ("churn", 0.25),
            )
        ),
        "bad_metric": '[[rule]]\nmetric = "negative_flips"\nmax = 0.1\n',
        "bad_toml": "[[rule]\nmetric = \n",
        "bad_key": '[[rule]]\nmetric = "churn"\nmaximum = 0.1\n',
        "bad_none": "confidence = 0.9\n",
        "bad_limit": '[[rule]]\nmetric = "churn"\nmax = 20\n',
        "bad_pinned": '[pinned]\nids = "nowhere.txt"\n',
    }
    for name, text in policies.items():
        (folder / f"{name}.toml").write_text(text)


def _write_samples(folder: Path) -> None:
    """Texts and small images to show in the report."""
    rng = np.random.default_rng(SEED + 1)
    ids = [f"s-{i:05d}" for i in range(1200)]
    words = ["red", "green", "old", "new", "sign", "tree", "<b>", "night"]
    _write(
        folder / "samples.csv",
        {"id": ids, "text": [" ".join(rng.choice(words, 6)) for _ in ids]},
    )
    images = rng.integers(0, 256, (len(ids), 8, 8), dtype=np.uint8)
    np.savez(folder / "samples.npz", ids=np.array(ids), images=images)
    # Data to train on: vectors and small images.
    targets = rng.integers(0, 4, 300)
    vectors = (rng.normal(0, 1, (300, 12)) + targets[:, None]).astype(np.float32)
    np.savez(folder / "vectors.npz", inputs=vectors, targets=targets)
    pixels = rng.integers(0, 200, (240, 3, 8, 8)) + 12 * targets[:240, None, None, None]
    np.savez(folder / "pixels.npz", inputs=pixels.astype(np.uint8), targets=targets[:240])


def _but(table: Table, column: str) -> Table:
    return {key: values for key, values in table.items() if key != column}


def _write(path: Path, table: Table) -> None:
    kind = path.name.removesuffix(".gz").rsplit(".", 1)[-1]
    if kind in ("csv", "tsv"):
        _write_text(path, table, "," if kind == "csv" else "\t")
    elif kind == "jsonl":
        rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    elif kind == "parquet":
        pa.parquet.write_table(pa.table(table), path)
    else:
        pa.feather.write_feather(pa.table(table), path, compression="uncompressed")


def _write_text(path: Path, table: Table, separator: str) -> None:
    with (
        gzip.open(path, "wt", encoding="utf-8", newline="")
        if path.suffix == ".gz"
        else path.open("w", encoding="utf-8", newline="")
    ) as file:
        writer = csv.writer(file, delimiter=separator, lineterminator="\n")
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))
