"""The papers' recipes, against the sentences that they are written in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from flipguard.data import ArraySplit, load_data
from flipguard.errors import InputError
from flipguard.models import build_model
from flipguard.run_document import RUN
from flipguard.runs.config import as_dict, from_dict, from_run, set_values
from flipguard.runs.folder import MODEL, Run
from flipguard.runs.presets import PRESETS
from flipguard.training.trainee import learning_rate
from tests.training.tiny import tiny, trained


def rates(preset: str, epochs: tuple[int, ...]) -> list[float]:
    """The learning rate in the middle of some epochs, counted from 0."""
    recipe = from_dict({"recipe": {"preset": preset}}).recipe
    return [learning_rate(recipe, step=10 * e + 5, steps_an_epoch=10) for e in epochs]


def test_pct_and_elodi():
    """From 0.1, a tenth every 30 epochs, for 90 epochs; batches of 2,048 and 256."""
    for preset, batch in (("pct-imagenet", 2048), ("elodi-imagenet", 256)):
        recipe = from_dict({"recipe": {"preset": preset}}).recipe
        assert (recipe.epochs, recipe.batch_size, recipe.momentum) == (90, batch, 0.9)
        assert rates(preset, (0, 29, 30, 59, 60, 89)) == pytest.approx(
            [0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
        )


def test_churn_on_cifar():
    """Warm-up of 15 epochs to 1.0, a tenth at 200, 300 and 400, for 450; Nesterov; 1,024."""
    recipe = from_dict({"recipe": {"preset": "churn-cifar"}}).recipe
    assert (recipe.epochs, recipe.batch_size, recipe.nesterov) == (450, 1024, True)
    assert rates("churn-cifar", (7, 15, 199, 200, 300, 400)) == pytest.approx(
        [0.5, 1.0, 1.0, 0.1, 0.01, 0.001], rel=0.02
    )


def test_churn_on_imagenet():
    """Warm-up of 5 epochs to 0.8, a tenth at 30, 60 and 80, for 90; 1,024."""
    recipe = from_dict({"recipe": {"preset": "churn-imagenet"}}).recipe
    assert (recipe.epochs, recipe.batch_size) == (90, 1024)
    assert rates("churn-imagenet", (5, 29, 30, 60, 80)) == pytest.approx(
        [0.8, 0.8, 0.08, 0.008, 0.0008]
    )


@pytest.mark.parametrize("preset", PRESETS)
def test_what_is_said_beside_it_wins_and_all_is_written_down(preset):
    config = from_dict({"recipe": {"preset": preset, "epochs": 2}})
    assert config.recipe.epochs == 2
    assert config.recipe.optimizer == "sgd"
    assert from_dict(as_dict(config)) == config


def test_a_preset_is_part_of_the_recipe():
    set_there = set_values({}, ["recipe.preset=pct-imagenet", "recipe.batch_size=64"])
    recipe = from_dict(set_there).recipe
    assert (recipe.preset, recipe.batch_size, recipe.epochs) == ("pct-imagenet", 64, 90)
    with pytest.raises(InputError, match=r"got 'preset'; write recipe\.preset\.$"):
        from_dict({"preset": "pct-imagenet"})


def test_a_run_from_before_is_read_with_the_values_that_it_was_trained_with(tmp_path: Path):
    """Earlier the preset was next to the recipe, and biases and norms never decayed."""
    folder = trained(tiny(epochs=1), tmp_path / "run").folder
    document = json.loads((folder / RUN).read_text())
    del document["config"]["recipe"]["preset"]
    del document["config"]["recipe"]["decay_biases_and_norms"]
    for preset in (None, "churn-cifar"):
        document["config"]["preset"] = preset
        (folder / RUN).write_text(json.dumps(document))
        recipe = Run.read(folder).config.recipe
        assert recipe.preset == preset
        assert (recipe.epochs, recipe.decay_biases_and_norms) == (1, False)
    assert from_run(as_dict(Run.read(folder).config)) == Run.read(folder).config


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "cifar-short"])
def test_all_parameters_decay_in_the_papers_recipes(name: str):
    assert from_dict({"recipe": {"preset": name}}).recipe.decay_biases_and_norms


@pytest.mark.parametrize("fuse", ["off", "on"])
@pytest.mark.parametrize("whole", [False, True])
def test_biases_and_norms_decay_as_in_pytorchs_example(tmp_path: Path, whole: bool, fuse: str):
    """A loop of PyTorch alone, which gives its optimizer all parameters with one decay."""
    recipe = {"optimizer": "sgd", "nesterov": False, "schedule": "constant", "batch_size": 16}
    recipe |= {"learning_rate": 0.1, "weight_decay": 0.5, "decay_biases_and_norms": whole}
    config = tiny(
        "ensemble",
        epochs=3,
        data="mnist1d:train=16,test=10",
        model="conv1d:width=4",
        recipe=recipe,
        machine={"precision": "64-true", "fuse": fuse},
    )
    run = trained(config, tmp_path / "run")
    train = load_data(config.data).train
    assert isinstance(train, ArraySplit)
    inputs, target = torch.as_tensor(train.all_inputs).double(), torch.as_tensor(train.targets)
    for place in run.document["members"]:
        member = Run.read(run.folder / place)
        seed = member.config.seeds.of("init")
        net = build_model(config.model, classes=10, input_shape=(40,), seed=seed).double()
        vectors = [] if whole else [p for p in net.parameters() if p.dim() == 1]
        others = [p for p in net.parameters() if not any(p is one for one in vectors)]
        groups = [{"params": others}, {"params": vectors, "weight_decay": 0.0}]
        optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.5)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs), target).backward()
            optimizer.step()
        found = load_file(member.folder / MODEL)
        for name, weight in net.state_dict().items():
            torch.testing.assert_close(found[name].double(), weight.double(), rtol=1e-5, atol=1e-6)
