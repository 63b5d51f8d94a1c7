"""Flips of one or several new models, against the plain definition."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from flipguard.data import ArraySplit
from flipguard.losses import SharedClasses
from flipguard.methods import OldModelInfo
from flipguard.references import OldModel
from flipguard.training.batches import BatchSource
from flipguard.training.evaluate import FlipTracker, classes_of
from tests import plain

SAMPLES, CLASSES = 60, 5


class Table(nn.Module):
    """A model that looks its logits up: the first input is the index of the sample."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.register_buffer("logits", logits)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.logits[inputs[:, 0].long()]
        return found


def drawn(seed: int, classes: int = CLASSES) -> Tensor:
    return torch.randn(SAMPLES, classes, generator=torch.Generator().manual_seed(seed))


def source() -> BatchSource:
    split = ArraySplit(
        inputs=torch.arange(SAMPLES, dtype=torch.float32).unsqueeze(1),
        targets=torch.arange(SAMPLES) % CLASSES,
    )
    return BatchSource(split, device=torch.device("cpu"), model="mlp")


def old_model(seed: int, new_to_old: Sequence[int] | None = None) -> OldModelInfo:
    """An old model of all classes, or of those of a map from new's classes to its own."""
    count = CLASSES if new_to_old is None else max(new_to_old) + 1
    model = Table(drawn(seed, count))
    classes = None if new_to_old is None else SharedClasses(new_to_old, old_count=count)
    return OldModelInfo(name=f"old {seed}", reference=OldModel(model), model=model, classes=classes)


def expected(new: Table, old: OldModelInfo) -> dict[str, float]:
    """The rates on the samples whose class old knows."""
    assert isinstance(old.model, Table)
    to_old = range(CLASSES) if old.classes is None else old.classes.new_to_old
    names = {own: str(label) for label, own in enumerate(to_old)}
    answers = zip(new.logits.argmax(1).tolist(), old.model.logits.argmax(1).tolist(), strict=True)
    rows = [
        plain.Row(id=i, target=str(i % CLASSES), old=names.get(was, "unknown"), new=str(now))
        for i, (now, was) in enumerate(answers)
        if to_old[i % CLASSES] >= 0
    ]
    case = plain.Case(rows=rows)
    rates = (plain.negative_flip_rate, plain.positive_flip_rate, plain.churn)
    return {rate.__name__: rate(case) for rate in rates}


def error_rate(new: Table) -> float:
    wrong = [int(c) != i % CLASSES for i, c in enumerate(new.logits.argmax(1).tolist())]
    return sum(wrong) / SAMPLES


def test_flips_of_one_model() -> None:
    new, olds = Table(drawn(1)), (old_model(2), old_model(3, [1, -1, 0, 2, -1]))
    new.train()
    (found,) = FlipTracker(source(), [olds]).rates(new, classes_of(new))
    assert new.training
    assert found["error_rate"] == pytest.approx(error_rate(new))
    assert found["old"] == {old.name: pytest.approx(expected(new, old)) for old in olds}


@pytest.mark.parametrize("count", [2, 4])
def test_flips_of_several_models_each_against_its_own(count: int) -> None:
    news = [Table(drawn(10 + i)) for i in range(count)]
    # One model has an old model with fewer classes.
    olds = [(old_model(2),), (old_model(3, [1, -1, 0, 2, -1]),), (old_model(2),), (old_model(4),)]
    tracker = FlipTracker(source(), olds[:count])
    found = tracker.rates(
        nn.ModuleList(news), lambda inputs: torch.cat([classes_of(new)(inputs) for new in news])
    )
    assert len(found) == count
    for rates, new, (old,) in zip(found, news, olds[:count], strict=True):
        assert rates["error_rate"] == pytest.approx(error_rate(new))
        assert rates["old"] == {old.name: pytest.approx(expected(new, old))}
