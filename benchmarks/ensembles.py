"""What an ensemble and its student cost, in plain trainings of the same net.

    python benchmarks/ensembles.py --out benchmarks/results/ensembles.json            # on a GPU
    python benchmarks/ensembles.py --device cpu --nets mlp --out FILE                 # MNIST-1D

ELODI trains m members and then a student that asks them at every step. Ways to do it:

- plain: one training of the net, eager, bf16, channels last: the unit of the table;
- published: as published research code does: fp32, channels first, members one by one, teachers
  one by one and with gradients on;
- loop: the same in bf16 and channels last, teachers without gradients;
- fused: members as one network, teachers as one network without normalisations;
- fused, one order: the same, where all members see the same batches;
- fused, captured: members compiled and replayed as a CUDA graph, teachers and student compiled;
- all captured: the student's step too is replayed, which `flipguard train` does not do yet.

Only time is measured, on random images that lie on the device: a few steps to warm up, then some
that are timed, extrapolated to all. A row is written as soon as it is there.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flipguard.fusion import CapturedStep, FusedMean, fuse
from flipguard.fusion.folding import folded
from flipguard.losses import LogitDifferenceInhibition
from flipguard.models import build_model
from flipguard.training.config import Config, Recipe
from flipguard.training.workshop import Together, optimizer_of

CLASSES, ALPHA = 100, 0.8
BATCHES = {"resnet20": 512, "resnet56": 1024, "resnet18": 512, "vit": 512, "mlp": 100}
Step = Callable[[Tensor, Tensor], None]


class Bench:
    """One net on one device: makes models, batches and steps, and times them."""

    def __init__(self, net: str, given: argparse.Namespace) -> None:
        self.net, self.members, self.given = net, given.members, given
        self.device = torch.device(given.device)
        self.shape = (40,) if net == "mlp" else (3, 32, 32)
        self.batch = given.batch or BATCHES[net]
        self.config = Config(recipe=Recipe(optimizer="sgd", learning_rate=0.01, momentum=0.9))

    def model(self, seed: int, *, last: bool = True) -> nn.Module:
        if self.net == "vit":
            import timm

            sizes = {"img_size": 32, "patch_size": 4, "depth": 6, "embed_dim": 192, "num_heads": 3}
            torch.manual_seed(seed)
            model = timm.create_model("vit_tiny_patch16_224", num_classes=CLASSES, **sizes)
        else:
            model = build_model(self.net, classes=CLASSES, input_shape=self.shape, seed=seed)
        layout = torch.channels_last if last and self.net != "mlp" else torch.contiguous_format
        return model.to(self.device).to(memory_format=layout).train()

    def inputs(self, *axes: int, last: bool = True) -> tuple[Tensor, Tensor]:
        drawn = torch.randn(*axes, self.batch, *self.shape, device=self.device)
        if last and drawn.dim() == 4:
            drawn = drawn.contiguous(memory_format=torch.channels_last)
        target = torch.randint(0, CLASSES, (*axes, self.batch), device=self.device)
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
        rounds = []
        for _ in range(self.given.rounds):
            self.wait()
            began = time.perf_counter()
            for _ in range(self.given.steps):
                step(*batch)
            self.wait()
            rounds.append((time.perf_counter() - began) / self.given.steps * 1000)
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

    # A student, with whatever its teachers are.

    def student(
        self, teach: Callable[[Tensor], Tensor], *, half: bool, compiled: bool, captured: bool
    ) -> float:
        model = self.model(100, last=half)
        if compiled:
            model.compile()
        optimizer = self.optimizer(model)
        pull = LogitDifferenceInhibition(None)

        def step(inputs: Tensor, target: Tensor) -> None:
            with self.autocast(half):
                says = teach(inputs)
                logits = model(inputs)
                loss = (1 - ALPHA) * F.cross_entropy(logits, target)
                loss = loss + ALPHA * pull(new=logits, reference=says)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return self.milliseconds(CapturedStep(step) if captured else step, self.inputs(last=half))

    def looped_teachers(self, *, half: bool) -> Callable[[Tensor], Tensor]:
        models = [self.model(seed, last=half).eval() for seed in range(self.members)]

        def teach(inputs: Tensor) -> Tensor:
            # As published: gradients are on, and thrown away.
            with torch.no_grad() if half else nullcontext():
                found = torch.stack([model(inputs).float() for model in models]).mean(0)
            return found.detach()

        return teach

    def fused_teachers(self, *, compiled: bool) -> Callable[[Tensor], Tensor]:
        example = torch.zeros(2, *self.shape, device=self.device)
        models = [folded(self.model(seed).eval(), example) for seed in range(self.members)]
        mean = FusedMean(fuse(models, example=example).eval().requires_grad_(False))
        mean = mean.to(self.device)
        if compiled:
            mean.compile()

        def teach(inputs: Tensor) -> Tensor:
            with torch.no_grad():
                found: Tensor = mean(inputs)
            return found

        return teach

    # Members as one network.

    def together(self, *, shared: bool, captured: bool) -> float:
        """Milliseconds of a step of all members."""
        models = [self.model(seed) for seed in range(self.members)]
        fused = fuse(models, example=torch.zeros(2, *self.shape))
        trainee = Together(fused, 0.0).train()
        optimizer = optimizer_of(self.config, fused, self.device, captured)
        if captured:
            fused.compile()

        def step(inputs: Tensor, target: Tensor) -> None:
            with self.autocast(True):
                losses = trainee(inputs, target)
            losses.sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        batch = self.inputs() if shared else self.inputs(self.members)
        return self.milliseconds(CapturedStep(step) if captured else step, batch)

    def rows(self) -> Iterator[dict[str, Any]]:
        unit = self.alone(half=True)
        m = self.members

        def row(way: str, member: float, student: float) -> dict[str, Any]:
            steps = self.given.epochs * (self.given.samples // self.batch)
            return {
                "net": self.net,
                "way": way,
                "batch": self.batch,
                "members": m,
                "member_step_ms": round(member, 4),
                "student_step_ms": round(student, 4),
                "trainings": round((m * member + student) / unit, 3),
                "elodi_seconds": round((m * member + student) * steps / 1000, 1),
                "plain_seconds": round(unit * steps / 1000, 1),
            }

        yield {**row("plain", unit, 0.0), "trainings": 1.0, "elodi_seconds": None}
        plain = {"compiled": False, "captured": False}
        if "published" in self.given.ways:
            teach = self.looped_teachers(half=False)
            alone = self.alone(half=False)
            yield row("published", alone, self.student(teach, half=False, **plain))
        if "loop" in self.given.ways:
            teach = self.looped_teachers(half=True)
            yield row("loop", unit, self.student(teach, half=True, **plain))
        if "fused" in self.given.ways:
            student = self.student(self.fused_teachers(compiled=False), half=True, **plain)
            yield row("fused", self.together(shared=False, captured=False) / m, student)
            yield row("fused, one order", self.together(shared=True, captured=False) / m, student)
        if "captured" in self.given.ways and self.device.type == "cuda":
            members = self.together(shared=False, captured=True) / m
            teach = self.fused_teachers(compiled=True)
            student = self.student(teach, half=True, compiled=True, captured=False)
            yield row("fused, captured", members, student)
            student = self.student(teach, half=True, compiled=True, captured=True)
            yield row("all captured", members, student)
            shared = self.together(shared=True, captured=True) / m
            yield row("all captured, one order", shared, student)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--nets", nargs="+", choices=list(BATCHES))
    parser.add_argument("--ways", nargs="+", default=["published", "loop", "fused", "captured"])
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--warm-up", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--samples", type=int, default=50_000)
    given = parser.parse_args()
    on_cuda = given.device == "cuda"
    torch.backends.cudnn.benchmark = True
    machine = {
        "device": torch.cuda.get_device_name() if on_cuda else f"{platform.machine()} CPU",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    rows: list[dict[str, Any]] = []
    print(f"{'net':10} {'way':24} {'ms member':>10} {'ms student':>11} {'trainings':>10} {'s':>9}")
    for net in given.nets or (["resnet20", "resnet56", "resnet18", "vit"] if on_cuda else ["mlp"]):
        try:
            for row in Bench(net, given).rows():
                rows.append({**row, **machine})
                given.out.write_text(json.dumps(rows, indent=1) + "\n")
                print(
                    f"{net:10} {row['way']:24} {row['member_step_ms']:10.3f} "
                    f"{row['student_step_ms']:11.3f} {row['trainings']:10.2f} "
                    f"{row['elodi_seconds'] or row['plain_seconds']:9.1f}",
                    flush=True,
                )
        except Exception as problem:  # what one net cannot do, the others may
            rows.append({"net": net, "problem": f"{type(problem).__name__}: {problem}", **machine})
            given.out.write_text(json.dumps(rows, indent=1) + "\n")
            print(f"{net:10} stopped by {type(problem).__name__}: {problem}", flush=True)


if __name__ == "__main__":
    main()
