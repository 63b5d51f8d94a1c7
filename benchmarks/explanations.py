"""Experiments that test why a study comes out other than the paper.

    python benchmarks/explanations.py samples --out benchmarks/results/explanations/samples.json

- samples: whether a small student of ELODI errs less or more than an untreated net, by how many
  training samples there are. A thousand are learnt by heart, and an ensemble's answers are a
  remedy; of ten thousand there is more to learn than a small net holds.
- rounding: how much two runs churn that differ by rounding alone, one in float32 and one in
  float64, with the same first weights and order and no augmentation; beside runs of two seeds, with
  augmentation and without. A CPU repeats a run bit for bit, and other hardware does not.
- order: the same of two runs that see their samples in one order, which is drawn anew for every
  epoch, or is that of the first epoch in all of them.
- bound: what the SKL regulariser does to errors and logits, as printed and with probabilities
  raised by a little under the logarithm, which gives it a bound.

Finished runs in `--work` are not trained again.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flipguard.data import load_data
from flipguard.runs.config import Seeds, Source, from_dict
from flipguard.runs.folder import Run, read_lines
from flipguard.runs.history import HISTORY
from flipguard.training import train
from flipguard.training.batches import BatchSource
from flipguard.training.checkpoint import load_model
from flipguard.training.evaluate import logits_on

# Training samples, epochs, and the net.
SAMPLES = (
    (1_000, 100, "mlp:hidden=64"),
    (10_000, 30, "mlp:hidden=64"),
    (10_000, 30, "mlp:hidden=32"),
)


def error_of(out: Path, values: dict[str, Any]) -> float:
    """The test error of a run, which is trained unless it is there."""
    began = (out / "run.json").exists()
    run = train(from_dict(values), out, resume=began, report=lambda _: None)
    return float(read_lines(run.folder / HISTORY)[-1]["test"]["error_rate"])


def samples(given: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for count, epochs, model in SAMPLES:
        for seed in range(given.seeds):
            found = {}
            for method, options in (("none", {}), ("elodi", {"members": 8, "alpha": 0.8})):
                place = given.work / f"{count}-{model.replace(':', '_')}" / str(seed) / method
                values = {
                    "method": method,
                    "data": f"mnist1d:train={count},test=10000",
                    "model": model,
                    "options": options,
                    "recipe": {
                        "epochs": epochs,
                        "learning_rate": 2e-2,
                        "augment": "shift-scale-noise",
                    },
                    "seeds": {"seed": seed},
                    "machine": {
                        "device": "cpu",
                        "threads": 1,
                        "measure_every": epochs,
                        "fuse": "on",
                    },
                }
                found[method] = error_of(place, values)
            rows.append({"samples": count, "model": model, "epochs": epochs, "seed": seed, **found})
            print(rows[-1], flush=True)
    return rows


def rounding(given: argparse.Namespace) -> list[dict[str, Any]]:
    ways = {  # augmentation, and whether the second run has another seed
        "another seed, with augmentation": ("shift-scale-noise", True),
        "another seed, without augmentation": ("none", True),
        "the same seed, without augmentation, in float64": ("none", False),
    }
    place = given.work / f"rounding-{given.epochs}"
    rows = []
    for way, how in ways.items():
        for seed in range(given.seeds):
            rows.append({"way": way, "seed": seed, **two_runs(given, place, seed, *how)})
            print(rows[-1], flush=True)
    return rows


def order(given: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for of, drawn in (("an order for every epoch", anew), ("one order for all epochs", once)):
        Seeds.of = drawn  # type: ignore[method-assign,assignment]
        place = given.work / f"order-{given.epochs}" / of.replace(" ", "_")
        for way, another in (("another seed", True), ("the same seed, in float64", False)):
            for seed in range(given.seeds):
                found = two_runs(given, place, seed, "none", another)
                rows.append({"way": f"{way}, {of}", "seed": seed, **found})
                print(rows[-1], flush=True)
    return rows


anew = Seeds.of


def once(seeds: Seeds, source: Source, *place: int) -> int:
    """The seed of a source; of the order, that of the first epoch in all of them."""
    return anew(seeds, source, *((0,) if source == "order" else place))


def two_runs(
    given: argparse.Namespace, place: Path, seed: int, augment: str, another: bool
) -> dict[str, float]:
    """How much two runs churn of which one has another seed or is in float64, and how they err."""
    says, errors = [], []
    second = (seed + 100, "32-true") if another else (seed, "64-true")
    for number, kind in ((seed, "32-true"), second):
        values = {
            "method": "none",
            "data": "mnist1d:train=1000,test=10000",
            "model": "mlp:hidden=192,depth=2",
            "recipe": {
                "epochs": given.epochs,
                "learning_rate": 2e-2,
                "weight_decay": 0.3,
                "augment": augment,
            },
            "seeds": {"seed": number},
            "machine": {
                "device": "cpu",
                "threads": 1,
                "measure_every": given.epochs,
                "precision": kind,
            },
        }
        out = place / f"{augment}-{number}-{kind}"
        errors.append(error_of(out, values))
        says.append(logits_of(out))
    one, other = (torch.softmax(logits.double(), 1) for logits in says)
    apart = one / one.amax(1, keepdim=True) - other / other.amax(1, keepdim=True)
    return {
        "error_rate": sum(errors) / len(errors),
        "churn": float((one.argmax(1) != other.argmax(1)).double().mean()),
        "surrogate_churn": float(apart.abs().sum(1).mean() / 2),
    }


def bound(given: argparse.Namespace) -> list[dict[str, Any]]:
    ways: dict[str, tuple[str, dict[str, float]]] = {"untreated": ("none", {})}
    for alpha in (0.01, 0.05, 0.35):
        for floor in (0.0, 1e-7, 1e-3):
            ways[f"alpha {alpha:g}, floor {floor:g}"] = ("skl", {"alpha": alpha, "floor": floor})
    rows = []
    for way, (method, options) in ways.items():
        for seed in range(given.seeds):
            values = {
                "method": method,
                "data": "mnist1d:train=1000,test=10000",
                "model": "mlp:hidden=192,depth=2",
                "options": options,
                "recipe": {
                    "epochs": given.epochs,
                    "learning_rate": 2e-2,
                    "weight_decay": 0.3,
                    "augment": "shift-scale-noise",
                },
                "seeds": {"seed": seed},
                "machine": {"device": "cpu", "threads": 1, "measure_every": given.epochs},
            }
            out = given.work / f"bound-{given.epochs}" / f"{way}-{seed}".replace(" ", "_")
            error = error_of(out, values)
            size = float(logits_of(out).square().mean().sqrt())
            rows.append({"way": way, "seed": seed, "error_rate": error, "logits": size})
            print(rows[-1], flush=True)
    return rows


def logits_of(out: Path) -> Tensor:
    """The logits that a finished run gives to the test samples."""
    run = Run.read(out)
    data = load_data(run.config.data)
    material = BatchSource(data.test, device=torch.device("cpu"), model=run.config.model)
    return logits_on(load_model(run), material)


EXPERIMENTS = {"samples": samples, "rounding": rounding, "order": order, "bound": bound}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("/tmp/flipguard-explanations"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=100, help="of all but `samples`")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = EXPERIMENTS[given.experiment](given)
    document = {
        "command": f"python benchmarks/explanations.py {given.experiment} "
        f"--seeds {given.seeds} --epochs {given.epochs} --out FILE",
        "machine": {
            "device": f"a core ({platform.machine()} CPU)",
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "rows": rows,
    }
    given.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
