"""Agreement with a paper, against the rule read aloud in plain Python."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.studies.made_up import as_in_the_paper

from flipguard.studies.agreement import (
    Agreement,
    Measured,
    agreement,
    paired_interval,
    separated,
    verdict_of,
)
from flipguard.studies.paper_tables import PaperCell
from flipguard.studies.read_study import study_of
from flipguard.studies.sentences import verdict_lines

NFR, RELATIVE = "negative_flip_rate", "relative_negative_flip_rate"


def row(
    label: str,
    cells: dict[str, PaperCell],
    values: dict[str, list[float]] | None = None,
    *,
    block: tuple[str, ...] = ("",),
    samples: int | None = 50_000,
) -> Measured:
    return Measured(label=label, block=block, paper=cells, values=values or {}, samples=samples)


# -- the rule, read aloud ------------------------------------------------------------------------


def clearly_apart(a: float, b: float, n: int) -> bool:
    """Further apart than twice the standard error of a difference of two shares, in percent."""
    variances = [share * (1 - share) / n for share in (a / 100, b / 100)]
    return abs(a - b) / 100 > 2 * sum(variances) ** 0.5


def said_of(apart: list[list[float]], paper: list[float]) -> list[str]:
    """Student's t over the differences per seed, with their variance shrunk towards the mean.

    All differences of a metric, and the paper's. The mean is worth one degree of freedom, where
    there are five of them and fewer than ten seeds.
    """
    own = [statistics.variance(one) for one in apart]
    said = []
    for one, variance, printed in zip(apart, own, paper, strict=True):
        degrees = len(one) - 1
        further = 1 if len(apart) >= 5 and len(one) < 10 else 0
        shared = (further * statistics.mean(own) + degrees * variance) / (further + degrees)
        reach = stats.t.ppf(0.975, further + degrees) * (shared / len(one)) ** 0.5
        middle = statistics.mean(one)
        if middle - reach <= 0 <= middle + reach:
            said.append("undecided")
        else:
            said.append("agree" if (middle > 0) == (printed > 0) else "disagree")
    return said


def asked(
    pairs: list[tuple[int, int]], table: list[tuple[float, list[float]]]
) -> list[list[tuple[int, int]]]:
    """Pairs of places in a table, those that ask the same question in one list."""
    questions: list[list[tuple[int, int]]] = []
    for i, j in pairs:
        for known in questions:
            a, b = (table[place] for place in known[0])
            if (table[i], table[j]) in [(a, b), (b, a)]:
                known.append((i, j))
                break
        else:
            questions.append([(i, j)])
    return questions


rates = st.floats(min_value=0.5, max_value=60).map(lambda x: round(x, 2))
shares = st.floats(min_value=0.01, max_value=0.6)
measured_rows = st.integers(2, 4).flatmap(
    lambda seeds: st.lists(
        st.tuples(rates, st.lists(shares, min_size=seeds, max_size=seeds)), min_size=2, max_size=6
    )
)


@settings(max_examples=60, deadline=None)
@given(measured_rows, st.integers(500, 100_000))
def test_it_is_the_rule_read_aloud(table: list[tuple[float, list[float]]], n: int) -> None:
    rows = [
        row(str(i), {NFR: PaperCell(value=paper)}, {NFR: ours}, samples=n)
        for i, (paper, ours) in enumerate(table)
    ]
    clear = [
        (i, j)
        for i, j in itertools.combinations(range(len(table)), 2)
        if clearly_apart(table[i][0], table[j][0], n)
    ]
    first = [same[0] for same in asked(clear, table)]
    apart = [[b - a for a, b in zip(table[i][1], table[j][1], strict=True)] for i, j in first]
    said = said_of(apart, [table[j][0] - table[i][0] for i, j in first])
    expected = [(*pair, verdict) for pair, verdict in zip(first, said, strict=True)]
    found = agreement(rows, [NFR])
    assert [(p.first, p.second, p.verdict) for p in found.pairs] == expected
    if expected:
        share = sum(verdict == "agree" for *_, verdict in expected) / len(expected)
        assert found.share == pytest.approx(share)
    else:
        assert math.isnan(found.share)


# -- the same comparison, counted once ------------------------------------------------------------

# Few enough that many rows are alike, as those are that replace one old model.
alike = st.tuples(
    st.sampled_from([2.0, 5.0, 9.0]),
    st.sampled_from([[0.1, 0.12, 0.11], [0.2, 0.19, 0.22], [0.1, 0.2, math.nan]]),
)
tables = st.lists(st.tuples(alike, st.sampled_from(["one", "other"])), min_size=2, max_size=7)
Table = list[tuple[tuple[float, list[float]], str]]


def of_table(table: Table) -> Agreement:
    rows = [
        row(str(i), {NFR: PaperCell(value=paper)}, {NFR: list(ours)}, block=(block,))
        for i, ((paper, ours), block) in enumerate(table)
    ]
    return agreement(rows, [NFR])


def counts(found: Agreement) -> Counter[str]:
    return Counter(pair.verdict for pair in found.pairs)


@settings(max_examples=100, deadline=None)
@given(tables)
def test_pairs_that_ask_the_same_are_one(table: Table) -> None:
    sides = [side for side, _ in table]
    clear = [
        (i, j)
        for i, j in itertools.combinations(range(len(table)), 2)
        if table[i][1] == table[j][1] and clearly_apart(sides[i][0], sides[j][0], 50_000)
    ]
    questions = asked(clear, sides)
    found = of_table(table)
    assert [(pair.first, pair.second) for pair in found.pairs] == [same[0] for same in questions]
    for pair, same in zip(found.pairs, questions, strict=True):
        assert [tuple(sorted(one)) for one in pair.stands_for] == same
        # Its sides are in the order of the first.
        assert {sides[first][0] for first, _ in pair.stands_for} == {sides[pair.first][0]}
    for place in range(len(table)):
        own = [same for same in questions if any(place in pair for pair in same)]
        assert len(found.of(place)) == len(own)


@settings(max_examples=100, deadline=None)
@given(tables.flatmap(lambda table: st.tuples(st.just(table), st.permutations(table))))
def test_the_order_of_rows_changes_no_count(tables: tuple[Table, Table]) -> None:
    table, other = tables
    assert counts(of_table(table)) == counts(of_table(other))


@settings(max_examples=100, deadline=None)
@given(tables, st.data())
def test_a_row_that_is_there_twice_changes_no_count(table: Table, data: st.DataObject) -> None:
    again = data.draw(st.sampled_from(table))
    place = data.draw(st.integers(0, len(table)))
    assert counts(of_table(table)) == counts(of_table([*table[:place], again, *table[place:]]))


def test_one_old_model_of_many_rows_is_compared_once() -> None:
    error = "error_rate_old"
    old = [0.43, 0.44, 0.42]
    rows = [
        *(
            row(name, {error: PaperCell(value=30.24)}, {error: old})
            for name in ("KD", "BCT", "FD-LM")
        ),
        row("ELODI", {error: PaperCell(value=31.34)}, {error: [0.41, 0.42, 0.40]}),
        # Another model here, though the paper prints the same; and the same ones in another update.
        row("Dropout", {error: PaperCell(value=31.34)}, {error: [0.45, 0.46, 0.44]}),
        row("KD", {error: PaperCell(value=30.24)}, {error: old}, block=("larger",)),
        row(
            "ELODI", {error: PaperCell(value=31.34)}, {error: [0.41, 0.42, 0.40]}, block=("larger",)
        ),
    ]
    found = agreement(rows, [error])
    assert [(p.first, p.second, p.verdict) for p in found.pairs] == [
        (0, 3, "disagree"),
        (0, 4, "agree"),
    ]
    assert [pair.same for pair in found.pairs] == [((1, 3), (2, 3), (5, 6)), ((1, 4), (2, 4))]
    assert [len(found.of(place)) for place in range(7)] == [2, 2, 2, 1, 1, 1, 1]
    assert found.pairs[0].rows == {0, 1, 2, 3, 5, 6}


def test_other_metrics_are_other_comparisons() -> None:
    metrics = ["error_rate_old", "error_rate_new"]
    rows = [
        row(name, dict.fromkeys(metrics, PaperCell(value=paper)), dict.fromkeys(metrics, ours))
        for name, paper, ours in (("a", 30.0, [0.3, 0.31]), ("b", 40.0, [0.4, 0.41]))
    ]
    assert [pair.metric for pair in agreement(rows, metrics).pairs] == metrics


# -- what the paper separates --------------------------------------------------------------------


def test_a_printed_deviation_counts_before_the_size_of_the_test_set() -> None:
    near = PaperCell(value=5.72, deviation=0.18)
    assert not separated(
        row("a", {"churn": near}),
        row("b", {"churn": PaperCell(value=5.4, deviation=0.05)}),
        "churn",
    )
    far = PaperCell(value=4.29, deviation=0.14)
    assert separated(row("a", {"churn": near}), row("b", {"churn": far}), "churn")


def test_a_relative_rate_varies_as_its_negative_flips_do() -> None:
    def flips(rate: float, relative: float) -> Measured:
        return row(
            "", {NFR: PaperCell(value=rate), RELATIVE: PaperCell(value=relative)}, samples=1000
        )

    # 4 % of 1,000 are 40 flips, known to about 15 %: of 25, twice 3.9.
    error = 25 * math.sqrt(0.96 / 40)
    apart = 2 * math.hypot(error, error)
    assert not separated(flips(4, 25), flips(4, 25 + 0.9 * apart), RELATIVE)
    assert separated(flips(4, 25), flips(4, 25 + 1.5 * apart), RELATIVE)
    alone = row("", {RELATIVE: PaperCell(value=25.0)})
    assert not separated(alone, flips(4, 90), RELATIVE)


@pytest.mark.parametrize(
    "other",
    [
        {},
        {NFR: PaperCell(value=None)},
        {NFR: PaperCell(value=40.0, unsure=True)},
    ],
)
def test_what_is_not_printed_or_in_doubt_separates_nothing(other: dict[str, PaperCell]) -> None:
    assert not separated(row("a", {NFR: PaperCell(value=4.0)}), row("b", other), NFR)


def test_nor_does_a_metric_of_which_nothing_says_how_sure_it_is() -> None:
    calibration = "expected_calibration_error_new"
    one, other = (row("", {calibration: PaperCell(value=v)}) for v in (3.0, 30.0))
    assert not separated(one, other, calibration)
    nowhere = [row("", {NFR: PaperCell(value=v)}, samples=None) for v in (3.0, 30.0)]
    assert not separated(nowhere[0], nowhere[1], NFR)


def test_rows_of_two_updates_are_not_compared() -> None:
    values = {NFR: [0.1, 0.11, 0.12]}
    rows = [
        row("a", {NFR: PaperCell(value=4.0)}, values, block=("one",)),
        row("b", {NFR: PaperCell(value=14.0)}, values, block=("other",)),
    ]
    assert agreement(rows, [NFR]) == Agreement(pairs=())


# -- what we separate ----------------------------------------------------------------------------


def test_one_seed_separates_nothing_and_equal_runs_neither() -> None:
    assert all(math.isnan(x) for x in paired_interval([0.1], [0.2]))
    assert all(math.isnan(x) for x in paired_interval([0.1, 0.2], []))
    assert verdict_of(1.0, math.nan, math.nan) == "undecided"
    low, high = paired_interval([0.1, 0.2], [0.1, 0.2])
    assert (low, high) == (0.0, 0.0)
    assert verdict_of(1.0, low, high) == "undecided"


def test_pairing_by_seed_takes_out_what_seeds_have_in_common() -> None:
    easy_and_hard = [0.10, 0.30, 0.20, 0.40]
    low, high = paired_interval(easy_and_hard, [x + 0.01 for x in easy_and_hard])
    assert low == pytest.approx(0.01)
    assert high == pytest.approx(0.01)


def test_the_pairs_of_a_row_and_their_numbers() -> None:
    rows = [
        row("none", {NFR: PaperCell(value=4.3)}, {NFR: [0.09, 0.10, 0.11]}),
        row("good", {NFR: PaperCell(value=2.1)}, {NFR: [0.05, 0.06, 0.07]}),
        row("odd", {NFR: PaperCell(value=3.2)}, {NFR: [0.15, 0.16, 0.17]}),
    ]
    found = agreement(rows, [NFR])
    assert [pair.verdict for pair in found.pairs] == ["agree", "disagree", "agree"]
    assert found.share == pytest.approx(2 / 3)
    assert (found.count("agree"), found.count("disagree"), found.count("undecided")) == (2, 1, 0)
    assert len(found.of(2)) == 2
    (wrong,) = (pair for pair in found.pairs if pair.verdict == "disagree")
    assert (wrong.paper, wrong.ours) == ((4.3, 3.2), (pytest.approx(0.10), pytest.approx(0.16)))


def test_what_a_device_repeats_is_not_held_against_the_paper() -> None:
    """The last row of the table holds everything fixed; on a CPU nothing is left to differ."""
    last = len(study_of("churn.table1").lines) - 1
    between = ("churn", "surrogate_churn", "logit_displacement")
    nothing = dict.fromkeys(between, (0.0, 0.0, 0.0))
    repeated = as_in_the_paper("churn.table1", but={last: nothing})
    assert repeated.agreement(repeated=True).count("disagree") == 10
    asked = Counter(pair.metric for pair in repeated.agreement().of(last))
    assert asked.keys() == {"accuracy"}
    assert repeated.agreement().count("disagree") == 0
    (note,) = (line for line in verdict_lines(repeated) if "this device repeats a run" in line)
    assert note.endswith("10 pairs of this row that the paper separates are not counted.")
    # One seed of three that differs is noise of the device, and is judged.
    noisy = as_in_the_paper(
        "churn.table1", but={last: {**nothing, "logit_displacement": (0.0, 0.0, 1e-6)}}
    )
    assert noisy.agreement().count("disagree") == 10
    assert not any("this device repeats" in line for line in verdict_lines(noisy))
    # Seeds that change nothing, though nothing holds them fixed, are a defect and no device.
    broken = as_in_the_paper("churn.table1", but={0: nothing})
    assert not any("this device repeats" in line for line in verdict_lines(broken))
    assert {pair.metric for pair in broken.agreement().of(0)} >= {"churn", "surrogate_churn"}


def test_where_nothing_is_decided_it_is_not_called_disagreement() -> None:
    one_seed = as_in_the_paper("pct.table3", seeds=[0])
    assert any(line.startswith("Agreement: undecided. Of 66 ") for line in verdict_lines(one_seed))


def test_seeds_that_learnt_nothing_are_counted() -> None:
    errors = {"error_rate_new": (0.3, 0.9, 0.901)}
    told = verdict_lines(as_in_the_paper("pct.table3", but={7: errors}))
    (note,) = (line for line in told if "learned nothing" in line)
    assert note == (
        "Note: α = 1, β = 20: 2 of 3 seeds learned nothing: the new model is no better than a "
        "guess."
    )
