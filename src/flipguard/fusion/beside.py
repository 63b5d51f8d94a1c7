"""Several fused networks side by side, each on a stream of its own.

Some kernels of a network wait for memory and others for arithmetic. Where two networks are under
way, a GPU does the one while it waits for the other.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from flipguard.fusion.base import Fused
from flipguard.models import Inputs


class Beside(Fused):
    """Fused networks of one architecture as one; their members are numbered through.

    Called like any other, it has its parts compute at the same time where there is a GPU; their
    gradients follow, because those are computed on the streams that the values were.
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
        # Their layers are in the body already.
        self._parts = (tuple(parts),)
        self._at_most = min(streams, len(parts))
        self._streams: list[Any] = []

    def parts(self) -> Sequence[Fused]:
        return self._parts[0]

    def train(self, mode: bool = True) -> Beside:
        super().train(mode)
        for part in self.parts():
            part.train(mode)
        return self

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compiles each part by itself: a compiler keeps to one stream."""
        for part in self.parts():
            part.compile(*args, **kwargs)

    def _run(self, inputs: Inputs, *, shared: bool) -> Tensor:
        given = [inputs] * len(self.parts()) if shared else list(self._apart(inputs))
        # Parts are compiled for training: elsewhere batches have many sizes.
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
            # Memory is given back in the order of one stream: it must know who else reads it.
            logits.record_stream(caller)
            for tensor in one.values() if isinstance(one, Mapping) else (one,):
                tensor.record_stream(stream)
            found.append(logits)
        for stream in self._streams:
            caller.wait_stream(stream)
        return torch.cat(found)

    def _apart(self, inputs: Inputs) -> Iterator[Inputs]:
        """What each part's members see."""
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

    def __deepcopy__(self, memo: dict[int, Any]) -> Beside:
        parts = [copy.deepcopy(part, memo) for part in self.parts()]
        made = Beside(parts, streams=self._at_most)
        memo[id(self)] = made
        return made.train(self.training)
