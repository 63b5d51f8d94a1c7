"""Damage to the bytes of a file: what a broken disk, a full one or a wrong tool does."""

from __future__ import annotations

import random


def damaged(data: bytes, rng: random.Random) -> bytes:
    """The bytes with a few of them changed, lost, doubled or added."""
    if not data:
        return data
    spoiled = bytearray(data)
    how = rng.choice(["flip", "flip", "flip", "cut", "lose", "add", "double", "zero", "sign"])
    at = rng.randrange(len(spoiled))
    if how == "flip":
        for _ in range(rng.choice([1, 1, 2, 5])):
            spoiled[rng.randrange(len(spoiled))] ^= rng.choice([1, 2, 4, 16, 64, 128, 255])
    elif how == "cut":
        del spoiled[rng.choice([at, len(spoiled) - 1, len(spoiled) // 2]) :]
    elif how == "lose":
        del spoiled[at : at + rng.choice([1, 2, 8])]
    elif how == "add":
        spoiled[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice([1, 4])))
    elif how == "double":
        spoiled[at:at] = spoiled[at : at + rng.choice([1, 10, 50])]
    elif how == "zero":
        spoiled[at : at + 4] = bytes(len(spoiled[at : at + 4]))
    else:
        spoiled[at : at + 1] = rng.choice(
            [b'"', b",", b"\n", b"\r", b"\t", b"{", b"\\", b"0", b"."]
        )
    return bytes(spoiled)
