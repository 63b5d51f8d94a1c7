"""Fused teachers: the ensemble's mean in one pass, with normalisations folded away."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from flipguard.acceleration.memory import MemoryNeed, memory_need
from flipguard.fusion import fuse
from flipguard.models.checkpointing import blocks_of
from flipguard.references import Ensemble
from flipguard.training.teachers import FusedMean, fold_batch_norm, teachers
from tests.fusion.nets import apart, drawn, members_of
from tests.fusion.test_fused import attending

NETS = [("mlp:hidden=8", (40,)), ("conv2d:width=4", (3, 8, 8)), ("resnet20:width=4", (3, 8, 8))]


def warmed(members: list[nn.Module], shape: tuple[int, ...]) -> list[nn.Module]:
    """Members whose batch normalisation has seen something."""
    for index, member in enumerate(members):
        for norm in member.modules():
            if isinstance(norm, nn.BatchNorm2d):
                norm.weight.data.uniform_(0.5, 2.0)
                norm.bias.data.normal_()
        member.train()(drawn((16, *shape), seed=index))
        member.eval()
    return members


@pytest.mark.parametrize(("spec", "shape"), [*NETS, ("resnet18:width=4", (3, 8, 8))])
@pytest.mark.parametrize("temperatures", [None, (0.5, 1.0, 3.0)])
def test_teachers_say_what_the_ensemble_says(
    spec: str, shape: tuple[int, ...], temperatures: tuple[float, ...] | None
) -> None:
    torch.manual_seed(0)
    members = warmed(members_of(spec, shape), shape)
    inputs = drawn((7, *shape), seed=5)
    expected = Ensemble(members, temperatures=temperatures)(inputs)
    reference = teachers(members, temperatures=temperatures)
    found = reference(inputs)
    assert found.dtype == torch.float64
    assert apart(found, expected) < 1e-11
    assert not found.requires_grad
    # In float32, where it is used, to rounding.
    single = [copy.deepcopy(member).float() for member in members]
    found = teachers(single, temperatures=temperatures)(inputs.float())
    assert found.dtype == torch.float32
    largest = expected.abs().max().item()
    assert (
        apart(found, Ensemble(single, temperatures=temperatures)(inputs.float())) < 3e-6 * largest
    )


def test_normalisations_are_folded_away() -> None:
    shape = (3, 8, 8)
    (member,) = warmed(members_of("resnet18:width=4", shape, count=1), shape)
    plain = fold_batch_norm(member, torch.zeros(2, *shape, dtype=torch.float64))
    assert not any(isinstance(module, nn.BatchNorm2d) for module in plain.modules())
    assert any(isinstance(module, nn.BatchNorm2d) for module in member.modules())
    inputs = drawn((5, *shape))
    assert apart(plain(inputs), member(inputs)) < 1e-12


def test_a_norm_that_others_hear_of_is_not_folded() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

        def forward(self, inputs: Tensor) -> Tensor:
            hidden = self.first(inputs)
            return (hidden + self.norm(hidden)).flatten(1)

    (member,) = warmed([Twice().double()], (3, 4, 4))
    inputs = drawn((5, 3, 4, 4))
    assert apart(fold_batch_norm(member, inputs)(inputs), member(inputs)) < 1e-12


def test_teachers_that_are_no_convolutions() -> None:
    members = [member.eval() for member in attending()]
    inputs = drawn((7, 5, 8))
    found = teachers(members, example=torch.zeros(1, 5, 8))(inputs)
    assert apart(found, Ensemble(members)(inputs)) < 1e-12


def test_teachers_of_half_precision_are_averaged_in_float32() -> None:
    fused = fuse(members_of("mlp:hidden=8", (40,)))
    mean = FusedMean(fused.to(torch.bfloat16).eval())
    found = mean(drawn((5, 40)).to(torch.bfloat16))
    assert found.dtype == torch.float32
    parts = fused(drawn((5, 40)).to(torch.bfloat16)).float()
    assert apart(found, parts.mean(0)) < 1e-6


def test_memory_grows_with_members_and_batches() -> None:
    (member,) = members_of("conv2d:width=8", (3, 16, 16), count=1)
    one = memory_need(member.float(), torch.zeros(2, 3, 16, 16), optimizer="sgd", half=False)
    again = memory_need(member, torch.zeros(4, 3, 16, 16), optimizer="adamw", half=True)
    assert again.weights == pytest.approx(one.weights * 4 / 3)
    # Every activation that a gradient needs: inputs, convolutions, norms, pooled places and more.
    channels = 3 + 8 + 8 + 8 + (8 + 16 + 16) // 4 + (16 + 32 + 32) // 16
    assert channels * 256 * 4 * 0.9 < one.sample < channels * 256 * 4 * 2.5
    assert again.sample == pytest.approx(one.sample / 2, rel=0.05)
    both = MemoryNeed(weights=1000, sample=10)
    assert both.of(8, 100) == 8 * both.of(1, 100)
    assert both.most(both.of(5, 100) + 1, 100) == 5
    assert both.most(1, 100) == 0


@pytest.mark.parametrize("spec", ["resnet9:width=4", "resnet20:width=4"])
def test_memory_of_what_is_computed_again(spec: str) -> None:
    """Counted by hand: what lies outside blocks, what enters them, and the largest of them."""
    (member,) = members_of(spec, (3, 16, 16), count=1)
    example = torch.zeros(2, 3, 16, 16)
    whole = memory_need(member.float(), example, optimizer="sgd", half=False).sample
    less = memory_need(member, example, optimizer="sgd", half=False, again=True).sample
    entering: list[int] = []
    for block in blocks_of(member):
        block.register_forward_pre_hook(lambda _, given: entering.append(given[0][0].nbytes))
    member(example)
    assert 0.3 * whole <= less < whole
    assert less > sum(entering)
    if spec.startswith("resnet9"):  # whose blocks are few and large
        assert less > 0.5 * whole
