"""Errors and notes name what their reader typed: arguments in Python, flags on the command line.

The library's sentences name arguments, as in `id=`, and settings, as in `machine.fuse=off`. The
command line turns those for which the command has a flag into flags, so no sentence of the library
may name a flag.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from flipguard.analysis import ANALYSES
from flipguard.cli.arguments import OTHER_NAMES, SET, flags_of, use_flags, with_flags
from flipguard.cli.commands import app
from flipguard.runs.config import fix_randomness, set_values
from flipguard.studies.job import prepare_job
from flipguard.studies.results import read_result

SOURCE = Path(__file__).resolve().parents[1] / "src" / "flipguard"
ELSEWHERE = (
    *("cli", "demo.py"),  # the command line itself
    *("metrics.py", "losses"),  # their cards are documentation of both
    *("starter_policies.py", "report/candidate.py", "report/assets"),  # files for any reader
    "report/charts.py",  # colours of CSS
    *("report/score_charts.py", "report/group_charts.py"),
    "studies/sentences.py",  # what `flipguard study` prints
)
FLAG = re.compile(r"(?<![\w(-])--[a-z][a-z-]+")
# A command to type is the same wherever its reader is.
COMMAND = re.compile(r"flipguard (?:train|predict|adopt)|options\.NAME=")
ARGUMENT = re.compile(r"`([a-z_]+)=")
# Options of methods are written alike for all readers.
OPTIONS = {"online", "views_dtype"}


def sentences() -> Iterator[tuple[str, str]]:
    """The library's strings that are no docstrings, with `{}` for what is filled in."""
    for file in sorted(SOURCE.rglob("*.py")):
        name = file.relative_to(SOURCE).as_posix()
        if not name.startswith(ELSEWHERE):
            yield from ((name, text) for text in strings(file))


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
    assert sum(1 for _ in sentences()) > 3_000


def parameters() -> set[str]:
    """The arguments of the functions that people and the command line call."""
    known: set[str] = set()
    for name in ("", ".analysis", ".training", ".data", ".models", ".references"):
        module = importlib.import_module(f"flipguard{name}")
        for public in module.__all__:
            value = getattr(module, public)
            is_class = inspect.isclass(value) and not issubclass(value, Exception)
            if inspect.isfunction(value) or is_class:
                known |= set(inspect.signature(value).parameters)
    for analysis in ANALYSES.values():
        known |= set(inspect.signature(analysis.run).parameters)
    for function in (prepare_job, read_result, set_values, fix_randomness):
        known |= set(inspect.signature(function).parameters)
    return known


def test_arguments_that_sentences_name_are_those_of_functions() -> None:
    found = {name for _, text in sentences() for name in ARGUMENT.findall(text)}
    assert {"id", "label", "target", "by", "cluster", "on_missing"} <= found
    assert {"old", "out", "resume", "classes", "settings", "scale"} <= found
    assert found - OPTIONS <= parameters()
    # Each of them becomes a flag of some command, or belongs to values that no command takes.
    command = typer.main.get_command(app)
    flags: set[str] = set()
    for words in every_command(command):
        flags |= set(flags_of(command, words))
    turned = flags | {ours for ours, theirs in OTHER_NAMES.items() if theirs in flags} | SET
    assert found - OPTIONS - turned == {"scores", "output", "class_names"}


def every_command(command: object, *words: str) -> Iterator[tuple[str, ...]]:
    for name, inner in getattr(command, "commands", {}).items():
        yield (*words, name)
        yield from every_command(inner, *words, name)


def of(*words: str) -> None:
    use_flags(flags_of(typer.main.get_command(app), words))


def test_arguments_become_flags() -> None:
    of("compare", "old.csv", "new.csv")
    assert with_flags("name it with `label=`") == "name it with --label"
    assert with_flags("choose another `out=`.") == "choose another `out=`."  # not of this command
    assert with_flags("use `id='row'`") == "use --id row"
    assert with_flags("leave them out with `on_missing='drop'`") == (
        "leave them out with --on-missing drop"
    )
    # A name that a person chose is never taken for an argument.
    assert with_flags("runs/id=5/`x=1`.csv has no `y`") == "runs/id=5/`x=1`.csv has no `y`"


@pytest.mark.parametrize(
    ("command", "text", "said"),
    [
        ("train", "choose another `out=`.", "choose another --out."),
        ("train", "resume with `resume=True`", "resume with --resume"),
        ("train", "by `model='hf:FOLDER'`", "by --model hf:FOLDER"),
        ("train", "use `machine.fuse=off`", "use --fuse off"),
        ("train", "give `preprocessing.mean`", "give `preprocessing.mean`"),
        ("adopt", "give `preprocessing.input_size`", "give --input-size"),
        ("train", "with `data_root=DIR` or", "with --set data_root=DIR or"),
        ("adopt", "with `data_root=DIR` or", "with --data-root DIR or"),
        ("train", "a file by `weights=`", "a file by --set weights="),
        ("adopt", "a file by `weights=`", "a file by --weights"),
        ("predict", "Expected `split='validation'` of", "Expected --split validation of"),
        ("study run", "`plan_only=True, timed=True` times", "--plan --time times"),
        ("study run", "Expected `first_seed=` to", "Expected --first-seed to"),
        ("study run", "lower `machine.processes`", "lower `machine.processes`"),
        ("train", "Expected `sources=` to", "Expected --fix to"),
        ("train", "`guide=calibrated`, `a=b c`", "`guide=calibrated`, `a=b c`"),
    ],
)
def test_each_command_has_its_flags(command: str, text: str, said: str) -> None:
    of(*command.split())
    assert with_flags(text) == said
