"""One batch for every loss, on any device: torch alone, so that it also runs where that is all."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from flipguard.losses import (
    BackwardCompatible,
    BayesianImitation,
    CoDistillation,
    EntropyRegularizer,
    FocalDistillation,
    KnowledgeDistillation,
    LogitDifferenceInhibition,
    Muscle,
    NaiveCongruence,
    NewError,
    RegressionAlleviating,
    SharedClasses,
    StrictImitation,
    UniformDivergence,
)

SAMPLES, CLASSES = 48, 20
# Old lacks the first two classes and has the others in reverse.
GROWN = SharedClasses.by_index([-1, -1, *range(CLASSES - 3, -1, -1)], old_count=CLASSES - 2)


class Batch:
    """What a training step has: new's logits, old's, targets, features."""

    def __init__(self, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        made = torch.Generator().manual_seed(5)
        new = torch.randn(SAMPLES, CLASSES, generator=made, dtype=torch.float64) * 2
        old = new + torch.randn(SAMPLES, CLASSES, generator=made, dtype=torch.float64)
        target = torch.where(
            torch.rand(SAMPLES, generator=made) < 0.6,
            old.argmax(-1),
            torch.randint(CLASSES, (SAMPLES,), generator=made),
        )
        target[:2] = -100
        self.new = new.to(device=device, dtype=dtype).requires_grad_()
        self.old = old.to(device=device, dtype=dtype)
        self.target = target.to(device)
        mixed = torch.softmax(torch.randn(SAMPLES, CLASSES, generator=made), -1)
        self.soft = mixed.to(device)

    @property
    def grown_old(self) -> Tensor:
        return self.old[..., 2:]


def _head(batch: Batch) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Linear(CLASSES, CLASSES).to(batch.new.device)


def _confusions(batch: Batch) -> dict[str, Tensor]:
    # Both mostly right; old less so, and so is sometimes overruled.
    width, like = batch.new.shape[-1], {"device": batch.new.device, "dtype": torch.float32}
    right = torch.eye(width, **like)
    return {
        "old_confusion": right * 0.5 + 0.5 / width,
        "new_confusion": right * 0.9 + 0.1 / width,
    }


Case = Callable[[Batch], tuple[nn.Module, dict[str, Tensor]]]


def with_old(term: Callable[[], nn.Module]) -> Case:
    return lambda batch: (term(), {"new": batch.new, "old": batch.old, "target": batch.target})


def with_reference(term: Callable[[], nn.Module]) -> Case:
    return lambda batch: (term(), {"new": batch.new, "reference": batch.old})


CASES: dict[str, Case] = {
    "naive": with_old(NaiveCongruence),
    "new-error": with_old(NewError),
    "strict-imitation": with_old(StrictImitation),
    "fd-lm": with_old(FocalDistillation),
    "fd-kl": with_old(lambda: FocalDistillation(distance="kl")),
    "fd-kl-reverse": with_old(lambda: FocalDistillation(distance="kl", preset="paper")),
    "fd-negative-flip": with_old(lambda: FocalDistillation(filter="negative_flip")),
    "fd-soft": lambda batch: (
        FocalDistillation(),
        {"new": batch.new, "old": batch.old, "target": batch.soft},
    ),
    "fd-growth": lambda batch: (
        FocalDistillation(distance="kl", classes=GROWN),
        {"new": batch.new, "old": batch.grown_old, "target": batch.target},
    ),
    "kd": with_reference(lambda: KnowledgeDistillation(temperature=4.0)),
    "ldi": with_reference(LogitDifferenceInhibition),
    "ldi-all": with_reference(lambda: LogitDifferenceInhibition(k=None)),
    "ldi-both": lambda batch: (
        LogitDifferenceInhibition(k=3, rank_by="both", p=1.5, margin=0.1, focus=2.0),
        {"new": batch.new, "reference": batch.old, "target": batch.target},
    ),
    "entropy": lambda batch: (EntropyRegularizer(), {"new": batch.new}),
    "entropy-top": lambda batch: (EntropyRegularizer(k=5), {"new": batch.new}),
    "uniform": lambda batch: (UniformDivergence(), {"new": batch.new}),
    "uniform-floored": lambda batch: (UniformDivergence(floor=1e-7), {"new": batch.new}),
    "uniform-top": lambda batch: (UniformDivergence(k=5), {"new": batch.new}),
    "codistill-skl": lambda batch: (CoDistillation(), {"first": batch.new, "second": batch.old}),
    "codistill-l1": lambda batch: (
        CoDistillation(kind="l1"),
        {"first": batch.new, "second": batch.old},
    ),
    "codistill-ce": lambda batch: (
        CoDistillation(kind="ce"),
        {"first": batch.new, "second": batch.old},
    ),
    "muscle": lambda batch: (
        Muscle(),
        {"new": batch.new, "old": batch.old, "target": batch.target, "control": batch.old * 0.5},
    ),
    "bu-cr": lambda batch: (
        BayesianImitation(**_confusions(batch)),
        {"new": batch.new, "old": batch.old},
    ),
    "bct": lambda batch: (
        BackwardCompatible(_head(batch)),
        {"new_features": batch.new, "target": batch.target},
    ),
    "ract": lambda batch: (
        RegressionAlleviating(),
        {"new_features": batch.new, "old_features": batch.old, "target": batch.target},
    ),
}


def value_and_gradient(term: Callable[..., Tensor], batch: Batch, inputs: dict[str, Tensor]):
    """The loss, and its gradient for new's logits or features."""
    value = term(**inputs)
    (gradient,) = torch.autograd.grad(value, batch.new)
    return value.detach(), gradient
