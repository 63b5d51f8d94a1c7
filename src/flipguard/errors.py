"""The exceptions of flipguard: one tree, so that one ``except`` catches what a user can mend.

::

    FlipguardError            anything below; its text is one sentence that says what to do
    ├── InputError            a prediction table that cannot be read, or two that cannot be compared
    │   └── DivergedError     a training whose losses or weights are no longer finite
    ├── PolicyError           a gate policy that cannot be read, or does not fit the comparison
    └── MissingExtraError     an optional dependency that this call needs is not installed
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable

# Control, format (direction) and surrogate characters, and the separators that break a line.
UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


class FlipguardError(Exception):
    """The root of everything that flipguard raises on purpose."""


class InputError(FlipguardError):
    """A prediction table cannot be read, or two of them cannot be compared."""


class DivergedError(InputError):
    """A training came to losses or weights that are not finite: these settings are to blame."""


class PolicyError(FlipguardError):
    """A gate policy cannot be read, or asks for what the comparison does not hold."""


class MissingExtraError(FlipguardError):
    """An optional dependency that this call needs is not installed."""

    def __init__(self, what: str, *, package: str, extra: str) -> None:
        super().__init__(
            f"{what} needs {package}, which is not installed; "
            f"install flipguard with its extra, from a checkout: pip install '.[{extra}]'."
        )


def listed(values: Iterable[object], *, most: int = 3) -> str:
    """The first few values as they would be typed, and how many more there are.

    >>> listed(["a", 7, "c", "d", "e"])
    "'a', 7, 'c' and 2 more"
    """
    values = list(values)
    shown = ", ".join(_short(value) for value in values[:most])
    rest = len(values) - most
    return f"{shown} and {rest:,} more" if rest > 0 else shown


def nearest(name: str, known: Iterable[str], *, all_in: str) -> str:
    """How a refusal of a name ends: the names that are most like it, and where all of them are.

    >>> nearest("fd-ml", ["fd-lm", "fd-kl", "elodi"], all_in="`flipguard methods` lists all")
    'did you mean fd-lm or fd-kl? `flipguard methods` lists all.'
    >>> nearest("nosuch", ["fd-lm"], all_in="`flipguard methods` lists all")
    '`flipguard methods` lists all.'
    """
    close = difflib.get_close_matches(name[:100], list(known), n=3)
    if not close:
        return f"{all_in}."
    said = " or ".join([", ".join(close[:-1]), close[-1]] if close[1:] else close)
    return f"did you mean {said}? {all_in}."


def _short(value: object, *, longest: int = 60) -> str:
    # Hostile or endless values must not flood, or write control codes to, somebody's terminal.
    try:
        text = repr(value) if not isinstance(value, str) else repr(value[: longest + 1])
    except (RecursionError, ValueError):  # nested too deep, or a number with too many digits
        text = f"'{type(value).__name__}"
    return text if len(text) <= longest + 2 else text[: longest - 1] + "…'"


def printable(text: str, *, longest: int = 200) -> str:
    """Text from a file, safe for a terminal: no control or direction characters, no endless line.

    >>> printable("a\\x1b[31mb")
    'a�[31mb'
    """
    shown = text[:longest] + ("…" if len(text) > longest else "")
    return "".join("�" if unicodedata.category(c) in UNPRINTABLE else c for c in shown)
