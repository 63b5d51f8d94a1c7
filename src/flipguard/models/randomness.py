"""Random numbers of a model's first weights: from a seed alone, and at nobody's cost."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from flipguard.errors import InputError
from flipguard.randomness import untouched_randomness

# Seeds that torch takes; numpy's are folded to 32 bits.
MOST = 2**63


@contextmanager
def drawn_from(seed: int | None) -> Iterator[None]:
    """Seeds the streams of torch's CPU, Python and numpy within, and puts them back afterwards.

    With None nothing is seeded, and what is drawn within is gone from the streams, as always.

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
