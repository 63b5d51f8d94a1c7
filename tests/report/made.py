"""Updates to report on: predictions in memory and in files, and run folders, all generated."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from flipguard import Comparison, Policy, Predictions, Verdict, check, compare, write_predictions

CLASSES = ("stop", "yield", "speed_30", "speed_50", "no_entry", "priority")
SITES = ("north", "south", "east")
POLICY = """\
[[rule]]
metric = "negative_flip_rate"
max = 0.03

[[rule]]
metric = "accuracy_gain"
min = -0.05

[[rule]]
metric = "negative_flip_rate"
by = "target"
max = 0.2
min_n = 10
correction = "holm"
"""


def models(
    n: int = 900, *, seed: int = 0, names: Sequence[str] = ("old", "new", "control")
) -> dict[str, Predictions]:
    """Models of one recipe on the same samples; `south` breaks under the second of them."""
    rng = np.random.default_rng(seed)
    target = rng.integers(0, len(CLASSES), n)
    site = rng.integers(0, len(SITES), n)
    shared = rng.normal(size=(n, len(CLASSES))) + 3.2 * np.eye(len(CLASSES))[target]
    found = {}
    for place, name in enumerate(names):
        logits = shared + 0.8 * rng.normal(size=(n, len(CLASSES)))
        if place == 1:
            logits[site == 1] += rng.normal(size=((site == 1).sum(), len(CLASSES)))
        found[name] = Predictions.from_arrays(
            ids=[f"s{i:05d}" for i in range(n)],
            targets=[CLASSES[i] for i in target],
            logits=logits.astype(np.float32),
            class_names=CLASSES,
            slices={"site": [SITES[i] for i in site]},
            name=name,
        )
    return found


def judged(n: int = 900, **more: object) -> tuple[Comparison, Verdict]:
    """A comparison with groups and a control, and the verdict on it."""
    made = models(n)
    result = compare(
        old=made["old"], new=made["new"], control=made["control"], by=["target", "site"]
    )
    return result, check(result, Policy.from_dict(policy()))


def policy() -> dict[str, object]:
    import tomllib

    return tomllib.loads(POLICY)


def written(folder: Path, n: int = 900, **more: object) -> dict[str, Path]:
    """The same as files, with a policy."""
    places = {}
    for name, predictions in models(n).items():
        places[name] = folder / f"{name}.parquet"
        write_predictions(predictions, places[name])
    places["policy"] = folder / "gate.toml"
    places["policy"].write_text(POLICY)
    return places


def write_run(
    folder: Path,
    predictions: Predictions | None,
    *,
    method: str = "none",
    old: Sequence[str] = (),
    status: str = "finished",
    epochs: int = 4,
    losses: Mapping[str, float] | None = None,
) -> Path:
    """A run folder as training writes it, without training."""
    folder.mkdir(parents=True)
    config = {
        "method": method,
        "model": "mlp",
        "data": "mnist1d",
        "old": list(old),
        "seeds": {"seed": 3},
    }
    document = {"schema": "flipguard.run/1", "status": status, "config": config, "parameters": 1234}
    (folder / "run.json").write_text(json.dumps(document))
    rows, times = [], []
    for epoch in range(1, epochs + 1):
        rates = {"negative_flip_rate": 0.4 / epoch, "positive_flip_rate": 0.1, "churn": 0.5 / epoch}
        measured = {"error_rate": 0.9 / epoch, "old": dict.fromkeys(old, rates)}
        row = {"epoch": epoch, "losses": dict(losses or {"task": 2.0 / epoch})}
        rows.append(row | {"train": measured, "test": measured})
        times.append({"epoch": epoch, "seconds": 1.5, "samples_a_second": 1000 * epoch})
    for name, lines in (("history.jsonl", rows), ("timing.jsonl", times)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    if predictions is not None:
        (folder / "predictions").mkdir()
        write_predictions(predictions, folder / "predictions" / "test.npz")
    return folder


def write_runs(folder: Path) -> dict[str, Path]:
    """An old run, a control and two candidates that name it."""
    made = models(400, names=("old", "control", "fd-lm", "kd"))
    found = {"old": write_run(folder / "old", made["old"])}
    for name in ("control", "fd-lm", "kd"):
        method = "none" if name == "control" else name
        losses = {"task": 1.0} if name == "control" else {"task": 1.0, "pull": 0.5}
        found[name] = write_run(
            folder / name, made[name], method=method, old=[str(folder / "old")], losses=losses
        )
    return found


def write_images(folder: Path, ids: Sequence[str], *, side: int = 32) -> Path:
    """A picture an id."""
    from PIL import Image

    folder.mkdir()
    rng = np.random.default_rng(1)
    for name in ids:
        pixels = rng.integers(0, 255, (side, side, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{name}.png")
    return folder


def many(
    n: int, flips: int, *, classes: int = 10, seed: int = 0
) -> tuple[Predictions, Predictions]:
    """A large update with that many flips of all three kinds, with scores."""
    rng = np.random.default_rng(seed)
    target = rng.integers(0, classes, n)
    old, new = target.copy(), target.copy()
    chosen = rng.permutation(n)[:flips]
    negative, positive, both = np.array_split(chosen, 3)
    new[negative] = (target[negative] + 1 + rng.integers(0, classes - 1, len(negative))) % classes
    old[positive] = (target[positive] + 1 + rng.integers(0, classes - 1, len(positive))) % classes
    old[both], new[both] = (target[both] + 1) % classes, (target[both] + 2) % classes
    site = rng.integers(0, 12, n)

    def made(labels: np.ndarray, name: str) -> Predictions:
        logits = rng.normal(scale=0.3, size=(n, classes)).astype(np.float32)
        logits[np.arange(n), labels] += 3.0
        return Predictions.from_arrays(
            ids=[f"sample-{i:07d}" for i in range(n)],
            targets=target,
            logits=logits,
            slices={"site": [f"site-{i:02d}" for i in site]},
            name=name,
        )

    return made(old, "old"), made(new, "new")
