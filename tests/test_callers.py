"""Errors and notes name what their reader typed: arguments in Python, flags on the command line.

The library's sentences name arguments, as in `id=`. The command line turns them into flags, so no
sentence of the library may name a flag.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import flipguard
from flipguard.cli.arguments import FLAGS, with_flags

SOURCE = Path(__file__).resolve().parents[1] / "src" / "flipguard"
# The side that compares and judges. Its cards (`metrics.py`) are documentation of both, and
# `report/runs.py` belongs to `flipguard report`, which no function of Python does.
EVIDENCE = (
    *("comparison", "controls", "ensembles", "estimates", "files", "formatting", "gate", "groups"),
    *("inference", "locks", "matrices", "notes", "pinned", "planning", "policy", "policy_checks"),
    *("counts", "errors", "inconclusive", "plots", "progress", "archives", "corrections"),
    *("engines", "predictions", "render", "statistics"),
)
FLAG = re.compile(r"(?<![\w(-])--[a-z][a-z-]+")
# A command to type is the same wherever its reader is.
COMMAND = re.compile(r"flipguard (?:train|predict)")
ARGUMENT = re.compile(r"`([a-z_]+)=")


def sentences() -> Iterator[tuple[str, str]]:
    """The strings of the evidence side that are no docstrings, with `{}` for what is filled in."""
    for name in EVIDENCE:
        place = SOURCE / name
        files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
        for file in files:
            yield from ((file.relative_to(SOURCE).as_posix(), text) for text in strings(file))


def strings(file: Path) -> Iterator[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    kinds = ast.Module | ast.FunctionDef | ast.ClassDef
    skipped = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, kinds) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            yield "".join(p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
        elif isinstance(node, ast.Constant) and id(node) not in skipped:
            yield str(node.value)


def test_no_sentence_of_the_library_names_a_flag() -> None:
    found = [
        (file, text) for file, text in sentences() if FLAG.search(text) and not COMMAND.search(text)
    ]
    assert found == []
    assert sum(1 for _ in sentences()) > 1_000


def test_arguments_that_sentences_name_are_those_of_public_functions() -> None:
    known = {"out"}  # of `flipguard.training.train`, whose folders are locked
    for name in flipguard.__all__:
        value = getattr(flipguard, name)
        if inspect.isfunction(value):
            known |= set(inspect.signature(value).parameters)
    found = {name for _, text in sentences() for name in ARGUMENT.findall(text)}
    assert {"id", "label", "target", "by", "cluster", "on_missing"} <= found <= known
    # Each of them becomes a flag, or belongs to values that no command takes.
    assert found - FLAGS == {"scores"}


def test_arguments_become_flags() -> None:
    assert with_flags("name it with `label=`") == "name it with --label"
    assert with_flags("choose another `out=`.") == "choose another --out."
    assert with_flags("use `id='row'`") == "use --id row"
    assert with_flags("leave them out with `on_missing='drop'`") == (
        "leave them out with --on-missing drop"
    )
