"""The ids of samples: text or whole numbers, each different, and one number for each of them."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TypeAlias

import torch
from torch import Tensor

from flipguard.errors import InputError, listed

Ids: TypeAlias = list[str] | Tensor
"""The ids of samples: a list of text, or int64 [n]."""


def ids_index_of(ids: Ids) -> Tensor:
    """One int64 for each id, of which every choice is a function: numbers are their own.

    >>> ids_index_of(torch.tensor([5, 2]))
    tensor([5, 2])
    >>> ids_index_of(["a.png"])
    tensor([6266261796961190882])
    """
    if isinstance(ids, Tensor):
        if ids.dim() != 1 or ids.is_floating_point() or ids.dtype == torch.bool:
            raise InputError(
                "Expected `ids` to be whole numbers [samples] or a list of text, but got "
                f"{ids.dtype} {list(ids.shape)}; give one id for each sample."
            )
        return ids.to(torch.int64)
    return torch.tensor([_number_of(name) for name in ids], dtype=torch.int64)


def must_differ(ids: Ids) -> None:
    """Refuses an id that two samples have."""
    if isinstance(ids, Tensor):
        ordered = ids.sort().values
        twice: list[object] = ordered[1:][ordered[1:] == ordered[:-1]].tolist()
    elif len(set(ids)) == len(ids):
        twice = []
    else:
        twice = [name for name, count in Counter(ids).items() if count > 1]
    if twice:
        raise InputError(
            f"Expected `ids` to differ, but got {listed(dict.fromkeys(twice))} more than once; "
            "give every sample its own id."
        )


def _number_of(name: str) -> int:
    # Python's own hash differs from run to run.
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
