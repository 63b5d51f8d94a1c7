"""The exceptions of flipguard: one ``except FlipguardError`` catches every error of the input.

::

    FlipguardError            the base class; the text says what is wrong and what to do
    ├── InputError            a prediction table that cannot be read, or two that cannot be compared
    │   ├── UnknownNameError  a metric, column or group that a result does not have; also a KeyError
    │   └── DivergedError     a training run whose loss or weights are no longer finite
    ├── PolicyError           a gate policy that cannot be read, or does not fit the comparison
    └── MissingExtraError     an optional dependency that this call needs is not installed
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable, Sequence

# Control, format (direction) and surrogate characters, and the separators that break a line.
UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


class FlipguardError(Exception):
    """The base class of all exceptions that flipguard raises on purpose."""


class InputError(FlipguardError):
    """A prediction table cannot be read, or two of them cannot be compared."""


class UnknownNameError(InputError, KeyError):
    """A metric, a column or a group is asked for that a result does not have."""

    # A `KeyError` would show its sentence in quotation marks.
    __str__ = InputError.__str__


class DivergedError(InputError):
    """The loss or the weights of a training run are no longer finite."""


class PolicyError(FlipguardError):
    """A gate policy cannot be read, or needs what the comparison does not have."""


class MissingExtraError(FlipguardError):
    """An optional dependency that this call needs is not installed."""

    def __init__(self, what: str, *, package: str, extra: str) -> None:
        super().__init__(
            f"{what} needs {package}, which is not installed; "
            f"install flipguard with its extra, from a checkout: pip install '.[{extra}]'."
        )


def listed(values: Iterable[object], *, most: int = 3) -> str:
    """Return the first few values as Python literals, and how many more there are.

    >>> listed(["a", 7, "c", "d", "e"])
    "'a', 7, 'c' and 2 more"
    """
    values = list(values)
    shown = ", ".join(_short(value) for value in values[:most])
    rest = len(values) - most
    return f"{shown} and {rest:,} more" if rest > 0 else shown


def any_of(names: Sequence[str]) -> str:
    """Return names as a choice.

    >>> any_of([".csv", ".tsv", ".jsonl"])
    '.csv, .tsv or .jsonl'
    """
    return " or ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def nearest(name: str, known: Iterable[str], *, all_in: str) -> str:
    """Return the end of an error about an unknown name: similar names, and where all are listed.

    >>> nearest("fd-ml", ["fd-lm", "fd-kl", "elodi"], all_in="`flipguard methods` lists all")
    'did you mean fd-lm or fd-kl? `flipguard methods` lists all.'
    >>> nearest("nosuch", ["fd-lm"], all_in="`flipguard methods` lists all")
    '`flipguard methods` lists all.'
    """
    close = difflib.get_close_matches(name[:100], list(known), n=3)
    if not close:
        return f"{all_in}."
    return f"did you mean {any_of(close)}? {all_in}."


def _short(value: object, *, longest: int = 60) -> str:
    # A long or hostile value must neither fill the terminal nor send control codes to it.
    try:
        text = repr(value) if not isinstance(value, str) else repr(value[: longest + 1])
    except (RecursionError, ValueError):  # nested too deep, or a number with too many digits
        text = f"'{type(value).__name__}"
    return text if len(text) <= longest + 2 else text[: longest - 1] + "…'"


def printable(text: str, *, longest: int = 200) -> str:
    """Return text from a file, safe for a terminal: no control characters, limited length.

    >>> printable("a\\x1b[31mb")
    'a�[31mb'
    """
    shown = text[:longest] + ("…" if len(text) > longest else "")
    return "".join("�" if unicodedata.category(c) in UNPRINTABLE else c for c in shown)
