"""The loop against a bare one, and what its settings mean."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from flipguard.data import ArraySplit, load_data
from flipguard.models import build_model
from flipguard.runs.folder import MODEL
from flipguard.training import Config, Recipe, Seeds
from flipguard.training.checkpoint import state_digest
from flipguard.training.trainee import learning_rate
from tests.training.tiny import history_of, make_old, tiny, trained, with_old

Weights = dict[str, torch.Tensor]


def weights_of(config: Config, out: Path) -> Weights:
    return load_file(trained(config, out).folder / MODEL)


def equal(first: Weights, second: Weights, *, within: float = 1e-6) -> bool:
    return all(torch.allclose(first[n], second[n], atol=within, rtol=0) for n in first)


def bare(config: Config) -> Weights:
    """A plain loop: cosine schedule, decay on matrices only, the same start and order."""
    recipe = config.recipe
    train = load_data(config.data).train
    assert isinstance(train, ArraySplit)
    inputs, targets = train.all_inputs, train.targets
    model = build_model(
        config.model, classes=10, input_shape=(40,), seed=config.seeds.of("init")
    ).train()
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer: torch.optim.Optimizer
    if recipe.optimizer == "sgd":
        optimizer = torch.optim.SGD(groups, lr=recipe.learning_rate, momentum=0.9, nesterov=True)
    else:
        optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate)
    steps = len(targets) // recipe.batch_size
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: (1 + math.cos(math.pi * step / (steps * recipe.epochs))) / 2
    )
    for epoch in range(recipe.epochs):
        drawn = torch.Generator().manual_seed(config.seeds.of("order", epoch))
        order = torch.randperm(len(targets), generator=drawn)
        for batch in order.split(recipe.batch_size)[:steps]:
            optimizer.zero_grad()
            logits = model(inputs[batch])
            loss = F.cross_entropy(logits, targets[batch], label_smoothing=recipe.label_smoothing)
            loss.backward()
            if recipe.clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
            optimizer.step()
            schedule.step()
    return dict(model.state_dict())


@pytest.mark.parametrize(
    "recipe",
    [
        {"optimizer": "sgd", "learning_rate": 0.1},
        {"optimizer": "adamw"},
        {"optimizer": "sgd", "learning_rate": 0.1, "label_smoothing": 0.1},
        {"optimizer": "sgd", "learning_rate": 0.1, "clip": 0.1},
        {"optimizer": "adamw", "batch_size": 64},  # does not divide the samples
    ],
)
def test_untreated_is_a_bare_loop(recipe: dict[str, Any], tmp_path: Path) -> None:
    config = tiny(recipe=recipe)
    assert equal(weights_of(config, tmp_path / "run"), bare(config))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_accumulated_batches_are_one_larger_batch(optimizer: str, tmp_path: Path) -> None:
    small = {"optimizer": optimizer, "batch_size": 50, "accumulate": 2}
    large = {"optimizer": optimizer, "batch_size": 100}
    first = weights_of(tiny(recipe=small), tmp_path / "small")
    second = weights_of(tiny(recipe=large), tmp_path / "large")
    assert equal(first, second)
    rows = zip(history_of(tmp_path / "small"), history_of(tmp_path / "large"), strict=True)
    for one, other in rows:
        assert one["losses"]["task"] == pytest.approx(other["losses"]["task"], abs=1e-5)


def test_learning_rate_grows_with_the_batch(tmp_path: Path) -> None:
    scaled = tiny(recipe={"learning_rate": 5e-3, "linear_scaling": 100})
    plain = tiny(recipe={"learning_rate": 2.5e-3})
    assert equal(weights_of(scaled, tmp_path / "a"), weights_of(plain, tmp_path / "b"), within=0)
    recipe = Recipe(schedule="constant", batch_size=64, accumulate=4, linear_scaling=32)
    assert learning_rate(recipe, step=0, steps_an_epoch=1) == pytest.approx(8 * 5e-3)


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ({"schedule": "constant"}, [1, 1, 1, 1, 1, 1, 1, 1]),
        ({"schedule": "linear"}, [1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]),
        ({"schedule": "steps", "milestones": (1, 3)}, [1, 1, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01]),
        ({"schedule": "constant", "warmup": 2.0}, [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]),
        ({"schedule": "linear", "warmup": 1.0}, [0.5, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        ({"schedule": "cosine"}, [(1 + math.cos(math.pi * s / 8)) / 2 for s in range(8)]),
    ],
)
def test_schedules(recipe: dict[str, Any], expected: list[float], tmp_path: Path) -> None:
    given = {"learning_rate": 1.0, "epochs": 4, **recipe}
    rates = [learning_rate(Recipe(**given), step=s, steps_an_epoch=2) for s in range(8)]
    assert rates == pytest.approx(expected)
    trained(tiny(epochs=4, recipe={**recipe, "learning_rate": 1e-3, "batch_size": 100}), tmp_path)
    told = [row["learning_rate"] for row in history_of(tmp_path)]
    assert told == pytest.approx([1e-3 * rate for rate in expected[1::2]])


def test_teacher_and_student_see_the_same_view(tmp_path: Path) -> None:
    """A student that starts as its teacher and does not learn has nothing to be pulled to."""
    old = make_old(tmp_path / "old")
    recipe = {"augment": "shift-scale-noise", "learning_rate": 0.0}
    run = trained(with_old(tiny("fd-lm", recipe=recipe, fine_tune=True), old), tmp_path / "run")
    plain = tiny("fd-lm", recipe={"learning_rate": 0.0}, fine_tune=True)
    trained(with_old(plain, old), tmp_path / "plain")
    rows, others = history_of(run.folder), history_of(tmp_path / "plain")
    assert all(row["losses"]["pull"] == 0 for row in rows)
    # There was something to see: augmented samples are others, and others in every epoch.
    assert rows[0]["losses"]["task"] != pytest.approx(others[0]["losses"]["task"], abs=1e-4)
    assert rows[0]["losses"]["task"] != pytest.approx(rows[1]["losses"]["task"], abs=1e-4)


def test_augmentation_has_a_seed_of_its_own(tmp_path: Path) -> None:
    found = []
    for augment in (1, 1, 2):
        config = tiny(recipe={"augment": "shift-scale-noise"}, seeds=Seeds(seed=3, augment=augment))
        found.append(weights_of(config, tmp_path / str(len(found))))
    assert equal(found[0], found[1], within=0)
    assert not equal(found[0], found[2], within=0)


def test_fewer_samples_than_a_batch_are_one_batch(tmp_path: Path) -> None:
    trained(tiny(recipe={"batch_size": 1000, "optimizer": "sgd"}), tmp_path / "run")
    assert math.isfinite(history_of(tmp_path / "run")[-1]["losses"]["task"])


def test_history_counts_flips_as_tables_do(tmp_path: Path) -> None:
    import flipguard

    old = make_old(tmp_path / "old", epochs=10)
    run = trained(with_old(tiny("fd-lm", epochs=10), old), tmp_path / "run")
    compared = flipguard.compare(
        old=flipguard.read_predictions(old.folder / "predictions" / "test.npz"),
        new=flipguard.read_predictions(run.folder / "predictions" / "test.npz"),
    )
    told = history_of(run.folder)[-1]["test"]
    (rates,) = told["old"].values()
    assert told["error_rate"] == pytest.approx(compared["error_rate_new"].value)
    for name in ("negative_flip_rate", "positive_flip_rate", "churn"):
        assert rates[name] == pytest.approx(compared[name].value)


def test_a_whole_number_is_the_same_number(tmp_path: Path) -> None:
    """Python takes 1 for 1.0, whose text differs."""
    runs = [
        trained(tiny(epochs=1, recipe={"learning_rate": rate, "clip": rate}), tmp_path / name)
        for name, rate in (("whole", 1), ("broken", 1.0))
    ]
    assert len({run.document["key"] for run in runs}) == 1
    assert len({state_digest(run.config, run.document) for run in runs}) == 1
    again = tiny(epochs=1, recipe={"learning_rate": 1, "clip": 1})
    assert trained(again, tmp_path / "broken", resume=True).finished
