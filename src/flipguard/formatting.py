"""Format values as text: JSON, durations and sizes. Words of reports: `flipguard.render`."""

from __future__ import annotations

import io
import json
import math
from typing import Any


def json_text(document: Any) -> str:
    """Return a document as indented JSON, in which NaN and infinity are errors.

    >>> json_text({"churn": None})
    '{\\n  "churn": null\\n}\\n'
    """
    text = io.StringIO()
    # `json.dumps` keeps every name and number as a separate string until it joins them. For a
    # result of many groups that takes several times the memory of the text.
    json.dump(document, text, indent=2, ensure_ascii=False, allow_nan=False)
    text.write("\n")
    return text.getvalue()


def finite_or_none(value: float) -> float | None:
    """Return a number as JSON can write it: None if it is undefined or infinite.

    >>> finite_or_none(0.5), finite_or_none(float("nan"))
    (0.5, None)
    """
    return value if math.isfinite(value) else None


def format_percent(share: float, *, decimals: int = 2) -> str:
    """A share in percent.

    >>> format_percent(0.0625), format_percent(0.85, decimals=0)
    ('6.25 %', '85 %')
    """
    return f"{100 * share:.{decimals}f} %"


def format_seconds(seconds: float) -> str:
    """A duration in a readable unit.

    >>> format_seconds(42), format_seconds(400), format_seconds(9000), format_seconds(400_000)
    ('42 s', '7 min', '2.5 h', '4.6 days')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def format_bytes(size: int) -> str:
    """A number of bytes in a readable unit.

    >>> format_bytes(8 * 50_000 * 100 * 2), format_bytes(900), format_bytes(20 * 2**30)
    ('76 MiB', '1 KiB', '20 GiB')
    """
    for unit, name in ((2**30, "GiB"), (2**20, "MiB")):
        if size >= 10 * unit or (size >= unit and unit == 2**20):
            return f"{size / unit:,.0f} {name}"
    return f"{size / 2**10:,.0f} KiB"


def is_integer(name: str) -> bool:
    """Whether a class is named by an integer of 64 bits.

    >>> is_integer("7"), is_integer("007")
    (True, False)
    """
    # "007" is another name than "7": only what an integer would be printed as counts as one.
    digits = name.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        return False
    return str(int(name)) == name and -(2**63) <= int(name) < 2**63
