"""Several members as one network: the interface, stacked parameters, and parallel streams."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor, nn

from flipguard.errors import InputError
from flipguard.fusion.operation import stacked
from flipguard.models import Inputs

Maker = Callable[[], nn.Module]


class Fused(nn.Module, ABC):
    """m replicas of one network, computed together and independent of each other.

    Called with inputs [n, ...] that all members share, or with [m, n, ...], one batch per member,
    it returns logits [m, n, classes]. Its state has the members' tensors stacked, [m, ...], under
    the members' names. If the loss is a sum over members, each gets its gradient alone.

    Dropout draws the masks of all members from one random stream, so the numbers differ from those
    of a member that is trained alone.
    """

    way: str

    def __init__(
        self, *, body: nn.Module, names: Sequence[str], count: int, sample_dims: int
    ) -> None:
        super().__init__()
        self.body = body
        self.count: Final = count
        self.sample_dims: Final = sample_dims  # the number of axes of one member's batch
        self._names: Final = tuple(names)

    def forward(self, inputs: Inputs) -> Tensor:
        return self._run(inputs, shared=self._is_shared(inputs))

    def parts(self) -> Sequence[Fused]:
        """Return the networks that are computed on streams; only this one if there is one."""
        return (self,)

    @abstractmethod
    def _run(self, inputs: Inputs, *, shared: bool) -> Tensor:
        """Return the logits [m, n, classes]."""

    def split(self) -> list[dict[str, Tensor]]:
        """Return the members' state dicts, with the names, shapes and order of the members."""
        state = self.body.state_dict()
        return [
            {name: state[name][index].clone() for name in self._names}
            for index in range(self.count)
        ]

    def decaying(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Return the trained parameters that are matrices in a member, and the vectors."""
        found = [p for p in self.parameters() if p.requires_grad]
        return [p for p in found if p.dim() > 2], [p for p in found if p.dim() <= 2]

    def gradient_norms(self) -> Tensor:
        """Return the norm of each member's gradient, [m]."""
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        norms = [torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients]
        found: Tensor = torch.linalg.vector_norm(torch.stack(norms), dim=0)
        return found

    def finite(self) -> Tensor:
        """Return whether all weights of each member are finite, [m]."""
        each = [p.detach().flatten(1).isfinite().all(1) for p in self.parameters()]
        return torch.stack(each).all(0)

    def clip(self, largest: float) -> None:
        """Scale each member's gradient to at most a norm, as `clip_grad_norm_` does for one net."""
        factors = (largest / (self.gradient_norms() + 1e-6)).clamp(max=1.0)
        for parameter in self.parameters():
            if parameter.grad is not None:
                ones = [1] * (parameter.dim() - 1)
                parameter.grad.mul_(factors.to(parameter.grad.dtype).view(-1, *ones))

    def _is_shared(self, inputs: Inputs) -> bool:
        first: Any = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs
        if first.dim() == self.sample_dims:
            return True
        if first.dim() == self.sample_dims + 1 and len(first) == self.count:
            return False
        ones = ["n"] + ["·"] * (self.sample_dims - 1)
        raise InputError(
            f"Expected inputs of [{', '.join(ones)}] for all members or of "
            f"[{', '.join([str(self.count), *ones])}], one batch per member, but got "
            f"{list(first.shape)}; stack one batch per member."
        )


class Namespace(nn.Module):
    """A module that only holds tensors and other modules."""


def stack_parameters(members: Sequence[nn.Module], makers: Mapping[str, Maker]) -> nn.Module:
    """Return a tree of modules like a member's, with stacked tensors [m, ...].

    `makers` makes the modules that are called, by path; the others only hold tensors. Tensors and
    modules that a member has under several names are shared in the tree as well.
    """
    trees = [dict(member.named_modules(remove_duplicate=False)) for member in members]
    made: dict[int, nn.Module] = {}
    parameters: dict[int, nn.Parameter] = {}
    root = nn.Module()
    for path, module in trees[0].items():
        if id(module) not in made:
            built = makers.get(path, Namespace)()
            _fill(built, [tree[path] for tree in trees], parameters)
            made[id(module)] = built
        _put(root, path, made[id(module)])
    return made[id(trees[0][""])]


def _fill(
    built: nn.Module, modules: Sequence[nn.Module], parameters: dict[int, nn.Parameter]
) -> None:
    first = modules[0]
    for name, parameter in first._parameters.items():
        if parameter is None:
            built.register_parameter(name, None)
            continue
        if id(parameter) not in parameters:
            values = stacked([_tensor(module._parameters[name]) for module in modules])
            parameters[id(parameter)] = nn.Parameter(values, parameter.requires_grad)
        built.register_parameter(name, parameters[id(parameter)])
    for name, buffer in first._buffers.items():
        kept = name not in first._non_persistent_buffers_set
        values_or_none = None
        if buffer is not None:
            values_or_none = stacked([_tensor(module._buffers[name]) for module in modules])
        built.register_buffer(name, values_or_none, persistent=kept)


def _put(root: nn.Module, path: str, module: nn.Module) -> None:
    if not path:
        root.add_module("root", module)
        return
    at = root.get_submodule("root")
    *parents, name = path.split(".")
    for parent in parents:
        at = at.get_submodule(parent)
    at.add_module(name, module)


def _tensor(value: Tensor | None) -> Tensor:
    assert value is not None  # members have the same layout
    return value


class FusedStreams(Fused):
    """Several fused networks of one architecture as one, with members numbered consecutively.

    On a GPU, its parts are computed at the same time on several streams. So are their gradients,
    because torch computes a gradient on the stream of its value.
    """

    def __init__(self, parts: Sequence[Fused], *, streams: int) -> None:
        first = parts[0]
        super().__init__(
            body=nn.ModuleList(part.body for part in parts),
            names=(),
            count=sum(part.count for part in parts),
            sample_dims=first.sample_dims,
        )
        self.way = first.way
        # In a tuple, because their layers are submodules of the body already.
        self._parts = (tuple(parts),)
        self._at_most = min(streams, len(parts))
        self._streams: list[Any] = []

    def parts(self) -> Sequence[Fused]:
        return self._parts[0]

    def train(self, mode: bool = True) -> FusedStreams:
        super().train(mode)
        for part in self.parts():
            part.train(mode)
        return self

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile each part by itself, because a compiled module runs on one stream."""
        for part in self.parts():
            part.compile(*args, **kwargs)

    def _run(self, inputs: Inputs, *, shared: bool) -> Tensor:
        given = [inputs] * len(self.parts()) if shared else list(self._apart(inputs))
        # Compiled parts are used for training only: elsewhere batches have many sizes.
        calls = [part if self.training else part.forward for part in self.parts()]
        device = next(self.parameters()).device
        if device.type != "cuda":
            return torch.cat([call(one) for call, one in zip(calls, given, strict=True)])
        return self._at_once(calls, given, device)

    def _at_once(
        self, calls: Sequence[Callable[..., Any]], given: Sequence[Inputs], device: torch.device
    ) -> Tensor:
        caller = torch.cuda.current_stream(device)
        while len(self._streams) < self._at_most:
            stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call,unused-ignore]
            self._streams.append(stream)
        found = []
        for stream in self._streams:
            stream.wait_stream(caller)
        for index, (call, one) in enumerate(zip(calls, given, strict=True)):
            stream = self._streams[index % self._at_most]
            with torch.cuda.stream(stream):
                logits = call(one)
            # The allocator must know the other streams that read a tensor before it is freed.
            logits.record_stream(caller)
            for tensor in one.values() if isinstance(one, Mapping) else (one,):
                tensor.record_stream(stream)
            found.append(logits)
        for stream in self._streams:
            caller.wait_stream(stream)
        return torch.cat(found)

    def _apart(self, inputs: Inputs) -> Iterator[Inputs]:
        """Yield the inputs of each part's members."""
        ends = [0]
        for part in self.parts():
            ends.append(ends[-1] + part.count)
        for begin, end in pairwise(ends):
            if isinstance(inputs, Mapping):
                yield {name: tensor[begin:end] for name, tensor in inputs.items()}
            else:
                yield inputs[begin:end]

    def split(self) -> list[dict[str, Tensor]]:
        return [state for part in self.parts() for state in part.split()]

    def gradient_norms(self) -> Tensor:
        return torch.cat([part.gradient_norms() for part in self.parts()])

    def finite(self) -> Tensor:
        return torch.cat([part.finite() for part in self.parts()])

    def clip(self, largest: float) -> None:
        for part in self.parts():
            part.clip(largest)

    def __deepcopy__(self, memo: dict[int, Any]) -> FusedStreams:
        parts = [copy.deepcopy(part, memo) for part in self.parts()]
        made = FusedStreams(parts, streams=self._at_most)
        memo[id(self)] = made
        return made.train(self.training)
