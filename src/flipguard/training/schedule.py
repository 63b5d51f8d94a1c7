"""The learning rate at every step."""

from __future__ import annotations

import math

from flipguard.errors import DivergedError
from flipguard.training.config import Recipe

LARGEST = 3e38  # about as much as float32 holds


def learning_rate(recipe: Recipe, *, step: int, steps_an_epoch: int) -> float:
    """The learning rate of a step, the first of which is 0; refused if it is too large.

    >>> recipe = Recipe(schedule="cosine", learning_rate=1.0, epochs=10, warmup=1.0)
    >>> [round(learning_rate(recipe, step=s, steps_an_epoch=2), 3) for s in (0, 1, 2, 11, 19)]
    [0.5, 1.0, 1.0, 0.5, 0.008]
    """
    try:
        rate = _rate(recipe, step, steps_an_epoch)
    except OverflowError:
        rate = math.inf
    # AdamW divides it by a tenth in its first step.
    largest = LARGEST / 10 if recipe.optimizer == "adamw" else LARGEST
    if rate > largest:
        raise DivergedError(
            f"Expected a learning rate of at most {largest:g} at every step, but got {rate:g} at "
            f"step {step}; lower `recipe.learning_rate`, or check `recipe.linear_scaling`."
        )
    return rate


def _rate(recipe: Recipe, step: int, steps_an_epoch: int) -> float:
    peak = recipe.learning_rate
    if recipe.linear_scaling is not None:
        peak *= recipe.batch_size * recipe.accumulate / recipe.linear_scaling
    warmup = recipe.warmup * steps_an_epoch
    if step < warmup:
        return peak * (step + 1) / warmup
    total = recipe.epochs * steps_an_epoch
    done = (step - warmup) / max(total - warmup, 1)
    if recipe.schedule == "cosine":
        return peak * (1 + math.cos(math.pi * done)) / 2
    if recipe.schedule == "linear":
        return peak * (1 - done)
    if recipe.schedule == "steps":
        passed = sum(step >= epoch * steps_an_epoch for epoch in recipe.milestones)
        return peak * recipe.decay**passed
    return peak
