"""Tested explanations of pairs that have another order here than in the paper.

They are entries of `explanations.toml`, each with the explanation, the test and its outcome. An
explanation that was refuted is kept, so that it is not tried again: it is shown, but its pairs
count as unexplained.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from flipguard.errors import InputError, listed
from flipguard.specs import only
from flipguard.studies.agreement import Pair
from flipguard.studies.read_study import study_of
from flipguard.studies.results import Result
from flipguard.studies.scales import scales
from flipguard.studies.study import Study, StudyRow

FILE, ENTRIES = "explanations.toml", "explained"
# Settings that committed results have themselves, or that do not change what is trained.
IRRELEVANT = ("machine.", "model=", "options.elodi.views=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One entry: its pairs, the reason for their order, and how that was tested.

    Without `metrics` or `rows` it is about all metrics or rows.
    """

    study: str
    scales: tuple[str, ...]
    says: str
    tested: str
    holds: bool
    metrics: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    evidence: str | None = None  # a path in the repository
    tested_at: str | None = None  # the scale of the test, if it is another one
    # The counts of all pairs in the test run: same order, other order, undecided.
    whole: tuple[int, ...] = ()

    def is_about(self, result: Result, pair: Pair) -> bool:
        """Return whether it is about a pair of a result, or about one with the same comparison."""
        if self.study != result.study.id or result.scale not in self.scales:
            return False
        # Explanations were not tested with other settings.
        if any(not given.startswith(IRRELEVANT) for given in result.given):
            return False
        if self.metrics and pair.metric not in self.metrics:
            return False

        def named(row: int, names: Collection[str]) -> bool:
            line = result.line(result.rows[row])
            return not names or not row_names(result.study, line).isdisjoint(names)

        return any(
            named(one, self.rows) and named(other, self.against)
            for first, second in pair.stands_for
            for one, other in ((first, second), (second, first))
        )


_KEYS = {field.name for field in dataclasses.fields(Explanation)}
_NEEDED = ("study", "scales", "says", "tested", "holds")
_LISTS = ("scales", "metrics", "rows", "against")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradictions:
    """Pairs that have the other order and share their explanations, or have none."""

    pairs: tuple[Pair, ...]
    explanations: tuple[Explanation, ...] = ()

    @property
    def is_explained(self) -> bool:
        """Whether one of the explanations held when it was tested."""
        return any(explanation.holds for explanation in self.explanations)

    @property
    def is_explained_elsewhere(self) -> bool:
        """Whether all explanations that held were tested at another scale."""
        held = [one for one in self.explanations if one.holds]
        return bool(held) and all(one.tested_at is not None for one in held)


def row_names(study: Study, line: StudyRow) -> frozenset[str]:
    """Return the names of a line: its label and its shown name, also with its group before."""
    names = {line.label, study.name_of(line)}
    return frozenset(names | {f"{line.group}, {name}" for name in names if line.group})


def contradictions(
    result: Result, known: Sequence[Explanation] | None = None
) -> list[Contradictions]:
    """Return the pairs that have the other order, by explanation, the unexplained ones last.

    Every pair is in one group. `known` are the explanations, by default those of the file.
    """
    known = explanations() if known is None else known
    groups: dict[tuple[Explanation, ...], list[Pair]] = {}
    for pair in result.agreement().pairs:
        if pair.verdict == "disagree":
            about = [one for one in known if one.is_about(result, pair)]
            # Explanations that held come first.
            about.sort(key=lambda one: not one.holds)
            groups.setdefault(tuple(about), []).append(pair)
    found = [
        Contradictions(pairs=tuple(pairs), explanations=about) for about, pairs in groups.items()
    ]
    # Explained pairs first, then pairs with refuted explanations, then the others.
    return sorted(found, key=lambda group: (not group.is_explained, not group.explanations))


@cache
def explanations() -> tuple[Explanation, ...]:
    """Return all explanations that were tested."""
    return read_explanations(files(__package__).joinpath(FILE).read_text(encoding="utf-8"))


def read_explanations(text: str) -> tuple[Explanation, ...]:
    """Return the explanations in the text of a file; raise if they name unknown things."""
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise InputError(f"{FILE} is not valid TOML: {problem}.") from problem
    only(given, {ENTRIES}, FILE)
    entries = given.get(ENTRIES, [])
    if not isinstance(entries, list):
        raise InputError(f"{FILE}: expected entries [[{ENTRIES}]], but got {entries!r}.")
    return tuple(_read(entry, f"{FILE}, entry {i + 1}") for i, entry in enumerate(entries))


def _read(given: Any, place: str) -> Explanation:
    if not isinstance(given, Mapping):
        raise InputError(f"{place}: expected a table, but got {given!r}.")
    only(given, _KEYS, place)
    if absent := [name for name in _NEEDED if name not in given]:
        raise InputError(f"{place}: expected `{absent[0]}`, but got {listed(given)}.")
    _check_kinds(given, place)
    try:
        study = study_of(given["study"])
    except InputError as problem:
        raise InputError(f"{place}: {problem}") from problem
    names = {name for line in study.lines for name in row_names(study, line)}
    for key, known in (
        ("scales", scales()),
        ("metrics", study.metrics),
        ("rows", names),
        ("against", names),
        ("tested_at", scales()),
    ):
        value = given.get(key, ())
        named = [value] if isinstance(value, str) else value
        unknown = [name for name in named if name not in known]
        if unknown:
            raise InputError(
                f"{place}: expected `{key}` to be of {', '.join(sorted(known))}, but got "
                f"{listed(unknown)}."
            )
    if "against" in given and "rows" not in given:
        raise InputError(f"{place}: expected `rows` with `against`, but got none.")
    if given.get("tested_at") in given["scales"]:
        raise InputError(
            f"{place}: expected `tested_at` to be another scale than {listed(given['scales'])}; "
            "leave it out if the test was at the same scale."
        )
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    return Explanation(**values)


def _check_kinds(given: Mapping[str, Any], place: str) -> None:
    """Raise on a value of another type, and on an empty list, which would mean all."""
    for key, value in given.items():
        if key in _LISTS:
            expected = "a list of names"
            fits = isinstance(value, list) and value and all(isinstance(v, str) for v in value)
        elif key == "whole":
            expected = "three counts: same order, other order, undecided"
            fits = isinstance(value, list) and len(value) == 3
            fits = fits and all(type(count) is int and count >= 0 for count in value)
        elif key == "holds":
            expected, fits = "true or false", isinstance(value, bool)
        elif key in ("says", "tested"):
            expected = "a sentence that ends with a full stop"
            fits = isinstance(value, str) and value.strip().endswith(".")
        else:
            expected, fits = "a text", isinstance(value, str)
        if not fits:
            raise InputError(f"{place}: expected `{key}` to be {expected}, but got {value!r}.")
