"""An altered result file: shown as a page, or refused in one sentence, whatever was altered."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.studies.test_running import flipguard

from flipguard.errors import InputError
from flipguard.studies.document import CURVES
from flipguard.studies.draw import plot_result
from flipguard.studies.read_study import study_of
from flipguard.studies.results import Result, read_result, result_in
from flipguard.studies.show import markdown_of, result_parts

ESCAPE = "\x1b]0;owned\x07"
# Every eleventh alteration is tried, which in turn is each kind of them.
STEP = 11
Path_ = tuple[str | int, ...]


def rows_of(labels: list[str], **more: Any) -> list[dict[str, Any]]:
    names = ("error_rate_old", "error_rate_new", "negative_flip_rate", "churn", "flip_rank")
    return [
        {
            "place": place,
            "label": label,
            "runs": {"old": ["a", "b"], "new": ["c", "d"]},
            "metrics": {name: {"values": [0.1 + place / 9, 0.2]} for name in names},
            "notes": ["something"],
            **more,
        }
        for place, label in enumerate(labels)
    ]


def document(study: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "schema": "flipguard.study/1",
        "study": study,
        "scale": "mnist1d",
        "set": ["recipe.epochs=1"],
        "seeds": [0, 1],
        "device": {"kind": "cpu", "name": "a CPU"},
        "versions": {"torch": "2"},
        "command": "flipguard study run",
        "differences": ["one"],
        "setting": {
            "data": "cifar10",
            "epochs": 3,
            "models": {"small": "mlp:hidden=64"},
            "recipe": {"clip": 1.0, "augment": "none"},
            "samples": {"train": 5, "test": 5},
        },
        "runs": 4,
        "processes": 2,
        "seconds": 5.0,
        "written": "2026-01-31T12:00:00+00:00",
        "agreement": {"share": None},
        "rows": rows,
    }


TABLE = rows_of([line.label for line in study_of("elodi.table4").lines])
HISTOGRAM = {
    "of": "rank",
    "edges": [0.5, 1.5, 2.5],
    "counts": {"negative flips": [[3, 4], [1, 2]]},
    "open": False,
}
UNCERTAIN = {
    "of": "uncertainty",
    "edges": [0.0, 0.1, 0.2],
    "counts": {"negative flips": [[3, 4], [1, 2]], "other samples": [[3, 4], [1, 2]]},
    "open": True,
}
CURVED = {"test": {name: [[0.5, None], [0.4, 0.3]] for name in CURVES}}
DOCUMENTS = {
    "table": document("elodi.table4", TABLE),
    "not run": document("elodi.table4", [{**TABLE[0], "why_not": "No model."}, *TABLE[1:]]),
    "curves": document("pct.figure6", rows_of(["FD-LM"], curves=CURVED)),
    "histogram": document(
        "elodi.figure4", rows_of(["single models", "ensembles"], histogram=HISTOGRAM)
    ),
    "uncertainty": document("pct.figure4", rows_of(["untreated", "FD-LM"], histogram=UNCERTAIN)),
}


def nodes(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """The path of every value in a document."""
    yield path
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, one in items:
            yield from nodes(one, (*path, key))


def altered(whole: Any, path: Path_) -> Iterator[Any]:
    """The document with one node deleted, replaced by a value of another kind, or made hostile."""
    replacements: list[Any] = [None, True, -1, 10**400, 0.5, 1e308, float("nan"), "x", ESCAPE]
    replacements += [[], [[]], {}, {"x": []}]
    for new in replacements:
        found = [copy.deepcopy(whole)]
        parent: Any = found
        keys = (0, *path)
        for key in keys[:-1]:
            parent = parent[key]
        parent[keys[-1]] = new
        yield found[0]
    if path:
        found = copy.deepcopy(whole)
        parent = found
        for key in path[:-1]:
            parent = parent[key]
        kept = parent.pop(path[-1])
        yield copy.deepcopy(found)
        if isinstance(parent, list):  # once more, and at another place
            parent += [kept, kept]
        else:
            parent[ESCAPE] = kept
        yield found


def shown(result: Result) -> str:
    """All that is shown of a result, on a terminal and as Markdown."""
    console = Console(width=100, file=(screen := io.StringIO()))
    for part in result_parts(result):
        console.print(part)
    return screen.getvalue() + markdown_of(result)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_an_altered_document_is_a_page_or_one_sentence(name: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    whole = DOCUMENTS[name]
    cases = [(place, one) for place in nodes(whole) for one in altered(whole, place)]
    pages, refused = 0, 0
    for place, one in cases[::STEP]:
        path.write_text(json.dumps(one))
        try:
            told = shown(result_in(path))
            pages += 1
        except InputError as problem:
            told = str(problem)
            refused += 1
            assert "\n" not in told
            assert told.startswith("Expected ")
        assert "\x1b" not in told, place
        assert "\x07" not in told, place
    assert pages > 10
    assert refused > 50


@pytest.mark.parametrize("name", DOCUMENTS)
def test_an_altered_number_can_be_drawn(name: str, tmp_path: Path) -> None:
    whole = copy.deepcopy(DOCUMENTS[name])
    for row in whole["rows"]:
        for metric in row["metrics"].values():
            metric["values"] = [None, 1e100]
    path = tmp_path / "result.json"
    path.write_text(json.dumps(whole))
    plot_result(result_in(path), str(tmp_path / "picture.svg"))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"study": ' * 100_000,
        '{"study": "elodi.table4", "seeds": [' + "9" * 5_000 + "]}",
        '{"study": ["elodi.table4"]}',
        '{"study": "elodi.table4\\u001b[31m"}',
        '"\\ud800"',
        "",
    ],
    ids=["deep list", "deep table", "digits", "list", "escape", "surrogate", "nothing"],
)
def test_a_hostile_file_is_refused_in_one_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(text)
    done = flipguard("show", str(path), "--markdown", "-")
    assert done.code == 2
    assert done.out == ""
    assert "this is a bug" not in done.err
    assert "\x1b" not in done.err


def test_control_characters_of_a_file_reach_no_page(tmp_path: Path) -> None:
    whole = copy.deepcopy(DOCUMENTS["table"])
    whole["setting"] |= {"models": {f"small{ESCAPE}": ESCAPE}, "recipe": {f"clip{ESCAPE}": ESCAPE}}
    whole |= {"command": ESCAPE, "set": [ESCAPE], "differences": [ESCAPE], "scale": ESCAPE}
    path = tmp_path / "result.json"
    path.write_text(json.dumps(whole))
    page = tmp_path / "page.md"
    done = flipguard("show", str(path), "--markdown", str(page))
    assert done.code == 0, done.err
    for told in (done.out, page.read_text()):
        assert "\x1b" not in told
        assert "small\ufffd]0;owned\ufffd is" in " ".join(told.split())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"study": "elodi.table6"}, "is No treatment (single)"),
        ({"seeds": [1, 1]}, "seeds has one of them twice"),
        ({"seeds": [1]}, "should have 1 values, but has 2"),
        ({"written": "../../elsewhere"}, "it.written should be a date and time"),
        ({"rows": [TABLE[0], TABLE[0]]}, "line 0 is there twice"),
        ({"setting": {}}, "it.setting has no data"),
        ({"runs": "many"}, "it.runs should be a whole number from 0 on, but is a text"),
    ],
)
def test_a_refusal_says_where(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({**DOCUMENTS["table"], **change}))
    with pytest.raises(InputError) as problem:
        result_in(path)
    assert told in str(problem.value)


def test_a_result_of_another_study_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(DOCUMENTS["table"]))
    with pytest.raises(InputError, match=r"it is of elodi\.table4"):
        read_result(path, study_of("elodi.table6"))
