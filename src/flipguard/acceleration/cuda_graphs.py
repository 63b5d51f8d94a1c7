"""A training step as a CUDA graph: captured once, then replayed with new inputs.

A step of small networks has hundreds of short kernels, which a GPU computes faster than a host can
start them; a graph starts all of them at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

WARM_UP = 4  # steps in which libraries choose kernels and optimizers make their state


class CapturedStep:
    """A step that is called directly a few times, then captured and replayed.

    Each call is one step of the training, including the first ones. The step may read and write
    tensors that keep their addresses; it may not copy a value to the host. Inputs of another shape
    than the captured ones are computed directly. If the step cannot be captured and `otherwise` is
    given, it is called once with the reason, and all steps are computed directly.
    """

    def __init__(
        self, step: Callable[..., None], *, otherwise: Callable[[str], None] | None = None
    ) -> None:
        self._step = step
        self._otherwise = otherwise
        self._taken = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._failed: torch.cuda.CUDAGraph | None = None
        self._held: list[Tensor] = []
        self._stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call,unused-ignore]
        self._gave_up = False

    def __call__(self, *tensors: Tensor) -> None:
        if self._graph is not None and self._fits(tensors):
            for place, tensor in zip(self._held, tensors, strict=True):
                place.copy_(tensor, non_blocking=True)
            self._graph.replay()
            return
        self._taken += 1
        if self._graph is not None or self._gave_up or self._taken <= WARM_UP:
            self._apart(*tensors)
            return
        held = [tensor.clone() for tensor in tensors]
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._step(*held)
        except RuntimeError as problem:
            if self._otherwise is None:
                raise
            self._gave_up = True
            self._failed = graph  # kept, because the allocator may still consider it active
            cause: BaseException = problem
            while cause.__context__ is not None:  # the end of a failed capture raises as well
                cause = cause.__context__
            lines = str(cause).strip().splitlines() or [type(cause).__name__]
            self._otherwise(lines[0])
            torch.cuda.synchronize()
            self._apart(*tensors)
            return
        self._graph, self._held = graph, held
        graph.replay()  # capturing computes nothing

    def _fits(self, tensors: tuple[Tensor, ...]) -> bool:
        return all(
            held.shape == tensor.shape for held, tensor in zip(self._held, tensors, strict=True)
        )

    def _apart(self, *tensors: Tensor) -> None:
        """Take a step on another stream, which is required before a capture."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._step(*tensors)
        torch.cuda.current_stream().wait_stream(self._stream)
