"""Which settings of the methods break least, looked for on samples that no table is measured on.

    python benchmarks/settings.py --data cifar100 --data-root DIR --out FILE --epochs 40

Two independent trainings of one net on the same data, by each method with each of its settings:
the second is held against the first, as an update whose only change is its seed. A tenth of the
training samples is set aside to judge by, and the test samples are not looked at. Symmetric ways
are judged in both directions. Members are trained once and shared by all students of a side.

A row is written as soon as it is there; what is finished in `--work` is not trained again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import shlex
import time
import tomllib
import traceback
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flipguard.data import load_data
from flipguard.runs.config import from_dict
from flipguard.runs.folder import Run
from flipguard.training import train
from flipguard.training.batches import BatchSource
from flipguard.training.checkpoint import load_model
from flipguard.training.evaluate import logits_on

MEMBERS = 8
Options = dict[str, Any]
# Ways whose both sides are trained alike, and ways that follow the untreated first side.
ALIKE: dict[str, tuple[str, Options]] = {
    "none": ("none", {}),
    "ensemble": ("ensemble", {"members": MEMBERS}),
    **{
        f"elodi alpha={alpha:g}": ("elodi", {"members": MEMBERS, "alpha": alpha})
        for alpha in (0.5, 0.8, 0.9, 0.95, 0.99)
    },
    **{
        f"elodi alpha={alpha:g} sum": (
            "elodi",
            {"members": MEMBERS, "alpha": alpha, "class_reduction": "sum"},
        )
        for alpha in (0.1, 0.3, 0.8, 0.95)
    },
    "elodi alpha=0.8 k=10": ("elodi", {"members": MEMBERS, "alpha": 0.8, "k": 10}),
    **{f"entropy alpha={alpha:g}": ("entropy", {"alpha": alpha}) for alpha in (0.15, 0.3, 0.5)},
    **{f"skl alpha={alpha:g}": ("skl", {"alpha": alpha}) for alpha in (0.05, 0.1)},
    **{
        f"codistill-skl beta={beta:g}": ("codistill-skl", {"beta": beta})
        for beta in (0.04, 0.2, 0.5, 1.0, 1.5, 2.0, 3.0)
    },
    **{
        f"codistill-skl beta={beta:g} entropy {alpha:g}": (
            "codistill-skl",
            {"beta": beta, "plus": "entropy", "alpha": alpha},
        )
        for beta, alpha in ((0.5, 0.05), (1.0, 0.15), (3.0, 0.3))
    },
    **{
        f"codistill-ce beta={beta:g}": ("codistill-ce", {"beta": beta}) for beta in (0.04, 0.2, 0.5)
    },
}
AFTER: dict[str, tuple[str, Options]] = {
    **{f"fd-lm weight={weight:g}": ("fd-lm", {"weight": weight}) for weight in (0.05, 0.2, 1, 2)},
    "fd-lm weight=0.2 base=0": ("fd-lm", {"weight": 0.2, "base": 0.0}),
    **{f"fd-kl weight={weight:g}": ("fd-kl", {"weight": weight}) for weight in (0.2, 1.0)},
    "kd weight=0.2": ("kd", {"weight": 0.2}),
}
FIRST = ("none", "ensemble")


def set_aside(root: Path, name: str, into: Path) -> Path:
    """A folder with the data set, whose test samples are some of the training samples."""
    into.mkdir(parents=True, exist_ok=True)
    if not (into / f"{name}.npz").exists():
        whole = dict(np.load(root / f"{name}.npz"))
        order = np.random.default_rng(0).permutation(len(whole["y_train"]))
        apart = len(order) // 10
        for key in ("x", "y"):
            learned = whole[f"{key}_train"]
            whole[f"{key}_test"] = learned[order[:apart]]
            whole[f"{key}_train"] = learned[order[apart:]]
        np.savez(into / f"{name}.npz", **whole)
    return into


def one(side: str, way: str, given: argparse.Namespace) -> tuple[str, str, Tensor, float | None]:
    """Trains one side of a way, and says what it answers and how long it took."""
    if given.threads:
        torch.set_num_threads(given.threads)
    method, options = {**ALIKE, **AFTER}[way]
    if method == "elodi" and given.views:
        options = {**options, "views": min(given.views, given.epochs)}
    folder = given.work / side
    out = folder / way.replace(" ", "_")
    on_gpu = given.device != "cpu"
    values = {
        "method": method,
        "options": options,
        "data": given.data,
        "data_root": str(given.root),
        "model": given.model,
        "recipe": {"preset": given.preset, "epochs": given.epochs, "clip": given.clip}
        | ({"batch_size": 512} if on_gpu else {})
        | dict(given.recipe),
        "seeds": {"seed": int(side)},
        "old": [str(given.work / str(int(side) - 1) / "none")] if way in AFTER else [],
        "machine": {
            "device": given.device,
            "measure_every": given.epochs,
            "precision": "bf16-mixed" if on_gpu else "32-true",
            "compile": given.compile,
            "threads": given.threads,
        },
    }
    began = time.monotonic()
    found = (out / "run.json").exists()
    # A run of other settings in its place is refused.
    train(from_dict(values), out, resume=found, report=lambda _: None)
    took = None if found else time.monotonic() - began
    data = load_data(given.data, root=given.root)
    material = BatchSource(data.test, device=torch.device(given.device), model=given.model)
    model = load_model(Run.read(out)).to(material.device)
    return side, way, logits_on(model, material).argmax(1).cpu(), took


def judged(old: Tensor, new: Tensor, target: Tensor) -> dict[str, float]:
    """What is broken and what is other, of all samples."""
    return {
        "error_rate": (new != target).double().mean().item(),
        "negative_flip_rate": ((old == target) & (new != target)).double().mean().item(),
        "churn": (old != new).double().mean().item(),
    }


class Table:
    """What is there so far, in a file."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.answers, self.seconds = given, {}, {}
        self.target = load_data(given.data, root=given.root).test.targets
        self.rows: list[dict[str, Any]] = []

    def add(self, side: str, way: str, says: Tensor, took: float | None) -> None:
        self.answers[side, way], self.seconds[side, way] = says, took
        first, second = str(int(side) // 2 * 2), str(int(side) // 2 * 2 + 1)
        before = self.answers.get((first, "none" if way in AFTER else way))
        after = self.answers.get((second, way))
        if before is None or after is None:
            return
        found = [judged(before, after, self.target)]
        if way in ALIKE:
            found.append(judged(after, before, self.target))
        row = {name: round(float(np.mean([one[name] for one in found])), 5) for name in found[0]}
        method, options = {**ALIKE, **AFTER}[way]
        took = self.seconds[second, way]
        seconds = None if took is None else round(took, 1)  # beside others, as many as at once
        self.rows.append(
            {"way": way, "pair": int(first) // 2, "method": method, "options": options, **row}
            | {"seconds": seconds}
        )
        given = self.given
        document = {
            "command": f"python benchmarks/settings.py --data {given.data} --data-root DIR "
            f"--out FILE --model {given.model} --preset {given.preset} --epochs {given.epochs} "
            f"--pairs {given.pairs} --views {given.views} --at-once {given.at_once} "
            f"--compile {given.compile}"
            + (f" --clip {given.clip:g}" if given.clip else "")
            + "".join(f" --recipe {name}={value}" for name, value in given.recipe)
            + (f" --ways {shlex.join(given.ways)}" if given.ways else ""),
            "machine": {
                "device": torch.cuda.get_device_name() if given.device != "cpu" else "CPU",
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            "views": given.views,
            "rows": self.rows,
        }
        given.out.write_text(json.dumps(document, indent=1) + "\n")

    def show(self) -> None:
        """Means over the pairs, and their ratios to the untreated pair's."""
        ways = dict.fromkeys(row["way"] for row in self.rows)
        means = {
            way: {
                name: float(np.mean([row[name] for row in self.rows if row["way"] == way]))
                for name in ("error_rate", "negative_flip_rate", "churn")
            }
            for way in ways
        }
        control = means.get("none")
        print(f"{'way':40} {'error':>7} {'NFR':>7} {'ratio':>6} {'churn':>7} {'ratio':>6}")
        for way in [*ALIKE, *AFTER]:
            if way not in means:
                continue
            error, flips, churn = means[way].values()
            told = f"{way:40} {error:7.2%} {flips:7.2%}"
            if control is None:
                print(told)
                continue
            ratios = flips / control["negative_flip_rate"], churn / control["churn"]
            print(f"{told} {ratios[0]:6.2f} {churn:7.2%} {ratios[1]:6.2f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="cifar100")
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("/tmp/flipguard-settings"))
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--preset", default="cifar-short")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--views", type=int, default=5, help="stored for ELODI's students; 0: none")
    parser.add_argument("--ways", nargs="+", help="only these, and what they are held against")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--clip", type=float, help="the largest norm of a gradient")
    parser.add_argument("--recipe", action="append", type=_given, default=[], metavar="NAME=VALUE")
    parser.add_argument("--compile", choices=("off", "parts"), default="off")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    if unknown := [way for way in given.ways or () if way not in {**ALIKE, **AFTER}]:
        parser.error(f"--ways: there is no {unknown[0]!r}, but {', '.join([*ALIKE, *AFTER])}")
    given.threads = max((os.cpu_count() or 1) // given.at_once, 1)
    given.root = set_aside(given.data_root, given.data, given.work / "data")
    sides = [str(side) for side in range(2 * given.pairs)]
    wanted = [way for way in (*ALIKE, *AFTER) if not given.ways or way in given.ways]
    table = Table(given)

    def through(jobs: list[tuple[str, str]], pool: ProcessPoolExecutor) -> None:
        running: list[Future[Any]] = [pool.submit(one, side, way, given) for side, way in jobs]
        for job in as_completed(running):
            try:
                table.add(*job.result())
            except Exception:  # what one way cannot do, the others may
                traceback.print_exc()

    own = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.at_once, mp_context=own) as pool:
        first = [way for way in FIRST if way == "none" or way in wanted or _has_members(wanted)]
        through([(side, way) for way in reversed(first) for side in sides], pool)
        later = [way for way in wanted if way not in FIRST]
        # The first student of a side stores the answers that the others of it look up.
        storing = [way for way in later if way.startswith("elodi")][:1]
        through([(side, way) for way in storing for side in sides], pool)
        others = [way for way in later if way not in storing]
        through(
            [(side, way) for way in others for side in sides if way in ALIKE or int(side) % 2], pool
        )
    table.show()


def _given(text: str) -> tuple[str, Any]:
    """One value of the recipe, read as TOML does; what TOML cannot read is text."""
    name, _, value = text.partition("=")
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value


def _has_members(wanted: list[str]) -> bool:
    return any("members" in ALIKE[way][1] for way in wanted if way in ALIKE)


if __name__ == "__main__":
    main()
