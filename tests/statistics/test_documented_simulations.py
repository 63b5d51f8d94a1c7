"""Numbers of the pages that come from the committed rows of the calibration."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, Any]


@cache
def rows() -> list[Row]:
    found: list[Row] = json.loads(
        (ROOT / "benchmarks" / "results" / "calibration.json").read_text()
    )["rows"]
    return found


def of(metric: str, words: str = "", **wanted: object) -> list[Row]:
    found = [
        row
        for row in rows()
        if row["metric"].startswith(metric)
        and words in row["design"]
        and all(row[key] == value for key, value in wanted.items())
    ]
    assert found, (metric, words)
    return found


def one(metric: str, words: str = "", **wanted: object) -> Row:
    (row,) = of(metric, words, **wanted)
    return row


def page(name: str) -> str:
    return re.sub(r"\s+", " ", (ROOT / "docs" / name).read_text())


def percent(share: float, digits: int = 0) -> str:
    # A half is rounded up, whatever its last binary digit.
    return f"{100 * share + 1e-9:.{digits}f}"


def rival(row: Row, name: str) -> float:
    share: float = row["rivals"][name]["measured"]
    return share


def decided() -> Iterator[str]:
    at_true_rates = "drawn at the true rates"
    ends = []
    for chance in (0.5, 0.9):
        found = of("", promise="decided", nominal=chance)
        for shares in (
            [row["measured"] for row in found],
            [rival(row, at_true_rates) for row in found],
        ):
            ends.append((percent(min(shares)), percent(max(shares))))
    (even, even_true, most, most_true) = ends
    yield f"the first number decided in {even[0]} to {even[1]} % of cases"
    yield f"the second in {most[0]} to {most[1]} %"
    yield f"the first number decided in {even_true[0]} to {even_true[1]} % of cases, the second"
    yield f"the second in {most_true[0]} to {most_true[1]} %."


def several_rules() -> Iterator[str]:
    failed = {
        (count, correction): one("several rules", f"{count} rules", design=design)["measured"]
        for count in (6, 20)
        for correction in ("none", "holm")
        for design in [f"{count} rules at their limits, half of them over 10 groups, {correction}"]
    }
    holm = [percent(failed[count, "holm"], 1) for count in (6, 20)]
    none = [percent(failed[count, "none"]) for count in (6, 20)]
    yield (
        f"in {holm[0]} % (6 rules) and {holm[1]} % (20 rules) of test sets with Holm's "
        f"correction, and in {none[0]} % and {none[1]} % without"
    )


def means() -> Iterator[str]:
    student = "Student's t"
    for classes, flips, n in (
        ("10", "2", 100),
        ("10", "2", 1_000),
        ("10", "2", 5_000),
        ("10", "30", 5_000),
        ("1,000", "2", 100),
        ("1,000", "2", 5_000),
    ):
        design = f"{classes} classes, {flips} % flips, else unchanged"
        row = one("surrogate_churn", n=n, confidence=0.95, design=design)
        other = row["rivals"][student]
        yield (
            f"| {classes}, {flips} % | {n:,} "
            f"| {percent(other['measured'], 1)} %, {other['width']:.2g} "
            f"| {percent(row['measured'], 1)} %, {row['width']:#.3g} |"
        )
    few = [
        percent(rival(one("surrogate_churn", n=100, confidence=0.95, design=design), student))
        for flips in ("0.5", "2", "5")
        for design in [f"10 classes, {flips} % flips, else unchanged"]
    ]
    yield f"0.5, 2 and 5 % flips it covered {few[0]}, {few[1]} and {few[2]} %"
    clustered = of("surrogate_churn", "ICC 0.2")
    others = [rival(row, "Student's t over clusters") for row in clustered]
    yield (
        f"it covered {percent(min(row['measured'] for row in clustered), 1)} % or more, where "
        f"Student's t over clusters covered {percent(min(others))} to {percent(max(others))} %"
    )


def controls() -> Iterator[str]:
    floor = of("noise floor")
    yield f"{percent(min(row['measured'] for row in floor), 1)} % or more of harmless retrains"
    above = percent(max(row["below"] for row in floor), 1)
    yield f"up to {above} % of all retrains instead of 2.5 %"
    seeds = "ratio 1.0, seeds vary by 10%"
    missed = [
        percent(1 - one("ratio of recipes, k=1", seeds, n=n)["measured"]) for n in (2_000, 10_000)
    ]
    yield (
        f"excludes 1 in {missed[0]} % of cases with 2 % flips in 2,000 samples, "
        f"and in {missed[1]} % of cases with 5 % flips"
    )
    width = {
        k: f"{one(f'ratio of recipes, k={k}', seeds, n=10_000)['width']:.1f}" for k in (1, 2, 3, 5)
    }
    yield f"ratio of 1 is {width[2]} with two controls, {width[3]} with three and {width[5]} with"
    yield f"With one control it is {width[1]}"
    several = [row for k in (2, 3, 5) for row in of(f"ratio of recipes, k={k}")]
    yield f"ratio of the recipes in {percent(min(row['measured'] for row in several))} % of cases"


def clusters() -> Iterator[str]:
    beyond = "negative_flip_rate, clustered, beyond"
    large = "large clusters flip three times as often"
    passes = {
        (shape, count): percent(one(beyond, f"{large}, {shape}, {count} clusters")["measured"])
        for shape in ("Zipf sizes", "one giant cluster")
        for count in ("100", "1,000")
    }
    zipf, giant = "Zipf sizes", "one giant cluster"
    yield (
        f"pass in {passes[zipf, '100']} % with 100 clusters of Zipf sizes and in "
        f"{passes[zipf, '1,000']} % with 1,000; in {passes[giant, '100']} % if one of 100 clusters "
        f"holds half of the rows, and in {passes[giant, '1,000']} % if one of 1,000 does"
    )
    alike = [
        percent(one(beyond, f"NFR 20 %, ICC {icc}, equal sizes, 10 clusters")["measured"])
        for icc in ("0.8", "1")
    ]
    yield f"pass in {alike[0]} % of cases at a correlation of 0.8, and in {alike[1]} % at 1"
    errors = of("expected_calibration_error_new, clustered")
    worst = max(errors, key=lambda row: float(row["below"]))
    assert "error 15 %, ICC 0.5, Zipf sizes, 30 clusters" in worst["design"]
    yield f"pass in {percent(worst['below'])} % of cases instead of 2.5 %. No warning is shown. It"
    yield f"holds in the other {len(errors) - 1} simulated designs"
    assert sum(all(k["holds"] for k in row["kept"].values()) for row in errors) == len(errors) - 1
    relative = max(row["measured"] for row in of("relative_negative_flip_rate, clustered"))
    yield f"equals the limit pass in {percent(relative)} % of cases instead of 2.5 %"


@pytest.mark.parametrize(
    ("name", "sentences"),
    [
        ("gate.md", decided),
        ("gate.md", several_rules),
        ("statistics.md", means),
        ("statistics.md", controls),
        ("statistics.md", clusters),
    ],
    ids=["decided", "several rules", "means", "controls", "clusters"],
)
def test_a_page_states_what_was_measured(name: str, sentences: Callable[[], Iterator[str]]) -> None:
    text = page(name)
    assert [said for said in sentences() if said not in text] == []
