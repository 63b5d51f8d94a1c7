"""What an ensemble and its student cost, in plain trainings of the same net.

    python benchmarks/ensembles.py --out benchmarks/results/ensembles.json            # on a GPU
    python benchmarks/ensembles.py --device cpu --nets mlp --out FILE                 # MNIST-1D

ELODI trains m members and then a student that asks them at every step. Ways to do it:

- plain: one training of the net, eager, bf16, channels last: the unit of the table;
- published: as published research code does: fp32, channels first, members one by one, teachers
  one by one and with gradients on;
- loop: the same in bf16 and channels last, teachers without gradients;
- one by one: members in turn, each compiled in parts and its step replayed as a CUDA graph, and
  the student's step with its teachers in one graph;
- fused: members as one network, teachers as one network without normalisations, groups of
  convolutions merged as this device likes it, steps replayed;
- fused, one order: the same, where all members see the same batches;
- fused, parts: fused, and what lies between convolutions compiled;
- fused, streams: and the members as two networks, each on its own stream;
- apart, streams: members four at a time, and all teachers, each on a stream of its own;
- stored views: as before it, but the student looks its teachers' answers up;
- side by side: on a CPU, as many members at a time as there are cores, each in a process with one
  thread, as `--fuse auto` does it.

Only time is measured, on random images that lie on the device: a few steps to warm up, then some
that are timed, extrapolated to all. What comes before the first timed step (making, proving,
measuring, compiling) is counted too, once, as `preparing_seconds`; `trainings_in_all` has it, for a
training of so many epochs. A row is written as soon as it is there.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flipguard.acceleration.cuda_graphs import CapturedStep
from flipguard.acceleration.regions import Compiling, compile_parts
from flipguard.fusion import fuse, tune
from flipguard.losses import LogitDifferenceInhibition
from flipguard.models import build_model
from flipguard.runs.config import Config, Recipe
from flipguard.training.teachers import FusedMean, fold_batch_norm
from flipguard.training.trainee import GroupTrainee, optimizer_of

ALPHA = 0.8
BATCHES = {"resnet20": 512, "resnet56": 1024, "resnet18": 512, "vit": 512, "mlp": 100}
Step = Callable[[Tensor, Tensor], None]
# How members are trained, and how the student is, of every way; what only one device can is below.
WAYS = {
    "published": ("fp32", "fp32"),
    "loop": ("plain", "loop"),
    "one by one": ("replayed", "in turn"),
    "fused": ("fused", "fused"),
    "fused, one order": ("fused, one order", "fused"),
    "fused, parts": ("fused, parts", "fused, parts"),
    "fused, streams": ("fused, streams", "fused, parts"),
    "apart, streams": ("apart, streams", "apart, streams"),
    "fused, stored views": ("fused, parts", "stored"),
    "fused, streams, stored views": ("fused, streams", "stored"),
    "apart, streams, stored views": ("apart, streams", "stored"),
    "side by side": ("side by side", "loop"),
}
ON_CPU = ("loop", "fused", "fused, one order", "published", "side by side")
STREAMS, APART = 2, 4


class Bench:
    """One net on one device: makes models, batches and steps, and times them."""

    def __init__(self, net: str, given: argparse.Namespace) -> None:
        self.net, self.members, self.given = net, given.members, given
        self.device = torch.device(given.device)
        # MNIST-1D's, and CIFAR-100's.
        self.shape, self.classes = ((40,), 10) if net == "mlp" else ((3, 32, 32), 100)
        self.batch = given.batch or BATCHES[net]
        self.config = Config(recipe=Recipe(optimizer="sgd", learning_rate=0.01, momentum=0.9))
        self.known: dict[tuple[str, str], tuple[float, float]] = {}
        self.prepared = 0.0  # seconds before timed steps, of what is at hand
        self.since = time.perf_counter()

    def model(self, seed: int, *, last: bool = True) -> nn.Module:
        if self.net == "vit":
            import timm

            sizes = {"img_size": 32, "patch_size": 4, "depth": 6, "embed_dim": 192, "num_heads": 3}
            torch.manual_seed(seed)
            model = timm.create_model("vit_tiny_patch16_224", num_classes=self.classes, **sizes)
        else:
            model = build_model(self.net, classes=self.classes, input_shape=self.shape, seed=seed)
        layout = torch.channels_last if last and self.net != "mlp" else torch.contiguous_format
        return model.to(self.device).to(memory_format=layout).train()

    def inputs(self, *axes: int, last: bool = True) -> tuple[Tensor, Tensor]:
        drawn = torch.randn(*axes, self.batch, *self.shape, device=self.device)
        if last and drawn.dim() == 4:
            drawn = drawn.contiguous(memory_format=torch.channels_last)
        target = torch.randint(0, self.classes, (*axes, self.batch), device=self.device)
        return drawn, target

    def autocast(self, half: bool) -> AbstractContextManager[Any]:
        if not half or self.device.type == "cpu":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        fused = True if self.device.type == "cuda" else None
        return torch.optim.SGD(
            model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=fused
        )

    def milliseconds(self, step: Step, batch: tuple[Tensor, Tensor]) -> float:
        """The median of some rounds of steps, each round waited for once."""
        for _ in range(self.given.warm_up):
            step(*batch)
        self.wait()
        self.prepared += time.perf_counter() - self.since
        rounds = []
        for _ in range(self.given.rounds):
            self.wait()
            began = time.perf_counter()
            for _ in range(self.given.steps):
                step(*batch)
            self.wait()
            rounds.append((time.perf_counter() - began) / self.given.steps * 1000)
        self.since = time.perf_counter()
        return statistics.median(rounds)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    # One model, alone.

    def alone(self, *, half: bool) -> float:
        model = self.model(0, last=half)
        optimizer = self.optimizer(model)

        def step(inputs: Tensor, target: Tensor) -> None:
            with self.autocast(half):
                loss = F.cross_entropy(model(inputs), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return self.milliseconds(step, self.inputs(last=half))

    # One model, replayed; alone, or a student with whatever its teachers are.

    def student(
        self,
        teach: Callable[[Tensor, Tensor], Tensor] | None,
        *,
        half: bool = True,
        compiled: Compiling = "off",
        captured: bool = True,
    ) -> float:
        model = self.model(100, last=half)
        if compiled == "parts":
            compile_parts(model)
        optimizer = self.optimizer(model)
        pull = LogitDifferenceInhibition(k=None)

        def step(inputs: Tensor, target: Tensor) -> None:
            with self.autocast(half):
                logits = model(inputs)
                loss = F.cross_entropy(logits, target)
                if teach is not None:
                    says = teach(inputs, target)
                    loss = (1 - ALPHA) * loss + ALPHA * pull(new=logits, reference=says)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        replayed = captured and self.device.type == "cuda"
        return self.milliseconds(CapturedStep(step) if replayed else step, self.inputs(last=half))

    def looped_teachers(self, *, half: bool) -> Callable[[Tensor, Tensor], Tensor]:
        models = [self.model(seed, last=half).eval() for seed in range(self.members)]

        def teach(inputs: Tensor, _: Tensor) -> Tensor:
            # As published: gradients are on, and thrown away.
            with torch.no_grad() if half else nullcontext():
                found = torch.stack([model(inputs).float() for model in models]).mean(0)
            return found.detach()

        return teach

    def folded_members(self) -> list[nn.Module]:
        example = torch.zeros(2, *self.shape, device=self.device)
        return [fold_batch_norm(self.model(seed).eval(), example) for seed in range(self.members)]

    def teachers_in_turn(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Each by itself, without normalisations, compiled in parts."""
        models = self.folded_members()
        for model in models:
            compile_parts(model)

        @torch.no_grad()
        def teach(inputs: Tensor, _: Tensor) -> Tensor:
            return torch.stack([model(inputs).float() for model in models]).mean(0)

        return teach

    def fused_teachers(
        self, *, compiled: Compiling, apart: bool = False
    ) -> Callable[[Tensor, Tensor], Tensor]:
        example = torch.zeros(2, *self.shape, device=self.device)
        fused = fuse(
            self.folded_members(),
            example=example,
            streams=APART if apart else 1,
            networks=self.members if apart else 1,
        )
        mean = FusedMean(fused.eval().requires_grad_(False)).to(self.device)
        tune(fused, self.inputs()[0], lambda: self.autocast(True))
        if compiled == "parts":
            compile_parts(fused)

        @torch.no_grad()
        def teach(inputs: Tensor, _: Tensor) -> Tensor:
            found: Tensor = mean(inputs)
            return found

        return teach

    def stored_views(self) -> Callable[[Tensor, Tensor], Tensor]:
        """A table of answers on the device; the targets stand for where the samples are."""
        table = torch.randn(
            self.given.samples, self.classes, device=self.device, dtype=torch.float16
        )
        return lambda _, places: table.index_select(0, places).float()

    # Members in processes.

    def side_by_side(self) -> float:
        """Milliseconds a member, where every core trains one."""
        cores = len(os.sched_getaffinity(0))
        own = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(cores, mp_context=own) as pool:
            list(pool.map(_alone, [(self.net, self.given)] * cores))  # starts them
            took = list(pool.map(_alone, [(self.net, self.given)] * cores))
        self.since = time.perf_counter()
        return statistics.mean(took) / cores

    # Members as one network.

    def together(
        self,
        *,
        shared: bool = False,
        compiled: Compiling = "parts",
        count: int = 0,
        streams: int = 1,
    ) -> float:
        """Milliseconds a member of a step of all members, or of so many."""
        count = count or self.members
        models = [self.model(seed) for seed in range(count)]
        fused = fuse(models, example=torch.zeros(2, *self.shape), streams=streams)
        trainee = GroupTrainee(fused, 0.0).train()
        batch = self.inputs() if shared else self.inputs(count)
        tune(fused, batch[0], lambda: self.autocast(True))
        captured = self.device.type == "cuda"
        optimizer = optimizer_of(self.config, *fused.decaying(), self.device, captured=captured)
        if compiled == "parts":
            compile_parts(fused)

        def step(inputs: Tensor, target: Tensor) -> None:
            with self.autocast(True):
                losses = trainee(inputs, target)["task"]
            losses.sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return self.milliseconds(CapturedStep(step) if captured else step, batch) / count

    # All of it.

    def member(self, how: str) -> float:
        """Milliseconds of a member's step."""
        ways: dict[str, Callable[[], float]] = {
            "plain": lambda: self.alone(half=True),
            "fp32": lambda: self.alone(half=False),
            "replayed": lambda: self.student(None, compiled="parts"),
            "fused": lambda: self.together(compiled="off"),
            "fused, one order": lambda: self.together(compiled="off", shared=True),
            "fused, parts": self.together,
            "fused, streams": lambda: self.together(streams=STREAMS),
            "apart, streams": lambda: self.together(count=APART, streams=APART),
            "side by side": self.side_by_side,
        }
        return ways[how]()

    def taught(self, how: str) -> float:
        """Milliseconds of a student's step, with its teachers."""
        parts: Compiling = "parts"
        if how in ("fp32", "loop"):
            half = how == "loop"
            return self.student(self.looped_teachers(half=half), half=half, captured=False)
        if how == "fused":
            return self.student(self.fused_teachers(compiled="off"))
        if how == "in turn":
            return self.student(self.teachers_in_turn(), compiled=parts)
        stored = how == "stored"
        apart = how == "apart, streams"
        teach = self.stored_views() if stored else self.fused_teachers(compiled=parts, apart=apart)
        return self.student(teach, compiled=parts)

    def once(self, kind: str, how: str) -> tuple[float, float]:
        """Milliseconds, and the seconds before; measured once, whatever is made from them."""
        if (kind, how) not in self.known:
            self.prepared, self.since = 0.0, time.perf_counter()
            took = self.member(how) if kind == "member" else self.taught(how)
            self.known[kind, how] = took, self.prepared
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        return self.known[kind, how]

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row a way; `preparing` is what it took before its first timed step."""
        m, steps = self.members, self.given.epochs * (self.given.samples // self.batch)
        unit, _ = self.once("member", "plain")

        def row(way: str, member: float, student: float, preparing: float) -> dict[str, Any]:
            milliseconds = m * member + student
            seconds = milliseconds * steps / 1000
            return {
                "net": self.net,
                "way": way,
                "batch": self.batch,
                "members": m,
                "epochs": self.given.epochs,
                "member_step_ms": round(member, 4),
                "student_step_ms": round(student, 4),
                "trainings": round(milliseconds / unit, 3),
                "preparing_seconds": round(preparing, 1),
                "trainings_in_all": round((seconds + preparing) / (unit * steps / 1000), 3),
                "seconds": round(seconds, 1),
            }

        yield row("plain", unit / m, 0.0, 0.0)
        on_gpu = self.device.type == "cuda"
        for way, (member, student) in WAYS.items():
            if way not in self.given.ways or (
                way == "side by side" if on_gpu else way not in ON_CPU
            ):
                continue
            try:
                trained, before = self.once("member", member)
                taught, before_student = self.once("student", student)
                if student.startswith("stored"):
                    # So many views are answered before, at the price that a student would pay.
                    asked = member if member.startswith("apart") else "fused, parts"
                    alone = self.once("student", "stored")[0]
                    with_answers, making = self.once("student", asked)
                    taught += (with_answers - alone) * self.given.views / self.given.epochs
                    before += making
                found = row(way, trained, taught, before + before_student)
                yield (
                    {**found, "views": self.given.views} if student.startswith("stored") else found
                )
            except Exception as problem:  # what one way cannot do, another may
                told = f"{type(problem).__name__}: {problem}"
                yield {"net": self.net, "way": way, "problem": told}


def _alone(given: tuple[str, argparse.Namespace]) -> float:
    torch.set_num_threads(1)
    return Bench(*given).alone(half=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--nets", nargs="+", choices=list(BATCHES))
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--warm-up", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--views", type=int, default=5, help="of a sample, that are stored")
    given = parser.parse_args()
    on_cuda = given.device == "cuda"
    torch.backends.cudnn.benchmark = True
    machine = {
        "device": torch.cuda.get_device_name() if on_cuda else f"{platform.machine()} CPU",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    rows: list[dict[str, Any]] = []
    nets = given.nets or (["resnet20", "resnet56", "resnet18", "vit"] if on_cuda else ["mlp"])
    told = f" --nets {' '.join(given.nets)}" if given.nets else ""
    command = f"python benchmarks/ensembles.py --device {given.device} --out FILE{told}"
    print(
        f"{'net':10} {'way':35} {'ms member':>10} {'ms student':>11} {'trainings':>10} "
        f"{'prepare s':>10} {'in all':>7}"
    )
    for net in nets:
        for row in Bench(net, given).rows():
            rows.append({**row, **machine})
            document = {"command": command, "rows": rows}
            given.out.write_text(json.dumps(document, indent=1) + "\n")
            if "problem" in row:
                print(f"{net:10} {row['way']:35} {row['problem'][:200]}", flush=True)
                continue
            print(
                f"{net:10} {row['way']:35} {row['member_step_ms']:10.3f} "
                f"{row['student_step_ms']:11.3f} {row['trainings']:10.2f} "
                f"{row['preparing_seconds']:10.1f} {row['trainings_in_all']:7.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
