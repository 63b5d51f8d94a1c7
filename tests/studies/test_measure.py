"""What a study measures with numpy alone is what `flipguard compare` says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import flipguard as fg
from flipguard.archives import write_npz
from flipguard.errors import InputError
from flipguard.studies.measure import OWN, measured
from flipguard.studies.study import DEFAULT_METRICS

NAMES = [name for name in DEFAULT_METRICS if name not in OWN] + ["positive_flip_rate", "mcnemar_p"]


def written(
    folder: Path, ids: np.ndarray, classes: list[str], targets: np.ndarray, seed: int
) -> Path:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(len(ids), len(classes))).astype(np.float32)
    logits[np.arange(len(ids)), targets] += 1.5
    (folder / "predictions").mkdir(parents=True)
    path = folder / "predictions" / "test.npz"
    write_npz(path, ids=ids, targets=targets, logits=logits, class_names=classes)
    return folder


def compared(old: Path, new: Path, **more: str) -> dict[str, float]:
    files = [fg.read_predictions(folder / "predictions" / "test.npz") for folder in (old, new)]
    result = fg.compare(old=files[0], new=files[1], **more)  # type: ignore[arg-type]
    return {name: result[name].value for name in NAMES}


def test_runs_of_the_same_data(tmp_path: Path) -> None:
    targets = np.random.default_rng(0).integers(0, 4, 700)
    classes = ["ant", "bee", "cat", "dog"]
    old = written(tmp_path / "old", np.arange(700), classes, targets, 1)
    new = written(tmp_path / "new", np.arange(700), classes, targets, 2)
    found = measured([old], [new], [*NAMES, *OWN])
    assert found.pop("accuracy") == pytest.approx(1 - found["error_rate_new"])
    with np.load(new / "predictions" / "test.npz") as file:
        shares = torch.from_numpy(file["logits"]).double().softmax(1)
    entropy = torch.distributions.Categorical(shares).entropy().mean()
    # Like all metrics, it is computed in the precision of the logits.
    assert found["entropy_new"] == pytest.approx(float(entropy), rel=1e-7)
    assert found == pytest.approx(compared(old, new), rel=1e-9)


def test_old_knew_fewer_classes_and_so_fewer_samples(tmp_path: Path) -> None:
    targets = np.random.default_rng(0).integers(0, 4, 600)
    known = np.flatnonzero(targets < 2)
    old = written(tmp_path / "old", known, ["bee", "ant"], 1 - targets[known], 1)
    new = written(tmp_path / "new", np.arange(600), ["ant", "bee", "cat", "dog"], targets, 2)
    found = measured([old], [new], NAMES)
    assert found == pytest.approx(compared(old, new, on_missing="drop"), rel=1e-9)
    assert found["error_rate_new"] > 0


def test_runs_without_a_sample_in_common(tmp_path: Path) -> None:
    targets = np.zeros(5, dtype=np.int64)
    old = written(tmp_path / "old", np.arange(5), ["a", "b"], targets, 1)
    new = written(tmp_path / "new", np.arange(5, 10), ["a", "b"], targets, 2)
    with pytest.raises(InputError, match="test samples in common"):
        measured([old], [new], NAMES)


def test_a_side_of_several_runs_is_the_mean_of_their_logits(tmp_path: Path) -> None:
    targets = np.random.default_rng(0).integers(0, 3, 200)
    classes = ["ant", "bee", "cat"]
    runs = [
        written(tmp_path / str(seed), np.arange(200), classes, targets, seed) for seed in range(4)
    ]
    mean = tmp_path / "mean"
    (mean / "predictions").mkdir(parents=True)
    logits = []
    for run in runs[1:]:
        with np.load(run / "predictions" / "test.npz") as file:
            logits.append(file["logits"].astype(np.float64))
    write_npz(
        mean / "predictions" / "test.npz",
        ids=np.arange(200),
        targets=targets,
        logits=np.mean(logits, axis=0),
        class_names=classes,
    )
    together = measured(runs[:1], runs[1:], NAMES)
    assert together == pytest.approx(measured(runs[:1], [mean], NAMES), rel=1e-6)
