"""Models and batches on which an objective is computed as in training, and compared with its paper.

A model here is a table: its parameters are its logits (or features), one row per sample. So the
gradient of a loss for a model's parameters is its gradient for that model's logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flipguard.losses import SharedClasses
from flipguard.methods import BuildContext, Objective, OldModelInfo, method_of
from flipguard.references import Ensemble, OldModel, StoredLogits
from flipguard.references.stored_logits import StoredViews, pack_logits
from flipguard.training.trainee import StudentTrainee
from tests.losses.transcription import Match, everything

CLASSES = 13
NEW_NAMES = tuple("abcdefghijklm")
# In another order; b, e and g are new, and x and y are gone.
OLD_NAMES = ("m", "x", "a", "c", "l", "d", "k", "f", "y", "h", "i", "j")
# The rows of the tables in the batch, and the places of its samples among the stored ones. Both are
# out of order, so that a test notices if one is used for the other.
ROWS = (4, 0, 7, 2, 8, 5, 1, 9)
PLACES = (3, 6, 0, 9, 1, 4, 8, 2)
SAMPLES = 10
STEPS = 200


class Table(nn.Module):
    """A model that has learned a row of logits for each sample."""

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.scores = nn.Parameter(scores.clone())

    def forward(self, inputs: Tensor) -> Tensor:
        return self.scores[inputs[:, 0].long()]


class Features(nn.Module):
    """A model that has learned a row of features for each sample, under a linear head."""

    def __init__(self, rows: Tensor, classes: int) -> None:
        super().__init__()
        self.rows = nn.Parameter(rows.clone())
        self.head = nn.Linear(rows.shape[1], classes, dtype=torch.float64)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.head(self.rows[inputs[:, 0].long()])
        return found


def net(seed: int) -> nn.Module:
    """A model with weights that several samples share."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = (nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, CLASSES))
        return nn.Sequential(*layers).double()


@dataclass(kw_only=True)
class Scene:
    """All models that a method may ask for, and one batch."""

    student: nn.Module
    twin: nn.Module
    olds: list[nn.Module]
    match: Match
    members: list[nn.Module]
    stored: Tensor
    views: Tensor
    held_out: list[tuple[Tensor, Tensor]]
    inputs: Tensor
    target: Tensor
    old_names: tuple[str, ...] = NEW_NAMES
    smoothing: float = 0.0

    def setting(self, options: Mapping[str, Any]) -> BuildContext:
        classes = None
        if self.old_names != NEW_NAMES:
            classes = SharedClasses.by_name(old=self.old_names, new=NEW_NAMES)
        return BuildContext(
            options=options,
            model=self.student,
            olds=tuple(
                OldModelInfo(name=f"old-{i}", reference=OldModel(old), model=old, classes=classes)
                for i, old in enumerate(self.olds)
            ),
            classes=CLASSES,
            steps=STEPS,
            label_smoothing=self.smoothing,
            new_model=lambda _: self.twin,
            members=lambda: Ensemble(self.members),
            stored=lambda _: StoredLogits(self.stored),
            views=StoredViews(
                pack_logits(self.views, top=None, kept="float32"),
                views=2,
                classes=CLASSES,
                kept="float32",
            ),
            held_out=self.batches,
        )

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self.held_out)

    def models(self) -> dict[str, nn.Module]:
        """Every model by name; those that a method does not train must get no gradient."""
        found = {"student": self.student, "twin": self.twin}
        found |= {f"old {i}": old for i, old in enumerate(self.olds)}
        return found | {f"member {i}": member for i, member in enumerate(self.members)}


def target_of(new: Tensor, old: Tensor, match: Match) -> Tensor:
    """Targets with every outcome: both right, either right alone, both wrong, unknown to old."""
    unknown = [label for label in range(CLASSES) if not match.known(label)]
    found = []
    for i in range(len(new)):
        new_says, old_says = int(new[i].argmax()), match.in_new(int(old[i].argmax()))
        other = next(c for c in range(CLASSES) if c not in (new_says, old_says) and match.known(c))
        # If old predicts a class that new no longer has, it cannot be right.
        right = old_says if old_says != -1 else other
        kinds = (right, new_says, other, right, unknown[i % len(unknown)] if unknown else other)
        found.append(kinds[i % len(kinds)])
    return torch.tensor(found)


def held_out_of(inputs: Tensor, old: nn.Module, match: Match) -> list[tuple[Tensor, Tensor]]:
    """Two batches that hold samples several times; old gets every other sample wrong."""
    with torch.no_grad():
        says = [match.in_new(int(row.argmax())) for row in old(inputs)]
    target = torch.tensor([(c + 3 * (i % 2)) % CLASSES for i, c in enumerate(says)])
    return [(torch.cat([inputs] * 6), target.repeat(6)), (inputs[:4], target[:4])]


def scene(kind: str = "tables", *, olds: int = 1, smoothing: float = 0.0) -> Scene:
    """Make a scene by kind: tables, grown (old has other classes), features, wider or nets."""
    made = torch.Generator().manual_seed(11)
    names = OLD_NAMES if kind == "grown" else NEW_NAMES

    def numbers(*shape: int, scale: float = 2.0) -> Tensor:
        return torch.randn(*shape, generator=made, dtype=torch.float64) * scale

    def model(classes: int, width: int) -> nn.Module:
        if kind in ("features", "wider"):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(width)
                return Features(numbers(SAMPLES, width), classes)
        return Table(numbers(SAMPLES, classes))

    of_new = tuple(names.index(name) if name in names else -1 for name in NEW_NAMES)
    match = everything(CLASSES) if kind != "grown" else Match(of_new, len(names))
    inputs = torch.tensor(ROWS, dtype=torch.float64).unsqueeze(1)
    student = model(CLASSES, 6 if kind == "wider" else 4)
    twin = model(CLASSES, 4)
    old = [model(len(names), 4) for _ in range(olds)]
    if kind == "nets":
        inputs = inputs / 5 - 1
        student, twin, old = net(1), net(2), [net(3)]
    else:
        # Where both models should agree, the same class gets the highest logit.
        with torch.no_grad():
            for i in ROWS[::5]:
                agreed = student(inputs.new_tensor([[i]])).argmax()
                if kind in ("tables", "grown") and match.known(int(agreed)):
                    for one in old:
                        one.scores[i, match.of_new[int(agreed)]] = 9.0
    with torch.no_grad():
        target = target_of(student(inputs), old[0](inputs), match)
    return Scene(
        student=student,
        twin=twin,
        olds=old,
        match=match,
        old_names=names,
        members=[Table(numbers(SAMPLES, CLASSES)) for _ in range(3)],
        stored=numbers(SAMPLES, CLASSES),
        views=numbers(2 * SAMPLES, CLASSES).float(),
        held_out=held_out_of(inputs, old[0], match),
        inputs=inputs,
        target=target,
        smoothing=smoothing,
    )


Gradients = dict[str, Tensor]


def parameters(models: Mapping[str, nn.Module]) -> dict[str, nn.Parameter]:
    return {
        f"{model}: {name}": parameter
        for model, module in models.items()
        for name, parameter in module.named_parameters()
    }


def gradients_of(total: Tensor, of: Mapping[str, nn.Parameter]) -> Gradients:
    """The gradient for each parameter; zero if the total does not depend on it."""
    found = torch.autograd.grad(total, list(of.values()), allow_unused=True, retain_graph=True)
    return {
        name: torch.zeros_like(parameter) if one is None else one
        for (name, parameter), one in zip(of.items(), found, strict=True)
    }


def options_of(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a method, as in a configuration."""
    method, own = method_of(name)
    return dict(method.complete({**own, **given}))


def build(name: str, options: Mapping[str, Any], at: Scene) -> Objective:
    """The objective of a method, as `train` builds it."""
    method, _ = method_of(name)
    return method.build(at.setting(options_of(name, options)))


def minimised(objective: Objective, at: Scene, number: int | Tensor) -> Tensor:
    """What the training loop minimises: the sum of the parts that its module returns."""
    trainee = StudentTrainee(at.student, objective).double()
    parts = trainee(at.inputs, at.target, torch.tensor(PLACES), number)
    total = sum(parts.values())
    assert isinstance(total, Tensor)
    return total.sum()
