"""Members trained as one network end where they end one by one: in float64, after fifty steps."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import Tensor

from flipguard.data import build_augmentation, load_data
from flipguard.fusion import Fused, fuse
from flipguard.runs.config import Config, Recipe, Seeds
from flipguard.training.batches import BatchSource
from flipguard.training.trainee import GroupTrainee, optimizer_of
from tests.fusion.nets import apart, members_of, train_alone
from tests.training.tiny import DATA, images_file

STEPS, COUNT, BATCH = 50, 3, 10
CPU = torch.device("cpu")


def batches_of(folder: Path, spec: str, seed: int) -> list[tuple[Tensor, Tensor]]:
    """What a member of a seed sees: its own order and augmentations, epoch after epoch."""
    images = spec.startswith(("conv2d", "lenet5", "resnet", "timm"))
    name = images_file(folder / "images.npz") if images else DATA
    augment = "crop-flip:padding=2" if images else "shift-scale-noise"
    train, seeds = load_data(name).train, Seeds(seed=seed)
    if not images:
        train = train.subset(torch.arange(40))
    material = BatchSource(
        train,
        device=CPU,
        model=spec,
        augmentation=build_augmentation(augment),
        seed=seeds.of("augment"),
    )
    found = []
    for epoch in range(-(-STEPS * BATCH // len(material))):
        drawn = torch.Generator().manual_seed(seeds.of("order", epoch))
        pieces = torch.randperm(len(material), generator=drawn).split(BATCH)
        found += list(material.epoch_batches(pieces, epoch=epoch))
    size = 32 if spec.startswith("timm") else None
    return [(_sized(inputs, size), target) for inputs, target in islice(found, STEPS)]


def _sized(inputs: Tensor, size: int | None) -> Tensor:
    inputs = inputs.double()
    return inputs if size is None else torch.nn.functional.interpolate(inputs, size=size)


def train_fused(
    fused: Fused,
    batches: list[list[tuple[Tensor, Tensor]]],
    kind: str,
    smoothing: float,
    clip: float | None,
) -> None:
    recipe = Recipe(
        optimizer="adamw" if kind == "adamw" else "sgd",
        learning_rate=3e-3 if kind == "adamw" else 0.02,
        weight_decay=0.05,
    )
    optimizer = optimizer_of(Config(recipe=recipe), *fused.decaying(), CPU)
    trainee = GroupTrainee(fused, smoothing).train()
    for step in zip(*batches, strict=True):
        inputs, targets = (torch.stack(tensors) for tensors in zip(*step, strict=True))
        optimizer.zero_grad()
        trainee(inputs, targets)["task"].sum().backward()
        if clip is not None:
            fused.clip(clip)
        optimizer.step()


NETS = [
    ("mlp:hidden=16", (40,)),
    ("conv1d:width=4", (40,)),
    ("conv2d:width=4", (3, 8, 8)),
    ("lenet5", (3, 8, 8)),
    ("resnet9:width=2", (3, 8, 8)),
    ("resnet20:width=4", (3, 8, 8)),
    ("resnet18:width=4", (3, 8, 8)),
]
LARGE = [("timm:resnet10t", (3, 32, 32)), ("timm:vit_tiny_patch16_224", (3, 32, 32))]


def tiny_transformers() -> list[torch.nn.Module]:
    import timm

    members = []
    for seed in range(COUNT):
        torch.manual_seed(seed)
        sizes = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 24, "num_heads": 2}
        members.append(timm.create_model("vit_tiny_patch16_224", num_classes=10, **sizes).double())
    return members


def check(spec: str, shape: tuple[int, ...], kind: str, folder: Path, clip: float | None) -> None:
    members = tiny_transformers() if "vit" in spec else members_of(spec, shape, count=COUNT)
    batches = [batches_of(folder, spec, seed) for seed in range(COUNT)]
    fused = fuse(members, example=torch.zeros(1, *shape))
    assert fused.way == ("stacked" if "vit" in spec else "packed")
    train_fused(fused, batches, kind, 0.1, clip)
    for index, state in enumerate(fused.split()):
        alone = train_alone(members[index], batches[index], kind=kind, smoothing=0.1, clip=clip)
        expected = alone.state_dict()
        assert list(state) == list(expected)
        for name, tensor in expected.items():
            assert state[name].dtype == tensor.dtype
            within = 1e-9 * max(tensor.abs().max().item(), 1.0)
            assert apart(state[name], tensor) <= within, (index, name)
        # There was something to learn, and a member is not another.
        started = dict(members[index].named_parameters())
        assert all(apart(state[name], started[name]) > 1e-6 for name in started)
        if "num_batches_tracked" in "".join(state):
            counted = [t for name, t in state.items() if name.endswith("num_batches_tracked")]
            assert all(int(count) == STEPS for count in counted)


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize(("spec", "shape"), NETS)
def test_fifty_steps(spec: str, shape: tuple[int, ...], kind: str, tmp_path: Path) -> None:
    check(spec, shape, kind, tmp_path, None)


@pytest.mark.parametrize(("spec", "shape"), NETS[1:5:3])
def test_fifty_steps_with_clipped_gradients(
    spec: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    check(spec, shape, "sgd", tmp_path, 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize(("spec", "shape"), LARGE)
def test_fifty_steps_of_library_nets(
    spec: str, shape: tuple[int, ...], kind: str, tmp_path: Path
) -> None:
    check(spec, shape, kind, tmp_path, None)
