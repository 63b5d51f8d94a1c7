"""Models of timm, torchvision and Transformers, made from a spec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from flipguard.errors import InputError
from flipguard.models import build_model, classify, head_of, same_layout
from flipguard.models.hugging_face import transformers_maker
from flipguard.models.libraries import torchvision_maker
from tests.models.conftest import LABELS


def same_bytes(first: nn.Module, second: nn.Module) -> bool:
    ours, theirs = first.state_dict(), second.state_dict()
    return list(ours) == list(theirs) and all(torch.equal(ours[k], theirs[k]) for k in ours)


@pytest.mark.parametrize(
    "spec", ["timm:resnet10t", "timm:vit_tiny_patch16_224", "torchvision:mobilenet_v3_small"]
)
def test_seeds(spec: str) -> None:
    before = torch.get_rng_state()
    first, same, other = (
        build_model(spec, classes=3, input_shape=(3, 32, 32), seed=seed) for seed in (1, 1, 2)
    )
    assert first.training
    assert same_bytes(first, same)
    assert not same_bytes(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_timm_is_told_the_dropout() -> None:
    spec = "timm:resnet10t:dropout=0.25"
    model: Any = build_model(spec, classes=3, input_shape=(3, 32, 32), seed=0)
    assert model.drop_rate == 0.25
    with torch.no_grad():
        model.eval()
        inputs = torch.randn(2, 3, 32, 32)
        assert torch.equal(model(inputs), model(inputs))


def rates(model: nn.Module) -> set[float]:
    """The rates of the dropout layers that a model has."""
    return {one.p for one in model.modules() if isinstance(one, nn.Dropout)}


@pytest.mark.parametrize(
    ("name", "usual"),
    [
        *(("alexnet", 0.5), ("vgg11", 0.5), ("squeezenet1_1", 0.5), ("mnasnet0_5", 0.2)),
        *(("mobilenet_v2", 0.2), ("mobilenet_v3_small", 0.2), ("efficientnet_b0", 0.2)),
        ("efficientnet_b2", 0.3),
    ],
)
def test_torchvision_is_told_the_dropout(name: str, usual: float) -> None:
    for dropout, wanted in ((None, usual), (0.25, 0.25), (0, 0.0)):
        make = torchvision_maker(name, classes=3, input_shape=None, dropout=dropout)
        with torch.device("meta"):
            assert rates(make()) == {wanted}


def test_dropout_between_the_layers_of_torchvision() -> None:
    make = torchvision_maker("swin_t", classes=3, input_shape=None, dropout=0.25)
    with torch.device("meta"):
        assert 0.25 in rates(make())
    spec = "torchvision:densenet121:dropout=0.25"
    densenet: Any = build_model(spec, classes=3, input_shape=(3, 32, 32))
    assert densenet.features.denseblock1.denselayer1.drop_rate == 0.25


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "DistilBert", "Electra", "Albert"])
def test_a_text_model_of_transformers_is_told_the_dropout(kind: str, tmp_path: Path) -> None:
    getattr(transformers, f"{kind}Config")().save_pretrained(tmp_path / kind)
    told, usual = (
        transformers_maker(
            str(tmp_path / kind), classes=3, input_shape=None, pretrained=False, dropout=dropout
        )
        for dropout in (0.25, None)
    )
    with torch.device("meta"):
        told, usual = told(), usual()
    assert 0.25 in rates(told)
    assert 0.25 not in rates(usual)
    # What comes last before the head drops features.
    last = [one for one in told.modules() if isinstance(one, nn.Dropout)][-1]
    assert last.p == 0.25


def test_an_image_model_of_transformers_is_told_the_dropout(vit: Path, tmp_path: Path) -> None:
    model = build_model(f"hf:{vit}:dropout=0.25", classes=3, input_shape=(3, 16, 16))
    assert 0.25 in rates(model)
    transformers.ResNetConfig().save_pretrained(tmp_path / "resnet")
    with pytest.raises(InputError, match="of the kind 'resnet', which has none; choose another"):
        build_model(f"hf:{tmp_path / 'resnet'}:dropout=0.25", classes=3, input_shape=(3, 32, 32))


@pytest.mark.parametrize("spec", ["timm:resnet10t", "torchvision:resnet18"])
def test_images_of_no_given_shape(spec: str) -> None:
    model = build_model(spec, classes=3, input_shape=None, seed=0)
    assert model(torch.randn(2, 3, 40, 48)).shape == (2, 3)


@pytest.mark.parametrize("spec", ["timm:resnet10t", "torchvision:resnet18"])
def test_published_weights_of_models_of_images_belong_to_runs(spec: str) -> None:
    """They expect images by their own mean and deviation, which a run knows."""
    with pytest.raises(InputError, match=r"`pretrained` to be False.*Train a run with `pretra"):
        build_model(spec, classes=3, input_shape=(3, 16, 16), pretrained=True)


def test_a_folder_without_its_weights_is_drawn_from_the_seed(bert: Path) -> None:
    first, same, other = (
        build_model(f"hf:{bert}", classes=3, input_shape=None, seed=seed) for seed in (1, 1, 2)
    )
    assert first.training
    assert head_of(first).out_features == 3
    assert same_bytes(first, same)
    assert not same_bytes(first, other)


def test_a_configuration_file_is_enough(bert: Path) -> None:
    from_file = build_model(f"hf:{bert / 'config.json'}", classes=3, input_shape=None, seed=1)
    from_folder = build_model(f"hf:{bert}", classes=3, input_shape=None, seed=1)
    assert same_bytes(from_file, from_folder)
    with pytest.raises(InputError, match="a folder with weights, but got a file"):
        build_model(f"hf:{bert / 'config.json'}", classes=3, input_shape=None, pretrained=True)


def test_a_folder_with_its_weights(bert: Path) -> None:
    spec = f"hf:{bert}"
    before = torch.get_rng_state()
    first, second = (
        build_model(spec, classes=LABELS, input_shape=None, seed=seed, pretrained=True)
        for seed in (1, 2)
    )
    assert first.training
    assert same_bytes(first, second)
    narrow, same, other = (
        build_model(spec, classes=2, input_shape=None, seed=seed, pretrained=True)
        for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert same_bytes(narrow, same)
    difference = same_layout(first, narrow)
    assert difference == "'classifier.weight' is [5, 16] in the first and [2, 16] in the second"
    weights, others = narrow.state_dict(), other.state_dict()
    fresh = [name for name in weights if not torch.equal(weights[name], others[name])]
    assert fresh == ["classifier.weight"]


def test_half_precision_in_a_folder_is_widened(bert: Path) -> None:
    model: Any = build_model(f"hf:{bert}", classes=LABELS, input_shape=None, pretrained=True)
    model.bfloat16().save_pretrained(bert)
    for pretrained in (True, False):
        again = build_model(f"hf:{bert}", classes=LABELS, input_shape=None, pretrained=pretrained)
        assert {parameter.dtype for parameter in again.parameters()} == {torch.float32}


def test_shapes_of_texts_and_images(bert: Path, vit: Path) -> None:
    with pytest.raises(InputError, match=r"None for .*, which reads texts, but got"):
        build_model(f"hf:{bert}", classes=3, input_shape=(3, 16, 16))
    with pytest.raises(InputError, match="but got vectors of 40 numbers"):
        build_model(f"hf:{vit}", classes=3, input_shape=(40,))
    model = build_model(f"hf:{vit}", classes=3, input_shape=None, seed=0)
    assert classify(model, torch.randn(2, 3, 16, 16)).shape == (2, 3)
    model = build_model(f"hf:{vit}", classes=3, input_shape=(3, 16, 24), seed=0)
    assert classify(model, {"pixel_values": torch.randn(2, 3, 16, 24)}).shape == (2, 3)


def test_kinds_that_classify_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "vit_mae"}')
    with pytest.raises(InputError, match="but got the kind 'vit_mae'"):
        build_model(f"hf:{tmp_path}", classes=3, input_shape=None)
