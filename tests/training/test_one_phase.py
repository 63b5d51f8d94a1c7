"""Members that learn beside the student: each as if it were alone, and the student from all."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from flipguard.errors import InputError
from flipguard.fusion import fuse
from flipguard.losses import LogitDifferenceInhibition
from flipguard.methods import METHODS, Objective, Setting, Step
from flipguard.methods.companions import Companions
from flipguard.models import build_model
from flipguard.references import OldModel
from flipguard.training import Config, Machine, Run, companions, train
from flipguard.training.folder import CHECKPOINT, MODEL
from flipguard.training.loop import steps_an_epoch
from flipguard.training.material import Material, data_of
from flipguard.training.schedule import learning_rate
from flipguard.training.seeds import derived
from tests.fusion.nets import apart, optimizer_for
from tests.training.test_refusals import refused
from tests.training.tiny import (
    bytes_of,
    history_of,
    images_file,
    make_old,
    tiny,
    trained,
    with_old,
)

THREE = {"members": 3, "one_phase": True}
WAYS = ["off", "on"]
MODELS = [("mlp:hidden=16", (40,)), ("resnet20:width=4", (3, 8, 8))]
CPU = torch.device("cpu")


def once(fuse: str = "off", **changes: Any) -> Config:
    """A run in one phase, in float64."""
    options = {**THREE, **changes.pop("options", {})}
    machine = {"fuse": fuse, "precision": "64-true", **changes.pop("machine", {})}
    return tiny("elodi", options=options, machine=machine, **changes)


def hurried(config: Config) -> Config:
    machine = dataclasses.replace(config.machine, minutes=1e-9)
    return dataclasses.replace(config, machine=machine)


def members_of(folder: Path) -> list[dict[str, Tensor]]:
    """The members' weights, from the state of a run: one by one, or stacked."""
    state = torch.load(folder / CHECKPOINT, weights_only=True)["trained"]
    fused = any(name.startswith("members.body.") for name in state)
    found: list[dict[str, Tensor]] = [{} for _ in range(3)]
    for name, tensor in state.items():
        if fused:
            for index, one in enumerate(found):
                one[name.removeprefix("members.body.")] = tensor[index]
        else:
            _, index, own = name.split(".", 2)
            found[int(index)][own] = tensor
    return found


# -- gradients -----------------------------------------------------------------------------------


class Scene:
    """A student, its members, and one batch; all in float64."""

    def __init__(self, model: str, shape: tuple[int, ...], way: str, **options: Any) -> None:
        nets = [
            build_model(model, classes=10, input_shape=shape, seed=seed).double().train()
            for seed in range(4)
        ]
        self.student, self.members = nets[0], nets[1:]
        self.alone = [
            build_model(model, classes=10, input_shape=shape, seed=seed).double().train()
            for seed in range(1, 4)
        ]
        self.companions = Companions(fuse(self.members) if way == "on" else self.members).train()
        self.setting = Setting(
            options=METHODS["elodi"].complete({**THREE, **options}),
            model=self.student,
            olds=(),
            classes=10,
            steps=10,
            label_smoothing=0.1,
            new_model=lambda _: self.student,
            members=lambda: OldModel(self.student),
            companions=lambda _: self.companions,
        )
        drawn = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(6, *shape, generator=drawn, dtype=torch.float64)
        self.target = torch.tensor([0, 1, 2, 3, 4, 5])

    def parts(self) -> dict[str, Tensor]:
        objective: Objective = METHODS["elodi"].build(self.setting)
        assert objective.trained is self.companions
        return objective.parts(
            Step(
                inputs=self.inputs,
                target=self.target,
                places=torch.arange(6),
                logits=self.student(self.inputs),
                features=None,
                number=0,
                model=self.student,
            )
        )

    def gradients(self) -> list[dict[str, Tensor | None]]:
        """Of each member, by name."""
        if isinstance(self.companions.members, nn.ModuleList):
            return [{n: p.grad for n, p in one.named_parameters()} for one in self.members]
        body = dict(self.companions.members.body.named_parameters())
        return [
            {n: None if p.grad is None else p.grad[i] for n, p in body.items()} for i in range(3)
        ]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("model", "shape"), MODELS)
def test_a_member_learns_as_if_it_were_alone(model: str, shape: tuple[int, ...], way: str) -> None:
    scene = Scene(model, shape, way)
    sum(scene.parts().values()).backward()
    for alone, gradients in zip(scene.alone, scene.gradients(), strict=True):
        F.cross_entropy(alone(scene.inputs), scene.target, label_smoothing=0.1).backward()
        for name, parameter in alone.named_parameters():
            found = gradients[name]
            assert parameter.grad is not None
            assert found is not None
            assert apart(found, parameter.grad) <= 1e-9, name


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("options", [{}, {"k": 3, "p": 1.0, "rank_by": "both", "alpha": 0.5}])
def test_the_student_moves_no_member_and_no_member_the_student(
    options: dict[str, Any], way: str
) -> None:
    scene = Scene(*MODELS[1], way, **options)
    parts = scene.parts()
    learned = parts.pop("members_sum")
    (torch.stack(list(parts.values())).sum()).backward(retain_graph=True)
    assert all(grad is None for one in scene.gradients() for grad in one.values())
    before = {name: p.grad.clone() for name, p in scene.student.named_parameters()}
    learned.backward()
    for name, parameter in scene.student.named_parameters():
        assert torch.equal(parameter.grad, before[name])
    # What it is drawn to is what the members say while they learn: the mean of that very pass.
    says = torch.stack([alone(scene.inputs) for alone in scene.alone]).mean(0).detach()
    set_to = {"alpha": 0.8, "k": None, "p": 2.0, "rank_by": "student", **options}
    inhibition = LogitDifferenceInhibition(k=set_to["k"], p=set_to["p"], rank_by=set_to["rank_by"])
    logits = scene.student(scene.inputs)
    assert apart(parts["pull"], set_to["alpha"] * inhibition(new=logits, reference=says)) <= 1e-9
    each = [
        F.cross_entropy(a(scene.inputs), scene.target, label_smoothing=0.1) for a in scene.alone
    ]
    assert learned.item() == pytest.approx(torch.stack(each).sum().item())


@pytest.mark.parametrize("way", WAYS)
def test_what_is_a_vector_in_a_member_does_not_decay(way: str) -> None:
    scene = Scene(*MODELS[1], way)
    objective = METHODS["elodi"].build(scene.setting)
    own = list(scene.student.parameters())
    every = [*own, *scene.companions.parameters()]
    decaying = sum(p.numel() for p in every if objective.decays(p))
    assert decaying == 4 * sum(p.numel() for p in own if p.dim() > 1)
    assert sum(p.numel() for p in every) - decaying == 4 * sum(
        p.numel() for p in own if p.dim() <= 1
    )


# -- runs ----------------------------------------------------------------------------------------


RECIPES: list[tuple[str, dict[str, Any]]] = [
    ("mlp:hidden=16", {"clip": 0.3, "label_smoothing": 0.1, "augment": "shift-scale-noise"}),
    ("resnet20:width=4", {"optimizer": "sgd", "batch_size": 15, "weight_decay": 0.1}),
]


@pytest.mark.parametrize(("model", "recipe"), RECIPES)
def test_one_network_ends_where_a_loop_does(
    model: str, recipe: dict[str, Any], tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"model": model, "recipe": recipe, "epochs": 3}
    if model.startswith("resnet"):
        changes["data"] = images_file(tmp_path / "images.npz")
    runs = [trained(once(way, **changes), tmp_path / way / "run") for way in ("on", "off")]
    assert [run.document["companions"]["way"] for run in runs] == ["packed", "one by one"]
    first, second = (load_file(run.folder / MODEL) for run in runs)
    for name, tensor in second.items():
        assert apart(first[name], tensor) <= 1e-8, name
    on, off = (members_of(run.folder) for run in runs)
    for one, other in zip(on, off, strict=True):
        assert list(one) == list(other)
        assert all(apart(one[name], other[name]) <= 1e-8 for name in one)
    assert any(apart(off[0][name], off[1][name]) > 1e-3 for name in off[0])
    for row, other in zip(*(history_of(run.folder) for run in runs), strict=True):
        assert row["losses"] == pytest.approx(other["losses"], abs=1e-8)
        assert list(row["losses"]) == ["task", "pull", "members_sum"]
    # They end with the run.
    for run in runs:
        assert "members" not in run.document
        assert [path.name for path in run.folder.parent.iterdir()] == ["run"]


def batches(config: Config, epoch: int) -> Iterator[tuple[Any, Tensor]]:
    """What the student of a run sees in an epoch."""
    material = Material(data_of(config).train, device=CPU, model=config.model)
    drawn = torch.Generator().manual_seed(config.seeds.of("order", epoch))
    order, size = torch.randperm(len(material), generator=drawn), config.recipe.batch_size
    for step in range(steps_an_epoch(config.recipe, len(material))):
        yield material.batch(order[step * size : (step + 1) * size])


@pytest.mark.parametrize("way", WAYS)
def test_members_end_where_they_would_alone(way: str, tmp_path: Path) -> None:
    """Decay and clipping too are a member's own."""
    config = once(way, recipe={"clip": 0.3, "weight_decay": 0.05})
    found = members_of(trained(config, tmp_path / "run").folder)
    for index in range(3):
        seed = derived(config.seeds.of("init"), f"member-{index + 1}")
        alone = build_model(config.model, classes=10, input_shape=(40,), seed=seed).double()
        optimizer = optimizer_for("adamw", list(alone.parameters()), 2)
        taken = 0
        for epoch in range(2):
            for inputs, target in batches(config, epoch):
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(config.recipe, step=taken, steps_an_epoch=4)
                F.cross_entropy(alone(inputs.double()), target).backward()
                nn.utils.clip_grad_norm_(alone.parameters(), 0.3)
                optimizer.step()
                optimizer.zero_grad()
                taken += 1
        for name, tensor in alone.state_dict().items():
            assert apart(found[index][name], tensor) <= 1e-8, name


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", ["mlp:hidden=16,dropout=0.5", "conv1d:width=4"])
def test_stopped_and_resumed_equals_uninterrupted(model: str, way: str, tmp_path: Path) -> None:
    recipe = {"augment": "shift-scale-noise", "label_smoothing": 0.1}
    config = tiny(
        "elodi", epochs=3, model=model, options=THREE, machine={"fuse": way}, recipe=recipe
    )
    whole = trained(config, tmp_path / "whole")
    assert trained(hurried(config), tmp_path / "stopped").status == "stopped"
    # What was begun in one way goes on in it, whatever is asked for now.
    other = dataclasses.replace(
        config, machine=dataclasses.replace(config.machine, fuse="off" if way == "on" else "on")
    )
    assert trained(hurried(other), tmp_path / "stopped", resume=True).status == "stopped"
    resumed = trained(config, tmp_path / "stopped", resume=True)
    assert len(bytes_of(whole.folder)) == 3
    assert bytes_of(resumed.folder) == bytes_of(whole.folder)
    assert resumed.document["companions"] == whole.document["companions"]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_old(tmp_path_factory.mktemp("olds") / "old")


def test_a_legacy_pull_goes_along(old: Run, tmp_path: Path) -> None:
    run = trained(with_old(tiny("elodi", options={**THREE, "legacy": 0.3}), old), tmp_path / "run")
    row = history_of(run.folder)[-1]
    assert list(row["losses"]) == ["task", "pull", "legacy", "members_sum"]
    assert len(row["test"]["old"]) == 1


def test_more_members_and_other_seeds_are_other_students(tmp_path: Path) -> None:
    found = [
        bytes_of(trained(once(options={"members": count}), tmp_path / str(count)).folder)[MODEL]
        for count in (1, 2, 3)
    ]
    assert len(set(found)) == 3
    assert trained(once("on", options={"members": 1}), tmp_path / "one").finished


def test_checkpointing_changes_no_result(tmp_path: Path) -> None:
    data = images_file(tmp_path / "images.npz")
    changes: dict[str, Any] = {
        "model": "resnet20:width=4",
        "data": data,
        "recipe": {"batch_size": 20},
        "epochs": 1,
    }
    plain = trained(once(**changes), tmp_path / "plain")
    less = trained(once(machine={"checkpointing": True}, **changes), tmp_path / "less")
    assert bytes_of(plain.folder) == bytes_of(less.folder)
    one = trained(once("on", **changes), tmp_path / "one")
    small = trained(once("on", machine={"checkpointing": True}, **changes), tmp_path / "small")
    assert bytes_of(one.folder) == bytes_of(small.folder)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"guides": ("x",)}, "`guides`"),
        ({"options": {"reuse": 1}}, "`reuse`"),
        ({"options": {"online": False}}, "`online=false`"),
        ({"options": {"views": 2}}, "`views`"),
        ({"options": {"guide": "calibrated"}}, "'calibrated'"),
        ({"options": {"members": 0}}, "`members`"),
        ({"options": {"alpha": 2.0}}, "`alpha`"),
        ({"options": {"one_phase": 1}}, "`one_phase`"),
        ({"machine": {"precision": "16-mixed"}}, "16-mixed"),
        ({"machine": {"fuse_chunk": 2}}, "`machine.fuse_chunk=2`"),
        ({"machine": {"streams": 2}}, "`machine.streams=2`"),
    ],
)
def test_what_does_not_go_together(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    assert said in refused(once(**changes), tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_members_that_begin_alike_are_refused(old: Run, tmp_path: Path) -> None:
    assert "`fine_tune`" in refused(with_old(once(fine_tune=True), old), tmp_path / "run")


def test_a_network_that_cannot_be_fused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = "python:tests.fusion.test_runs:sorts"
    with pytest.raises(InputError, match="Expected a network that can be trained as 3 at once"):
        trained(once("on", model=model), tmp_path / "run")
    assert not list(tmp_path.iterdir())
    # As a GPU would decide by itself.
    monkeypatch.setattr(companions, "fuses", lambda *_: True)
    lines: list[str] = []
    run = train(once("auto", model=model), tmp_path / "auto", report=lines.append)
    assert lines[0].startswith("members one by one: Expected a network")
    assert run.document["companions"] == {"count": 3, "way": "one by one"}


@pytest.mark.parametrize("fuse", ["auto", "on", "off"])
def test_what_does_not_fit_is_refused_at_once(
    fuse: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one they would need as much: all are under way in the same step."""
    asked = []

    def short(_: Any, member: Any, example: Any, count: int, device: Any, *, way_out: str) -> None:
        asked.append(count)
        raise InputError(f"Expected {count} members at once to fit, but they do not; {way_out}.")

    monkeypatch.setattr(companions, "refuse_memory", short)
    with pytest.raises(InputError, match=r"have fewer members, smaller batches"):
        trained(once(fuse), tmp_path / "run")
    assert asked == [4]  # the student is one of them
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_two_processes_equal_one(way: str, tmp_path: Path) -> None:
    config = tiny(
        "elodi",
        options=THREE,
        recipe={"batch_size": 51, "optimizer": "sgd", "clip": 0.5},
        machine={"fuse": way},
    )
    one = trained(config, tmp_path / "one")
    two = dataclasses.replace(
        config, machine=Machine(processes=2, device="cpu", threads=1, fuse=config.machine.fuse)
    )
    second = trained(two, tmp_path / "two")
    for name, weight in load_file(one.folder / MODEL).items():
        torch.testing.assert_close(
            load_file(second.folder / MODEL)[name], weight, atol=1e-5, rtol=0
        )
    for first, other in zip(members_of(one.folder), members_of(second.folder), strict=True):
        for name, weight in first.items():
            torch.testing.assert_close(other[name], weight, atol=1e-5, rtol=0)
    for row, other in zip(history_of(one.folder), history_of(second.folder), strict=True):
        assert other["losses"] == pytest.approx(row["losses"], abs=1e-5)
    assert json.loads((second.folder / "run.json").read_text())["companions"]["count"] == 3
