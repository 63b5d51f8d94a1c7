"""Foreign models with random weights, and a folder of small images, for tests of `adopt`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torchvision
import transformers
from PIL import Image
from safetensors.torch import save_file
from torch import nn

NAMES = ("cat", "dog", "fox")
SIDE = 32


def photos(folder: Path, *, names: Sequence[str] = NAMES, train: int = 8, test: int = 6) -> str:
    """A folder of images of several shapes, whose classes differ in colour; the data's spec."""
    drawn = np.random.default_rng(0)
    for split, count in (("train", train), ("test", test)):
        for index, name in enumerate(names):
            place = folder / split / name
            place.mkdir(parents=True)
            for number in range(count):
                noise = drawn.integers(0, 120, (6, 5, 3))
                noise[..., index % 3] += 100
                sides = (41 + 3 * number, 50)
                small = Image.fromarray(noise.astype(np.uint8))
                small.resize(sides, Image.Resampling.BICUBIC).save(place / f"{number}.png")
    return f"{folder}:size={SIDE}"


def drawn(make: Any, seed: int = 0) -> nn.Module:
    """A model with random weights of a seed, in eval mode."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: nn.Module = make().eval()
        # The logits of a new network hardly differ between images.
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter, requires_grad=False))
    return model


def saved(model: nn.Module, path: Path) -> str:
    """The path of a file with a model's weights."""
    save_file({name: t.contiguous() for name, t in model.state_dict().items()}, str(path))
    return str(path)


def timm_model(name: str = "resnet10t", classes: int = 3, **more: Any) -> nn.Module:
    return drawn(lambda: timm.create_model(name, num_classes=classes, **more))


def torchvision_model(name: str, classes: int = 3, **more: Any) -> nn.Module:
    return drawn(lambda: torchvision.models.get_model(name, num_classes=classes, **more))


def vit_folder(folder: Path, *, labels: Sequence[str] = NAMES, seed: int = 0) -> nn.Module:
    """Write a tiny model of Transformers with its image processor and labels."""
    config = transformers.ViTConfig(
        image_size=SIDE,
        patch_size=8,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=len(labels),
        id2label=dict(enumerate(labels)),
        label2id={label: index for index, label in enumerate(labels)},
    )
    model = drawn(lambda: transformers.ViTForImageClassification(config), seed)
    model.save_pretrained(folder)
    told = {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": SIDE, "width": SIDE},
        "image_mean": [0.4, 0.5, 0.6],
        "image_std": [0.2, 0.25, 0.3],
        "resample": 3,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(told))
    return model


def pictures_of(folder: Path) -> list[Path]:
    return sorted((folder / "test").rglob("*.png"))


class Small(nn.Module):
    """A network of somebody's own, for images of 8 x 8."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten())
        self.out = nn.Linear(4 * 36, classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.out(self.body(inputs))
        return logits


def small(*, classes: int, input_shape: Any) -> nn.Module:
    """A factory for `python:`."""
    return drawn(lambda: Small(classes))


def fixed(*, classes: int, input_shape: Any) -> nn.Module:
    """A factory that knows one number of classes."""
    return drawn(lambda: Small(3))
