"""What is missing, and what is the same id, class and group, written down rule by rule."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal

from tests.fuzzing.outcomes import Questions, Refused
from tests.fuzzing.reading import Column, JsonNumber, Odd, is_missing

INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
# What other parsers take for a number as well: +1, .5, 007.0, 1_000.0, inf.
LOOSE = re.compile(
    r"\s*[+-]?([0-9_]+\.?[0-9_]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*|[+-]?(inf|nan).*", re.I
)
TRUE, FALSE = ("true", "True"), ("false", "False")
NOT_A_NUMBER = ("NaN", "nan")
# Beyond this a float does not tell one whole number from the next.
LARGEST_EXACT = 1 << 53

# A value as it is compared: its kind ("int", "bool", "text", "number") and what it is.
Key = tuple[str, object]


def spelling(cell: object) -> str | None:
    """The text of a cell that has one: of text, and of a number in JSON."""
    if isinstance(cell, JsonNumber):
        return cell.raw
    return cell if isinstance(cell, str) else None


def cells_of(column: Column) -> list[object]:
    """The cells of a column, None where missing, which NaN is in text that holds numbers only."""
    cells = [None if is_missing(cell) else cell for cell in column.cells]
    texts = [spelling(cell) for cell in cells if cell is not None and cell not in NOT_A_NUMBER]
    if all(text is not None and NUMBER.fullmatch(text) for text in texts):
        cells = [None if cell in NOT_A_NUMBER else cell for cell in cells]
    return cells


def present(column: Column) -> list[object]:
    """The values that are not missing."""
    return [cell for cell in cells_of(column) if cell is not None]


def is_float_column(column: Column, questions: Questions) -> bool:
    """Rule 4: typed so, or all spelled as numbers and at least one with a point or exponent."""
    if column.kind == "float":
        return True
    texts = [spelling(cell) for cell in present(column)]
    if not texts or None in texts:
        return False
    spelled = [text for text in texts if text is not None]
    if not any(re.search(r"[.eE]", text) for text in spelled):
        return False
    if all(NUMBER.fullmatch(text) for text in spelled):
        return True
    if all(LOOSE.fullmatch(text) for text in spelled):
        return questions.ask("are +1, .5, 007.0, 1. and inf spelled as numbers?")
    return False


def has_booleans(columns: Iterable[Column]) -> bool:
    """Rule 5: whether any of the columns that are compared holds a Boolean."""
    return any(isinstance(cell, bool) for column in columns for cell in column.cells)


def whole(value: float | Decimal, what: str, questions: Questions) -> int:
    """A whole number, or a refusal."""
    number = Decimal(value)
    if not number.is_finite() or abs(number) > Decimal(10) ** 30:
        raise Refused(f"{value} as {what}")
    if number != number.to_integral_value():
        raise Refused(f"{value}, a fraction, as {what}")
    if isinstance(value, float) and abs(number) > LARGEST_EXACT:
        questions.doubt("a float too large to be exact")
    return int(number)


def class_keys(
    column: Column, *, floats: bool, booleans: bool, questions: Questions
) -> list[Key | None]:
    """The classes of a column; `floats` says that it is a float column that counts as integers."""
    keys: list[Key | None] = []
    for cell in cells_of(column):
        if cell is None:
            keys.append(None)
            continue
        text = spelling(cell)
        if text is not None and floats:
            if re.search(r"[eE][+-]?0*[1-9][0-9]+", text):
                questions.doubt("a large exponent")
            try:
                number = Decimal(text)
            except ArithmeticError:
                number = Decimal(float(text.strip()))
            keys.append(("int", whole(number, "a class", questions)))
        else:
            if isinstance(cell, JsonNumber) and not INTEGER.fullmatch(cell.raw):
                # Among names in JSON: a number, or text as it is written?
                questions.doubt("names next to numbers that are no integers, in JSON")
                if questions.ask("is the JSON number 1.0 among names the class 1?"):
                    keys.append(("int", whole(Decimal(cell.raw), "a class", questions)))
                    continue
            keys.append(_key(cell, booleans=booleans, what="a class", questions=questions))
    return keys


def _key(cell: object, *, booleans: bool, what: str, questions: Questions) -> Key:
    if isinstance(cell, Odd):
        raise Refused(f"{cell.value!r:.40} as {what}")
    if isinstance(cell, bool):
        return ("bool", cell)
    if isinstance(cell, int):
        return ("int", cell)
    if isinstance(cell, float | Decimal):
        return ("int", whole(cell, what, questions))
    text = spelling(cell)
    assert text is not None
    if INTEGER.fullmatch(text):
        if text == "-0":
            questions.doubt("minus zero")
        return ("int", int(text))
    if booleans and text in TRUE + FALSE:
        return ("bool", text in TRUE)
    return ("text", text)


def class_name_key(name: object, *, booleans: bool, questions: Questions) -> Key:
    """The class that a score column is of."""
    text = name if isinstance(name, str) else str(name)
    if not text:
        raise Refused("a class without a name")
    if re.fullmatch(r"-?[0-9]+\.0", text) and (
        not isinstance(name, str) or questions.ask("is a score named 3.0 of class 3?")
    ):
        text = text[:-2]
    return _key(text, booleans=booleans, what="a class", questions=questions)


def id_keys(column: Column, *, booleans: bool, questions: Questions) -> list[Key | None]:
    """The ids of a column."""
    texts = [spelling(cell) for cell in present(column)]
    numbers = bool(texts) and all(t is not None and NUMBER.fullmatch(t) for t in texts)
    keys: list[Key | None] = []
    for cell in cells_of(column):
        if cell is None:
            keys.append(None)
            continue
        text = spelling(cell)
        if isinstance(cell, float | Decimal) or (
            text is not None
            and NUMBER.fullmatch(text)
            and not INTEGER.fullmatch(text)
            and (
                (isinstance(cell, JsonNumber) and numbers)
                or questions.ask(
                    "is the text 1.0 the id 1, where all ids are numbers?"
                    if numbers
                    else "is 1.0 the id 1, where other ids are names?"
                )
            )
        ):
            number = Decimal(text) if text is not None else Decimal(cell)  # type: ignore[arg-type]
            if not number.is_finite():
                raise Refused(f"{cell} as an id")
            if number == number.to_integral_value():
                keys.append(("int", whole(number, "an id", questions)))
            else:
                questions.doubt("a fraction as an id")
                keys.append(("number", number if text is not None else Decimal(repr(cell))))
        else:
            keys.append(_key(cell, booleans=booleans, what="an id", questions=questions))
    return keys


def group_names(column: Column, *, booleans: bool, questions: Questions) -> list[str | None]:
    """The groups of a column as they are shown; None is the group of missing values."""
    values = present(column)
    texts = [spelling(cell) for cell in values]
    strict = bool(texts) and all(t is not None and NUMBER.fullmatch(t) for t in texts)
    loose = bool(texts) and all(t is not None and LOOSE.fullmatch(t) for t in texts)
    numbers = strict or (loose and questions.ask("is 007 a number among groups?"))
    names: list[str | None] = []
    for cell in cells_of(column):
        if cell is None:
            names.append(None)
        else:
            names.append(_group_name(cell, numbers=numbers, booleans=booleans, questions=questions))
    return names


def _group_name(cell: object, *, numbers: bool, booleans: bool, questions: Questions) -> str:
    if isinstance(cell, Odd):
        raise Refused(f"{cell.value!r:.40} as a group")
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, Decimal):
        if cell == cell.to_integral_value() and questions.ask("is the group 1.00 shown as 1?"):
            return str(int(cell))
        return str(cell)
    if isinstance(cell, int | float):
        return _number_name(str(cell), Decimal(repr(cell)), questions)
    text = spelling(cell)
    assert text is not None
    if booleans and text in TRUE + FALSE:
        return "true" if text in TRUE else "false"
    if numbers and NUMBER.fullmatch(text):
        return _number_name(text, Decimal(text), questions)
    if isinstance(cell, JsonNumber) and not INTEGER.fullmatch(text):
        questions.doubt("names next to numbers that are no integers, in JSON")
        if questions.ask("is the JSON number 1.0 among names the group 1?"):
            return _number_name(text, Decimal(text), questions)
    return quoted(text)


def _number_name(text: str, number: Decimal, questions: Questions) -> str:
    if not number.is_finite() or abs(number) > LARGEST_EXACT:
        questions.doubt("a group named by a number beyond all whole floats")
        return text
    if number == number.to_integral_value():
        return str(int(number))
    if text != repr(float(number)) and questions.ask("are the groups 2.50 and 2.5 one group?"):
        return repr(float(number))
    return text


def quoted(text: str) -> str:
    """A group that is really called (missing) is shown with quotation marks."""
    return f'"{text}"' if text == "(missing)" else text


def class_shown(key: Key) -> str:
    """A class as the groups of targets show it."""
    kind, value = key
    if kind == "bool":
        return "true" if value else "false"
    return str(value)
