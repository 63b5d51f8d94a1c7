"""Where randomness comes from, one source at a time.

Nothing is drawn from a stream whose state would have to be kept: every number depends on a seed and
on where in the training it is used. A run that was stopped goes on with the same numbers.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Source: TypeAlias = Literal["init", "order", "augment", "dropout"]
SOURCES: tuple[Source, ...] = get_args(Source)
# A source too, but one that has no seed: a GPU adds numbers in the order in which they come.
HARDWARE = "hardware"
# What a fixed source is fixed to, whatever the seed.
FIXED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeds:
    """One seed for all, or one for each source of randomness.

    >>> Seeds(seed=3).of("init") == Seeds(seed=3).of("order")
    False
    >>> Seeds(seed=3, init=0).of("init") == Seeds(seed=4, init=0).of("init")
    True
    """

    seed: int = 0
    init: int | None = None
    order: int | None = None
    augment: int | None = None
    dropout: int | None = None

    def of(self, source: Source, *place: int) -> int:
        """The seed of a source, at a place such as an epoch and a step."""
        chosen: int | None = getattr(self, source)
        return derived(self.seed if chosen is None else chosen, source, *place)


def derived(seed: int, *names: str | int) -> int:
    """A seed of 63 bits that depends on all that it is given, and on nothing else.

    >>> derived(0, "member", 1)
    8629476636568601313
    """
    text = "/".join(str(name) for name in (seed, *names))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
