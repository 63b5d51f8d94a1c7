"""The papers' recipes, against the sentences that they are written in."""

from __future__ import annotations

import pytest

from flipguard.runs.config import PRESETS, as_dict, from_dict
from flipguard.training.trainee import learning_rate


def rates(preset: str, epochs: tuple[int, ...]) -> list[float]:
    """The learning rate in the middle of some epochs, counted from 0."""
    recipe = from_dict({"preset": preset}).recipe
    return [learning_rate(recipe, step=10 * e + 5, steps_an_epoch=10) for e in epochs]


def test_pct_and_elodi():
    """From 0.1, a tenth every 30 epochs, for 90 epochs; batches of 2,048 and 256."""
    for preset, batch in (("pct-imagenet", 2048), ("elodi-imagenet", 256)):
        recipe = from_dict({"preset": preset}).recipe
        assert (recipe.epochs, recipe.batch_size, recipe.momentum) == (90, batch, 0.9)
        assert rates(preset, (0, 29, 30, 59, 60, 89)) == pytest.approx(
            [0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
        )


def test_churn_on_cifar():
    """Warm-up of 15 epochs to 1.0, a tenth at 200, 300 and 400, for 450; Nesterov; 1,024."""
    recipe = from_dict({"preset": "churn-cifar"}).recipe
    assert (recipe.epochs, recipe.batch_size, recipe.nesterov) == (450, 1024, True)
    assert rates("churn-cifar", (7, 15, 199, 200, 300, 400)) == pytest.approx(
        [0.5, 1.0, 1.0, 0.1, 0.01, 0.001], rel=0.02
    )


def test_churn_on_imagenet():
    """Warm-up of 5 epochs to 0.8, a tenth at 30, 60 and 80, for 90; 1,024."""
    recipe = from_dict({"preset": "churn-imagenet"}).recipe
    assert (recipe.epochs, recipe.batch_size) == (90, 1024)
    assert rates("churn-imagenet", (5, 29, 30, 60, 80)) == pytest.approx(
        [0.8, 0.8, 0.08, 0.008, 0.0008]
    )


@pytest.mark.parametrize("preset", PRESETS)
def test_what_is_said_beside_it_wins_and_all_is_written_down(preset):
    config = from_dict({"preset": preset, "recipe": {"epochs": 2}})
    assert config.recipe.epochs == 2
    assert config.recipe.optimizer == "sgd"
    assert from_dict(as_dict(config)) == config
