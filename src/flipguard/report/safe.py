"""Text from files as a page may show it: always text, never markup, nothing hidden, never endless.

Whatever a label, an id or a file name holds, a reader sees it: characters that steer (control,
direction) become signs that stand still, and what is too long says how long it was.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import TYPE_CHECKING, Any

from flipguard.errors import UNPRINTABLE

if TYPE_CHECKING:
    from markupsafe import Markup

LONGEST_NAME = 160
LONGEST_LABEL = 26
# Joiners make up emoji and the words of several scripts, and move nothing.
JOINERS = frozenset("\u200c\u200d")
LINES = frozenset("\n\t")
_SCRIPT_ESCAPES = {
    ord(sign): f"\\u{ord(sign):04x}" for sign in ("<", ">", "&", "\u2028", "\u2029", "\x7f")
}


def visible(text: object, *, longest: int = LONGEST_NAME, lines: bool = False) -> str:
    """Text with its control and direction characters made visible, shortened where it is long.

    >>> visible("a\\x1b[31m"), visible("\\u202eexe"), visible("x" * 500, longest=4)
    ('a␛[31m', '‹U+202E›exe', 'xxxx… (500 characters)')
    """
    whole = text if isinstance(text, str) else str(text)
    part = whole[:longest]
    if not part.isprintable():
        kept = JOINERS | LINES if lines else JOINERS
        part = "".join(c if c in kept else _sign(c) for c in part)
    return part if len(whole) <= longest else f"{part}… ({len(whole):,} characters)"


def _sign(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    if unicodedata.category(character) in UNPRINTABLE:
        return f"‹U+{code:04X}›"
    return character


def short_labels(names: list[str], *, longest: int = LONGEST_LABEL) -> list[str]:
    """Names for the axis of a chart: short, and still as many different ones as there were.

    >>> short_labels(["stop", "a" * 40, "a" * 41], longest=6)
    ['stop', 'aaaaa…', 'aaaaa… (2)']
    """
    labels: dict[str, None] = {}
    for name in names:
        text = visible(name[: longest + 1], longest=longest + 1)
        first = label = text if len(text) <= longest else text[: longest - 1] + "…"
        again = 1
        while label in labels:
            again += 1
            label = f"{first} ({again})"
        labels[label] = None
    return list(labels)


def script_json(value: Any) -> Markup:
    """JSON that can stand inside a script element, whatever its strings hold."""
    from markupsafe import Markup

    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Half of a surrogate pair, as in a file name that is no text, has no UTF-8.
    text = re.sub("[\ud800-\udfff]", "\ufffd", text)
    return Markup(text.translate(_SCRIPT_ESCAPES))  # noqa: S704 (no sign is left that ends a script)


def shown(text: object, *, longest: int = LONGEST_NAME) -> Markup:
    """A name from a file, isolated: its direction does not leak into the sentence round it."""
    return isolated(visible(text, longest=longest))


def isolated(text: str) -> Markup:
    """What is visible and short already, isolated; shortened twice it would tell a wrong length."""
    from markupsafe import Markup

    return Markup("<bdi>{}</bdi>").format(text)


def web_address(text: str) -> str | None:
    """The text if it is an address that a browser may open, else None.

    >>> web_address("https://example.org/a.png"), web_address("javascript:alert(1)")
    ('https://example.org/a.png', None)
    """
    if len(text) > 2_000 or not text.isprintable() or " " in text:
        return None
    return text if re.match(r"https?://[^/\\@]+(/|$|\?|#)", text, flags=re.IGNORECASE) else None
