"""The kinds of values in JSON objects: kinds that merge, a pattern that proves them, one type.

An `ObjectShape` is what was seen under one key. Merging is the same in any order, so that the type
of a column does not depend on the order of the rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce

import polars as pl

# Whole numbers that a float holds exactly, that 64 bits hold, and any.
SHORT, LONG, HUGE = "short", "long", "huge"
FLOAT, TEXT, EMPTY, TRUTH, NULL = "float", "text", "empty", "truth", "null"
WHOLE = frozenset({SHORT, LONG, HUGE})
NUMBERS = WHOLE | {FLOAT}

LARGEST = str(2**63 - 1)


def _up_to_largest() -> str:
    """A regular expression for numbers of as many digits as the largest, and no larger."""
    found = [
        f"{LARGEST[:i]}[{0 if i else 1}-{int(digit) - 1}][0-9]{{{len(LARGEST) - i - 1}}}"
        for i, digit in enumerate(LARGEST)
        if digit != "0"
    ]
    return "|".join([*found, LARGEST])


SHORT_PATTERN = r"-?(?:0|[1-9][0-9]{0,14})"
LONG_PATTERN = rf"-?(?:[1-9][0-9]{{15,17}}|{_up_to_largest()})"
# Half of a surrogate pair (\ud8..\udfff) is left to the slow way, which tells if it is alone.
ESCAPE = r'["\\/bfnrt]|u(?:[0-9a-cefA-CEF][0-9a-fA-F]|[dD][0-7])[0-9a-fA-F]{2}'
TEXT_PATTERN = rf'"(?:[^"\\\x00-\x1f]|\\(?:{ESCAPE}))*"'
PATTERNS = {
    SHORT: SHORT_PATTERN,
    LONG: LONG_PATTERN,
    HUGE: r"-?[1-9][0-9]{18,}",
    FLOAT: r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)",
    TEXT: TEXT_PATTERN,
    EMPTY: '""',
    TRUTH: "(?:true|false)",
    NULL: "null",
}
# For columns in which every number becomes a float: Polars itself refuses what is no number.
ANY_NUMBER = "[-+0-9.eE]+"
GAP = r"[ \t]*"
NOTHING = r"[^\x00-\x{10FFFF}]"


def kind_of_integer(digits: str) -> str:
    """The kind of a whole number, by its size.

    >>> kind_of_integer("-7"), kind_of_integer("9007199254740993"), kind_of_integer("1" * 20)
    ('short', 'long', 'huge')
    """
    if re.fullmatch(SHORT_PATTERN, digits):
        return SHORT
    return LONG if re.fullmatch(LONG_PATTERN, digits) else HUGE


class NumberKind(str):
    """Stands for a number that was read: only its kind matters."""

    __slots__ = ()


@dataclass(slots=True)
class ObjectShape:
    """Everything seen under one key: kinds of plain values, elements of lists, keys of objects."""

    kinds: set[str] = field(default_factory=set)
    items: ObjectShape | None = None
    keys: dict[str, ObjectShape] | None = None

    def add(self, value: object) -> bool:
        """Add a value; return whether its shape differs from those before."""
        if isinstance(value, list):
            new, self.items = self.items is None, self.items or ObjectShape()
            for item in value:
                new |= self.items.add(item)
            return new
        if isinstance(value, dict):
            new, self.keys = self.keys is None, {} if self.keys is None else self.keys
            for key, item in value.items():
                new |= self.keys.setdefault(key, ObjectShape()).add(item)
            return new
        kind = kind_of(value)
        new = kind not in self.kinds
        self.kinds.add(kind)
        return new

    def merged(self, other: ObjectShape) -> ObjectShape:
        """Return the shape of what was seen under the key of two files."""
        items = [shape.items for shape in (self, other) if shape.items is not None]
        keys = [shape.keys for shape in (self, other) if shape.keys is not None]
        return ObjectShape(
            kinds=self.kinds | other.kinds,
            items=reduce(ObjectShape.merged, items) if items else None,
            keys=merged_shapes(keys) if keys else None,
        )

    @property
    def plain(self) -> bool:
        """Whether no list and no object was seen."""
        return self.items is None and self.keys is None

    @property
    def numeric(self) -> bool:
        """Whether all that was seen are numbers, or nothing."""
        return self.plain and self.kinds <= NUMBERS | {NULL}

    def dtype(self) -> pl.DataType:
        """The type of a column of such values."""
        kinds = self.kinds - {NULL}
        if self.items is not None and self.keys is None and not kinds:
            return pl.List(self.items.dtype())
        if self.keys and self.items is None and not kinds:
            return pl.Struct({key: shape.dtype() for key, shape in self.keys.items()})
        if not self.plain or not kinds:
            return pl.String()
        # Some writers leave the empty text where a value is missing.
        if kinds - {EMPTY} == {TRUTH}:
            return pl.Boolean()
        if kinds <= {SHORT, LONG}:
            return pl.Int64()
        # Large whole numbers would lose digits as floats: they stay as they are written.
        return pl.Float64() if FLOAT in kinds and kinds <= {SHORT, FLOAT} else pl.String()

    def pattern(self, *, any_number: bool = False) -> str:
        """A regular expression for values of this shape and of no other.

        With `any_number`, numbers or lists of them match any number, whatever its kind.
        """
        any_number, any_item = any_number and self.numeric, any_number and not self.plain
        kinds = self.kinds - NUMBERS if any_number else self.kinds
        found = [PATTERNS[kind] for kind in sorted(kinds)]
        found += [ANY_NUMBER] if any_number else []
        if self.items is not None:
            item = self.items.pattern(any_number=any_item)
            found.append(rf"\[{GAP}(?:{item}(?:{GAP},{GAP}{item})*)?{GAP}\]")
        if self.keys is not None:
            found.append(object_pattern({key: s.pattern() for key, s in self.keys.items()}))
        return f"(?:{'|'.join(found)})" if found else NOTHING


def merged_shapes(several: Iterable[Mapping[str, ObjectShape]]) -> dict[str, ObjectShape]:
    """Return the shapes by key of several objects or files together."""
    found: dict[str, ObjectShape] = {}
    for shapes in several:
        for key, shape in shapes.items():
            found[key] = found[key].merged(shape) if key in found else shape
    return found


def kind_of(value: object) -> str:
    """The kind of a plain value as `parsed` in `json_lines` gives it."""
    if value is None:
        return NULL
    if isinstance(value, bool):
        return TRUTH
    if value == "":
        return EMPTY
    return str(value) if isinstance(value, NumberKind) else TEXT


def object_pattern(members: dict[str, str]) -> str:
    """A regular expression for an object of these keys in this order, and patterns of values."""
    text = [f"{key_pattern(key)}{GAP}:{GAP}{value}" for key, value in members.items()]
    return rf"\{{{GAP}" + f"{GAP},{GAP}".join(text) + rf"{GAP}\}}"


def key_pattern(key: str) -> str:
    """A regular expression for a key in the two spellings that writers give it."""
    spellings = dict.fromkeys((json.dumps(key), json.dumps(key, ensure_ascii=False)))
    return f"(?:{'|'.join(re.escape(spelling) for spelling in spellings)})"
