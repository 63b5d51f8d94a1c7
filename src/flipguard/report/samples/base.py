"""What a source of samples is, and what it gives."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

from flipguard.errors import InputError, printable

Kind = Literal["image", "text", "link"]
DEFAULT_BUDGET = "4MB"
UNITS = {"": 1, "B": 1, "KB": 1_000, "MB": 1_000_000, "GB": 1_000_000_000,
         "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The samples of some flips: by row, a data address, a text or a link."""

    kind: Kind
    source: str
    items: dict[int, str]
    wanted: int
    found: int
    missing: int
    budget: int
    used: int

    @property
    def left_out(self) -> int:
        """Samples that are there, but beyond the budget."""
        return self.wanted - self.missing - len(self.items)

    def as_json(self) -> dict[str, Any]:
        """What the page's script reads."""
        return {"kind": self.kind, "items": {str(row): item for row, item in self.items.items()}}


class Samples(ABC):
    """A source of samples, found by id."""

    kind: Kind
    source: str

    @abstractmethod
    def find(self, ids: list[str]) -> dict[int, Any]:
        """Where the sample of each row lies, for those that are there."""

    @abstractmethod
    def embedded(self, found: Any) -> str | None:
        """One sample as the page carries it; None if it cannot be shown."""

    def of(self, ids: list[str], *, order: list[int], budget: int) -> Sampled:
        """As many samples as the budget holds, in an order that is fair at every length."""
        found = self.find(ids)
        items: dict[int, str] = {}
        used = broken = 0
        for row in order:
            if row not in found:
                continue
            item = self.embedded(found[row])
            if item is None:
                broken += 1
                continue
            size = len(item.encode("utf-8", "replace"))
            if used + size > budget:
                break
            used += size
            items[row] = item
        return Sampled(
            kind=self.kind,
            source=self.source,
            items=dict(sorted(items.items())),
            wanted=len(ids),
            found=len(found),
            missing=len(ids) - len(found) + broken,
            budget=budget,
            used=used,
        )


def bytes_of(budget: int | str) -> int:
    """A size as people write it, in bytes.

    >>> bytes_of("5MB"), bytes_of("512 kB"), bytes_of(100)
    (5000000, 512000, 100)
    """
    text = str(budget) if isinstance(budget, int | str) else ""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMG]?I?B)?\s*", text.upper())
    size = float(found[1]) * UNITS[found[2] or ""] if found else -1.0
    if not 0 <= size <= 1e9:
        raise InputError(
            "Expected the budget of samples to be a size up to 1GB such as 5MB or 800KB, but got "
            f"{printable(str(budget), longest=40)!r}; give a number and a unit."
        )
    return int(size)
