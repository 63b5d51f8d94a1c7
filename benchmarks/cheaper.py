"""What ELODI costs, and what each way to pay less gives up.

    python benchmarks/cheaper.py --data mnist1d --out benchmarks/results/cheaper_mnist1d.json
    python benchmarks/cheaper.py --data cifar100 --data-root DIR \
        --out benchmarks/results/cheaper_cifar100.json

Every seed has two old models of its own, on a seed that no update has: one untreated, and one that
ELODI trained with eight members. All updates are held against both. None but `reuse=4` is told
about an old model while it is trained, so its price is not in the seconds. `reuse=4` is the second
update of a chain: four of its eight members are those of the old model that ELODI trained, with
that model's net and data; the price of those was paid by the update before.

Seconds are of the members, of storing views, and of the student with all that is around it. Members
that several ways share are trained once a seed and counted to each of them. The unit is the
untreated update of the same seed. On a CPU a run has one thread and seconds are of the processor,
which others on the machine disturb less; on a GPU they are of the wall, so use `--at-once 1` there.

A row is written as soon as it is there; rows that are there are not measured again.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import hashlib
import json
import multiprocessing
import os
import platform
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flipguard.data import load_data
from flipguard.demo import NEW, OLD, RECIPE
from flipguard.runs.config import from_dict
from flipguard.runs.folder import Run
from flipguard.training import train
from flipguard.training.batches import BatchSource
from flipguard.training.checkpoint import load_model
from flipguard.training.devices import cores
from flipguard.training.evaluate import logits_on
from flipguard.training.stored_views import ViewPlan
from flipguard.training.strategies import MemberPlan

MEMBERS, ALPHA = 8, 0.8
UNTREATED, TREATED = "untreated", "elodi"  # the two old models
Seconds = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is learned, by which nets and how."""

    data: str  # while training
    judged: str  # what rates are measured on
    old: str
    new: str
    recipe: dict[str, Any]
    epochs: int
    seeds: int
    old_samples: float  # the share of the training samples that old saw
    preset: str | None = None


TASKS = {
    # The nets and the recipe of the demo, with other epochs. Only 100 test samples are measured
    # while training: more take as long as an epoch, and all ways would seem to cost the same.
    "mnist1d": Task(
        data="mnist1d:train=1000,test=100",
        judged="mnist1d:train=1000,test=10000",
        old=OLD,
        new=NEW,
        recipe=RECIPE,
        epochs=100,
        seeds=10,
        old_samples=1.0,  # the update is a larger net
    ),
    "cifar100": Task(
        data="cifar100",
        judged="cifar100",
        old="resnet20",
        new="resnet20",
        recipe={"batch_size": 512},
        epochs=30,
        seeds=3,
        old_samples=0.5,  # the update is more samples
        preset="cifar-short",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to an update: its method, and the members that it finds finished."""

    name: str
    method: str = "elodi"
    options: dict[str, Any] = field(default_factory=dict)
    members: int = 0  # trained before it, and counted to it
    fuse: str = "on"
    from_treated: bool = False


def ways(epochs: int) -> list[Way]:
    """All ways, those first that others are measured by."""
    few, more = max(epochs // 10, 2), max(epochs // 4, 2)
    found = [
        Way(name="none", method="none"),
        Way(name="ensemble", method="ensemble", options={"members": MEMBERS}, members=MEMBERS),
        _elodi("fused", MEMBERS),
        _elodi(f"views={few}", MEMBERS, views=few),
        _elodi("members=4", 4),
        _elodi(f"members=4, views={few}", 4, views=few),
        _elodi("members=2", 2),
        dataclasses.replace(
            _elodi("reuse=4", MEMBERS, reuse=4), members=MEMBERS - 4, from_treated=True
        ),
        dataclasses.replace(_elodi("one by one", MEMBERS), fuse="off"),
    ]
    if more > few:  # else it would find what the other has stored
        found.insert(4, _elodi(f"views={more}", MEMBERS, views=more))
    return found


def _elodi(name: str, members: int, **options: Any) -> Way:
    options = {"members": members, "alpha": ALPHA, **options}
    return Way(name=name, options=options, members=members)


class OneSeed:
    """Trains and measures the ways of one seed."""

    def __init__(self, seed: int, given: argparse.Namespace) -> None:
        self.seed, self.given, self.task = seed, given, TASKS[given.data]
        self.folder: Path = given.work / str(seed)
        self.on_cpu = given.device == "cpu"
        self.clock: Callable[[], float] = time.process_time if self.on_cpu else time.monotonic

    # What is trained.

    def values(self, method: str, options: dict[str, Any], **more: Any) -> dict[str, Any]:
        given = self.given
        return {
            "method": method,
            "options": options,
            "data": self.task.data,
            "data_root": given.data_root,
            "model": given.model,
            "recipe": {
                "preset": self.task.preset,
                **self.task.recipe,
                "epochs": given.epochs,
            },
            "scope": {"samples": given.samples, "per_class": False},
            "seeds": {"seed": self.seed},
            **more,
        }

    def machine(self, method: str, fuse: str) -> dict[str, Any]:
        if self.on_cpu:
            return {"device": "cpu", "threads": self.given.threads, "fuse": fuse}
        # Rates are measured here, after the last epoch.
        measured = {"measure_every": self.given.epochs}
        on_gpu = {"device": self.given.device, "precision": "bf16-mixed", **measured}
        if method == "none":
            # The unit of the table is a plain training, every step of which the host starts.
            return {**on_gpu, "cuda_graphs": "off"}
        return {**on_gpu, "compile": self.given.compile, "fuse": fuse}

    def old(self, kind: str) -> Path:
        """An old model, trained if it is not there yet."""
        out = self.folder / f"old-{kind}" / "run"
        if not _is_finished(out):
            treated = kind == TREATED
            options = {"members": MEMBERS, "alpha": ALPHA} if treated else {}
            values = self.values(
                "elodi" if treated else "none",
                options,
                model=self.given.old_model,
                scope={"samples": self.given.samples * self.given.old_samples, "per_class": False},
                # Nobody keeps the seed that an old model was trained with.
                seeds={"seed": (2000 if treated else 1000) + self.seed},
            )
            self.timed_training(values, out, fuse="on")
        return out

    def members(self, count: int, fuse: str) -> tuple[Path, Seconds]:
        """A folder in which so many members are finished, and what they took."""
        folder = self.folder / f"{count}-{fuse}"
        record = folder / "seconds.json"
        if not record.exists():
            shutil.rmtree(folder, ignore_errors=True)
            values = self.values("ensemble", {"members": count})
            spent = self.timed_training(values, folder / "ensemble", fuse=fuse)
            record.write_text(json.dumps(spent))
        found: Seconds = json.loads(record.read_text())
        return folder, found

    def trained(self, way: Way) -> tuple[Path, Seconds]:
        """The update of a way, and what it took with all that it needs."""
        place, members = self.folder / way.name, {"members": 0.0, "total": 0.0}
        if way.members:
            place, members = self.members(way.members, way.fuse)
        if way.method == "ensemble":
            whole = {"members": members["total"], "views": 0.0, "student": 0.0}
            return place / "ensemble", {**whole, "total": members["total"]}
        out = place / way.name.replace(" ", "-")
        shutil.rmtree(place / "views", ignore_errors=True)  # or they would be found
        old = {"old": [str(self.old(TREATED))]} if way.from_treated else {}
        values = self.values(way.method, way.options, **old)
        spent = self.timed_training(values, out, fuse=way.fuse)
        # What it took to find that they are finished is not what they took.
        spent["total"] += members["members"] - spent["members"]
        spent["members"] = members["members"]
        return out, spent

    def timed_training(self, values: dict[str, Any], out: Path, *, fuse: str) -> Seconds:
        """Trains a run from its beginning, and says where the time went."""
        shutil.rmtree(out, ignore_errors=True)
        spent = {"members": 0.0, "views": 0.0}
        began = self.clock()
        with (
            _timed(MemberPlan, "run", self.clock, spent, "members"),
            _timed(ViewPlan, "stored", self.clock, spent, "views"),
        ):
            config = from_dict({**values, "machine": self.machine(values["method"], fuse)})
            train(config, out, report=lambda _: None)
        total = self.clock() - began
        return {**spent, "student": total - sum(spent.values()), "total": total}

    def warm_up(self) -> None:
        """What only the first training of a process has to wait for."""
        values = self.values("none", {})
        values["recipe"]["epochs"] = 1
        self.timed_training(values, self.folder / "warm-up", fuse="off")

    # What is measured.

    @cached_property
    def test(self) -> BatchSource:
        root = self.given.data_root
        data = load_data(self.task.judged, root=None if root is None else Path(root))
        device = torch.device(self.given.device)
        return BatchSource(data.test, device=device, model=self.given.model)

    @cached_property
    def olds(self) -> dict[str, Tensor]:
        """What the old models answer."""
        return {kind: self.answers(self.old(kind)) for kind in (UNTREATED, TREATED)}

    def answers(self, run: Path) -> Tensor:
        model = load_model(Run.read(run)).to(self.test.device)
        return logits_on(model, self.test).argmax(1)

    def row(self, way: Way, unit: float | None) -> dict[str, Any]:
        """A way, measured; `unit` is what the untreated update took, unless this is it."""
        began = time.monotonic()
        out, spent = self.trained(way)
        wall = time.monotonic() - began
        new, target = self.answers(out), self.test.targets
        return {
            "way": way.name,
            "seed": self.seed,
            "method": way.method,
            "options": way.options,
            "error_rate_new": _share(new != target),
            "old": {kind: _against(old, new, target) for kind, old in self.olds.items()},
            "seconds": {name: round(value, 2) for name, value in spent.items()},
            "trainings": round(spent["total"] / (unit or spent["total"]), 3),
            "at_once": self.given.at_once,
            # Of this row alone: how long it took, and how much else the machine had to do.
            "wall_seconds": round(wall, 1),
            "load": round(os.getloadavg()[0], 1),
        }


@contextmanager
def _timed(
    owner: Any, name: str, clock: Callable[[], float], into: Seconds, key: str
) -> Iterator[None]:
    """While it lasts, what a function takes is added to the seconds."""
    whole = getattr(owner, name)

    def timing(*args: Any, **named: Any) -> Any:
        began = clock()
        try:
            return whole(*args, **named)
        finally:
            into[key] += clock() - began

    setattr(owner, name, timing)
    try:
        yield
    finally:
        setattr(owner, name, whole)


def _is_finished(run: Path) -> bool:
    return (run / "run.json").exists() and Run.read(run).finished


def _share(mask: Tensor) -> float:
    return round(mask.double().mean().item(), 5)


def _against(old: Tensor, new: Tensor, target: Tensor) -> dict[str, float]:
    return {
        "error_rate_old": _share(old != target),
        "negative_flip_rate": _share((old == target) & (new != target)),
        "churn": _share(old != new),
    }


# Seeds side by side, and one file for all.


def one_seed(seed: int, given: argparse.Namespace) -> None:
    """All ways of a seed that are not in the file yet."""
    done = {row["way"]: row for row in rows_of(given.out) if row["seed"] == seed}
    wanted = [way for way in ways(given.epochs) if way.name not in done]
    if given.ways:
        wanted = [way for way in wanted if way.name in ("none", *given.ways)]
    if not wanted:
        return
    torch.backends.cudnn.benchmark = True
    if given.device != "cpu":  # the threads of which are set run by run
        torch.set_num_threads(max(cores() // given.at_once, 1))
    bench = OneSeed(seed, given)
    bench.warm_up()
    for way in wanted:
        try:
            unit = done.get("none", {}).get("seconds", {}).get("total")
            row = bench.row(way, unit)
        except Exception:  # what one way cannot do, the others may
            print(f"seed {seed}, {way.name} stopped:", flush=True)
            traceback.print_exc()
            if way.name == "none":
                return  # there is nothing to measure the others by
            continue
        done[way.name] = row
        add(row, given)
        told = "  ".join(f"{name} {value:.1f} s" for name, value in row["seconds"].items())
        print(
            f"seed {seed}  {way.name:22} error {row['error_rate_new']:.2%}  NFR "
            f"{row['old'][UNTREATED]['negative_flip_rate']:.2%} and "
            f"{row['old'][TREATED]['negative_flip_rate']:.2%}  {told}  "
            f"{row['trainings']:.2f} trainings",
            flush=True,
        )
    shutil.rmtree(bench.folder)


def rows_of(out: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(out.read_text())["rows"] if out.exists() else []
    return rows


def add(row: dict[str, Any], given: argparse.Namespace) -> None:
    """Writes the file anew with one row more; processes take turns."""
    given.work.mkdir(parents=True, exist_ok=True)
    with (given.work / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        order = [way.name for way in ways(given.epochs)]
        rows = [*rows_of(given.out), row]
        rows.sort(key=lambda one: (one["seed"], order.index(one["way"])))
        document = {**described(given), "rows": rows}
        part = given.out.with_suffix(".part")
        part.write_text(json.dumps(document, indent=1) + "\n")
        part.replace(given.out)


def described(given: argparse.Namespace) -> dict[str, Any]:
    """Where and how the rows were measured."""
    on_cpu = given.device == "cpu"
    threads = f"{given.threads} of {os.cpu_count()} cores" if given.threads else "all cores"
    named = [f"--data {given.data}"] + ["--data-root DIR"] * (given.data_root is not None)
    named += ["--out FILE", f"--seeds {given.seeds} --epochs {given.epochs}"]
    named += [f"--at-once {given.at_once}"]
    named += [f"--compile {given.compile}"] * (given.compile != "off")
    task = TASKS[given.data]
    for name, told, usual in (
        ("model", given.model, task.new),
        ("old-model", given.old_model, task.old),
        ("samples", given.samples, 1.0),
        ("old-samples", given.old_samples, task.old_samples),
    ):
        named += [f"--{name} {told}"] * (told != usual)
    return {
        "command": f"python benchmarks/cheaper.py {' '.join(named)}",
        "machine": {
            "device": threads if on_cpu else torch.cuda.get_device_name(),
            "seconds": "of the processor" if on_cpu else "of the wall",
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "settings": settings_of(given),
    }


def settings_of(given: argparse.Namespace) -> dict[str, Any]:
    """What rows of one file have in common."""
    task = TASKS[given.data]
    return {
        "data": given.data,
        "judged": task.judged,
        "old_model": given.old_model,
        "model": given.model,
        "preset": task.preset,
        "recipe": {**task.recipe, "epochs": given.epochs},
        "samples": given.samples,
        "old_samples": given.old_samples,
        "members": MEMBERS,
        "alpha": ALPHA,
        "compile": given.compile,
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", choices=list(TASKS), required=True)
    parser.add_argument("--data-root")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model")
    parser.add_argument("--old-model")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--samples", type=float, default=1.0, help="share of the training samples")
    parser.add_argument("--old-samples", type=float, help="share of those that old saw")
    parser.add_argument("--ways", nargs="+", help="only these, and the untreated update")
    parser.add_argument("--at-once", type=int, default=1, help="seeds side by side")
    parser.add_argument("--threads", type=int, help="of a run on a CPU")
    parser.add_argument("--compile", choices=("off", "parts", "whole"), default="off")
    parser.add_argument("--device")
    parser.add_argument("--work", type=Path, help="where runs lie until their seed is measured")
    given = parser.parse_args()
    task = TASKS[given.data]
    small = given.data == "mnist1d"
    given.model, given.old_model = given.model or task.new, given.old_model or task.old
    given.seeds, given.epochs = given.seeds or task.seeds, given.epochs or task.epochs
    given.old_samples = given.old_samples or task.old_samples
    if given.device is None:
        given.device = "cuda" if torch.cuda.is_available() and not small else "cpu"
    if given.device == "cpu" and given.threads is None:
        given.threads = 1
    settings = json.dumps([settings_of(given), given.device], sort_keys=True)
    if given.work is None:
        name = f"flipguard-cheaper-{hashlib.sha256(settings.encode()).hexdigest()[:12]}"
        given.work = Path(tempfile.gettempdir()) / name
    if given.out.exists():
        was = json.loads(given.out.read_text())["settings"]
        if was != settings_of(given):
            parser.error(f"{given.out} holds rows of other settings: {was}")
    unknown = set(given.ways or ()) - {way.name for way in ways(given.epochs)}
    if unknown:
        known = ", ".join(repr(way.name) for way in ways(given.epochs))
        parser.error(f"no such ways: {', '.join(sorted(unknown))}; there are {known}")
    return given


def main() -> None:
    given = arguments()
    own = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.at_once, mp_context=own) as pool:
        for job in [pool.submit(one_seed, seed, given) for seed in range(given.seeds)]:
            job.result()


if __name__ == "__main__":
    main()
