"""Phrases that are hard to read are refused in the source, the docs and the pages at the root.

Help texts are strings of the source, so they are covered. Text is compared over line ends, since
a phrase may begin on one line and end on the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUFFIXES = {".css", ".html", ".js", ".md", ".py", ".svg", ".toml"}

# "a row a sample" is "one row per sample". The word in the middle is not one of these in
# "a name as an attribute".
BETWEEN = "after and as at before but by for from has if in is of on or than that to where with"
REFUSED = {
    "per": rf"(?-i:\b[Aa]n? (?!(?:{'|'.join(BETWEEN.split())})\b)[a-z]+ an? [a-z]+\b)",
    "whoever": r"\bwhoever\b",
    "nobody": r"\bnobody\b",
    "beside": r"\bbeside\b",
    "mend": r"\bmend(?:s|ed|ing)?\b",
    "unless told": r"\bunless told\b",
    "so-many": r"\bso-many\b",
    "of its own": r"\bof its own\b",
    "yardstick": r"\byardsticks?\b",
    "workshop": r"\bworkshops?\b",
    "paragon": r"\bparagons?\b",
    "as it has it": r"\bas it has it\b",
    "of old's": r"\bof old's\b",
    "of new's": r"\bof new's\b",
    "sureness": r"\bsure(?:r|ness|st)\b",
    "errs": r"\berr(?:s|ed)?\b",
    "by heart": r"\bby heart\b",
    "for ever": r"\bfor ever\b",
    "all the same": r"\ball the same\b",
    "of ours": r"\bof ours\b",
    "is told": r"\b(?:is|are) told\b",
    "comes out the other way": r"\b(?:comes?|came) out the (?:same|other) way\b",
    "is not to be seen": r"\bnot to be (?:read|seen)\b",
}

# The words of papers, which their tables and our pictures of them repeat.
LABELS = ("Ensemble Paragon",)


def pages() -> list[Path]:
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for folder in ("src", "docs"):
        found += sorted(p for p in (ROOT / folder).rglob("*") if p.suffix in SUFFIXES)
    return found


def text_of(page: str) -> str:
    """The text without line ends, signs of comments at their beginning, and labels of papers."""
    text = re.sub(r"\s*\n[ \t]*(?:#:?|>)?\s*", " ", page)
    for label in LABELS:
        text = text.replace(label, "")
    return text


def phrases_in(text: str) -> Iterator[tuple[str, str]]:
    """Each refused phrase, with the words around it."""
    for name, pattern in REFUSED.items():
        for found in re.finditer(pattern, text, flags=re.IGNORECASE):
            around = text[max(found.start() - 30, 0) : found.end() + 30]
            yield name, around.strip()


def test_no_page_has_a_refused_phrase() -> None:
    found = []
    for page in pages():
        name = page.relative_to(ROOT).as_posix()
        for phrase, around in phrases_in(text_of(page.read_text(encoding="utf-8"))):
            found.append(f"{name}: {phrase}: … {around} …")
    assert not found, f"{len(found)} phrases to rewrite:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "a row a sample",
        "A value an\n    # epoch",
        "stands beside it",
        "The gain is Mended.",
        "one of its\nown",
        "it errs by 3 %",
        "two pairs came out the other\nway",
    ],
)
def test_a_phrase_is_found(text: str) -> None:
    assert list(phrases_in(text_of(text)))


@pytest.mark.parametrize(
    "text", ["a name as an attribute", "besides", "amended", "an error if a file is missing"]
)
def test_plain_words_are_left_alone(text: str) -> None:
    assert not list(phrases_in(text_of(text)))
