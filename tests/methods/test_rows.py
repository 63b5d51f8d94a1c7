"""Rows of methods: they have all that depends on the method, and are read without torch."""

from __future__ import annotations

import ast
import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import flipguard
from flipguard.errors import InputError
from flipguard.methods import METHODS
from flipguard.methods.needs import MOST_MEMBERS, Members, Needs, OldRun, RunFacts
from flipguard.studies import costs
from flipguard.training import Config, train
from tests.training.tiny import tiny, trained

SOURCE = Path(flipguard.__file__).parent
OPTIONS = {option.name for method in METHODS.values() for option in method.options}
CONTROL = "none"
# Who may ask whether a run is the control, which is no treatment.
ASK_FOR_CONTROL = ("studies", "report")
# Methods whose names other things have as well: a layer, a command and a role of models.
COMMON_WORDS = {CONTROL, "dropout", "ensemble"}


# --- no module but the methods' own asks which method it is -------------------------------------


def strings(node: ast.expr) -> set[str]:
    """The string constants of an expression such as ``"kd"`` or ``("kd", "elodi")``."""
    parts = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    return {p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str)}


def is_method(node: ast.expr) -> bool:
    """Whether an expression is the name of a method, or a part of it."""
    text = ast.unparse(node)
    return text.endswith((".method", "method.name")) or ".method.partition" in text


def is_options(node: ast.expr) -> bool:
    """Whether an expression is named as the options of a method are."""
    return ast.unparse(node).split(".")[-1] == "options"


def asked_names(tree: ast.AST) -> Iterator[str]:
    """Every place that asks for a method by name, or for one of the options of a method."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            found = set().union(*map(strings, sides))
            asks = bool((found & set(METHODS)) - COMMON_WORDS)
            asks |= bool(found) and any(map(is_method, sides))
            asks |= bool(found & OPTIONS) and any(map(is_options, sides))
        elif isinstance(node, ast.Subscript):
            name = strings(node.slice)
            asks = bool(name & set(METHODS)) and ast.unparse(node.value) == "METHODS"
            asks |= bool(name & OPTIONS) and is_options(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            asks = bool(strings(node.args[0]) & OPTIONS) and is_options(node.func.value)
        else:
            asks = False
        if asks:
            yield ast.unparse(node)


def is_allowed(package: str, asked: str) -> bool:
    """Whether a package may ask: studies and reports look for the control."""
    return package in ASK_FOR_CONTROL and asked.endswith((f"== '{CONTROL}'", f"!= '{CONTROL}'"))


def test_only_methods_ask_for_a_method_by_name() -> None:
    found = {}
    for path in SOURCE.rglob("*.py"):
        place = path.relative_to(SOURCE)
        if place.parts[0] == "methods":
            continue
        asked = list(asked_names(ast.parse(path.read_text())))
        if wrong := [one for one in asked if not is_allowed(place.parts[0], one)]:
            found[str(place)] = wrong
    assert found == {}


@pytest.mark.parametrize(
    "line",
    [
        'method.name == "dropout"',
        'config.method != "ensemble"',
        'run.config.method == "none"',
        'config.method.partition("+")[0] in ("codistill-ce", "codistill-skl")',
        'name in {"elodi", "kd"}',
        'config.options["views"]',
        'config.options.get("guide") == "calibrated"',
        'options.get("legacy")',
        '"members" in config.options',
        'METHODS["none"]',
    ],
)
def test_what_asks_for_a_method_by_name_is_found(line: str) -> None:
    assert len(list(asked_names(ast.parse(line)))) >= 1


@pytest.mark.parametrize(
    "line", ['reduction == "none"', 'options["dropout"]', "METHODS[name]", "options[name]"]
)
def test_other_words_are_not_mistaken_for_methods(line: str) -> None:
    assert list(asked_names(ast.parse(line))) == []


# --- rows without torch -------------------------------------------------------------------------

WITHOUT_TORCH = """
import sys
for name in ("torch", "lightning", "timm", "transformers", "safetensors", "torchvision"):
    sys.modules[name] = None  # an import of it is refused
from flipguard.cli import main
sys.argv = ["flipguard", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize("arguments", [[], ["elodi"], ["--json"]])
def test_methods_are_listed_where_torch_is_not_installed(arguments: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, "methods", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE.parent), "COLUMNS": "200"},
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "elodi" in ran.stdout
    if not arguments:
        assert all(name in ran.stdout for name in METHODS)


# --- what rows say ------------------------------------------------------------------------------


def test_needs_depend_on_options() -> None:
    elodi, kd = METHODS["elodi"], METHODS["kd"]
    usual = elodi.default_needs()
    assert usual == Needs(members=Members(count=8, may_be_given=True))
    assert usual.names == ("members",)
    options = {"members": 3, "reuse": 2, "guide": "calibrated", "legacy": 0.5}
    found = elodi.needs(elodi.complete(options))
    assert found.names == ("old", "members", "held_out")
    assert found.members == Members(count=3, reused=2, calibrated=True, may_be_given=True)
    assert kd.needs({}) == kd.default_needs() == Needs(old=True)
    given = Members(count=4, may_be_given=True)
    assert METHODS["ensemble"].needs({"members": 4}) == Needs(members=given)
    assert METHODS[CONTROL].default_needs() == Needs()


@pytest.mark.parametrize("count", [0, MOST_MEMBERS + 1])
@pytest.mark.parametrize("method", ["elodi", "ensemble"])
def test_no_ensemble_has_such_a_number_of_members(method: str, count: int) -> None:
    with pytest.raises(InputError, match="Expected `members` to be a whole number from 1 to 1,000"):
        METHODS[method].needs({"members": count})


def test_only_an_ensemble_is_a_mean() -> None:
    assert [name for name, method in METHODS.items() if method.is_mean] == ["ensemble"]


def test_a_scale_limits_members_and_classes() -> None:
    elodi = METHODS["elodi"]
    options = elodi.complete({"members": 8, "k": 10})
    limited = elodi.at_most(options, members=4, classes=10)
    assert {n: v for n, v in limited.items() if v != options[n]} == {"members": 4, "k": None}
    assert elodi.at_most(options, members=8, classes=11) == options
    assert METHODS["skl"].at_most({"k": 3}, members=1, classes=3)["k"] is None
    assert METHODS["fd-lm"].at_most({"weight": 3}, members=1, classes=1) == {"weight": 3}
    assert elodi.asked_members({"members": 5}) == 5
    assert elodi.asked_members({"alpha": 0.5}) is None
    assert METHODS["kd"].asked_members({"weight": 1.0}) is None


@pytest.mark.parametrize(
    ("method", "changes", "steps"),
    [
        ("none", {}, 1.0),
        ("fd-lm", {"old": ("a",)}, 1 + 1 / 3),
        ("fd-lm", {"old": ("a", "b")}, 1 + 2 / 3),
        ("elodi", {"options": {"members": 6}}, 3.0),
        ("elodi", {"options": {"members": 6}, "old": ("a",)}, 3 + 1 / 3),
        ("elodi", {"options": {"members": 6}, "guides": ("a", "b", "c")}, 2.0),
        ("codistill-ce", {}, 2.0),
        ("codistill-skl+skl", {"old": ("a",)}, 2.0),
    ],
)
def test_a_step_costs_what_the_models_in_it_cost(
    method: str, changes: dict[str, Any], steps: float
) -> None:
    assert costs._factor(Config(method=method, **changes)) == pytest.approx(steps)


def test_options_are_refused_before_members_are_trained(tmp_path: Path) -> None:
    options = {"members": 2, "k": 2.5}
    with pytest.raises(InputError, match="Expected `k` to be a whole number or none"):
        train(tiny("elodi", options=options), tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "facts", "sentence"),
    [
        ({"alpha": 1.5}, RunFacts(), "Expected `alpha` to be a share from 0 to 1, but got 1.5"),
        ({"p": 0.5}, RunFacts(), "Expected `p` to be"),
        ({"legacy": 0.5}, RunFacts(), "Expected an old run for `legacy`, but got none"),
        ({"guide": "heterogeneous"}, RunFacts(), "Expected `guides` for the option guide="),
        ({"reuse": 9}, RunFacts(), "Expected `reuse` to be at most `members`, 8, but got 9"),
        ({"reuse": 1}, RunFacts(guides=2), "Expected `reuse` without `guides`"),
        (
            {"reuse": 1, "guide": "calibrated"},
            RunFacts(),
            "Expected guide=homogeneous with `reuse`",
        ),
        ({"reuse": 1}, RunFacts(), "Expected one `old=` with `reuse`, but got 0"),
        ({"reuse": 1}, RunFacts(olds=[OldRun(folder=Path("o"), members=0)]), "lists none"),
        ({"reuse": 2}, RunFacts(olds=[OldRun(folder=Path("o"), members=1)]), "but it has 1; lower"),
    ],
)
def test_a_row_refuses_what_only_its_method_knows(
    options: dict[str, Any], facts: RunFacts, sentence: str
) -> None:
    elodi = METHODS["elodi"]
    with pytest.raises(InputError) as refusal:
        elodi.check(elodi.complete(options), facts)
    assert sentence in str(refusal.value)


def test_an_objective_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flipguard.methods import registry

    built: list[str] = []

    def counted(setting: Any) -> Any:
        built.append("elodi")
        assert setting.members is not None  # which are trained by now
        return elodi.build(setting)

    elodi = METHODS["elodi"]
    rows = {**METHODS, "elodi": dataclasses.replace(elodi, build=counted)}
    monkeypatch.setattr(registry, "METHODS", rows)
    trained(tiny("elodi", options={"members": 2, "online": False}, epochs=1), tmp_path / "run")
    assert built == ["elodi"]
