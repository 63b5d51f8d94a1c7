"""Fine-tuning from an old model that knows fewer classes, or the same in another order."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

from flipguard.errors import InputError
from flipguard.losses import SharedClasses
from flipguard.methods import OldModelInfo
from flipguard.models import build_model, head_of
from flipguard.references import OldModel
from flipguard.runs.folder import MODEL
from flipguard.training import Machine, Run, Seeds
from flipguard.training.checkpoint import load_old_weights, weight_mismatch
from flipguard.training.checks import check_layouts, complete_config
from flipguard.training.trainee import StudentTrainee
from tests.training.tiny import MODEL_SPEC, bytes_of, make_old, tiny, trained, with_old

# Its name in the package is that of the function.
training: Any = importlib.import_module("flipguard.training.train")
SEED = 3
NARROW = 8  # of ten classes
HEAD = {"weight", "bias"}


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_old(tmp_path_factory.mktemp("olds") / "narrow", classes=NARROW)


def built(spec: str, classes: int, seed: int = SEED) -> nn.Module:
    shape = (40,) if spec.startswith(("mlp", "conv1d")) else (3, 32, 32)
    return build_model(spec, classes=classes, input_shape=shape, seed=seed)


def old_of(model: nn.Module, new_to_old: list[int], count: int) -> OldModelInfo:
    classes = SharedClasses.by_index(new_to_old, old_count=count)
    return OldModelInfo(name="old", reference=OldModel(model), model=model, classes=classes)


def first_weights(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Tensor]]:
    """The weights with which every training begins from now on."""
    seen: list[dict[str, Tensor]] = []
    loop = training.loop

    def look(trainee: StudentTrainee, *args: Any, **more: Any) -> Any:
        state = trainee.student.state_dict()
        seen.append({name: tensor.clone() for name, tensor in state.items()})
        return loop(trainee, *args, **more)

    monkeypatch.setattr(training, "loop", look)
    return seen


@pytest.mark.parametrize("method", ["none", "naive", "fd-kl", "fd-lm", "elodi"])
def test_known_classes_start_as_old_and_new_ones_as_they_were_drawn(
    method: str, narrow: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = first_weights(monkeypatch)
    config = tiny(method, epochs=1, fine_tune=True, seeds=Seeds(seed=SEED))
    run = trained(with_old(config, narrow), tmp_path / "run")
    assert len(run.class_names) == 10
    old = load_file(narrow.folder / MODEL)
    drawn = built(MODEL_SPEC, 10, seed=config.seeds.of("init")).state_dict()
    begun = seen[-1]  # that of the student: members, which start at old's weights too, come first
    assert len(seen) == (3 if method == "elodi" else 1)
    for name, tensor in begun.items():
        if name in ("head.weight", "head.bias"):
            assert torch.equal(tensor[:NARROW], old[name])
            assert torch.equal(tensor[NARROW:], drawn[name][NARROW:])
        else:
            assert torch.equal(tensor, old[name])
    for member in seen[:-1]:
        assert torch.equal(member["head.weight"][:NARROW], old["head.weight"])
        assert not torch.equal(member["head.weight"][NARROW:], drawn["head.weight"][NARROW:])


def test_members_as_one_network_start_alike(narrow: Run, tmp_path: Path) -> None:
    """To rounding, since one network adds numbers in another order."""
    ends = []
    for fuse in ("on", "off"):
        config = with_old(tiny("ensemble", fine_tune=True, machine={"fuse": fuse}), narrow)
        ends.append(load_file(trained(config, tmp_path / fuse / "run").folder / MODEL))
    for name, tensor in ends[0].items():
        torch.testing.assert_close(tensor, ends[1][name], atol=1e-4, rtol=1e-3)


def test_it_is_stopped_and_goes_on(narrow: Run, tmp_path: Path) -> None:
    config = with_old(tiny("fd-lm", epochs=3, fine_tune=True), narrow)
    whole = trained(config, tmp_path / "whole")
    hurried = dataclasses.replace(config, machine=Machine(threads=1, device="cpu", minutes=1e-9))
    assert not trained(hurried, tmp_path / "stopped").finished
    again = trained(config, tmp_path / "stopped", resume=True)
    assert bytes_of(again.folder) == bytes_of(whole.folder)


@pytest.mark.parametrize(
    "spec",
    [
        *("mlp:hidden=16", "mlp:hidden=2,depth=1", "conv1d:width=4", "lenet5", "resnet20:width=4"),
        *("timm:resnet10t", "timm:vit_tiny_patch16_224", "torchvision:mobilenet_v3_small"),
        "torchvision:squeezenet1_1",  # whose head is a convolution
    ],
)
def test_heads_of_all_kinds_grow(spec: str) -> None:
    old, new, drawn = built(spec, 2, seed=1), built(spec, 4), built(spec, 4).state_dict()
    places = [1, -1, 0, -1]  # the order of the classes is another one too
    assert weight_mismatch(old_of(old, places, 2), new) is None
    load_old_weights(old_of(old, places, 2), new)
    was, grown = old.state_dict(), set()
    for name, tensor in new.state_dict().items():
        if tensor.shape == was[name].shape:
            assert torch.equal(tensor, was[name])
            continue
        grown.add(name.rpartition(".")[2])
        expected = [was[name][at] if at >= 0 else drawn[name][i] for i, at in enumerate(places)]
        assert torch.equal(tensor, torch.stack(expected))
    assert grown == HEAD


def test_a_model_of_transformers_grows() -> None:
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 20}
    old, new = (
        BertForSequenceClassification(BertConfig(intermediate_size=8, num_labels=count, **small))
        for count in (2, 3)
    )
    drawn = new.classifier.weight.detach().clone()
    load_old_weights(old_of(old, [-1, 0, 1], 2), new)
    assert torch.equal(new.classifier.weight[1:], old.classifier.weight)
    assert torch.equal(new.classifier.weight[0], drawn[0])
    assert torch.equal(new.bert.pooler.dense.weight, old.bert.pooler.dense.weight)


@pytest.mark.parametrize("spec", ["mlp:hidden=3,depth=2", "timm:resnet10t"])
def test_the_same_classes_in_another_order(spec: str) -> None:
    """Also where a hidden layer is as wide as there are classes."""
    old, new = built(spec, 3, seed=1), built(spec, 3)
    load_old_weights(old_of(old, [2, 0, 1], 3), new)
    head = {id(parameter) for parameter in head_of(new).parameters()}
    was = old.state_dict()
    for name, tensor in new.named_parameters():
        expected = was[name][[2, 0, 1]] if id(tensor) in head else was[name]
        assert torch.equal(tensor, expected)


def test_what_differs_in_more_than_classes_is_refused(narrow: Run, tmp_path: Path) -> None:
    config = with_old(tiny(fine_tune=True, model="mlp:hidden=12"), narrow)
    with pytest.raises(
        InputError, match="Expected fine-tuning to have the old model's architecture, but "
    ):
        trained(config, tmp_path / "run")
    assert not list(tmp_path.iterdir())
    # As many rows more as there are classes, and a width that is another.
    old, new = built("mlp:hidden=2,depth=1", 2), built("mlp:hidden=4,depth=1", 4)
    assert weight_mismatch(old_of(old, [0, 1, -1, -1], 2), new) is not None
    wider = built("conv1d:width=4", 3)
    assert weight_mismatch(old_of(built(MODEL_SPEC, 3), [2, 0, 1], 3), wider) is not None


class TwoHeads(nn.Module):
    """A network in which several tensors have one row per class."""

    def __init__(self, *, hidden: bool) -> None:
        super().__init__()
        self.body = nn.Linear(5, 4)
        self.first = nn.Linear(4, 7) if hidden else nn.Linear(4, 3)
        self.last = nn.Linear(7, 3) if hidden else nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.ones(4 if hidden else 3))

    def forward(self, inputs: Tensor) -> Tensor:
        body = self.body(inputs)
        return (self.first(body) + self.last(body)) * self.scale


def test_a_second_tensor_with_one_row_per_class_is_refused() -> None:
    old, new = (TwoHeads(hidden=False) for _ in range(2))
    with pytest.raises(InputError, match="alone has one row per class, but got `first"):
        load_old_weights(old_of(old, [2, 0, 1], 3), new)
    old, new = (TwoHeads(hidden=True) for _ in range(2))
    load_old_weights(old_of(old, [2, 0, 1], 3), new)
    assert torch.equal(new.last.weight, old.last.weight[[2, 0, 1]])
    assert torch.equal(new.first.weight, old.first.weight)
    seven = SharedClasses.by_index([1, 0], old_count=2)  # the last layer has three rows, not two
    with pytest.raises(InputError, match="of TwoHeads, which has other rows"):
        load_old_weights(
            OldModelInfo(name="old", reference=OldModel(old), model=old, classes=seven), new
        )


def test_rows_that_cannot_be_told_apart_are_refused() -> None:
    old, new = built("torchvision:squeezenet1_1", 3, seed=1), built("torchvision:squeezenet1_1", 3)
    with pytest.raises(InputError, match="whose linear head alone") as refused:
        load_old_weights(old_of(old, [2, 0, 1], 3), new)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("method", ["l2-sp", "ewc", "mixout"])
def test_methods_that_pull_every_weight_keep_the_classes(
    method: str, narrow: Run, tmp_path: Path
) -> None:
    with pytest.raises(
        InputError, match=f"Expected `{method}` to have the old model's architecture"
    ):
        trained(with_old(tiny(method), narrow), tmp_path / "run")
    turned = old_of(built(MODEL_SPEC, 3), [2, 0, 1], 3)
    row, config = complete_config(tiny(method))
    with pytest.raises(
        InputError, match=f"Expected `{method}` to have the old model's classes in the same"
    ):
        check_layouts(row, config, built(MODEL_SPEC, 3), (turned,))
    assert not list(tmp_path.iterdir())
