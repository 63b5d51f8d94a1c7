"""The pages of results: one for every committed file, and one over all, also over none."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import json
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from matplotlib.figure import Figure
from tests.studies.made_up import as_in_the_paper

from flipguard.studies.draw import _bars
from flipguard.studies.explanations import Explanation
from flipguard.studies.read_study import study_of
from flipguard.studies.results import as_document, read_result, write_result

DOCS = Path(__file__).resolve().parents[2] / "docs"
COMMITTED = sorted((DOCS.parent / "benchmarks" / "results" / "studies").glob("*.json"))
NAME = "elodi.table1.mnist1d"


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program of the pages, with results in a folder that is empty yet."""
    monkeypatch.syspath_prepend(DOCS)
    module = importlib.import_module("pages.studies")
    module.results.cache_clear()  # what the test before had made up
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(module, "DOCS", tmp_path / "docs")
    return module


def write(folder: Path) -> None:
    """A made-up result in which all rows but ELODI's first have the paper's order."""
    facts = {
        "device": {"kind": "cpu", "name": "An Abacus"},
        "command": "flipguard study run elodi.table1 --out kept/here --seeds 3",
        "runs": 33,
        "seconds": 400.0,
    }
    flips = {9: {"negative_flip_rate": (0.086, 0.0861, 0.0862)}}
    result = as_in_the_paper("elodi.table1", but=flips, facts=facts)
    write_result(result, folder / f"{NAME}.json")


def test_without_results_there_is_a_page_that_says_so(pages: ModuleType) -> None:
    assert pages.results() == {}
    page = pages.overview_page()
    assert "There is no result yet." in page
    assert "toctree" not in page  # a pattern that finds nothing would be a warning


def test_the_page_over_all(pages: ModuleType) -> None:
    write(pages.RESULTS)
    assert list(pages.results()) == [NAME]
    page = pages.overview_page()
    line = next(
        one for one in page.splitlines() if one.startswith(f"| [elodi.table1](studies/{NAME}")
    )
    assert "| 3 |" in line
    assert "claims that hold" in page
    assert re.search(r"the other order, \d+ of them explained by a test, and 0 are", page)
    assert line.endswith("| An Abacus | 7 min |")
    promises = [one for one in page.splitlines() if one.startswith("| ELODI breaks less than")]
    assert [one.rpartition("| NFR ")[2] for one in promises] == [
        "| 0.51 | 2.00 | 23.1, untreated 24.7 | 23.2, untreated 24.7 | the other order |",
        "| 0.49 | 0.49 | 23.1, untreated 24.7 | 23.1, untreated 24.7 | as in the paper |",
    ]
    errors = "22.4, untreated 24.7"
    ensemble = f"| NFR | 0.45 | 0.45 | {errors} | {errors} | as in the paper |"
    assert f"| Ensemble Paragon (8×) | mnist1d {ensemble}" in page
    assert "studies/*" in page


def test_what_became_of_explained_pairs_in_their_tests(
    pages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evidence shows the paper's order, or is undecided with either order."""
    write(pages.RESULTS)
    result = pages.results()[NAME]
    pair = next(one for one in result.agreement().pairs if one.verdict == "disagree")
    assert pair.metric == "negative_flip_rate"
    rows = [pair.first, pair.second]
    evidence = tmp_path / "evidence.json"
    monkeypatch.setattr(pages.places, "ROOT", tmp_path)
    explanation = Explanation(
        study="elodi.table1",
        scales=("mnist1d",),
        says="",
        tested="",
        holds=True,
        evidence=evidence.name,
        whole=(1, 1, 1),
    )
    # The second row has the other order; the untreated one has 0.0430.
    assert rows == [0, 9]
    for flips, told in {
        (0.0218, 0.0219, 0.0217): "agree",
        (0.02, 0.042, 0.06): "undecided",
        (0.03, 0.044, 0.06): "other way",
        (0.086, 0.0861, 0.0862): "disagree",
    }.items():
        made = as_in_the_paper("elodi.table1", but={9: {"negative_flip_rate": flips}})
        write_result(made, evidence)
        assert pages._in_test(result, pair, explanation) == told
    of_another_study = dataclasses.replace(explanation, whole=())
    assert pages._in_test(result, pair, of_another_study) == "other"


def test_the_page_of_a_study(pages: ModuleType) -> None:
    write(pages.RESULTS)
    page = pages.study_page(NAME)
    assert page.startswith("# elodi.table1 at mnist1d: ")
    assert "| FD-LM | paper | 30.24 | 26.53 | 2.92 | 15.78 | 0.68 |  |" in page
    assert f"\n\n![elodi.table1 at mnist1d](../../images/studies/{NAME}.svg)\n\n" in page
    assert "- NFR: ELODI (K = 1000) is above No treatment (single) here" in page
    assert "`flipguard study run elodi.table1 --seeds 3`" in page
    # What follows a list is no part of its last item.
    lines = page.splitlines()
    after = [b for a, b in itertools.pairwise(lines) if a.startswith("- ")]
    assert all(line == "" or line.startswith("- ") for line in after)


def test_a_picture_is_drawn_anew_only_for_another_result(pages: ModuleType) -> None:
    write(pages.RESULTS)
    drawn = pages.study_chart(NAME)
    assert "<svg" in drawn
    place = pages.DOCS / pages.picture_of(NAME)
    place.parent.mkdir(parents=True)
    # As if by another version of what draws it.
    place.write_text(drawn.replace("<svg", "<svg ", 1))
    assert pages.study_chart(NAME) == place.read_text() != drawn
    file = pages.RESULTS / f"{NAME}.json"
    was = file.read_text()
    file.write_text(was + "\n")
    assert pages.study_chart(NAME) != place.read_text()
    file.write_text(was)
    assert pages.study_chart(NAME) == place.read_text()


@pytest.mark.parametrize("module", ["studying", "show", "sentences", "draw", "panels"])
def test_it_is_drawn_anew_if_what_labels_it_changes(
    pages: ModuleType, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(pages.RESULTS)
    mark = pages.mark_of(NAME)
    other = tmp_path / "other.py"
    other.write_text("# another version")
    with monkeypatch.context() as patch:
        patch.setattr(getattr(pages, module), "__file__", str(other))
        assert pages.mark_of(NAME) != mark
    assert pages.mark_of(NAME) == mark


def test_it_is_drawn_anew_for_another_study(
    pages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(pages.RESULTS)
    mark = pages.mark_of(NAME)
    (tmp_path / "elodi.table1.toml").write_text('title = "Another one."')
    monkeypatch.setattr(pages, "CATALOG", tmp_path)
    assert pages.mark_of(NAME) != mark


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_committed_files_say_what_is_counted_from_their_rows(path: Path) -> None:
    study = path.name.rsplit(".", 2)[0]
    document = json.loads(path.read_text())
    assert document["agreement"] == as_document(read_result(path, study_of(study)))["agreement"]


@pytest.mark.parametrize(
    ("id", "axis"),
    [
        ("elodi.table1", "NFR over that of the untreated update (standard errors of our means)"),
        ("elodi.table11", "NFR % (standard errors of our means)"),  # no line is untreated
    ],
)
def test_rows_are_drawn_also_where_none_is_untreated(id: str, axis: str) -> None:
    committed = DOCS.parent / "benchmarks" / "results" / "studies" / f"{id}.mnist1d.json"
    result = read_result(committed, study_of(id))
    figure = Figure()
    _bars(figure, result, result.rows)
    (axes,) = figure.axes
    assert axes.get_xlabel() == axis
    paper = np.asarray(axes.collections[0].get_offsets(), dtype=float)
    ours = np.asarray(axes.containers[0].lines[0].get_xydata(), dtype=float)
    assert len(paper) == len(ours) == len(result.rows)
    assert np.isfinite(ours).all()
    assert np.isfinite(paper).all()
    assert paper[:, 0].max() < 10  # both in percent, or both as ratios


def test_what_is_far_off_does_not_squeeze_the_rest() -> None:
    wild = (0.5, 0.51, 0.52)
    for flips, told in ((wild, ["→ 7.9"]), ((0.07, 0.071, 0.072), [])):
        result = as_in_the_paper("pct.table3", but={7: {"negative_flip_rate": flips}})
        figure = Figure()
        _bars(figure, result, result.rows)
        (axes,) = figure.axes
        assert [text.get_text() for text in axes.texts] == told
        assert axes.get_xlim()[1] < 1.5
