"""Descriptions of models, and whether two models can load each other's weights."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from flipguard.errors import InputError
from flipguard.models import architecture, build_model, describe, same_layout


def build(spec: str, *, classes: int = 10, seed: int = 0) -> nn.Module:
    return build_model(spec, classes=classes, input_shape=(3, 16, 16), seed=seed)


def test_a_model_in_numbers() -> None:
    model = build("resnet20")
    model.head.requires_grad_(False)
    told = describe(model)
    assert (told.parameters, told.trainable) == (269_722, 269_072)
    assert told.input_shape == (3, 16, 16)
    assert told.architecture == architecture(model)
    assert describe(model, input_shape=(3, 32, 32)).input_shape == (3, 32, 32)
    assert describe(nn.Linear(2, 3)).input_shape is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        told.parameters = 3  # type: ignore[misc]
    with pytest.raises(InputError, match="leave the batch axis out"):
        describe(model, input_shape=())


def test_an_architecture_is_the_same_in_every_process() -> None:
    code = (
        "from flipguard.models import *; "
        "print(architecture(build_model('mlp', classes=3, input_shape=(4,))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    model = build_model("mlp", classes=3, input_shape=(4,))
    assert done.stdout.strip() == architecture(model)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (build("resnet20"), build("resnet20", seed=1)),
        (build("resnet20"), build("resnet20:dropout=0.5")),
        (build("mlp"), build("mlp").half()),
        (build("mlp"), AveragedModel(build("mlp"))),
        (build("mlp"), build("mlp").state_dict()),
        (build("mlp"), dict(reversed(build("mlp").state_dict().items()))),
    ],
    ids=["seed", "dropout", "half", "averaged", "state", "order"],
)
def test_same_layouts(first: nn.Module, second: nn.Module) -> None:
    assert same_layout(first, second) is None
    assert same_layout(second, first) is None
    assert architecture(first) == architecture(second)


@pytest.mark.parametrize(
    ("first", "second", "difference"),
    [
        (
            build("mlp", classes=10),
            build("mlp", classes=12),
            "'head.weight' is [10, 100] in the first and [12, 100] in the second",
        ),
        (build("mlp:depth=2"), build("mlp"), None),
        (
            build("mlp:depth=3"),
            build("mlp:depth=2"),
            "'body.6.weight' [100, 100] is in the first alone",
        ),
        (
            build("mlp:depth=2"),
            build("mlp:depth=3"),
            "'body.6.weight' [100, 100] is in the second alone",
        ),
        (
            {"a": torch.zeros(2), "b": 3},
            {"a": torch.zeros(2), "b": torch.zeros(())},
            "'b' is no tensor in the first and [] in the second",
        ),
        ({}, {}, None),
    ],
)
def test_the_first_difference_in_words(
    first: nn.Module, second: nn.Module, difference: str | None
) -> None:
    assert same_layout(first, second) == difference
    assert (architecture(first) == architecture(second)) is (difference is None)


def test_what_has_the_same_layout_can_be_loaded() -> None:
    first, second = build("resnet20", seed=0), build("resnet20", seed=1)
    assert same_layout(first, second) is None
    second.load_state_dict(first.state_dict())
