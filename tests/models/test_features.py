"""Features equal the input of the head, and one pass changes nothing in the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from flipguard.errors import InputError
from flipguard.models import build_model, classify, head_of, with_features
from tests.models.conftest import LABELS, TINY, WORDS

MODELS = [
    ("mlp:hidden=8,dropout=0.5", (40,)),
    ("conv1d:dropout=0.5", (40,)),
    ("conv2d:width=4,dropout=0.5", (3, 16, 16)),
    ("lenet5:dropout=0.5", (1, 28, 28)),
    ("resnet20:width=4,dropout=0.5", (3, 16, 16)),
    ("resnet32:width=4", (3, 16, 16)),
    ("resnet56:width=4", (3, 16, 16)),
    ("resnet18:width=4", (3, 16, 16)),
    ("timm:resnet10t:dropout=0.5", (3, 32, 32)),
    ("timm:vit_tiny_patch16_224", (3, 32, 48)),
    ("timm:efficientnet_b0", (1, 32, 32)),
    ("timm:convnext_atto", (2, 32, 32)),
    ("torchvision:resnet18", (3, 32, 32)),
    ("torchvision:mobilenet_v3_small", (3, 32, 32)),
    ("torchvision:vit_b_32", (3, 32, 32)),
]
WIDTHS = {"timm:resnet10t:dropout=0.5": 512, "torchvision:mobilenet_v3_small": 1024, "conv1d": 125}


def tokens(*, samples: int = 3) -> dict[str, Tensor]:
    ids = torch.arange(samples * 8).reshape(samples, 8) % len(WORDS)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("spec", "shape"), MODELS)
def test_the_head_on_the_features_gives_the_logits(
    spec: str, shape: tuple[int, ...], training: bool
) -> None:
    model = build_model(spec, classes=7, input_shape=shape, seed=0).train(training)
    head, names = head_of(model), list(model.state_dict())
    passes = []
    handle = model.register_forward_hook(lambda *_: passes.append(1))
    logits, features = with_features(model)(torch.randn(2, *shape))
    handle.remove()
    assert passes == [1]
    assert logits.shape == (2, 7)
    assert features.shape == (2, WIDTHS.get(spec, head.in_features))
    assert torch.equal(head(features), logits)
    assert features.requires_grad
    assert not head._forward_pre_hooks
    assert list(model.state_dict()) == names


@pytest.mark.parametrize(("spec", "shape"), MODELS[:8])
def test_what_is_asked_for_features_answers_as_ever(spec: str, shape: tuple[int, ...]) -> None:
    model = build_model(spec, classes=7, input_shape=shape, seed=0).eval()
    inputs = torch.randn(2, *shape)
    assert torch.equal(with_features(model)(inputs).logits, model(inputs))
    assert torch.equal(with_features(model)(inputs).features, model.features(inputs))


@pytest.mark.parametrize("spec", ["mlp", "conv2d", "resnet20", "timm:resnet10t"])
def test_half_precision(spec: str) -> None:
    model = build_model(spec, classes=7, input_shape=(3, 32, 32), seed=0).eval()
    with torch.autocast("cpu", torch.bfloat16):
        logits, features = with_features(model)(torch.randn(2, 3, 32, 32))
        assert logits.dtype == torch.bfloat16
        assert torch.equal(head_of(model)(features), logits)


def test_gradients_flow_through_the_features() -> None:
    model = build_model("mlp:hidden=8", classes=3, input_shape=(4,), seed=0)
    _, features = with_features(model)(torch.randn(5, 4))
    features.square().sum().backward()
    assert head_of(model).weight.grad is None
    assert model.get_parameter("body.0.weight").grad is not None


def test_a_model_of_texts(bert: Path) -> None:
    model = build_model(f"hf:{bert}", classes=LABELS, input_shape=None, seed=0).eval()
    logits, features = with_features(model)(tokens())
    assert features.shape == (3, 16)
    assert torch.equal(head_of(model)(features), logits)
    assert torch.equal(classify(model, tokens()), logits)


@pytest.mark.parametrize(
    "make",
    [
        lambda: transformers.RobertaForSequenceClassification(
            transformers.RobertaConfig(
                vocab_size=20, max_position_embeddings=16, pad_token_id=0, num_labels=4, **TINY
            )
        ),
        lambda: transformers.DistilBertForSequenceClassification(
            transformers.DistilBertConfig(
                vocab_size=20, dim=16, n_layers=1, n_heads=2, hidden_dim=32, num_labels=4
            )
        ),
    ],
)
def test_heads_of_several_layers(make: Callable[[], nn.Module]) -> None:
    model = make().eval()
    logits, features = with_features(model)(tokens())
    assert logits.shape == (3, 4)
    assert torch.equal(head_of(model)(features), logits)


def test_a_model_of_images_from_transformers(vit: Path) -> None:
    model = build_model(f"hf:{vit}", classes=6, input_shape=(1, 24, 24), seed=0).eval()
    logits, features = with_features(model)(torch.randn(2, 1, 24, 24))
    assert logits.shape == (2, 6)
    assert torch.equal(head_of(model)(features), logits)


def test_features_of_every_token_are_refused() -> None:
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=16, n_embd=16, n_layer=1, n_head=2, num_labels=3, pad_token_id=0
    )
    config.bos_token_id = config.eos_token_id = 1
    model = transformers.GPT2ForSequenceClassification(config).eval()
    with pytest.raises(InputError, match=r"\[samples, width\], but got \[3, 8, 16\]"):
        with_features(model)(tokens())
    assert not head_of(model)._forward_pre_hooks


class Odd(nn.Module):
    """A model that calls its layers in any order."""

    def __init__(self, use: Callable[[Odd, Tensor], Any]) -> None:
        super().__init__()
        self.use = use
        self.fc = nn.Linear(4, 3)
        self.other = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Any:
        return self.use(self, inputs)


@pytest.mark.parametrize(
    ("use", "part"),
    [
        (lambda model, x: model.other(x), "head once in a forward pass, but got 0 calls"),
        (lambda model, x: model.fc(x) + model.fc(x), "but got 2 calls"),
        (lambda model, x: model.other(x) + 0 * model.fc(x).sum(), "to give its logits, [2, 2]"),
        (lambda model, x: (model.fc(x),), "an object or mapping with `logits`, but got tuple"),
    ],
)
def test_heads_that_do_not_make_the_logits(use: Callable[[Odd, Tensor], Any], part: str) -> None:
    model = Odd(use)
    with pytest.raises(InputError) as caught:
        with_features(model)(torch.randn(2, 4))
    assert part in str(caught.value)
    assert not model.fc._forward_pre_hooks


def test_the_hook_is_gone_after_a_failure() -> None:
    def fail(model: Odd, inputs: Tensor) -> Tensor:
        raise ZeroDivisionError

    model = Odd(fail)
    with pytest.raises(ZeroDivisionError):
        with_features(model)(torch.randn(2, 4))
    assert not model.fc._forward_pre_hooks


def test_another_head_can_be_named() -> None:
    model = Odd(lambda model, x: model.other(input=x))
    logits, features = with_features(model, head=model.other)(torch.ones(2, 4))
    assert logits.shape == (2, 2)
    assert torch.equal(features, torch.ones(2, 4))


@pytest.mark.parametrize(
    "output", [lambda logits: {"logits": logits}, lambda logits: {"logits": logits, "loss": None}]
)
def test_mappings_with_logits(output: Callable[[Tensor], Any]) -> None:
    model = Odd(lambda model, x: output(model.fc(x)))
    assert with_features(model)(torch.ones(2, 4)).logits.shape == (2, 3)


@pytest.mark.parametrize("wrap", [AveragedModel, nn.DataParallel])
def test_wrapped_models(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model = wrap(build_model("mlp", classes=3, input_shape=(4,), seed=0))
    logits, features = with_features(model)(torch.randn(2, 4))
    assert torch.equal(head_of(model)(features), logits)


def test_compiled_models_are_refused() -> None:
    model = torch.compile(build_model("mlp", classes=3, input_shape=(4,), seed=0), backend="eager")
    assert isinstance(model, nn.Module)
    assert head_of(model).out_features == 3
    with pytest.raises(InputError, match="not to be compiled"):
        with_features(model)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_the_function_that_asks_for_features_can_be_compiled() -> None:
    model = build_model("mlp", classes=3, input_shape=(4,), seed=0)
    run = with_features(model)
    compiled = torch.compile(lambda inputs: run(inputs), backend="eager")
    for _ in range(2):
        inputs = torch.randn(2, 4)
        logits, features = compiled(inputs)
        assert torch.equal(logits, model(inputs))
        assert torch.equal(features, model.features(inputs))
    assert not head_of(model)._forward_pre_hooks


def test_two_heads_are_refused() -> None:
    model = build_model(
        "timm:deit_tiny_distilled_patch16_224", classes=3, input_shape=(3, 32, 32), seed=0
    )
    with pytest.raises(InputError, match="one head, but got 2"):
        head_of(model)


@pytest.mark.parametrize(
    "model", [nn.Conv2d(3, 4, 1), nn.Sequential(nn.Flatten())], ids=["conv", "flatten"]
)
def test_models_without_a_linear_layer_are_refused(model: nn.Module) -> None:
    with pytest.raises(InputError, match="to end in a linear layer"):
        head_of(model)
