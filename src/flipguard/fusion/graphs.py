"""A training step as a CUDA graph: captured once, then replayed with other numbers.

A step of small networks is hundreds of short kernels, which a GPU computes faster than a host can
start them; a graph starts all of them at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Step = Callable[[Tensor, Tensor], None]
WARM_UP = 4  # steps: libraries choose kernels, optimizers make their state


class CapturedStep:
    """A step that is run as it is for a few times, then captured and replayed.

    All steps are steps of the training, the first ones too. The step may read and write tensors
    that stay in their place; the host may not ask for any value.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._taken = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs, self._target = torch.empty(0), torch.empty(0)
        self._stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call,unused-ignore]

    def __call__(self, inputs: Tensor, target: Tensor) -> None:
        if self._graph is not None and inputs.shape == self._inputs.shape:
            self._inputs.copy_(inputs, non_blocking=True)
            self._target.copy_(target, non_blocking=True)
            self._graph.replay()
            return
        self._taken += 1
        if self._graph is not None or self._taken <= WARM_UP:
            self._apart(inputs, target)
            return
        self._inputs, self._target = inputs.clone(), target.clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step(self._inputs, self._target)
        self._graph = graph
        graph.replay()  # capturing computes nothing

    def _apart(self, inputs: Tensor, target: Tensor) -> None:
        """A step on a stream of its own, as capturing asks of what comes before it."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._step(inputs, target)
        torch.cuda.current_stream().wait_stream(self._stream)
