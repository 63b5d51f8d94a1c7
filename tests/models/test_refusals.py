"""Specs, shapes and numbers that no model can be built from: one sentence each."""

from __future__ import annotations

import re
from typing import Any

import pytest
from torch import nn

from flipguard.errors import InputError, MissingExtraError
from flipguard.models import MODELS, build_model, libraries

SENTENCE = re.compile(r"Expected .+, but got .+; .+\.")


def refused(spec: Any, **changes: Any) -> str:
    arguments = {"classes": 10, "input_shape": (3, 32, 32), "seed": 0} | changes
    with pytest.raises(InputError) as caught:
        build_model(spec, **arguments)
    text = str(caught.value)
    assert SENTENCE.fullmatch(text), text
    return text


def test_an_unknown_name_lists_the_known_ones() -> None:
    text = refused("resnet21")
    assert "'resnet21'" in text
    assert all(name in text for name in MODELS)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("squeezenet1_1", "torchvision:squeezenet1_1"),
        ("resnet50", "torchvision:resnet50 or timm:resnet50"),
        ("resnet10t.c3_in1k", "timm:resnet10t.c3_in1k"),
    ],
)
def test_a_model_of_a_library_without_the_library(name: str, meant: str) -> None:
    assert f"; did you mean {meant}? all are mlp, " in refused(name)


@pytest.mark.parametrize("spec", ["", "timm", "hf", "MLP", " mlp", "nothing:width=3", ":"])
def test_specs_that_name_nothing(spec: str) -> None:
    assert "all are mlp, mlp-bn, conv1d" in refused(spec)


@pytest.mark.parametrize("spec", ["timm:", "torchvision:", "hf:", "python:"])
def test_libraries_want_a_name(spec: str) -> None:
    assert "say which model after the colon" in refused(spec)


def test_a_spec_is_a_text() -> None:
    assert "NoneType" in refused(None)


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("mlp:width=3", "among hidden, depth, dropout, but got 'width'"),
        ("lenet5:width=3", "among dropout, but got 'width'"),
        ("mlp:hidden", "key=value with commas between, but got 'hidden'"),
        ("mlp:hidden=3,", "but got ''"),
        ("mlp:hidden=3,hidden=4", "once, but got 'hidden' twice"),
        ("mlp:hidden=0", "at least 1 and below 100,000, but got '0'; its default is 100"),
        ("mlp:hidden=2.5", "a whole number of at least 1 and below 100,000, but got '2.5'"),
        ("mlp:depth=many", "but got 'many'; its default is 2"),
        ("mlp:dropout=1", "a number of at least 0 and below 1, but got '1'"),
        ("mlp:dropout=nan", "but got 'nan'"),
        ("mlp:dropout=-0.1", "but got '-0.1'"),
        ("resnet20:width=", "but got ''"),
        (
            "torchvision:resnet18:dropout=0.1",
            "takes a rate of dropout, but got 'torchvision:resnet18', and ResNet takes none; "
            "choose a model of timm",
        ),
        ("torchvision:alexnet:dropout=2", "below 1, but got '2'"),
        ("torchvision:alexnet:width=2", "among dropout, but got 'width'"),
        ("hf:nowhere:dropout=2", "below 1, but got '2'"),
        ("timm:resnet10t:width=3", "among dropout, but got 'width'"),
    ],
)
def test_options(spec: str, part: str) -> None:
    assert part in refused(spec)


@pytest.mark.parametrize(
    ("spec", "shape", "part"),
    [
        ("conv2d", (40,), "images for 'conv2d', with or without a channel axis"),
        ("resnet20", (40,), "but got vectors of 40 numbers"),
        ("lenet5", (1, 1, 8, 8), "but got samples of the shape 1 × 1 × 8 × 8"),
        ("conv1d", (3, 32, 32), "signals for 'conv1d', with or without a channel axis"),
        ("conv1d", (3, 32, 32), "but got images of 32 × 32 with 3 channels"),
        ("conv1d", (2,), "signals of at least 3 for 'conv1d'"),
        ("conv2d", (3, 32, 3), "images of at least 4 × 4 for 'conv2d'"),
        ("resnet9", (3, 4, 4), "images of at least 8 × 8 for 'resnet9'"),
        ("mlp", None, "pass the shape of one sample"),
        ("resnet18", None, "pass the shape of one sample"),
        ("timm:resnet10t", (40,), "images with a channel axis for 'timm:resnet10t'"),
        ("torchvision:resnet18", (32, 32), "but got samples of the shape 32 × 32"),
        ("torchvision:resnet18", (1, 32, 32), "3 channels"),
        ("torchvision:vit_b_32", (3, 32, 64), "square"),
    ],
)
def test_shapes_that_do_not_fit(spec: str, shape: Any, part: str) -> None:
    assert part in refused(spec, input_shape=shape)


@pytest.mark.parametrize("shape", [(), (0,), (3, -1, 2), 40, (4.0,), (True,), "ab"])
def test_shapes_that_are_none(shape: Any) -> None:
    assert "leave the batch axis out" in refused("mlp", input_shape=shape)


@pytest.mark.parametrize("classes", [0, -1, 2.0, True, None])
def test_classes(classes: Any) -> None:
    assert "`classes`" in refused("mlp", classes=classes)


@pytest.mark.parametrize("seed", [-1, 2**63, 1.0, True, "1"])
def test_seeds(seed: Any) -> None:
    assert "`seed`" in refused("mlp", seed=seed)


@pytest.mark.parametrize("spec", ["mlp", "python:tests.models.factories:linear"])
def test_weights_that_nobody_published(spec: str) -> None:
    assert "`pretrained` to be False" in refused(spec, pretrained=True)


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("timm:resnet10", "'resnet10t'"),
        ("timm:resnet10t.of_mine", "Invalid pretrained tag"),
        ("torchvision:resnet19", "'resnet1"),
        ("torchvision:fasterrcnn_resnet50_fpn", "none of that name"),
        ("hf:no/such/folder", "OSError"),
    ],
)
def test_models_that_libraries_lack(spec: str, part: str) -> None:
    assert part in refused(spec, input_shape=(3, 32, 32))


def test_sizes_that_a_library_refuses() -> None:
    text = refused("torchvision:maxvit_t", input_shape=(3, 64, 64))
    assert "inputs (3, 64, 64), but got ValueError" in text


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("python:tests.models.factories", "package.module:function"),
        ("python::linear", "package.module:function"),
        ("python:tests.models.nowhere:linear", "no 'tests.models.nowhere'"),
        ("python:nowhere.at.all:linear", "no 'nowhere'"),
        ("python:tests.models.factories:absent", "but got nothing"),
        ("python:tests.models.factories:number", "but got int"),
        ("python:tests.models.factories:nothing", "torch.nn.Module, but got nothing"),
    ],
)
def test_functions_that_give_no_model(spec: str, part: str) -> None:
    assert part in refused(spec)


@pytest.mark.parametrize("name", ["linear", "Inside.linear"])
def test_functions_that_give_a_model(name: str) -> None:
    spec = f"python:tests.models.factories:{name}"
    first, same, other = (
        build_model(spec, classes=3, input_shape=(4,), seed=seed) for seed in (1, 1, 2)
    )
    assert isinstance(first, nn.Linear)
    assert isinstance(same, nn.Linear)
    assert isinstance(other, nn.Linear)
    assert first.bias.tolist() == same.bias.tolist() != other.bias.tolist()


def test_what_a_function_imports_in_vain_is_its_own_matter(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_factory.py").write_text("import not_installed_anywhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        build_model("python:broken_factory:make", classes=3, input_shape=(4,))


@pytest.mark.parametrize(
    ("spec", "package"),
    [
        ("timm:resnet10t", "timm"),
        ("torchvision:resnet18", "torchvision"),
        ("hf:somewhere", "transformers"),
    ],
)
def test_a_library_that_is_not_installed(
    spec: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    monkeypatch.setattr(libraries.importlib, "import_module", missing)
    with pytest.raises(MissingExtraError, match=re.escape(".[train]")) as caught:
        build_model(spec, classes=3, input_shape=(3, 32, 32))
    assert f"needs {package}, which is not installed" in str(caught.value)
