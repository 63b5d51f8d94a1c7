"""One pass over the files for all outputs, and one definition of a flip in each language."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given

import flipguard as fg
from flipguard.cli import main
from flipguard.counts import CELLS, FLIP_KINDS, UNLABELLED, FlipCounts, StatisticsLayout, flip_cells
from flipguard.engines import alignment, local, scored
from flipguard.engines.outcomes import flip_rows
from flipguard.engines.plan import NEW, OLD, TARGET, CountingPlan
from flipguard.engines.row_kinds import LABELLED
from flipguard.report.verdict import group_tables
from tests import plain
from tests.cases import Example, examples, tables

N = 400
RNG = np.random.default_rng(3)
WANTS = ("flips", "target_groups", "distances")


def plain_cell(row: plain.Row) -> str:
    """The cell of a row, as it is read aloud."""
    if row.target is None:
        return "unlabelled_same" if row.old == row.new else "unlabelled_different"
    if plain.is_negative_flip(row):
        return "negative_flip"
    if plain.is_positive_flip(row):
        return "positive_flip"
    if row.old == row.target:
        return "both_right"
    return "wrong_same" if row.old == row.new else "wrong_different"


# -- one definition in each language -------------------------------------------------------------


@given(examples(most_controls=0))
def test_polars_and_numpy_say_of_each_row_what_the_plain_definition_says(example: Example) -> None:
    rows = example.case.rows
    wanted = [plain_cell(row) for row in rows]
    columns = {OLD: [row.old for row in rows], NEW: [row.new for row in rows]}
    frame = pl.DataFrame(
        {**columns, TARGET: [row.target for row in rows]},
        schema=dict.fromkeys((OLD, NEW, TARGET), pl.String),
    )
    cells = (*CELLS, *UNLABELLED)
    assert [cells[i] for i in frame.select(LABELLED.cell_index()).to_series()] == wanted
    sums = frame.select(LABELLED.cell_sums()).row(0, named=True)
    assert {cell: n for cell, n in sums.items() if n} == Counter(wanted)
    flips = frame.select(LABELLED.is_negative_flip().fill_null(False)).to_series().to_list()
    assert flips == [cell == "negative_flip" for cell in wanted]
    known = [i for i, row in enumerate(rows) if row.target is not None]
    masks = flip_cells(*(frame[column].to_numpy()[known] for column in (OLD, NEW, TARGET)))
    for cell, mask in masks.items():
        assert mask.tolist() == [wanted[i] == cell for i in known]


@given(examples(most_controls=0))
def test_the_flips_of_a_kind_are_the_rows_of_its_cell(example: Example) -> None:
    old, new, _ = tables(example)
    found = local.details(CountingPlan(old=old, new=new), frozenset({"flips"})).flips
    assert found is not None
    wanted = Counter(plain_cell(row) for row in example.case.rows)
    kinds = Counter(found["kind"].to_list())
    assert kinds == {kind: wanted[cell] for kind, cell in FLIP_KINDS.items() if wanted[cell]}


def test_the_rows_of_flips_are_told_under_names_that_users_read() -> None:
    rows = pl.LazyFrame({OLD: ["a"], NEW: ["b"], TARGET: ["a"], "__row": [0], "__cut0": [7]})
    side = fg.Predictions.from_arrays(labels=["a"], targets=["a"], slices={"site": [7]})
    found = flip_rows(rows, CountingPlan(old=side, new=side, by=("site",))).collect()
    assert found.row(0, named=True) == {
        "id": 0,
        "kind": "negative",
        "target": "a",
        "old": "a",
        "new": "b",
        "site": 7,
    }


# -- one pass --------------------------------------------------------------------------------------


def write_files(folder: Path, *, suffix: str, with_scores: bool, shuffled: bool) -> list[str]:
    """Two files of one test set; returns their paths."""
    target = RNG.integers(0, 4, N)
    logits = RNG.normal(size=(N, 4))
    logits[np.arange(N), target] += 1.5
    paths = []
    for name in ("old", "new"):
        moved = logits + RNG.normal(size=(N, 4)) * 0.8
        columns = {"id": [f"s{i:03d}" for i in range(N)], "target": target}
        columns["site"] = ["x" if i % 3 else "y" for i in range(N)]
        if with_scores:
            columns |= {f"logit_{c}": moved[:, c] for c in range(4)}
        else:
            columns["label"] = moved.argmax(1)
        frame = pl.DataFrame(columns)
        if shuffled and name == "new":
            frame = frame[RNG.permutation(N)]
        path = folder / f"{name}.{suffix}"
        frame.write_csv(path) if suffix == "csv" else frame.write_parquet(path)
        paths.append(str(path))
    return paths


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the files are aligned, rows joined and scores looked at."""
    seen: Counter[str] = Counter()

    def count(module: object, name: str) -> None:
        original = getattr(module, name)

        def counted(*args: object, **kwargs: object) -> object:
            seen[name] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(module, name, counted)

    for module in (local, alignment):
        count(module, "aligned_parts")
        count(module, "joined_frames")
    count(scored, "paired_rows")
    count(scored, "side_and_pair_rows")
    return seen


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize("with_scores", [True, False])
@pytest.mark.parametrize("shuffled", [False, True])
def test_all_outputs_together_pass_over_the_files_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    calls: Counter[str],
    suffix: str,
    with_scores: bool,
    shuffled: bool,
) -> None:
    pytest.importorskip("vl_convert")
    files = write_files(tmp_path, suffix=suffix, with_scores=with_scores, shuffled=shuffled)
    monkeypatch.chdir(tmp_path)
    outputs = ["--json", "o.json", "--markdown", "o.md", "--flips", "o.csv", "--html", "o.html"]
    monkeypatch.setattr("sys.argv", ["flipguard", "compare", *files, "--by", "site", *outputs])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    wanted = {"joined_frames": 1} if shuffled else {"aligned_parts": 1}
    if with_scores:
        wanted |= {"paired_rows": 1, "side_and_pair_rows": 1}
    assert calls == wanted
    assert (tmp_path / "o.html").stat().st_size > 100_000


@pytest.mark.parametrize("with_scores", [True, False])
@pytest.mark.parametrize("shuffled", [False, True])
def test_what_was_not_asked_for_up_front_is_the_same_later(
    tmp_path: Path, calls: Counter[str], with_scores: bool, shuffled: bool
) -> None:
    files = write_files(tmp_path, suffix="parquet", with_scores=with_scores, shuffled=shuffled)
    old, new = (fg.read_predictions(path) for path in files)
    at_once = fg.compare(old=old, new=new, by="site", wants=WANTS)
    passes = Counter(calls)
    now, details = at_once.flips(), at_once.with_details(WANTS)
    assert calls == passes
    later = fg.compare(old=old, new=new, by="site")
    assert later.details.counted == frozenset()
    calls.clear()
    assert later.flips().equals(now)
    assert later.flips("negative").equals(now.filter(pl.col("kind") == "negative"))
    tables_later, tables_now = group_tables(later), group_tables(at_once)
    assert tables_later == tables_now
    found = later.with_details(["distances"])
    assert later.details.counted == frozenset(WANTS)
    if with_scores:
        assert details.distances is not None
        assert found.distances is not None
        np.testing.assert_array_equal(found.distances.values, details.distances.values)
        np.testing.assert_array_equal(found.distances.cells, details.distances.cells)
    else:
        assert details.distances is found.distances is None
    # Each was looked for once, and asking again costs nothing.
    counted = Counter(calls)
    later.flips()
    later.with_details(WANTS)
    assert calls == counted


def test_an_unknown_want_is_refused() -> None:
    side = fg.Predictions.from_arrays(labels=[0, 1])
    with pytest.raises(fg.InputError, match="Expected `wants` among target_groups, flips, dist"):
        fg.compare(old=side, new=side, wants=["flip"])  # type: ignore[list-item]


def test_more_classes_than_make_sense_as_groups_are_no_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flipguard.engines.count_table.MOST_GROUPS", 2)
    side = fg.Predictions.from_arrays(labels=[0, 1, 2], targets=[0, 1, 2])
    result = fg.compare(old=side, new=side, wants=["target_groups"])
    assert result.details.target_groups is None
    assert group_tables(result) == ()


def test_groups_by_target_add_up_to_the_whole() -> None:
    sides = [
        fg.Predictions.from_arrays(
            labels=RNG.integers(0, 3, N), targets=[None if i % 9 == 0 else i % 3 for i in range(N)]
        )
        for _ in range(2)
    ]
    result = fg.compare(old=sides[0], new=sides[1], wants=["target_groups"])
    groups = result.details.target_groups
    assert groups is not None
    assert groups.keys == ["0", "1", "2"]
    assert groups.counts.layout == StatisticsLayout(has_target=True)
    total: FlipCounts = groups.counts.total()
    for cell in CELLS:
        assert total[cell] == result.counts[cell]
