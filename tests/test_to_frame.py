"""Results as tables, and `check` with the path of a policy."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import flipguard as fg
from flipguard.comparison import comparison_from_counts
from flipguard.engines import local

RNG = np.random.default_rng(1)
TARGET = RNG.integers(0, 3, 400)
WEATHER = np.array(["sun", "rain"])[RNG.integers(0, 2, 400)]
OLD = np.where(RNG.random(400) < 0.8, TARGET, 0)
NEW = np.where(RNG.random(400) < 0.85, TARGET, 1)
POLICY = """
[[rule]]
metric = "negative_flip_rate"
max = 0.2
[[rule]]
metric = "negative_flip_rate"
by = "weather"
max = 0.1
[[rule]]
metric = "accuracy_gain"
by = "target"
min = -0.05
"""


def sides() -> dict[str, pl.DataFrame]:
    frame = pl.DataFrame({"id": range(400), "target": TARGET, "weather": WEATHER})
    return {"old": frame.with_columns(label=OLD), "new": frame.with_columns(label=NEW)}


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "gate.toml"
    path.write_text(POLICY, encoding="utf-8")
    return path


def test_a_comparison_is_a_table_of_metrics() -> None:
    result = fg.compare(**sides(), by=["weather", "target"])
    frame = result.to_frame()
    assert frame.columns == ["by", "group", "metric", "value", "low", "high", "n"]
    assert frame.height == len(fg.METRICS) * (1 + 2 + 3)
    for by, group, metric, *numbers in frame.iter_rows():
        estimate = (result.whole if by is None else result.by[by][group])[metric]
        expected = [estimate.value, estimate.low, estimate.high, estimate.n]
        assert numbers == pytest.approx(expected, nan_ok=True)
    # The rate of a group is what Polars counts.
    joined = pl.DataFrame({"old": OLD, "new": NEW, "target": TARGET, "weather": WEATHER})
    flipped = (pl.col("old") == pl.col("target")) & (pl.col("new") != pl.col("target"))
    rates = dict(joined.group_by("weather").agg(flipped.mean().alias("rate")).iter_rows())
    found = frame.filter(by="weather", metric="negative_flip_rate")
    assert dict(found.select("group", "value").iter_rows()) == pytest.approx(rates)


@pytest.mark.parametrize("kind", [str, Path, fg.Policy.read])
def test_the_path_of_a_policy_is_enough(kind, policy: Path) -> None:
    expected = fg.check(
        fg.compare(**sides(), by=["weather", "target"]), fg.Policy.read(str(policy))
    )
    # Neither column was asked for when the sides were compared.
    found = fg.check(fg.compare(**sides()), kind(str(policy)))
    assert found.to_json() == expected.to_json()
    assert str(found) == str(expected)
    assert found.comparison.flips().equals(expected.comparison.flips())


def test_groups_are_counted_only_if_they_are_missing(policy: Path, monkeypatch) -> None:
    result = fg.compare(**sides(), by="weather")
    rules = fg.Policy.read(policy)
    grouped = result.grouped_by(rules.by)
    assert list(grouped.by) == ["weather", "target"]
    monkeypatch.setattr(local, "count", None)
    assert fg.check(grouped, rules).comparison is grouped
    assert grouped.grouped_by(["target"]) is grouped


def test_a_comparison_of_counts_alone_names_what_is_missing(policy: Path) -> None:
    result = fg.compare(**sides())
    assert result.plan is not None
    counted = local.count(result.plan)
    alone = comparison_from_counts(
        counted, result.plan, confidence=0.95, correction="holm", engine="local"
    )
    object.__setattr__(alone, "plan", None)
    with pytest.raises(fg.InputError, match=r"only counts and no rows; compare with by=\['target'"):
        alone.grouped_by(["target"])
    with pytest.raises(fg.PolicyError, match=r"not grouped by that column; compare with by="):
        fg.check(alone, policy)


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gate.toml"
    path.write_text(POLICY.replace('"weather"', '"wether"'), encoding="utf-8")
    with pytest.raises(
        fg.PolicyError, match="neither old nor new has that column; did you mean we"
    ):
        fg.check(fg.compare(**sides()), path)


def test_a_policy_of_another_type() -> None:
    with pytest.raises(fg.PolicyError, match="a Policy or the path of one, but got dict; use Poli"):
        fg.check(fg.compare(**sides()), {"rule": []})  # type: ignore[arg-type]
    with pytest.raises(fg.PolicyError, match="does not exist"):
        fg.check(fg.compare(**sides()), "no.toml")


def test_a_verdict_is_a_table_of_rules(policy: Path, tmp_path: Path) -> None:
    (tmp_path / "pins.csv").write_text("id\n1\n2\n", encoding="utf-8")
    policy.write_text(POLICY + '[pinned]\nids = "pins.csv"\n', encoding="utf-8")
    verdict = fg.check(fg.compare(**sides()), policy)
    frame = verdict.to_frame()
    rows = verdict.as_dict()["rules"]
    assert frame.height == len(rows) == 1 + 2 + 3 + 1
    for found, row in zip(frame.iter_rows(named=True), rows, strict=True):
        assert (found["min"], found["max"]) == (row["limit"].get("min"), row["limit"].get("max"))
        for name in ("metric", "by", "group", "n", "verdict"):
            assert found[name] == row[name]
        for name in ("value", "low", "high"):
            number = math.nan if row[name] is None else row[name]
            assert found[name] == pytest.approx(number, nan_ok=True)


def test_what_a_notebook_shows(policy: Path) -> None:
    result = fg.compare(**sides())
    verdict = fg.check(result, policy)
    for shown in (result, verdict):
        assert "<table" in shown._repr_html_()
        assert shown.summary() == str(shown)
        assert shown.to_markdown().startswith("### ")
