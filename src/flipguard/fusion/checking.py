"""A conversion proves itself: on random inputs it must give what the members give."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from flipguard.fusion.base import Fused
from flipguard.fusion.place import Refusal
from flipguard.models import Inputs, classify

TOLERANCE = 1e-6  # of the largest number of a tensor; all is computed in float64


def prove(
    make: Callable[[Sequence[nn.Module]], Fused], members: Sequence[nn.Module], example: Inputs
) -> None:
    """Refuses a way to fuse whose logits, gradients or buffers differ from the members'.

    It is tried on copies in float64 and without dropout, on a batch for each member in training
    mode and on one for all in eval mode, and the members stay as they are.
    """
    twins = [_twin(member) for member in members]
    fused = make(twins)
    generator = torch.Generator().manual_seed(0)
    own = [_drawn(example, generator) for _ in twins]
    for member in twins:
        member.train()
    fused.train()
    expected = torch.stack([classify(m, one) for m, one in zip(twins, own, strict=True)])
    found = fused(_stacked(own))
    _compare("logits while training", found, expected)
    weights = torch.randn(expected.shape, generator=generator, dtype=expected.dtype)
    torch.autograd.backward([(expected * weights).sum(), (found * weights).sum()])
    gradients = dict(fused.body.named_parameters())
    for name, parameter in gradients.items():
        for index, member in enumerate(twins):
            one = member.get_parameter(name).grad
            both = parameter.grad
            zero = torch.zeros_like(parameter[index])
            _compare(
                f"the gradient of `{name}`",
                zero if both is None else both[index],
                zero if one is None else one,
            )
    for index, state in enumerate(fused.split()):
        for name, tensor in twins[index].state_dict().items():
            _compare(f"`{name}` after a step", state[name], tensor)
    for member in twins:
        member.eval()
    fused.eval()
    with torch.no_grad():
        for batch in (own[0], _stacked(own)):
            each = own if batch is not own[0] else [own[0]] * len(twins)
            said = [classify(m, one) for m, one in zip(twins, each, strict=True)]
            _compare("logits", fused(batch), torch.stack(said))


def _twin(member: nn.Module) -> nn.Module:
    """A copy in float64 on the CPU that drops nothing."""
    twin = copy.deepcopy(member).cpu().double()
    for module in twin.modules():
        for name, value in vars(module).items():
            named = "drop" in name or (name == "p" and "Drop" in type(module).__name__)
            if named and isinstance(value, float):
                setattr(module, name, 0.0)
    for parameter in twin.parameters():
        parameter.grad = None
    return twin


def _drawn(example: Inputs, generator: torch.Generator) -> Inputs:
    """Inputs of the example's shapes: numbers anew, words in another order."""
    if isinstance(example, Mapping):
        return {name: _drawn_tensor(one, generator) for name, one in example.items()}
    return _drawn_tensor(example, generator)


def _drawn_tensor(tensor: Tensor, generator: torch.Generator) -> Tensor:
    if tensor.is_floating_point():
        return torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    return tensor.cpu()[torch.randperm(len(tensor), generator=generator)]


def _stacked(batches: Sequence[Inputs]) -> Inputs:
    named = [one for one in batches if isinstance(one, Mapping)]
    if named:
        return {name: torch.stack([one[name] for one in named]) for name in named[0]}
    return torch.stack([one for one in batches if isinstance(one, Tensor)])


def _compare(what: str, found: Tensor, expected: Tensor) -> None:
    if found.shape != expected.shape:
        raise Refusal(
            f"{what}, which come out as {list(found.shape)} and not {list(expected.shape)}"
        )
    if not expected.numel() or torch.equal(found, expected):
        return
    apart = (found - expected).detach().abs().max().item()
    largest = max(expected.detach().abs().max().item(), 1e-3)
    if not math.isfinite(apart) or apart > TOLERANCE * largest:
        raise Refusal(f"{what}, which come out otherwise than alone (by {apart / largest:.1g})")
