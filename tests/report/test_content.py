"""What the page says equals the JSON, and definitions in plain Python."""

from __future__ import annotations

import html
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flipguard as fg
from flipguard import Predictions, compare, write_report
from flipguard.render.numbers import control_estimates, key_numbers
from flipguard.render.words import KEY_METRICS
from flipguard.report.candidate import short_pair
from flipguard.report.charts import flow_ends, ribbons_between
from flipguard.report.flips import (
    answer_changes,
    broken_pairs,
    confidence_pairs,
    fair_order,
    fair_shares,
    flip_table,
)
from flipguard.report.page import build_page
from flipguard.report.scores import OUTCOMES, displacement_of, reliabilities
from flipguard.report.verdict import group_tables, verdict_section
from flipguard.report.write import report_html
from tests.designed import Flips, update
from tests.report import made


class Tags(HTMLParser):
    """Every start tag with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def having(self, name: str) -> Iterator[dict[str, str | None]]:
        return (attributes for _, attributes in self.found if name in attributes)


def number(text: str | None) -> float | None:
    return None if not text else float(text)


def test_numbers_on_the_page_are_those_of_the_json() -> None:
    result, verdict = made.judged()
    document = json.loads(result.to_json())
    page = report_html(result, verdict=verdict)
    tags = Tags(page)
    metrics = document["metrics"]
    # Of the whole: cards and the table of all metrics have the value and both ends.
    seen = set()
    whole = page[page.index('id="c0-numbers"') : page.index('id="c0-square"')]
    for cell in Tags(whole).having("data-metric"):
        metric = str(cell["data-metric"])
        expected = metrics[metric]
        if "data-low" in cell:
            assert number(cell["data-low"]) == expected["low"], metric
            assert number(cell["data-high"]) == expected["high"], metric
        else:
            assert number(cell["data-value"]) == expected["value"], metric
            seen.add(metric)
    assert seen == {name for name in fg.METRICS if metrics[name]["value"] is not None}
    # Of the groups: every one of every column.
    rates = [number(cell["data-value"]) for cell in tags.having("data-metric")]
    for groups in document["by"].values():
        for group in groups.values():
            assert group["metrics"]["negative_flip_rate"]["value"] in rates
            assert group["metrics"]["accuracy_gain"]["value"] in rates
    cells = dict(re.findall(r'data-cell="(\w+)">([\d,]+)<', page))
    counts = document["counts"]
    assert int(cells["negative_flip"].replace(",", "")) == counts["negative_flip"]
    assert int(cells["positive_flip"].replace(",", "")) == counts["positive_flip"]
    assert int(cells["both_right"].replace(",", "")) == counts["both_right"]
    wrong = counts["wrong_same"] + counts["wrong_different"]
    assert int(cells["both_wrong"].replace(",", "")) == wrong
    assert 'data-verdict="fail"' in page


def test_the_flips_in_the_page_are_the_flips() -> None:
    result, _ = made.judged()
    page = report_html(result)
    found = re.search(r'id="c0-flips-data">(.*?)</script>', page, flags=re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    flips = result.flips()
    assert data["id"] == flips["id"].to_list()
    for column in ("target", "old", "new"):
        names = [data[column]["values"][code] for code in data[column]["codes"]]
        assert names == flips[column].to_list()
    words = {"negative": "negative flip", "positive": "positive flip"}
    assert [data["kinds"][kind] for kind in data["kind"]] == [
        words.get(kind, "wrong to other wrong") for kind in flips["kind"]
    ]
    assert data["confidences"]["old_confidence"] == pytest.approx(
        flips["old_confidence"].to_list(), abs=5e-5
    )
    assert [group["name"] for group in data["groups"]] == ["site"]


def test_the_same_comparison_gives_the_same_bytes() -> None:
    pages = [report_html(made.judged()[0]) for _ in range(2)]
    assert pages[0] == pages[1]


# -- the reasons -----------------------------------------------------------------------------------


def test_the_reasons_come_worst_first_and_none_is_lost() -> None:
    _, verdict = made.judged()
    judged = verdict_section(verdict)
    outcomes = [reason.outcome for reason in judged.reasons]
    order = ["fail", "inconclusive", "pass", "not_judged"]
    assert outcomes == sorted(outcomes, key=order.index)
    rows = json.loads(verdict.to_json())["rules"]
    alone = sum(reason.group is not None for reason in judged.reasons)
    together = sum(
        int(reason.text.split()[0].replace(",", ""))
        for reason in judged.reasons
        if reason.by is not None and reason.group is None
    )
    assert alone + together == sum(row["by"] is not None for row in rows)
    assert judged.outcome == verdict.verdict == "fail"


def test_pinned_samples_that_flipped_are_named(tmp_path: Path) -> None:
    result, _ = made.judged()
    broken = result.flips("negative")["id"].to_list()[:30]
    (tmp_path / "pinned.txt").write_text("\n".join(broken))
    policy = {**made.policy(), "pinned": {"ids": "pinned.txt"}}
    verdict = fg.check(result, fg.Policy.from_dict(policy, folder=tmp_path))
    judged = verdict_section(verdict)
    assert len(judged.flipped) == 20
    assert judged.more_flipped == 10
    page = report_html(result, verdict=verdict)
    assert "30 of 30" in page
    assert "and 10 more" in page


# -- groups ----------------------------------------------------------------------------------------


def test_classes_are_groups_even_when_nobody_asked() -> None:
    found = made.models()
    asked = compare(old=found["old"], new=found["new"], by=["target", "site"])
    unasked = compare(old=found["old"], new=found["new"], by=["site"])
    for result in (asked, unasked):
        tables = {table.column: table for table in group_tables(result)}
        assert set(tables) == {"target", "site"}
        rows = {row.name: row for row in tables["target"].rows}
        flips = result.flips()
        for name, row in rows.items():
            mine = flips.filter(pl.col("target") == name)
            assert row.negative == mine.filter(pl.col("kind") == "negative").height
            assert row.positive == mine.filter(pl.col("kind") == "positive").height
    assert "target" not in unasked.by, "the JSON is what was asked for"
    wanted, derived = (group_tables(r)[0].rows for r in (asked, unasked))
    assert [(r.name, r.rate, r.p_adjusted) for r in wanted] == [
        (r.name, r.rate, r.p_adjusted) for r in derived
    ]


def test_groups_that_regress_beyond_chance_come_first() -> None:
    groups = {
        "bad": Flips(both_right=200, negative=40, positive=2),
        "noisy": Flips(both_right=200, negative=60, positive=55),
        "good": Flips(both_right=200, negative=1, positive=30),
    }
    old, new = update(groups)
    (_, table) = group_tables(compare(old=old, new=new, by=["group"]))
    assert [row.name for row in table.rows] == ["bad", "noisy", "good"]
    assert [row.change for row in table.rows] == ["regressed", "", "improved"]
    assert (table.regressed, table.improved, table.total) == (1, 1, 3)
    assert "Holm" in table.correction
    # The exact test, corrected by hand: Holm's steps over three groups.
    from scipy.stats import binomtest

    raw = {n: binomtest(g.negative, g.negative + g.positive).pvalue for n, g in groups.items()}
    adjusted, least = {}, 0.0
    for step, name in enumerate(sorted(raw, key=raw.__getitem__)):
        least = max(least, min(1.0, (3 - step) * raw[name]))
        adjusted[name] = least
    assert {row.name: row.p_adjusted for row in table.rows} == pytest.approx(adjusted)


def test_the_square_and_its_flows_add_up() -> None:
    old, new = update(
        Flips(both_right=70, negative=9, positive=13, wrong_same=5, wrong_different=3)
    )
    square = key_numbers(compare(old=old, new=new)).square
    assert square is not None
    cells = (square.both_right, square.negative, square.positive, square.both_wrong)
    assert [cell.samples for cell in cells] == [70, 9, 13, 8]
    assert square.both_right.share == "70.00 %"
    kept, wrong, fixed, broken = ribbons_between(square)
    scale = kept.thickness / 70
    assert [f.thickness / scale for f in (wrong, fixed, broken)] == pytest.approx([8, 13, 9])
    assert [(node.name, node.samples) for node in flow_ends(square)] == [
        ("old right", 79), ("old wrong", 21), ("new right", 83), ("new wrong", 17)
    ]  # fmt: skip


# -- flips -----------------------------------------------------------------------------------------

KINDS = ("negative", "positive", "wrong_to_wrong")


@given(st.dictionaries(st.sampled_from(KINDS), st.integers(1, 60), min_size=1), st.integers(0, 100))
def test_shares_are_as_equal_as_they_can_be(totals: dict[str, int], most: int) -> None:
    shares = fair_shares(totals, most)
    assert all(0 <= shares[kind] <= totals[kind] for kind in totals)
    assert sum(shares.values()) == min(most, sum(totals.values()))
    # Whoever gets less than another, by more than the rest of a division, has no more to give.
    for kind in totals:
        if shares[kind] < max(shares.values()) - 1:
            assert shares[kind] == totals[kind]


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from("abc")), min_size=1, max_size=40))
def test_every_beginning_of_the_order_is_fair(rows: list[tuple[str, str]]) -> None:
    frame = pl.DataFrame({"kind": [kind for kind, _ in rows], "target": [t for _, t in rows]})
    order = fair_order(frame, seed=7)
    assert sorted(order) == list(range(len(rows)))
    assert order == fair_order(frame, seed=7)
    sizes, seen = Counter(rows), Counter[tuple[str, str]]()
    for row in order:
        seen[rows[row]] += 1
        for stratum, size in sizes.items():
            if seen[stratum] < max(seen.values()) - 1:
                assert seen[stratum] == size


def test_a_capped_table_keeps_the_worst_of_each_kind_and_says_so() -> None:
    flips = made.judged()[0].flips()
    table = flip_table(flips, samples=None, budget=0, most=60)
    assert len(table) == 60
    for kind in KINDS:
        mine = [i for i, k in zip(table.ids, table.kinds, strict=True) if k == kind]
        assert mine == flips.filter(pl.col("kind") == kind)["id"].head(20).to_list()
        assert table.totals[kind] == flips.filter(pl.col("kind") == kind).height
    whole = flip_table(flips, samples=None, budget=0)
    assert len(whole) == whole.total == flips.height


def test_flows_are_counted_one_by_one() -> None:
    flips = made.judged()[0].flips()
    plain = Counter(zip(*(flips[c] for c in ("kind", "target", "old", "new")), strict=True))
    found, total = answer_changes(flips, most=10_000)
    assert total == len(plain)
    assert {(f.kind, f.target, f.old, f.new): f.samples for f in found} == plain
    samples = [flow.samples for flow in found]
    assert samples == sorted(samples, reverse=True)
    few, _ = answer_changes(flips, most=5)
    assert few == found[:5]
    broken = Counter(
        (t, n) for (kind, t, _, n), c in plain.items() for _ in range(c) if kind == "negative"
    )
    assert {(t, n): c for t, n, c in broken_pairs(flips, most=99)} == broken


def test_confidences_of_flips_are_counted_in_squares() -> None:
    flips = made.judged()[0].flips()
    plain = [[0] * 10 for _ in range(10)]
    for row in flips.filter(pl.col("kind") == "negative").iter_rows(named=True):
        old, new = (min(int(10 * row[f"{side}_confidence"]), 9) for side in ("old", "new"))
        plain[old][new] += 1
    assert confidence_pairs(flips, "negative") == plain
    assert confidence_pairs(flips.drop("old_confidence"), "negative") == []


# -- scores ----------------------------------------------------------------------------------------


def plain_rows(result: fg.Comparison) -> list[tuple[str, np.ndarray, np.ndarray]]:
    plan = result.plan
    assert plan is not None
    sides = [side.scores.array for side in (plan.old, plan.new)]
    targets = plan.old.frame.collect()["target"].to_list()
    return list(zip(targets, sides[0].astype(float), sides[1].astype(float), strict=True))


def test_reliability_is_right_answers_over_confidence() -> None:
    result, _ = made.judged(300)
    rows = plain_rows(result)
    for side, place in zip(reliabilities(result), (1, 2), strict=True):
        bins: dict[int, list[tuple[float, bool]]] = {}
        for row in rows:
            logits = row[place]
            p = np.exp(logits - logits.max())
            p /= p.sum()
            best = int(p.argmax())
            sure = float(p[best])
            bins.setdefault(min(int(15 * sure), 14), []).append(
                (sure, made.CLASSES[best] == row[0])
            )
        assert len(side.bins) == len(bins)
        for found in side.bins:
            mine = bins[round(15 * found.low)]
            assert found.n == len(mine)
            assert found.accuracy == pytest.approx(sum(right for _, right in mine) / len(mine))
            assert found.confidence == pytest.approx(
                sum(sure for sure, _ in mine) / len(mine), abs=1e-5
            )
            assert found.share == pytest.approx(len(mine) / len(rows))


def test_displacement_is_the_distance_of_logits_by_outcome() -> None:
    result, _ = made.judged(300)
    plain: dict[str, list[float]] = {outcome: [] for outcome in OUTCOMES}
    for target, old, new in plain_rows(result):
        a, b = made.CLASSES[int(old.argmax())], made.CLASSES[int(new.argmax())]
        if a == target:
            outcome = "stay right" if b == target else "break"
        elif b == target:
            outcome = "are fixed"
        else:
            outcome = "stay wrong" if a == b else "change to another wrong class"
        plain[outcome].append(math.dist(old, new))
    found = displacement_of(result)
    assert found is not None
    assert {moved.outcome: moved.n for moved in found.moved} == {
        outcome: len(values) for outcome, values in plain.items() if values
    }
    for moved in found.moved:
        values = sorted(plain[moved.outcome])
        assert moved.mean == pytest.approx(sum(values) / len(values), rel=1e-4)
        assert moved.median == pytest.approx(float(np.median(values)), rel=1e-4)
        assert sum(moved.shares) == pytest.approx(1.0)
    total = sum(moved.mean * moved.n for moved in found.moved) / result.n
    assert total == pytest.approx(result["logit_displacement"].value, rel=1e-5)


def test_the_control_is_measured_against_the_same_old_model() -> None:
    found = made.models()
    result = compare(old=found["old"], new=found["new"], control=found["control"])
    alone = compare(old=found["old"], new=found["control"])
    for metric in ("negative_flip_rate", "accuracy_gain", "churn", "error_rate_new"):
        assert control_estimates(result, metric) == [alone[metric]]
    cards = {card.number.metric: card for card in key_numbers(result).cards}
    assert tuple(cards) == KEY_METRICS
    card = cards["negative_flip_rate"]
    assert card.control is not None
    assert card.control.value == alone["negative_flip_rate"].value
    assert card.control_text.startswith("control ")


def test_intervals_of_a_control_are_left_out_where_rows_are_clustered() -> None:
    users = [i % 8 for i in range(64)]
    old, new = update(Flips(both_right=50, negative=9, positive=5), slices={"u": users})
    result = compare(old=old, new=new, control=new, cluster="u")
    (estimate,) = control_estimates(result, "negative_flip_rate")
    assert estimate.value == 9 / 64
    assert math.isnan(estimate.low)


# -- what cannot be -------------------------------------------------------------------------------


def test_what_the_files_do_not_hold_is_not_on_the_page() -> None:
    labels = Predictions.from_arrays(labels=list("abca"), ids=range(4))
    other = Predictions.from_arrays(labels=list("abcb"), ids=range(4))
    page = report_html(compare(old=labels, new=other))
    for words in ("Right and wrong", "Confidence</h2>", "logits moved", "What breaks", "Training"):
        assert words not in page
    assert "Without targets, flips cannot be counted" in page
    same = report_html(compare(old=labels, new=labels))
    assert "No answer changed." in same


@pytest.mark.parametrize(
    ("result", "verdict", "told"),
    [
        ("nothing", None, "Expected `result` to be a Comparison, or several by name, but got str"),
        ({}, None, "Expected 1 to 20 candidates on one page, but got 0"),
        ({"a": 3}, None, "Expected `result` to be a Comparison"),
        (made.judged()[0], "pass", "Expected `verdict` to be a Verdict, or several by name"),
    ],
)
def test_what_is_no_comparison_is_refused(result: object, verdict: object, told: str) -> None:
    with pytest.raises(fg.InputError, match=re.escape(told)):
        report_html(result, verdict=verdict)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("title", 5),
        ("command", ["flipguard"]),
        ("samples", 5),
        ("samples_budget", None),
        ("samples_budget", 1.5),
        ("samples_budget", -1),
        ("runs", None),
        ("runs", [5]),
        ("path", None),
    ],
)
def test_arguments_of_other_types_are_refused(argument: str, value: object, tmp_path: Path) -> None:
    given = {"path": tmp_path / "page.html", argument: value}
    with pytest.raises(fg.InputError, match=r"^Expected .*\.$") as refused:
        fg.write_report(made.judged()[0], **given)  # type: ignore[arg-type]
    assert argument.split("_")[0] in str(refused.value)


def test_a_verdict_may_have_groups_that_the_comparison_was_not_asked_for() -> None:
    rng = np.random.default_rng(0)
    target = rng.integers(0, 3, 300)
    old, new = (np.where(rng.random(300) < 0.8, target, 0) for _ in range(2))
    result = fg.compare(old=old, new=new, target=target)
    rule = {"metric": "negative_flip_rate", "by": "target", "max": 0.5}
    verdict = fg.check(result, fg.Policy.from_dict({"rule": [rule]}))
    page = report_html(result, verdict=verdict)
    assert page == report_html(verdict.comparison, verdict=verdict)


def test_verdicts_must_be_of_what_is_shown() -> None:
    result, verdict = made.judged()
    other, other_verdict = made.judged(300)
    with pytest.raises(fg.InputError, match="to belong to the comparison on the page"):
        report_html(result, verdict=other_verdict)
    with pytest.raises(fg.InputError, match="a verdict for each of 2 candidates"):
        report_html({"a": result, "b": result}, verdict=verdict)
    with pytest.raises(
        fg.InputError, match=r"Expected verdicts named like the candidates .*\(a\), but got 'c'"
    ):
        report_html({"a": result}, verdict={"c": verdict})
    renamed = made.models(300, names=("other", "new", "control"))
    third = compare(old=renamed["other"], new=renamed["new"])
    with pytest.raises(
        fg.InputError, match="with one old model, on the same samples and at one confidence"
    ):
        report_html({"a": other, "b": third})


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    result, _ = made.judged(300)
    path = tmp_path / "report.html"
    path.write_text("before")
    with pytest.raises(fg.InputError, match="no folder"):
        write_report(result, tmp_path / "nowhere" / "report.html")
    with pytest.raises(fg.InputError):
        write_report(result, path, samples="no such thing")
    assert path.read_text() == "before"
    write_report(result, path)
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize("module", ["jinja2", "markupsafe", "vl_convert"])
def test_a_missing_extra_is_one_sentence(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    result, _ = made.judged(300)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(fg.MissingExtraError, match=r"pip install '\.\[report\]'"):
        report_html(result)


def test_a_notebook_needs_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for module in ("jinja2", "markupsafe", "vl_convert", "PIL"):
        monkeypatch.setitem(sys.modules, module, None)
    result, _ = made.judged(300)
    text = result._repr_html_()
    assert f"{100 * result['negative_flip_rate'].value:.2f} %" in text
    assert "Negative flip rate" in text
    old, new = update({"bad": Flips(both_right=200, negative=40), "fine": Flips(both_right=99)})
    assert "Regressed by more than chance" in compare(old=old, new=new, by=["group"])._repr_html_()


@pytest.mark.parametrize(
    ("old", "new", "short"),
    [
        ("a.csv", "b.csv", ("a.csv", "b.csv")),
        ("x/y/a.csv", "x/y/b.csv", ("a.csv", "b.csv")),
        ("x/a/t.npz", "x/b/t.npz", ("a", "b")),
        ("a/t.npz", "t.npz", ("a/t.npz", "t.npz")),
        ("same", "same", ("same", "same")),
        ("/r/s", "/r/s", ("s", "s")),
    ],
)
def test_paths_are_told_by_what_differs(old: str, new: str, short: tuple[str, str]) -> None:
    assert short_pair(old, new) == short


# -- what is said is so ----------------------------------------------------------------------------


def test_samples_without_any_target_draw_nothing_of_targets() -> None:
    rng = np.random.default_rng(0)
    sides = [
        Predictions.from_arrays(
            logits=rng.normal(size=(60, 3)), targets=[None] * 60, class_names=["a", "b", "c"]
        )
        for _ in range(2)
    ]
    result = compare(old=sides[0], new=sides[1])
    assert result.layout.has_target
    assert reliabilities(result) == ()
    assert displacement_of(result) is None
    page = report_html(result)
    assert "by outcome of the sample" not in page
    assert "Infinity" not in page.split('<script type="application/json"')[0]


@pytest.mark.parametrize(
    ("rule", "pinned", "sentence"),
    [
        (
            {"max": 0.03},
            False,
            "1 rule failed, even allowing for sampling error: negative_flip_rate.",
        ),
        ({"max": 0.03, "judge": "point"}, False, "1 rule failed: negative_flip_rate."),
        ({"max": 0.9}, True, "1 rule failed: pinned samples."),
        ({"max": 0.9}, False, "Every rule holds, even allowing for sampling error."),
        (
            {"max": 0.9, "judge": "point"},
            False,
            "Every rule holds (judged by its value alone: negative_flip_rate).",
        ),
    ],
)
def test_intervals_are_spoken_of_only_where_they_decide(
    rule: dict, pinned: bool, sentence: str, tmp_path: Path
) -> None:
    result, _ = made.judged()
    document: dict = {"rule": [{"metric": "negative_flip_rate", **rule}]}
    if pinned:
        (tmp_path / "ids.txt").write_text(result.flips("negative")["id"][0])
        document["pinned"] = {"ids": "ids.txt"}
    verdict = fg.check(result, fg.Policy.from_dict(document, folder=tmp_path))
    assert verdict_section(verdict).sentence == sentence
    page = report_html(result, verdict=verdict)
    assert (str(tmp_path / "ids.txt") in page) == pinned, "a file that decides is told"


def test_reasons_carry_the_numbers_of_the_json() -> None:
    _, verdict = made.judged()
    rows = {(row["metric"], row["by"], row["group"]): row for row in verdict.as_dict()["rules"]}
    told = [r for r in verdict_section(verdict).reasons if r.group is not None or r.by is None]
    assert told
    for reason in told:
        row = rows[reason.metric, reason.by, reason.group]
        assert (reason.value, reason.low) == (row["value"], row["low"])


def test_a_clustered_page_does_not_speak_of_an_exact_test() -> None:
    found = made.models(600)
    plain, clustered = (
        report_html(compare(old=found["old"], new=found["new"], cluster=cluster))
        for cluster in (None, "site")
    )
    assert "an exact test of" in plain
    assert "an exact test" not in clustered
    assert "allow for clusters that are not in this test set" in clustered


def test_the_order_of_samples_is_told_as_it_is() -> None:
    target, old, new = [0, 1] * 20, [0, 1] * 20, [1, 1] * 20
    labels = compare(
        old=Predictions.from_arrays(labels=old, targets=target),
        new=Predictions.from_arrays(labels=new, targets=target),
    )
    assert "whose answer changed, negative flips first." in report_html(labels)
    alone = compare(
        old=Predictions.from_arrays(labels=old), new=Predictions.from_arrays(labels=new)
    )
    assert "whose answer changed. " in report_html(alone)
    text = html.unescape(report_html(made.judged()[0]))
    assert "sorted by the old model's confidence in the target" in text


def test_a_policy_may_have_any_name() -> None:
    result, _ = made.judged()
    policy = fg.Policy.from_dict(made.policy(), name="p" * 5000)
    assert "p" * 160 in report_html(result, verdict=fg.check(result, policy))


def test_names_of_candidates_that_read_alike_are_refused() -> None:
    result, _ = made.judged()
    with pytest.raises(fg.InputError, match="a unique name"):
        report_html({1: result, "1": result})  # type: ignore[dict-item]


def test_a_control_is_no_candidate_because_it_is_called_like_one() -> None:
    """Predictions made in memory all have one name unless somebody gives another."""
    found = {
        name: replace(one, name="predictions")
        for name, one in made.models(500, names=("old", "first", "second", "control")).items()
    }
    results = {
        name: compare(old=found["old"], new=found[name], control=found["control"])
        for name in ("first", "second")
    }
    rows = _overview(results)
    assert [(row.name, row.control) for row in rows] == [
        ("first", False),
        ("second", False),
        ("predictions", True),
    ]
    itself = {**results, "third": compare(old=found["old"], new=found["control"])}
    rows = _overview(itself)
    assert [(row.name, row.control) for row in rows] == [
        ("first", False),
        ("second", False),
        ("third", True),
    ]


def _overview(results: dict) -> tuple:
    page = build_page(
        results,
        verdicts={},
        samples={},
        budget=0,
        runs=(),
        others=(),
        title=None,
        command=None,
    )
    assert page.overview is not None
    return page.overview.rows


def test_the_contents_name_what_any_candidate_has() -> None:
    found = made.models(300)
    labels = pl.Series(["stop", "yield"] * 150)
    bare = Predictions.from_arrays(
        ids=[f"s{i:05d}" for i in range(300)], labels=labels.to_list(), name="bare"
    )
    page = report_html(
        {
            "bare": compare(old=found["old"], new=bare),
            "whole": compare(old=found["old"], new=found["new"]),
        }
    )
    places = re.findall(r'<a href="#([^"]+)">', page)
    assert "c0-numbers" in places
    for place in places:
        assert f'id="{place}"' in page, place


def test_a_long_name_tells_its_own_length_wherever_it_stands() -> None:
    long = "x" * 500
    shared = {"targets": ["a", long] * 10, "ids": list(range(20))}
    result = fg.compare(
        old=fg.Predictions.from_arrays(labels=["a", long] * 10, **shared),
        new=fg.Predictions.from_arrays(labels=[long, "a"] * 10, **shared),
    )
    page = report_html(result)
    assert "(500 characters)" in page
    told = set(re.findall(r"\(([\d,]+) characters\)", page))
    assert told == {"500"}
