"""The shape of the source: sizes of modules and functions, names, imports.

Everything here reads files; nothing of the package is imported.
"""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "flipguard"
LINES_OF_MODULE, LINES_OF_FUNCTION = 450, 60

# Public names that two modules define on purpose: one interface, implemented in each of them.
SAME_INTERFACE = {
    "count": {"engines/local.py", "engines/spark.py"},
    "register": {
        f"cli/{command}.py"
        for command in (
            *(
                "adopt",
                "analyze",
                "compare",
                "demo",
                "ensemble",
                "gate",
                "init",
                "matrix",
                "methods",
                "metrics",
                "predict",
            ),
            *("predict", "report", "study", "train"),
        )
    },
}


@cache
def modules() -> dict[str, tuple[str, ast.Module]]:
    """The text and the syntax tree of every module, by its path in the package."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found[path.relative_to(SOURCE).as_posix()] = (text, ast.parse(text))
    return found


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for name, (_, tree) in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield name, node


def contracts(kind: str) -> list[dict[str, object]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = settings["tool"]["importlinter"]["contracts"]
    return [contract for contract in found if contract["type"] == kind]


def test_the_source_is_found():
    assert len(modules()) > 150
    assert sum(1 for _ in functions()) > 1_000


def test_no_module_is_too_long():
    lines = {name: len(text.splitlines()) for name, (text, _) in modules().items()}
    assert {name: n for name, n in lines.items() if n > LINES_OF_MODULE} == {}


def test_no_function_is_too_long():
    lines = {
        f"{name}:{node.name}": node.end_lineno - node.lineno + 1
        for name, node in functions()
        if node.end_lineno is not None
    }
    assert {name: n for name, n in lines.items() if n > LINES_OF_FUNCTION} == {}


def test_no_public_name_is_defined_in_two_modules():
    places: dict[str, set[str]] = defaultdict(set)
    for module, (_, tree) in modules().items():
        for node in tree.body:
            named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if named and not node.name.startswith("_"):
                places[node.name].add(module)
    assert {name: found for name, found in places.items() if len(found) > 1} == SAME_INTERFACE


def test_no_module_hides_a_public_function():
    """`import flipguard.compare` would put a module where the function was."""
    public = {
        alias
        for node in ast.walk(modules()["__init__.py"][1])
        if isinstance(node, ast.Constant) and isinstance(alias := node.value, str)
    }
    assert "compare" in public
    tops = {name.partition("/")[0].removesuffix(".py") for name in modules()}
    callables = {
        node.name
        for _, (_, tree) in modules().items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }
    assert tops & public & callables == set()


def test_imports_within_functions_are_listed():
    """Ruff refuses them, except in the files that `pyproject.toml` names."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lint = settings["tool"]["ruff"]["lint"]
    assert "PLC0415" in lint["select"]
    allowed = {
        pattern.removeprefix("src/flipguard/")
        for pattern, rules in lint["per-file-ignores"].items()
        if pattern.startswith("src/") and "PLC0415" in rules
    }
    for pattern in allowed:
        names = [name for name in modules() if Path(name).match(pattern)]
        assert any(imports_within_functions(name) for name in names), f"{pattern} needs no entry"


def imports_within_functions(module: str) -> bool:
    return any(
        isinstance(inner, ast.Import | ast.ImportFrom)
        for name, node in functions()
        if name == module
        for inner in ast.walk(node)
    )


def test_contracts_leave_no_module_out():
    """`lint-imports` counts imports within functions; with these settings it looks everywhere."""
    (layers,) = contracts("layers")
    assert layers["containers"] == ["flipguard"]
    assert layers["exhaustive"] is True
    (acyclic,) = contracts("acyclic_siblings")
    assert acyclic["ancestors"] == ["flipguard"]
    assert not acyclic.keys() & {"depth", "skip_descendants"}
    for contract in (layers, acyclic):
        # A comparison and a verdict show themselves; no other import may go upwards.
        for ignored in contract.get("ignore_imports", []):
            importer, _, imported = ignored.partition(" -> ")
            assert importer in ("flipguard.comparison", "flipguard.gate")
            assert imported.startswith("flipguard.render.")


def test_every_listed_name_is_there():
    assert {module for found in SAME_INTERFACE.values() for module in found} <= modules().keys()
