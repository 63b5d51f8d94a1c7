"""Convert members to one network, in the first way whose results equal the members'."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from flipguard.errors import InputError, printable
from flipguard.fusion.fused import Fused, FusedStreams, stack_parameters
from flipguard.fusion.operation import NotFusable
from flipguard.fusion.packed import Packed
from flipguard.models import Inputs, classify, same_layout

# A way is tried on all members, or on two if there are more parameters: each takes seconds.
LARGE, FEW = 20_000_000, 2
SAMPLES = 4  # in the batch on which a way is tried; batch normalisation needs several

# The memory-efficient kernel refuses the gradients of mapped calls.
MAPPABLE = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]

TOLERANCE = 1e-6  # relative to the largest number of a tensor; all is computed in float64


def fuse(
    members: Sequence[nn.Module],
    *,
    example: Inputs | None = None,
    streams: int = 1,
    networks: int | None = None,
) -> Fused:
    """Return members of one architecture as one network with the same results.

    Convolutional networks become one network of m groups; others are mapped over stacked
    parameters. Each way is first compared with the members in float64: logits, gradients and
    buffers. If neither way works, raise.

    Args:
        members: Networks of one architecture, with separate weights; they are not changed.
        example: A batch of inputs, of which only the shape counts. flipguard's own networks know
            their input shape, and need none.
        streams: The members are divided into several networks, of which a GPU computes this many at
            the same time.
        networks: The number of networks, by default that of `streams`; at most that of members.

    >>> from flipguard.models import build_model
    >>> members = [build_model("mlp", classes=10, input_shape=(40,), seed=i) for i in range(3)]
    >>> fused = fuse(members)
    >>> fused(torch.zeros(5, 40)).shape, fused(torch.zeros(3, 5, 40)).shape
    (torch.Size([3, 5, 10]), torch.Size([3, 5, 10]))
    >>> list(fused.split()[1]) == list(members[1].state_dict())
    True
    """
    members = list(members)
    if streams < 1:
        raise InputError(
            f"Expected `streams` to be at least 1, but got {streams}; 1 means one network."
        )
    _refuse_differences(members)
    batch = _example(members[0], example)
    numbers = sum(p.numel() for member in members for p in member.parameters())
    some_members = members[:FEW] if numbers > LARGE else members
    reasons: list[str] = []
    for way in (_packed, _stacked):
        try:
            with warnings.catch_warnings():
                # torch warns when it maps a call by a loop, which is slower than no fusing.
                warnings.filterwarnings("error", "There is a performance drop")
                check_equivalence(lambda some, way=way: way(some, batch), some_members, batch)  # type: ignore[misc]
            parts = [way(some, batch) for some in _evenly(members, networks or streams)]
            return parts[0] if len(parts) == 1 else FusedStreams(parts, streams=streams)
        except NotFusable as refusal:
            reasons.append(str(refusal))
        except Exception as problem:  # vectorising may raise anything, depending on the network
            lines = str(problem).strip().splitlines() or [""]
            reasons.append(f"{type(problem).__name__}: {printable(lines[0]).rstrip('.')}")
    raise InputError(
        f"Expected a network that can be trained as {len(members)} at once, but "
        f"{type(members[0]).__name__} has {' and '.join(dict.fromkeys(reasons))}; train its "
        "members one by one (`machine.fuse=off`)."
    )


def _evenly(members: Sequence[nn.Module], networks: int) -> Iterator[Sequence[nn.Module]]:
    """Yield groups of neighbouring members, whose sizes differ by at most one."""
    count = min(networks, len(members))
    for part in range(count):
        yield members[part * len(members) // count : (part + 1) * len(members) // count]


def _packed(members: Sequence[nn.Module], batch: Inputs) -> Fused:
    if not isinstance(batch, Tensor) or not batch.is_floating_point():
        raise NotFusable("inputs that are not images, signals or vectors")
    one = next((p for p in members[0].parameters() if p.is_floating_point()), torch.empty(0))
    return Packed(members, example=batch.to(one.device, one.dtype))


def _stacked(members: Sequence[nn.Module], batch: Inputs) -> Fused:
    first = next(iter(batch.values())) if isinstance(batch, Mapping) else batch
    return Stacked(members, sample_dims=int(first.dim()))


def _refuse_differences(members: Sequence[nn.Module]) -> None:
    if not members:
        raise InputError("Expected at least one member to fuse, but got none; give some.")
    for index, member in enumerate(members[1:], start=1):
        difference = same_layout(members[0], member)
        if difference is None and str(member) != str(members[0]):
            difference = "their layers differ"
        if difference is not None:
            raise InputError(
                f"Expected members of one architecture, but in members 0 and {index} {difference}; "
                "fuse members of the same kind."
            )


def _example(member: nn.Module, given: Inputs | None) -> Inputs:
    if isinstance(given, Mapping):
        return {name: one[:SAMPLES].detach().cpu() for name, one in given.items()}
    shape = getattr(member, "input_shape", None) if given is None else given.shape[1:]
    if shape is None:
        raise InputError(
            f"Expected an example of the inputs of {type(member).__name__}, but got none; pass a "
            "batch of inputs as `example`."
        )
    if given is not None and not given.is_floating_point():
        return given[:SAMPLES].detach().cpu()
    return torch.randn(SAMPLES, *shape, generator=torch.Generator().manual_seed(0))


class Stacked(Fused):
    """Members as one template, which `torch.func.vmap` maps over their stacked tensors."""

    way = "stacked"

    def __init__(self, members: Sequence[nn.Module], *, sample_dims: int) -> None:
        first = members[0]
        super().__init__(
            body=stack_parameters(members, {}),
            names=list(first.state_dict()),
            count=len(members),
            sample_dims=sample_dims,
        )
        # Not a submodule: it has no numbers, and must not be saved, moved or trained.
        self._template = (copy.deepcopy(first).to("meta"),)
        self._common = frozenset(_common(members))

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self._template[0].train(mode)
        return self

    def _run(self, inputs: Inputs, *, shared: bool) -> Tensor:
        parameters: dict[str, Tensor] = dict(self.body.named_parameters(remove_duplicate=False))
        held = dict(self.body.named_buffers(remove_duplicate=False))
        # Tables that are equal in all members are not mapped, so indexing by them stays fast.
        common = {name: held.pop(name)[0] for name in self._common}
        template = self._template[0]

        def one(own: dict[str, Tensor], buffers: dict[str, Tensor], batch: Inputs) -> Tensor:
            tensors = {**own, **buffers, **common}

            def called(*args: Any, **kwargs: Any) -> Any:
                return functional_call(template, tensors, args, kwargs)

            return classify(cast(nn.Module, called), batch)

        over = vmap(one, in_dims=(0, 0, None if shared else 0), randomness="different")
        batch = dict(inputs) if isinstance(inputs, Mapping) else inputs
        device = next(iter(parameters.values())).device
        found: Tensor
        if self.training and device.type != "cpu":
            # Only this context, so that the call compiles as one graph.
            with sdpa_kernel(MAPPABLE):
                found = over(parameters, held, batch)
        else:
            with _mappable_attention(device):
                found = over(parameters, held, batch)
        return found


@contextmanager
def _mappable_attention(device: torch.device) -> Iterator[None]:
    """Context manager: use kernels of attention that torch can map over members."""
    # The fast path of whole layers in eval mode would be mapped by a loop.
    was = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        # On the CPU, torch maps only the plain implementation.
        with sdpa_kernel(SDPBackend.MATH if device.type == "cpu" else MAPPABLE):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was)


def _common(members: Sequence[nn.Module]) -> Iterator[str]:
    """Yield the names of buffers that are not part of the state and are equal in all members."""
    states = [dict(member.named_buffers(remove_duplicate=False)) for member in members]
    kept = set(members[0].state_dict())
    for name, buffer in states[0].items():
        if name not in kept and all(torch.equal(buffer, other[name]) for other in states[1:]):
            yield name


def check_equivalence(
    make: Callable[[Sequence[nn.Module]], Fused], members: Sequence[nn.Module], example: Inputs
) -> None:
    """Raise if the logits, gradients or buffers of fused members differ from the members'.

    Copies in float64 without dropout are compared, on one batch per member in training mode and on
    a shared batch in eval mode. The members are not changed.
    """
    twins = [_twin(member) for member in members]
    fused = make(twins)
    generator = torch.Generator().manual_seed(0)
    own = [_drawn(example, generator) for _ in twins]
    for member in twins:
        member.train()
    fused.train()
    expected = torch.stack([classify(m, one) for m, one in zip(twins, own, strict=True)])
    found = fused(_stacked_batches(own))
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
        for batch in (own[0], _stacked_batches(own)):
            each = own if batch is not own[0] else [own[0]] * len(twins)
            message = [classify(m, one) for m, one in zip(twins, each, strict=True)]
            _compare("logits", fused(batch), torch.stack(message))


def _twin(member: nn.Module) -> nn.Module:
    """Return a copy in float64 on the CPU without dropout."""
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
    """Return inputs of the example's shapes: new random numbers, or tokens in another order."""
    if isinstance(example, Mapping):
        return {name: _drawn_tensor(one, generator) for name, one in example.items()}
    return _drawn_tensor(example, generator)


def _drawn_tensor(tensor: Tensor, generator: torch.Generator) -> Tensor:
    if tensor.is_floating_point():
        return torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    return tensor.cpu()[torch.randperm(len(tensor), generator=generator)]


def _stacked_batches(batches: Sequence[Inputs]) -> Inputs:
    named = [one for one in batches if isinstance(one, Mapping)]
    if named:
        return {name: torch.stack([one[name] for one in named]) for name in named[0]}
    return torch.stack([one for one in batches if isinstance(one, Tensor)])


def _compare(what: str, found: Tensor, expected: Tensor) -> None:
    if found.shape != expected.shape:
        raise NotFusable(
            f"{what}, whose shape is {list(found.shape)} and not {list(expected.shape)}"
        )
    if not expected.numel() or torch.equal(found, expected):
        return
    apart = (found - expected).detach().abs().max().item()
    largest = max(expected.detach().abs().max().item(), 1e-3)
    if not math.isfinite(apart) or apart > TOLERANCE * largest:
        raise NotFusable(f"{what}, which differ from a member's alone (by {apart / largest:.1g})")
