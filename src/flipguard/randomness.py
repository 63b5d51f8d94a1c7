"""Random streams that a call leaves where they were."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def untouched_randomness(device: torch.device | None = None) -> Iterator[None]:
    """Puts the streams of torch, of `device` if it is CUDA, of Python and of numpy back.

    >>> import random
    >>> random.seed(1)
    >>> with untouched_randomness():
    ...     inside = random.random()
    >>> random.random() == inside
    True
    """
    on_cpu = torch.get_rng_state()
    # While a graph is captured its generator may not be asked; replays advance it as they do.
    on_cuda = None
    if device is not None and device.type == "cuda" and not capturing():
        on_cuda = torch.cuda.get_rng_state(device)
    in_python = random.getstate()
    in_numpy = np.random.get_state(legacy=False)  # noqa: NPY002  # the stream that others draw from
    try:
        yield
    finally:
        torch.set_rng_state(on_cpu)
        if device is not None and on_cuda is not None:
            torch.cuda.set_rng_state(on_cuda, device)
        random.setstate(in_python)
        np.random.set_state(in_numpy)  # noqa: NPY002


def capturing() -> bool:
    """Whether a CUDA graph is being captured, so that the host may ask the device nothing."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
