"""Contexts that restore random streams, and random numbers computed from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np
import torch
from torch import Tensor

from flipguard.errors import InputError

# Seeds that torch takes; numpy's are folded to 32 bits.
MOST = 2**63

GOLDEN: Final = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
UNIFORM_BITS = 24  # exact in float32, so that all devices round in the same way


@contextmanager
def untouched_randomness(device: torch.device | None = None) -> Iterator[None]:
    """Restore the random streams of torch, of `device` if it is CUDA, of Python and of numpy.

    >>> import random
    >>> random.seed(1)
    >>> with untouched_randomness():
    ...     inside = random.random()
    >>> random.random() == inside
    True
    """
    on_cpu = torch.get_rng_state()
    # While a CUDA graph is captured, its generator cannot be read; replays advance it.
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
    """Whether a CUDA graph is being captured, so that nothing may be read from the device."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


@contextmanager
def drawn_from(seed: int | None) -> Iterator[None]:
    """Seed the streams of torch's CPU, Python and numpy, and restore them afterwards.

    With None nothing is seeded or restored.

    >>> with drawn_from(3):
    ...     first = torch.rand(2)
    >>> with drawn_from(3):
    ...     bool((first == torch.rand(2)).all())
    True
    """
    if seed is None:
        yield
        return
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < MOST:
        raise InputError(
            f"Expected `seed` to be a whole number from 0 to 2^63 - 1, but got {seed!r}; give one, "
            "or None to draw from torch's own stream."
        )
    with untouched_randomness():
        # `torch.manual_seed` would seed every device, and CUDA even before it is first used.
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002  # the stream that others draw from
        yield


def bits(seed: int, epoch: int | Tensor, ids: Tensor, draws: int | Tensor) -> Tensor:
    """Return 64 random bits per sample, as int64 [n]; for a column of draws [d, 1], as [d, n].

    `epoch` may be a tensor without axes, so that a captured graph can advance it.

    >>> bits(0, 0, torch.tensor([3, 4]), 0).tolist()
    [7285384763619858921, 1513270330323861118]
    """
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise InputError(
            f"Expected `ids` to be whole numbers, but got {ids.dtype}; pass a split's `ids_index`."
        )
    if isinstance(epoch, Tensor):
        start = _mixed(epoch.to(torch.int64) + _signed(_mixed_number(seed)))
        state = _mixed(ids.to(torch.int64) + start)
    else:
        start_of_epoch = _mixed_number(_mixed_number(seed) + epoch)
        state = _mixed(ids.to(torch.int64) + _signed(start_of_epoch))
    if isinstance(draws, Tensor):
        return _mixed(state + draws * _signed(GOLDEN))
    return _mixed(state + _signed(draws * GOLDEN))


def uniform(seed: int, epoch: int | Tensor, ids: Tensor, draw: int | Tensor) -> Tensor:
    """Return uniform numbers in [0, 1) as float32 [n]: multiples of 2**-24, equal on all devices.

    >>> ids = torch.tensor([7, 8, 9])
    >>> torch.equal(uniform(1, 0, ids, 2)[1:], uniform(1, 0, ids[1:], 2))
    True
    """
    high = _shifted(bits(seed, epoch, ids, draw), 64 - UNIFORM_BITS)
    return high.to(torch.float32) * 2.0**-UNIFORM_BITS


def integers(
    seed: int, epoch: int | Tensor, ids: Tensor, draw: int | Tensor, *, below: int | Tensor
) -> Tensor:
    """Return whole numbers from 0 to `below` - 1 as int64 [n], without rounding.

    `below` is one bound, or one bound per sample.

    >>> integers(1, 0, torch.arange(60), 0, below=3).unique()
    tensor([0, 1, 2])
    """
    # 31 bits times a number below 2**31 stay in 63 bits; the bias is below 2**-31 * `below`.
    return (_shifted(bits(seed, epoch, ids, draw), 33) * below) >> 31


def bell(seed: int, epoch: int | Tensor, ids: Tensor, draw: int | Tensor) -> Tensor:
    """Return nearly normal numbers with mean 0 and variance 1 as float32 [n], within ±3.47.

    They are sums of four 16-bit uniform numbers, because the logarithm and cosine that exact
    normal numbers need differ between devices, and between positions in a batch.

    >>> values = bell(1, 0, torch.arange(10_000), 0)
    >>> abs(values.mean()) < 0.05 and abs(values.std() - 1) < 0.05
    tensor(True)
    """
    word = bits(seed, epoch, ids, draw)
    total = torch.full_like(word, -2 * 0xFFFF)
    for shift in (0, 16, 32, 48):
        total = total + ((word >> shift) & 0xFFFF)
    scale: float = (4 * (2**32 - 1) / 12) ** -0.5
    return total.to(torch.float32) * scale


def _mixed(x: Tensor) -> Tensor:
    """Return the output function of splitmix64, on int64 that wraps."""
    x = x + _signed(GOLDEN)
    x = (x ^ _shifted(x, 30)) * _signed(FIRST)
    x = (x ^ _shifted(x, 27)) * _signed(SECOND)
    return x ^ _shifted(x, 31)


def _mixed_number(x: int) -> int:
    """Return the output function of splitmix64 for a Python number."""
    x = (x + GOLDEN) % 2**64
    x = (x ^ (x >> 30)) * FIRST % 2**64
    x = (x ^ (x >> 27)) * SECOND % 2**64
    return x ^ (x >> 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    """Return x shifted right as unsigned; torch repeats the sign, which the mask removes."""
    kept: int = 2 ** (64 - by) - 1
    return (x >> by) & kept


def _signed(x: int) -> int:
    x %= 2**64
    return x - 2**64 if x >= 2**63 else x
