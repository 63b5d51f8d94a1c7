"""Explanations of contradictions: read, matched with pairs, shown, and removed when stale."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from rich.console import Console
from tests.studies.made_up import as_in_the_paper
from tests.studies.test_running import flipguard

from flipguard.errors import InputError
from flipguard.studies import explanations as explanations_module
from flipguard.studies.explanations import (
    Explanation,
    contradictions,
    explanations,
    read_explanations,
)
from flipguard.studies.read_study import study_of
from flipguard.studies.results import Result, Row, read_result, write_result
from flipguard.studies.sentences import contradiction, verdict_lines
from flipguard.studies.show import VERDICTS, PairTally, markdown_of, overview_line, overview_table

ROOT = Path(__file__).resolve().parents[2]
COMMITTED = ROOT / "benchmarks" / "results" / "studies"
ID = "elodi.table6"
OLD, FLIPS = "error_rate_old", "negative_flip_rate"

ENTRY = """
[[explained]]
study = "elodi.table6"
scales = ["mnist1d"]
says = "Made up for a test."
tested = "Nothing was run, and 1 of 1 came out."
holds = true
"""


def entry(*lines: str, **changes: str) -> str:
    """An entry with further lines, or others instead of its own."""
    own = [line for line in ENTRY.splitlines() if line.partition(" = ")[0] not in changes]
    return "\n".join([*own, *lines, *(f"{key} = {value}" for key, value in changes.items())])


def made_up() -> Result:
    """As in the paper, but for ELODI: its old models err less than all, and it flips most."""
    elodi = {
        place: {
            OLD: (0.2501, 0.2502, 0.2503),
            FLIPS: (0.1, 0.1001, 0.1003 + 0.0001 * place),
        }
        for place, line in enumerate(study_of(ID).lines)
        if line.label == "ELODI"
    }
    return as_in_the_paper(ID, but=elodi)


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts other entries into the place of those that there are."""

    def put(text: str) -> None:
        file = tmp_path / "explanations.toml"
        file.write_text(text)
        monkeypatch.setattr(
            explanations_module, "explanations", lambda: read_explanations(file.read_text())
        )

    return put


def labels(result: Result, group: explanations_module.Contradictions) -> list[tuple[str, str]]:
    """The metric of each pair, and the group of rows that it is in."""
    return [(pair.metric, result.line(result.rows[pair.first]).group or "") for pair in group.pairs]


# -- matching ------------------------------------------------------------------------------------


def test_without_entries_nothing_is_explained() -> None:
    result = made_up()
    (group,) = contradictions(result, ())
    assert not group.is_explained
    against = [pair for pair in result.agreement().pairs if pair.verdict == "disagree"]
    assert list(group.pairs) == against
    # Two of the old error, each of which three updates share, and one of flips for each of these.
    assert [pair.metric for pair in against] == [OLD] * 2 + [FLIPS] * 3


@pytest.mark.parametrize(
    ("lines", "count"),
    [
        ([], 5),
        (['metrics = ["error_rate_old"]'], 2),
        (['metrics = ["error_rate_old", "negative_flip_rate"]'], 5),
        (['rows = ["ELODI"]'], 5),
        (['rows = ["None (single)"]'], 4),
        (['rows = ["None (single)", "Ensemble Paragon (8×)"]'], 5),
        (['rows = ["None (single)"]', 'against = ["Ensemble Paragon (8×)"]'], 0),
        (['rows = ["ELODI"]', 'against = ["None (single)"]'], 4),
        (['rows = ["None (single)"]', 'against = ["ELODI"]'], 4),
        (['rows = ["None (single)"]', 'against = ["ELODI"]', 'metrics = ["error_rate_old"]'], 1),
        # Of one update its flips, and the old errors, which are those of the first update too.
        (['rows = ["Swin-Tiny, ELODI"]'], 3),
        (['rows = ["Swin-Tiny, ELODI"]', 'against = ["Swin-Tiny, None (single)"]'], 2),
        (['rows = ["Swin-Tiny, ELODI"]', 'against = ["RN-101, None (single)"]'], 0),
    ],
)
def test_an_entry_is_about_what_it_names(lines: list[str], count: int) -> None:
    result = made_up()
    groups = contradictions(result, read_explanations(entry(*lines)))
    assert sum(len(group.pairs) for group in groups if group.is_explained) == count
    assert sum(len(group.pairs) for group in groups) == 5


def test_other_settings_are_not_explained() -> None:
    explained = read_explanations(entry())
    for given, is_meant in (
        ((), True),
        (("machine.compile=parts", "options.elodi.views=8", "model=m"), True),
        (("machine.compile=parts", "recipe.epochs=5"), False),
        (("options.elodi.alpha=0.5",), False),
    ):
        result = dataclasses.replace(made_up(), given=given)
        (group,) = contradictions(result, explained)
        assert group.is_explained == is_meant


def test_rows_of_the_same_name_are_told_apart_by_their_group() -> None:
    result = made_up()
    told = [contradiction(result, p) for g in contradictions(result, ()) for p in g.pairs]
    flips = [one for one in told if one.startswith("NFR: ")]
    assert len(flips) == 3
    for group in ("RN-101", "DenseNet-161", "Swin-Tiny"):
        assert any(f"NFR: {group}, ELODI is above {group}, None (single) " in one for one in flips)


def test_an_update_for_the_worse_is_noted() -> None:
    worse = {
        place: {"error_rate_new": (0.4, 0.41, 0.42)}
        for place, line in enumerate(study_of(ID).lines)
        if line.group == "Swin-Tiny"
    }
    notes = [n for n in verdict_lines(as_in_the_paper(ID, but=worse)) if n.startswith("Note: ")]
    assert notes == [
        "Note: Swin-Tiny, None (single): the new model has a higher error than the old one here, "
        "41.0 against 30.2 %, and a lower one in the paper, 20.4 against 30.2."
    ]
    assert not any(n.startswith("Note: ") for n in verdict_lines(as_in_the_paper(ID)))


def test_another_study_or_scale_is_not_meant() -> None:
    result = made_up()
    for text in (entry(study='"elodi.table1"'), entry(scales='["fashion", "cifar100"]')):
        (group,) = contradictions(result, read_explanations(text))
        assert group.explanations == ()


def test_explained_comes_first_then_what_was_tried_then_the_rest() -> None:
    wrong = entry('metrics = ["negative_flip_rate"]', 'rows = ["RN-101, ELODI"]', holds="false")
    right = entry('metrics = ["error_rate_old"]')
    known = read_explanations(wrong + right)
    result = made_up()
    groups = contradictions(result, known)
    assert [group.explanations for group in groups] == [(known[1],), (known[0],), ()]
    assert [group.is_explained for group in groups] == [True, False, False]
    assert labels(result, groups[1]) == [(FLIPS, "RN-101")]


def test_several_entries_about_one_pair_are_all_shown() -> None:
    wrong = entry(holds="false", says='"It was thought."')
    (group,) = contradictions(made_up(), read_explanations(wrong + entry()))
    assert group.is_explained
    assert [one.holds for one in group.explanations] == [True, False]


# -- shown ---------------------------------------------------------------------------------------


def test_pages_list_pairs_by_their_explanation(known: Callable[[str], None]) -> None:
    file = '"benchmarks/results/explanations/some.json"'
    known(
        entry('metrics = ["error_rate_old"]', f"evidence = {file}")
        + entry(
            'metrics = ["negative_flip_rate"]',
            'rows = ["RN-101, ELODI"]',
            holds="false",
            says='"It was thought."',
            tested='"It was run, and 0 of 1 came out."',
        )
    )
    result = made_up()
    lines = markdown_of(result).splitlines()
    start = lines.index("Pairs with the other order:")
    told = [line for line in lines[start + 1 :] if line]
    items = [f"- {contradiction(result, p)}" for g in contradictions(result) for p in g.pairs]
    assert told == [
        "Explained: Made up for a test. Tested: Nothing was run, and 1 of 1 came out. Evidence: "
        "`benchmarks/results/explanations/some.json`.",
        *items[:2],
        "Not explained:",
        "Refuted: It was thought. Tested: It was run, and 0 of 1 came out.",
        items[2],
        "Not explained:",
        *items[3:],
        "Claims in words:",
        "- The paper says: ELODI lowers the NFR in all cases. Here it does not hold.",
    ]
    # Paragraphs and lists have an empty line between them.
    assert lines[start + 1] == lines[start + 3] == lines[start + 6] == ""
    assert items[0].endswith("; this stands for 4 more rows with the same old models")
    assert "stands for" not in items[2]


def test_the_terminal_shows_some_of_each(known: Callable[[str], None], tmp_path: Path) -> None:
    known(entry('metrics = ["negative_flip_rate"]'))
    write_result(made_up(), tmp_path / "results" / f"{ID}.mnist1d.json")
    told = " ".join(flipguard("show", ID, "--out", str(tmp_path)).out.split())
    assert (
        "Pairs with the other order: Explained: Made up for a test. Tested: Nothing was run" in told
    )
    assert told.count("Not explained: - old error: RN-101, ELODI is below") == 1
    lines = list(verdict_lines(made_up(), most=2))
    assert lines.count("- and 1 more; `--markdown` lists all") == 1
    assert sum(line.startswith("- old error") for line in lines) == 2


def test_one_row_more_is_one_row() -> None:
    study = study_of("elodi.table1")
    old, other = (0.43, 0.44, 0.42), (0.41, 0.42, 0.40)
    places = {"No treatment (single)": old, "KD": old, "ELODI (K = 1000)": other}
    rows = tuple(
        Row(place=place, values={OLD: places[line.label]})
        for place, line in enumerate(study.lines)
        if line.label in places
    )
    result = Result(study=study, scale="mnist1d", given=(), seeds=(0, 1, 2), rows=rows, facts={})
    ((pair,),) = (group.pairs for group in contradictions(result, ()))
    told = contradiction(result, pair)
    assert told.endswith("; this stands for 1 more row with the same old model")


def test_the_overview_says_how_many_are_explained(known: Callable[[str], None]) -> None:
    known(entry('metrics = ["negative_flip_rate"]') + entry(holds="false"))
    result = made_up()
    tally = PairTally.of([result])
    assert (tally.disagree, tally.explained) == (5, 3)
    told = overview_line([result])
    assert ", 5 the other order, 3 of them explained by a test, and 0 are undecided." in told
    assert "that the seeds decide" not in told  # all of them are
    console = Console(width=80)
    with console.capture() as captured:
        console.print(overview_table([result]))
    heads, line = captured.get().splitlines()
    assert heads.split()[:5] == [
        "study",
        "agreement",
        "same",
        "other",
        "explained",
    ]
    assert heads.endswith("claims hold")
    assert line.partition("%")[2].split()[1:4] == ["5", "3", "0"]


# -- reading -------------------------------------------------------------------------------------


def test_an_entry_is_read_whole() -> None:
    (one,) = read_explanations(
        entry('metrics = ["churn"]', 'rows = ["Co-distill SKL"]', study='"churn.table2"')
    )
    assert one == Explanation(
        study="churn.table2",
        scales=("mnist1d",),
        says="Made up for a test.",
        tested="Nothing was run, and 1 of 1 came out.",
        holds=True,
        metrics=("churn",),
        rows=("Co-distill SKL",),
    )
    assert read_explanations("") == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[explained", "explanations.toml is not valid TOML: "),
        ("[[explain]]", "explanations.toml: expected explained, but got 'explain'."),
        ("explained = 3", "explanations.toml: expected entries [[explained]], but got 3."),
        ("explained = [3]", "entry 1: expected a table, but got 3."),
        (entry('row = ["ELODI"]'), "tested, tested_at, whole, but got 'row'."),
        (ENTRY + entry("[[explained]]"), "entry 3: expected `study`, but got "),
        ("[[explained]]\nstudy = 'elodi.table6'", "expected `scales`, but got 'study'."),
        (
            entry(study='"elodi.table66"'),
            "entry 1: Expected a study, but got 'elodi.table66'; did you mean elodi.table6",
        ),
        (entry(study='"elodi.figure9"'), "there is none of elodi.figure9: "),
        (entry(scales='["mnist"]'), "expected `scales` to be of agnews, "),
        (entry(scales="[]"), "expected `scales` to be a list of names, but got []."),
        (entry(scales='"mnist1d"'), "expected `scales` to be a list of names, but got 'mnist1d'."),
        (
            entry('metrics = ["churn"]'),
            "expected `metrics` to be of error_rate_new, error_rate_old, negative_flip_rate, but "
            "got 'churn'.",
        ),
        (entry('rows = ["Elodi"]'), "Swin-Tiny, None (single), but got 'Elodi'."),
        (entry('rows = ["ELODI"]', 'against = ["KD"]'), "expected `against` to be of "),
        (entry('against = ["ELODI"]'), "expected `rows` with `against`, but got none."),
        (entry("rows = [3]"), "expected `rows` to be a list of names, but got [3]."),
        (entry(holds='"yes"'), "expected `holds` to be true or false, but got 'yes'."),
        (entry(says='""'), "expected `says` to be a sentence that ends with a full stop, but got "),
        (entry(tested='"Not"'), "expected `tested` to be a sentence that ends with a full stop, "),
        (entry("evidence = 3"), "expected `evidence` to be a text, but got 3."),
        (entry("whole = [3, 4]"), "expected `whole` to be three counts: same order, other order, "),
        (entry("whole = [3, -4, 1]"), "undecided, but got [3, -4, 1]."),
        (entry('tested_at = "mnist2d"'), "expected `tested_at` to be of agnews, agnews-bert, "),
        (entry('tested_at = "mnist1d"'), "leave it out if the test was at the same scale."),
    ],
)
def test_what_is_misspelt_or_not_there_is_refused(text: str, told: str) -> None:
    with pytest.raises(InputError) as problem:
        read_explanations(text)
    assert told in str(problem.value)
    assert "\n" not in str(problem.value)


# -- the entries that there are ------------------------------------------------------------------


def stale(known: Sequence[Explanation], folder: Path) -> list[str]:
    """What explains nothing, or no longer, in a result of a folder."""
    return [
        f"{one.study} at {scale}: {one.says}"
        for one in known
        for scale in one.scales
        if (path := folder / f"{one.study}.{scale}.json").exists()
        and all(
            one not in group.explanations
            for group in contradictions(read_result(path, study_of(one.study)), known)
        )
    ]


def test_entries_explain_something_that_is_still_so() -> None:
    assert stale(explanations(), COMMITTED) == []


def test_an_entry_that_explains_nothing_is_found(tmp_path: Path) -> None:
    write_result(made_up(), tmp_path / f"{ID}.mnist1d.json")
    known = read_explanations(
        entry()
        + entry('metrics = ["error_rate_new"]', says='"Old hat."')
        + entry('metrics = ["error_rate_new"]', scales='["fashion"]')  # which was not run
    )
    assert stale(known, tmp_path) == ["elodi.table6 at mnist1d: Old hat."]


def test_evidence_is_there() -> None:
    absent = [
        one.evidence
        for one in explanations()
        if one.evidence is not None and not (ROOT / one.evidence).is_file()
    ]
    assert absent == []


def test_no_explanation_that_holds_is_contradicted_by_its_own_evidence() -> None:
    """Where the evidence is a result of the same study, what was explained is not so in it."""
    looked_at, wrong = 0, []
    for one in explanations():
        found = evidence_of(one)
        if found is None or not one.holds:
            continue
        still = {
            (pair.metric, frozenset(rows))
            for pair in found.agreement().pairs
            if pair.verdict == "disagree"
            for rows in pair.stands_for
        }
        for scale in one.scales:
            result = read_result(COMMITTED / f"{one.study}.{scale}.json", study_of(one.study))
            for pair in result.agreement().pairs:
                if pair.verdict == "disagree" and one.is_about(result, pair):
                    looked_at += 1
                    asked = {(pair.metric, frozenset(rows)) for rows in pair.stands_for}
                    wrong += [(one.study, scale, one.tested)] if asked & still else []
    assert wrong == []
    assert looked_at > 50


def test_what_became_of_all_pairs_of_a_test_and_where_it_was_is_as_its_evidence_says() -> None:
    for one in explanations():
        found = evidence_of(one)
        if found is None:
            assert one.whole == ()
            continue
        agreement = found.agreement()
        counts = tuple(agreement.count(verdict) for verdict in VERDICTS)
        assert one.whole == counts, (one.study, one.evidence)
        assert one.tested_at == (None if found.scale in one.scales else found.scale)


def evidence_of(explanation: Explanation) -> Result | None:
    """What was run to test it, if that is a result of the same study."""
    if explanation.evidence is None:
        return None
    path = ROOT / explanation.evidence
    document = json.loads(path.read_text(encoding="utf-8"))
    if document.get("study") != explanation.study:
        return None
    return read_result(path, study_of(explanation.study))


def test_what_was_tested_at_another_scale_is_counted_apart_and_said(
    known: Callable[[str], None],
) -> None:
    result = made_up()
    here, elsewhere = entry(), entry('tested_at = "fashion"', "whole = [30, 5, 7]")
    known(here + elsewhere)
    assert " 5 of them explained by a test, " in overview_line([result])
    assert PairTally.of([result]).elsewhere == 0
    known(elsewhere)
    assert " 5 of them explained by a test (5 by one at another scale), " in overview_line([result])
    told = " ".join(verdict_lines(result))
    assert "Tested at fashion, not at mnist1d: Nothing was run, and 1 of 1 came out." in told
    assert "Of all 42 pairs of that test 30 have the paper's order, and 5 the other order." in told
    known("")
    assert PairTally.of([result]).elsewhere == 0
