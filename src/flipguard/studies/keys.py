"""Keys of the studies' files: one that is misspelt is refused, and not overlooked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flipguard.errors import InputError, listed


def only(given: Mapping[str, Any], known: set[str], place: str) -> None:
    """Refuses keys that nothing reads."""
    unknown = [key for key in given if key not in known]
    if unknown:
        raise InputError(
            f"{place}: expected {', '.join(sorted(known))}, but got {listed(unknown)}."
        )
