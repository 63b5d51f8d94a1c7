"""Any network that torch can vectorise: its calls are mapped over stacked parameters."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from flipguard.fusion.base import Fused
from flipguard.fusion.skeleton import skeleton
from flipguard.models import Inputs, classify

# The memory-efficient kernel refuses the gradients of what was mapped.
MAPPABLE = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]


class Stacked(Fused):
    """Members whose every operation torch maps over the members."""

    way = "stacked"

    def __init__(self, members: Sequence[nn.Module], *, sample_dims: int) -> None:
        first = members[0]
        super().__init__(
            body=skeleton(members, {}),
            names=list(first.state_dict()),
            count=len(members),
            sample_dims=sample_dims,
        )
        # Not a submodule: it has no numbers of its own, and must not be saved, moved or trained.
        self._template = (copy.deepcopy(first).to("meta"),)
        self._common = frozenset(_common(members))

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self._template[0].train(mode)
        return self

    def _run(self, inputs: Inputs, *, shared: bool) -> Tensor:
        parameters: dict[str, Tensor] = dict(self.body.named_parameters(remove_duplicate=False))
        held = dict(self.body.named_buffers(remove_duplicate=False))
        # Tables that no member changes are read as one: indexing by them stays plain indexing.
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
            # No more than this, so that it compiles as one graph.
            with sdpa_kernel(MAPPABLE):
                found = over(parameters, held, batch)
        else:
            with _mappable_attention(device):
                found = over(parameters, held, batch)
        return found


@contextmanager
def _mappable_attention(device: torch.device) -> Iterator[None]:
    """Attention as torch can map it over members."""
    # Whole layers in one kernel, which some use in eval mode, are mapped by a loop.
    was = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        # On the CPU torch maps no attention but the plain one.
        with sdpa_kernel(SDPBackend.MATH if device.type == "cpu" else MAPPABLE):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was)


def _common(members: Sequence[nn.Module]) -> Iterator[str]:
    """Buffers that are not part of a state, and are the same in all members."""
    states = [dict(member.named_buffers(remove_duplicate=False)) for member in members]
    kept = set(members[0].state_dict())
    for name, buffer in states[0].items():
        if name not in kept and all(torch.equal(buffer, other[name]) for other in states[1:]):
            yield name
