"""Models that the tests of references use: real ones, and ones that misbehave in one way each."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 5


def mlp(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(3 * 32 * 32, 8),
        nn.BatchNorm1d(8),
        nn.Dropout(0.5),
        nn.Linear(8, CLASSES),
    )


def timm_model(seed: int = 0) -> nn.Module:
    import timm

    torch.manual_seed(seed)
    model: nn.Module = timm.create_model("test_resnet", num_classes=CLASSES, drop_rate=0.5)
    return model


def torchvision_model(seed: int = 0) -> nn.Module:
    import torchvision

    torch.manual_seed(seed)
    model: nn.Module = torchvision.models.squeezenet1_1(num_classes=CLASSES)
    return model


def bert(seed: int = 0) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        num_labels=CLASSES,
    )
    model: nn.Module = BertForSequenceClassification(config)
    return model


def images(count: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def words(count: int = 4, seed: int = 0) -> Tensor:
    return torch.randint(0, 50, (count, 7), generator=torch.Generator().manual_seed(seed))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp": (mlp, images),
    "timm": (timm_model, images),
    "torchvision": (torchvision_model, images),
    "transformers": (bert, words),
}


class Gambler(nn.Module):
    """Draws from every stream of random numbers, in eval mode too."""

    def forward(self, x: Tensor) -> Tensor:
        noise = random.random() + float(np.random.rand())  # noqa: NPY002
        return functional.dropout(x, 0.5, training=True) + noise


class Changing(nn.Module):
    """Changes its own buffers in eval mode, in the way that is asked for."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.cached = 0
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.tensor([float("nan"), 1.0, 2.0]))
        self.register_buffer("variance", torch.ones(3))
        self.register_buffer("hidden", torch.zeros(2, 3), persistent=False)
        self.register_buffer("nothing", None)
        self.calls: Tensor
        self.mean: Tensor
        self.variance: Tensor

    def forward(self, x: Tensor) -> Tensor:
        getattr(self, f"_{self.how}")(x)
        return x + self.calls + self.cached

    def _in_place(self, x: Tensor) -> None:
        self.calls += 1
        self.hidden.fill_(7.0)

    def _reassigned(self, x: Tensor) -> None:
        self.calls = self.calls + 1

    def _by_data(self, x: Tensor) -> None:
        self.calls.data.add_(1)

    def _by_other_data(self, x: Tensor) -> None:
        self.calls.data = self.calls + 1

    def _by_training_statistics(self, x: Tensor) -> None:
        functional.batch_norm(x, self.mean[1:].repeat(2)[:3], self.variance, training=True)

    def _registered(self, x: Tensor) -> None:
        self.register_buffer("extra", torch.ones(1))

    def _deleted(self, x: Tensor) -> None:
        del self.variance

    def _filled(self, x: Tensor) -> None:
        self.nothing = torch.ones(1)

    def _resized(self, x: Tensor) -> None:
        self.hidden.resize_(4, 9).zero_()

    def _with_an_attribute(self, x: Tensor) -> None:
        # The attribute says how far the buffer reaches; the two are true together only.
        if self.cached == 0:
            self.cached = 1
            self.calls = self.calls + 1

    def _with_a_new_attribute(self, x: Tensor) -> None:
        if not hasattr(self, "reach"):
            self.reach = 1
            self.calls = self.calls + 1

    def _after_three_calls(self, x: Tensor) -> None:
        self.seen: list[int] = [*getattr(self, "seen", []), 1]
        if len(self.seen) > 3:
            self.calls += 1

    def _and_raises(self, x: Tensor) -> None:
        self.calls += 1
        raise RuntimeError("no logits today")


WAYS = [
    "in_place",
    "reassigned",
    "by_data",
    "by_other_data",
    "by_training_statistics",
    "registered",
    "deleted",
    "filled",
    "resized",
    "with_an_attribute",
    "with_a_new_attribute",
    "after_three_calls",
]


def held(model: nn.Module) -> dict[str, tuple[int, bytes]]:
    """Which tensors a model holds, hidden ones too, and their bytes."""
    tensors: dict[str, Any] = {
        f"{name}.{key}": tensor
        for name, module in model.named_modules()
        for store in (module._parameters, module._buffers)
        for key, tensor in store.items()
    }
    return {
        name: (id(tensor), b"" if tensor is None else tensor.detach().clone().numpy().tobytes())
        for name, tensor in tensors.items()
    }


def modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]
