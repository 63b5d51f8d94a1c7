"""Two real processes with DistributedDataParallel, one of which sees only classes new to old."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from flipguard.losses import BackwardCompatible, FocalDistillation, SharedClasses

CLASSES, OLD_CLASSES, WIDTH, SAMPLES = 6, 4, 8, 12
SHARED = SharedClasses.by_index([0, 1, 2, 3, -1, -1], old_count=OLD_CLASSES)
ROOT = Path(__file__).resolve().parents[2]


class Student(nn.Module):
    """Features and a head, and a loss term that has a parameter."""

    def __init__(self, old_head: nn.Linear) -> None:
        super().__init__()
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.compatible = BackwardCompatible(old_head, width=WIDTH, classes=SHARED)

    def forward(self, x, old, target):
        features = torch.tanh(self.body(x))
        logits = self.head(features)
        pull = FocalDistillation(distance="kl", temperature=2.0, classes=SHARED)
        return (
            F.cross_entropy(logits, target)
            + pull(new=logits, old=old, target=target)
            + self.compatible(new_features=features, target=target)
        )


def everything() -> tuple[Student, torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    student = Student(nn.Linear(WIDTH // 2, OLD_CLASSES))
    x, old = torch.randn(2, SAMPLES, WIDTH), torch.randn(2, SAMPLES, OLD_CLASSES)
    target = torch.stack(
        [torch.randint(CLASSES, (SAMPLES,)), torch.randint(OLD_CLASSES, CLASSES, (SAMPLES,))]
    )
    return student, x, old, target


def worker(folder: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    student, x, old, target = everything()
    model = DistributedDataParallel(student)
    for _ in range(2):  # the second step hangs or raises if a parameter had no gradient
        model.zero_grad()
        model(x[rank], old[rank], target[rank]).backward()
    torch.save({n: p.grad for n, p in student.named_parameters()}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()
    # At once: on a busy machine a thread of the group may outlive it, and then ends the process.
    sys.stdout.flush()
    os._exit(0)


def test_unused_old_classes_do_not_stop_two_processes(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node=2",
            "--master-addr=127.0.0.1",
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=127.0.0.1:0",
            __file__,
            str(tmp_path),
        ],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    student, x, old, target = everything()
    (sum(student(x[i], old[i], target[i]) for i in range(2)) / 2).backward()
    for name, parameter in student.named_parameters():
        torch.testing.assert_close(first[name], second[name], rtol=0, atol=0)
        torch.testing.assert_close(first[name], parameter.grad)
    assert "compatible.projection.weight" in first
    assert not any("compatible.weight" in name for name in student.state_dict())


def test_a_batch_of_new_classes_alone_is_pulled_by_the_base_weight_only():
    student, x, old, target = everything()
    logits = student.head(torch.tanh(student.body(x[1])))
    inputs = {"new": logits, "old": old[1], "target": target[1]}
    assert FocalDistillation(classes=SHARED)(**inputs).item() > 0
    pull = FocalDistillation(base=0.0, classes=SHARED)(**inputs)
    assert pull.item() == 0
    pull.backward()
    assert student.head.weight.grad.abs().sum() == 0


if __name__ == "__main__":
    worker(sys.argv[1])
