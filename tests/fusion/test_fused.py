"""What a fused network promises: independence, names, ways, and refusals of one sentence."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import Tensor, nn

from flipguard.errors import InputError
from flipguard.fusion import fuse, operation
from flipguard.fusion.layers import ManyBatchNorm, ManyConv
from tests.fusion.nets import apart, attending, drawn, members_of

NETS = [("mlp:hidden=8", (40,)), ("conv1d:width=4", (40,)), ("resnet20:width=4", (3, 8, 8))]


@pytest.mark.parametrize(("spec", "shape"), [*NETS, ("attends", (5, 8))])
@pytest.mark.parametrize("bad", [float("nan"), 1e30])
def test_a_member_does_not_feel_the_others(spec: str, shape: tuple[int, ...], bad: float) -> None:
    members = attending() if spec == "attends" else members_of(spec, shape)
    example = torch.zeros(1, *shape)
    inputs = drawn((3, 6, *shape))
    spoilt = inputs.clone()
    spoilt[1] = bad
    found = []
    for given in (inputs, spoilt):
        fused = fuse(members, example=example).train()
        for module in fused.modules():
            module.eval() if isinstance(module, nn.Dropout) else None
        torch.manual_seed(0)
        logits = fused(given)
        logits.sum(2).square().sum(1).sum().backward()
        gradients = {name: p.grad for name, p in fused.body.named_parameters()}
        found.append((logits.detach(), gradients, fused.split()))
    for index in (0, 2):
        assert torch.equal(found[0][0][index], found[1][0][index])
        for name, gradient in found[0][1].items():
            assert torch.equal(gradient[index], found[1][1][name][index]), name
        for name, tensor in found[0][2][index].items():
            assert torch.equal(tensor, found[1][2][index][name]), name
    assert not torch.equal(found[0][0][1], found[1][0][1])


def test_a_transformer_is_stacked() -> None:
    members = attending()
    fused = fuse(members, example=torch.zeros(1, 5, 8))
    assert fused.way == "stacked"
    for training in (False, True):
        for module in [fused, *members]:
            module.train(training)
        for member in members:
            for module in member.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0
                if isinstance(module, nn.MultiheadAttention):
                    module.dropout = 0.0
        again = fuse(members, example=torch.zeros(1, 5, 8)).train(training)
        own = drawn((3, 6, 5, 8))
        assert (
            apart(again(own), torch.stack([m(x) for m, x in zip(members, own, strict=True)]))
            < 1e-12
        )
        for state, member in zip(again.split(), members, strict=True):
            for name, tensor in member.state_dict().items():
                assert apart(state[name], tensor) < 1e-12, name
    assert "table" not in fused.split()[0]


def test_stacked_members_drop_for_themselves() -> None:
    members = attending(count=1) * 2
    fused = fuse(members, example=torch.zeros(1, 5, 8))
    first, second = fused.eval()(drawn((6, 5, 8)))
    assert torch.allclose(first, second)
    first, second = fused.train()(drawn((6, 5, 8)))
    assert not torch.allclose(first, second)


@pytest.mark.parametrize(("spec", "shape"), [*NETS, ("attends", (5, 8))])
def test_split_gives_the_members_back(spec: str, shape: tuple[int, ...]) -> None:
    members = attending() if spec == "attends" else members_of(spec, shape)
    fused = fuse(members, example=torch.zeros(1, *shape))
    for member, state in zip(members, fused.split(), strict=True):
        expected = member.state_dict()
        assert list(state) == list(expected)
        for name, tensor in expected.items():
            assert torch.equal(state[name], tensor)
            assert state[name].stride() == tensor.stride()
        copy.deepcopy(member).load_state_dict(state)
        # They are copies, not views of the fused weights.
        next(iter(state.values())).zero_()
    assert all(
        torch.equal(state[name], tensor)
        for member, state in zip(members, fused.split(), strict=True)
        for name, tensor in member.state_dict().items()
    )


def test_fusing_leaves_members_as_they_are() -> None:
    members = members_of("resnet20:width=4", (3, 8, 8))
    before = [copy.deepcopy(member.state_dict()) for member in members]
    stream = torch.get_rng_state()
    fused = fuse(members).train()
    fused(drawn((4, 3, 8, 8))).sum().backward()
    assert torch.equal(torch.get_rng_state(), stream)
    for member, state in zip(members, before, strict=True):
        assert all(torch.equal(t, state[name]) for name, t in member.state_dict().items())
        assert all(p.grad is None for p in member.parameters())


def test_a_copy_is_apart() -> None:
    fused = fuse(members_of("conv2d:width=4", (3, 8, 8)))
    twin = copy.deepcopy(fused)
    inputs = drawn((4, 3, 8, 8))
    with torch.no_grad():
        expected = fused.eval()(inputs).clone()
        for parameter in twin.parameters():
            parameter.zero_()
        assert torch.equal(fused(inputs), expected)
        assert not twin.eval()(inputs).any()


def test_clipping_is_a_members_own() -> None:
    members = members_of("mlp:hidden=8", (40,))
    fused = fuse(members)
    scales = torch.tensor([0.01, 1.0, 100.0], dtype=torch.float64)
    inputs = drawn((6, 40))
    (fused(inputs).square().sum((1, 2)) * scales).sum().backward()
    fused.clip(2.0)
    for index, member in enumerate(members):
        (member(inputs).square().sum() * scales[index]).backward()
        torch.nn.utils.clip_grad_norm_(member.parameters(), 2.0)
        for name, parameter in fused.body.named_parameters():
            expected = member.get_parameter(name).grad
            assert apart(parameter.grad[index], expected) < 1e-12
    norms = fused.gradient_norms()
    assert norms[0] < 1.9
    assert norms[1:].tolist() == pytest.approx([2.0, 2.0], abs=1e-5)


def test_vectors_of_members_do_not_decay() -> None:
    fused = fuse(members_of("conv2d:width=4", (3, 8, 8)))
    names = {id(p): name for name, p in fused.body.named_parameters()}
    matrices, vectors = ([names[id(p)] for p in some] for some in fused.decaying())
    assert matrices == ["body.0.weight", "body.4.weight", "body.8.weight", "head.weight"]
    assert "head.bias" in vectors
    assert "body.1.weight" in vectors


class Sorts(nn.Module):
    """Does something else for every input."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(inputs) if inputs.sum().item() > 0 else -self.head(inputs)


@pytest.mark.parametrize(
    ("members", "example", "said"),
    [
        ([], None, "at least one member"),
        ([nn.Linear(2, 3), nn.Linear(2, 4)], None, "members of one architecture"),
        ([nn.Sequential(nn.ReLU()), nn.Sequential(nn.Tanh())], None, "their layers differ"),
        ([nn.Linear(2, 3)] * 2, None, "an example of the inputs of Linear"),
        (
            [Sorts(), Sorts()],
            torch.zeros(1, 4),
            "members one by one (`machine.fuse=off`)",
        ),
    ],
)
def test_what_cannot_be_fused(members: list, example: Tensor | None, said: str) -> None:
    with pytest.raises(InputError) as refusal:
        fuse(members, example=example)
    text = str(refusal.value)
    assert said in text
    assert re.fullmatch(r"Expected [^\n]*, but [^\n]*; [^\n]*\.", text)


def test_inputs_of_another_shape_are_refused() -> None:
    fused = fuse(members_of("mlp:hidden=8", (40,)))
    for shape in ((2, 4, 40), (40,), (3, 1, 4, 40)):
        with pytest.raises(InputError, match=r"Expected inputs of \[n, ·\]"):
            fused(torch.zeros(shape))


def wrong_convolution(self: ManyConv, values: Tensor, shared: bool = False) -> Tensor:
    found = RIGHT_CONVOLUTION(self, values, shared)
    return found + 1e-4 * found.roll(1, 1)  # members feel each other


def forgetful_norm(self: ManyBatchNorm, values: Tensor) -> Tensor:
    kept = self._momentum
    self._momentum = 0.9 * kept  # only the statistics differ
    try:
        return RIGHT_NORM(self, values)
    finally:
        self._momentum = kept


RIGHT_CONVOLUTION, RIGHT_NORM = ManyConv.forward, ManyBatchNorm.forward


@pytest.mark.parametrize(
    ("layer", "wrong"), [(ManyConv, wrong_convolution), (ManyBatchNorm, forgetful_norm)]
)
def test_a_conversion_that_is_wrong_is_noticed(
    layer: type[nn.Module], wrong: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = members_of("conv2d:width=4", (3, 8, 8))
    monkeypatch.setattr(layer, "forward", wrong)
    assert fuse(members).way == "stacked"  # the packed way is not believed

    def refuse(*_: object, **__: object) -> None:
        raise operation.NotFusable("nothing that is known")

    monkeypatch.setattr("flipguard.fusion.conversion._stacked", refuse)
    with pytest.raises(InputError, match="which differ from a member's alone"):
        fuse(members)
