"""Markdown for pull requests, read back by a parser that is not ours."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from flipguard import METRICS, Comparison, Policy, Predictions, check, compare
from flipguard.render.markdown import comparison_markdown, verdict_markdown
from flipguard.render.words import KEY_METRICS
from flipguard.report.verdict import verdict_section
from tests.designed import Flips, judged, policy, update

PARSER = MarkdownIt("commonmark").enable("table").enable("strikethrough")

GROUPS = {
    "cat": Flips(both_right=900, negative=10, positive=20, wrong_same=70),
    "dog": Flips(both_right=500, negative=300, wrong_different=200),
    "owl": Flips(both_right=480, negative=22, positive=5, wrong_same=13),
    "emu": Flips(both_right=3, negative=2),
}
RULES: tuple[dict[str, Any], ...] = (
    {"metric": "negative_flip_rate", "max": 0.5},
    {"metric": "accuracy_gain", "min": -0.125},
    {
        "metric": "negative_flip_rate",
        "by": "group",
        "max": 0.05,
        "min_n": 50,
        "correction": "holm",
    },
    {"metric": "churn", "by": "group", "only": ["cat"], "max": 0.01, "judge": "point"},
)


def flat(text: str) -> list[Token]:
    """All tokens, the inline ones in their places."""
    found = []
    for token in PARSER.parse(text):
        found.append(token)
        found.extend(token.children or [])
    return found


def tables(text: str) -> list[list[list[str]]]:
    """The cells of every table, as text."""
    found: list[list[list[str]]] = []
    for token in PARSER.parse(text):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type == "inline" and found and token.level >= 3:
            found[-1][-1].append("".join(child.content for child in token.children or []))
    return found


def rows_of_pipes(text: str) -> list[list[str]]:
    """The lines of every table, as blocks."""
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.startswith("|"):
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    return [block for block in blocks if block]


def cells(line: str) -> int:
    """Cells of a row: pipes that are not escaped, less one."""
    return len(re.findall(r"(?<!\\)\|", line)) - 1


def documents(groups: dict[str, Flips], *, column: str = "group") -> list[str]:
    old, new = update(groups, column=column)
    rules = policy(
        {"metric": "negative_flip_rate", "by": column, "max": 0.05},
        {"metric": "churn", "max": 0.0},
    )
    result = compare(old=old, new=new, by=[column])
    return [comparison_markdown(result), verdict_markdown(check(result, rules))]


def scored() -> Comparison:
    rng = np.random.default_rng(2)
    target = rng.integers(0, 3, 400)
    shared = rng.normal(size=(400, 3)) + 2 * np.eye(3)[target]
    old, new, *controls = (
        Predictions.from_arrays(
            logits=shared + rng.normal(size=(400, 3)), targets=target, name=name
        )
        for name in ("old", "new", "c0", "c1", "c2")
    )
    return compare(old=old, new=new, by=["target"], control=controls)


@pytest.mark.parametrize(
    ("limit", "first"),
    [
        (0.5, "### ✅ Pass: `old` → `new`"),
        (0.01, "### ❌ Fail: `old` → `new`"),
        (0.021, "### ❔ Inconclusive: `old` → `new`"),
    ],
)
def test_the_verdict_is_the_first_line(limit: float, first: str) -> None:
    verdict = judged(
        Flips(both_right=980, negative=20), {"metric": "negative_flip_rate", "max": limit}
    )
    text = verdict_markdown(verdict)
    assert text.splitlines()[0] == first
    assert text.endswith("\n")
    assert PARSER.parse(text)[0].tag == "h3"


def test_the_rules_come_before_the_numbers() -> None:
    text = verdict_markdown(judged(GROUPS, *RULES))
    rules, key, groups, everything = tables(text)
    assert rules[0] == ["", "rule", "limit", "value", "interval", ""]
    told = {(row[0], row[1]): row for row in rules[1:]}
    assert [(row[0], row[1]) for row in rules[1:]] == [
        ("✅", "negative_flip_rate"),
        ("❔", "accuracy_gain"),
        ("❌", "negative_flip_rate of group = dog"),
        ("❔", "negative_flip_rate of group = owl"),
        ("✅", "negative_flip_rate by group: pass in 1 group"),
        ("–", "negative_flip_rate by group: not judged in 1 group"),
        ("❌", "churn of group = cat"),
    ]
    assert told["✅", "negative_flip_rate"][2] == "≤ 50.00 %"
    assert told["❔", "accuracy_gain"][2] == "≥ -12.50 points"
    assert re.fullmatch(
        r"about [\d,]+ more samples for a 50 % chance to (pass|fail), [\d,]+ for 90 %, "
        r"if the rates stay as they are",
        told["❔", "accuracy_gain"][5],
    )
    assert key[0] == ["metric", "value", "interval"]
    assert [row[0] for row in key[1:]] == list(KEY_METRICS)
    assert [row[0] for row in groups[1:]] == ["dog", "owl", "emu", "cat"]
    assert len(everything) > len(key)


@pytest.mark.parametrize(
    "make", [lambda: documents(GROUPS), lambda: [comparison_markdown(scored())]]
)
def test_every_row_of_a_table_has_as_many_cells(make: Any) -> None:
    for text in make():
        blocks = rows_of_pipes(text)
        assert len(blocks) >= 2
        for block in blocks:
            assert len(block) >= 3
            assert len({cells(line) for line in block}) == 1
        parsed = tables(text)
        assert [len(table) for table in parsed] == [len(block) - 1 for block in blocks]


HOSTILE = {
    "pipe": "a|b",
    "pipes": "|||",
    "escaped pipe": "a\\|b",
    "twice escaped pipe": "a\\\\|b",
    "newline": "a\n| x | y |\n# title",
    "html": "<script>alert(1)</script>",
    "image": "<img src=x onerror=alert(1)>",
    "comment": "<!-- gone",
    "details": "</details>",
    "mention": "@everyone",
    "reference": "#1 and GH-1",
    "link": "[click](http://example.com)",
    "bare link": "http://example.com www.example.com",
    "picture": "![x](http://example.com/x.png)",
    "backtick": "`",
    "backticks": "a``b`c```",
    "code and pipe": "`|`",
    "emphasis": "**bold** __bold__ *i* _i_ ~~no~~",
    "entity": "&lt;b&gt; &#64;",
    "backslash": "a\\",
    "right to left": "a\u202eb",
    "escape code": "\x1b[31m",
    "spaces": "  a  ",
    "blank": " ",
    "empty": "",
    "long": "x" * 10_000,
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_names_are_inert(case: str) -> None:
    name = HOSTILE[case]
    plain = documents({"plain": GROUPS["dog"], "other": GROUPS["cat"]})
    hostile = documents({name: GROUPS["dog"], "other": GROUPS["cat"]})
    for expected, text in zip(plain, hostile, strict=True):
        for block in rows_of_pipes(text):
            assert len({cells(line) for line in block}) == 1
        # Nothing but the name differs: not one tag, link or table more.
        kinds = [token.type for token in flat(expected)]
        assert [token.type for token in flat(text)] == kinds
        assert not {"link_open", "image", "html_inline", "em_open", "strong_open"} & set(kinds)
        html = [token.content.strip() for token in flat(text) if token.type == "html_block"]
        assert html == ["<details><summary>All metrics</summary>", "</details>"]
        # Outside code a host would make mentions and links of it.
        outside = "".join(token.content for token in flat(text) if token.type == "text")
        assert not re.search(r"@\w|#\d|https?://|www\.", outside)
        assert not re.search("[\x00-\x09\x0b-\x1f\u202a-\u202e]", text)
        assert max(len(line) for line in text.splitlines()) < 500


@pytest.mark.parametrize(
    "case", ["pipe", "pipes", "html", "mention", "link", "backticks", "entity"]
)
def test_a_name_reads_as_it_was_written(case: str) -> None:
    name = HOSTILE[case]
    for text in documents({name: GROUPS["dog"]}):
        code = [t.content for t in flat(text) if t.type == "code_inline"]
        # Inside code nothing is unescaped; only tables take the backslash off a pipe.
        assert name in code or name.replace("|", "\\|") in code


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_columns_files_and_pins_are_inert(case: str, tmp_path: Path) -> None:
    name = HOSTILE[case]
    column = name or "column"
    pin = " ".join(name.split()) or "pin"
    (tmp_path / "pins.txt").write_text(pin + "\n", encoding="utf-8")

    def document(name: str, column: str, pin: str) -> str:
        (tmp_path / "pins.txt").write_text(pin + "\n", encoding="utf-8")
        old = Predictions.from_arrays(
            labels=[0, 0, 0],
            targets=[0, 0, 0],
            ids=[pin, "y", "z"],
            slices={column: ["a", "b", "b"]},
            name=name,
        )
        new = Predictions.from_arrays(labels=[1, 0, 0], targets=[0, 0, 0], ids=[pin, "y", "z"])
        rules = Policy.from_dict(
            {
                "rule": [{"metric": "churn", "by": column, "max": 0.1}],
                "pinned": {"ids": "pins.txt"},
            },
            folder=tmp_path,
        )
        result = compare(old=old, new=new, by=[column], cluster=column)
        return verdict_markdown(check(result, rules))

    text = document(name, column, pin)
    expected = document("plain", "plain", "plain")
    assert [token.type for token in flat(text)] == [token.type for token in flat(expected)]


NOT_HERE = {"grades", "class"}


def test_numbers_are_those_of_the_json() -> None:
    result = scored()
    document = result.as_dict()
    shown = {row[0]: row[1:] for row in tables(comparison_markdown(result))[-1][1:]}
    assert set(shown) == {name for name in METRICS if not METRICS[name].needs & NOT_HERE}
    for name, estimate in document["metrics"].items():
        if name not in shown:
            continue
        value, ends = shown[name]
        if name == "mcnemar_p":
            assert float(value) == round(estimate["value"], 4)
            assert ends == ""
            continue
        unit = " points" if name in ("accuracy_gain", "macro_f1_gain") else " %"
        scale, places = (100, 2) if value.endswith(unit) else (1, 3)
        assert float(value.removesuffix(unit)) == pytest.approx(
            round(scale * estimate["value"], places), abs=1e-9
        )
        if name == "logit_displacement":
            assert estimate["high"] is None
            assert ends == f"{estimate['low']:.3f} or more"
            continue
        low, high = ends.split(" to ")
        assert float(low) == pytest.approx(round(scale * estimate["low"], places), abs=1e-9)
        assert float(high) == pytest.approx(round(scale * estimate["high"], places), abs=1e-9)


def test_group_numbers_are_those_of_the_json() -> None:
    result = scored()
    groups = result.as_dict()["by"]["target"]
    table = next(t for t in tables(comparison_markdown(result)) if t[0][0] == "target")
    assert len(table) == 1 + len(groups)
    for name, n, rate, _, gain, _ in table[1:]:
        metrics = groups[name]["metrics"]
        assert int(n) == groups[name]["n"]
        assert rate == f"{100 * metrics['negative_flip_rate']['value']:.2f} %"
        assert gain == f"{100 * metrics['accuracy_gain']['value']:+.2f} points"


def test_the_noise_floor_is_told() -> None:
    result = scored()
    table = next(
        t for t in tables(comparison_markdown(result)) if t[0][0] == "compared with 3 retrains"
    )
    floors = result.as_dict()["noise_floor"]
    assert [row[0] for row in table[1:]] == list(floors)
    for name, _, ends, _ in table[1:]:
        low, high = (float(end) / 100 for end in ends.split(" to "))
        assert (low, high) == pytest.approx((floors[name]["low"], floors[name]["high"]), abs=5e-5)


def test_many_groups_are_cut_short_and_counted() -> None:
    groups = {f"g{i:02d}": Flips(both_right=50, negative=i) for i in range(1, 36)}
    comparison, verdict = documents(groups)
    table = next(t for t in tables(comparison) if t[0][0] == "group")
    assert len(table) == 11
    assert "… and 25 more groups." in comparison
    rules = tables(verdict)[0]
    listed = [row for row in rules if " of group = " in row[1]]
    found = [re.search(r": (\w+) in (\d+) (further )?groups?$", row[1]) for row in rules]
    counted = [int(match[2]) for match in found if match]
    assert len(listed) == 10
    assert len(listed) + sum(counted) == 35


def test_a_rule_whose_groups_are_all_too_small_is_marked_as_inconclusive() -> None:
    old, new = update({"a": Flips(both_right=30), "b": Flips(both_right=20, negative=1)})
    rule = {"metric": "negative_flip_rate", "by": "group", "max": 0.5, "min_n": 50}
    verdict = check(compare(old=old, new=new, by=["group"]), Policy.from_dict({"rule": [rule]}))
    (row,) = [row for row in tables(verdict_markdown(verdict))[0] if "not judged in" in row[1]]
    assert row[0] == "❔"
    assert row[5] == (
        "fewer than 50 samples; no group is large enough, so the rule is inconclusive"
    )
    (reason,) = verdict_section(verdict).reasons
    assert (reason.outcome, reason.why) == ("inconclusive", row[5])


def test_pinned_samples_that_flipped_are_named(tmp_path: Path) -> None:
    old, new = update(Flips(both_right=5, negative=15))
    (tmp_path / "pins.txt").write_text("\n".join(f"s{i}" for i in range(20)), encoding="utf-8")
    rules = Policy.from_dict({"pinned": {"ids": "pins.txt"}}, folder=tmp_path)
    text = verdict_markdown(check(compare(old=old, new=new), rules))
    (row,) = [row for row in tables(text)[0] if row[1] == "pinned samples"]
    assert row[:4] == ["❌", "pinned samples", "no flip", "15 of 20"]
    (sentence,) = [line for line in text.splitlines() if line.startswith("Ids of the pinned")]
    named = re.findall(r"`(\w+)`", sentence)
    assert len(set(named)) == 10
    assert set(named) <= {f"s{i}" for i in range(5, 20)}
    assert sentence.endswith("and 5 more")


def test_a_note_that_is_a_question_ends_once() -> None:
    same = Predictions.from_arrays(labels=["x"] * 40 + ["y"] * 40, targets=["x", "y"] * 40)
    text = comparison_markdown(compare(old=same, new=same))
    assert "the files you meant?\n" in text
