"""Gate policies: what parses, and the sentence for each that does not."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from flipguard import METRICS, Policy, PolicyError
from flipguard.policy import Rule

EXAMPLE = """
confidence = 0.95
[[rule]]
metric = "negative_flip_rate"
max = 0.02
[[rule]]
metric = "accuracy_gain"
min = -0.005                 # non-inferiority: may lose at most half a point
[[rule]]
metric = "negative_flip_rate"
by = "target"
max = 0.10
min_n = 50                   # smaller groups are listed, not judged
correction = "holm"          # over the groups
[[rule]]
metric = "negative_flip_rate"
by = "target"
only = ["stop_sign"]
max = 0.0
judge = "point"              # default "interval"
[pinned]
ids = "must_stay_right.csv"  # samples that may never flip
"""


def read(folder: Path, text: str) -> Policy:
    file = folder / "gate.toml"
    file.write_text(text, encoding="utf-8")
    return Policy.read(file)


def test_the_documented_example_parses_to_its_values(tmp_path: Path) -> None:
    found = read(tmp_path, EXAMPLE)
    assert found.confidence == 0.95
    assert found.name == str(tmp_path / "gate.toml")
    assert found.pinned == tmp_path / "must_stay_right.csv"
    assert found.by == ("target",)
    whole = {"by": None, "only": None, "min_n": 0, "correction": "none", "judge": "interval"}
    whole |= {"require": None, "level": "blocking"}
    expected = [
        {"metric": "negative_flip_rate", "min": None, "max": 0.02, **whole},
        {"metric": "accuracy_gain", "min": -0.005, "max": None, **whole},
        {
            "metric": "negative_flip_rate",
            "min": None,
            "max": 0.10,
            **whole,
            "by": "target",
            "min_n": 50,
            "correction": "holm",
        },
        {
            "metric": "negative_flip_rate",
            "min": None,
            "max": 0.0,
            **whole,
            "by": "target",
            "only": ("stop_sign",),
            "judge": "point",
        },
    ]
    fields = list(Rule.__dataclass_fields__)
    assert [{name: getattr(rule, name) for name in fields} for rule in found.rules] == expected


def test_confidence_is_95_percent_unless_told() -> None:
    assert Policy.from_dict({"rule": [{"metric": "churn", "max": 0.1}]}).confidence == 0.95


def test_groups_that_are_whole_numbers_match_groups_by_their_text() -> None:
    rule = {"metric": "churn", "max": 0.1, "by": "target", "only": [7, "eight"]}
    assert Policy.from_dict({"rule": [rule]}).rules[0].only == ("7", "eight")


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_can_have_a_limit(metric: str) -> None:
    limit = "min" if METRICS[metric].better == "higher" else "max"
    rule = {"metric": metric, limit: 0.5, "judge": "point"}
    assert Policy.from_dict({"rule": [rule]}).rules[0].limit == {limit: 0.5}


@pytest.mark.parametrize("metric", METRICS)
def test_a_rule_with_only_the_limit_of_the_wrong_direction_is_refused(metric: str) -> None:
    wrong, right = {"lower": ("min", "max"), "higher": ("max", "min"), "neither": ("", "")}[
        METRICS[metric].better
    ]
    for limit in ("min", "max"):
        rule = {"metric": metric, limit: 0.03, "judge": "point"}
        if limit == wrong:
            words = f"rule 1: {metric} is better when .* only `{wrong}` would pass an update that "
            with pytest.raises(PolicyError, match=words + f"is worse; write `{right}`"):
                Policy.from_dict({"rule": [rule]})
        else:
            assert Policy.from_dict({"rule": [rule]}).rules[0].limit == {limit: 0.03}
    both = {"metric": metric, "min": 0.01, "max": 0.03, "judge": "point"}
    assert Policy.from_dict({"rule": [both]}).rules[0].limit == {"min": 0.01, "max": 0.03}


RULE = '[[rule]]\nmetric = "negative_flip_rate"\nmax = 0.02\n'
BY = RULE + 'by = "target"\n'

# The words that each refusal must have, so that none can stand in for another.
REFUSED = {
    "unknown key": (
        "colour = 1\n" + RULE,
        ["unknown key 'colour'", "confidence, correction, rule, pinned"],
    ),
    "unknown correction over rules": (
        'correction = "bonferroni"\n' + RULE,
        ["`correction`", "none, holm, benjamini-hochberg", "'bonferroni'"],
    ),
    "nothing to correct over rules": (
        'correction = "holm"\n' + RULE + 'judge = "point"\n',
        ["`correction` widens intervals", "no rule is judged by its interval", "remove it"],
    ),
    "unknown rule key": (
        RULE + "maximum = 3\n",
        [
            "rule 1",
            "unknown key 'maximum'; did you mean max",
            "use metric, min, max, by, only, require, min_n, correction, judge, level",
        ],
    ),
    "second rule is named": (RULE + RULE + "x = 1\n", ["rule 2", "unknown key 'x'"]),
    "unknown pinned key": ('[pinned]\nids = "a.txt"\nid = 1\n', ["[pinned]", "unknown key 'id'"]),
    "unknown metric": ('[[rule]]\nmetric = "nfr"\nmax = 0.1\n', ["no metric 'nfr'", *METRICS]),
    "no metric": ("[[rule]]\nmax = 0.1\n", ["no metric None", "negative_flip_rate"]),
    "metric of a wrong type": (
        '[[rule]]\nmetric = ["churn"]\nmax = 0.1\n',
        ["no metric ['churn']", "negative_flip_rate"],
    ),
    "no limit": ('[[rule]]\nmetric = "churn"\n', ["no limit on churn", "min, max or both"]),
    "min above max": (RULE + "min = 0.5\n", ["min 0.5 is above max 0.02"]),
    "text as a limit": (
        '[[rule]]\nmetric = "churn"\nmax = "2 %"\n',
        ["max must be a finite number", "'2 %'"],
    ),
    "truth as a limit": (
        '[[rule]]\nmetric = "churn"\nmax = true\n',
        ["max must be a finite number", "True"],
    ),
    "nan as a limit": (
        '[[rule]]\nmetric = "churn"\nmax = nan\n',
        ["max must be a finite number", "nan"],
    ),
    "infinity as a limit": (
        '[[rule]]\nmetric = "churn"\nmin = -inf\n',
        ["min must be a finite number", "inf"],
    ),
    "endless limit": (
        f'[[rule]]\nmetric = "churn"\nmax = {10**400}\n',
        ["max must be a finite number", "1000"],
    ),
    "percent as a limit": (
        '[[rule]]\nmetric = "churn"\nmax = 2\n',
        ["`max` of churn", "from 0 to 1", "got 2", "2 % is written 0.02"],
    ),
    "limit below any rate": (
        '[[rule]]\nmetric = "churn"\nmin = -0.1\n',
        ["`min` of churn", "from 0 to 1", "got -0.1"],
    ),
    "gain in points": (
        '[[rule]]\nmetric = "accuracy_gain"\nmin = -5\n',
        ["`min` of accuracy_gain", "from -1 to 1"],
    ),
    "by of a wrong type": (RULE + 'by = ["a", "b"]\n', ["`by`", "one column"]),
    "only of a wrong type": (BY + 'only = "stop_sign"\n', ["`only`", "list", "'stop_sign'"]),
    "only of nothing": (BY + "only = []\n", ["`only`", "list", "[]"]),
    "only of lists": (BY + 'only = [["a"]]\n', ["`only`", "list"]),
    "only without by": (RULE + 'only = ["a"]\n', ["`only`", "name their column with `by`"]),
    "correction without by": (
        RULE + 'correction = "holm"\n',
        ["`correction`", "name their column with `by`"],
    ),
    "unknown correction": (
        BY + 'correction = "bonferroni"\n',
        ["`correction`", "none, holm, benjamini-hochberg", "'bonferroni'"],
    ),
    "negative min_n": (BY + "min_n = -1\n", ["`min_n`", "-1"]),
    "broken min_n": (BY + "min_n = 0.5\n", ["`min_n`", "0.5"]),
    "truth as min_n": (BY + "min_n = true\n", ["`min_n`", "True"]),
    "unknown judge": (RULE + 'judge = "jury"\n', ["`judge`", "interval or point", "'jury'"]),
    "correction of points": (
        BY + 'judge = "point"\ncorrection = "holm"\n',
        ["`correction` widens intervals", 'judge = "point"', "remove one"],
    ),
    "interval of a p value": (
        '[[rule]]\nmetric = "mcnemar_p"\nmin = 0.05\n',
        ["mcnemar_p has no interval", 'judge = "point"'],
    ),
    "nothing": ("", ["no [[rule]] and no [pinned]", "pass anything"]),
    "only a confidence": ("confidence = 0.9\n", ["no [[rule]] and no [pinned]"]),
    "one bracket": ('[rule]\nmetric = "churn"\nmax = 0.1\n', ["[[rule]]", "two brackets"]),
    "rules of a wrong type": ("rule = [1, 2]\n", ["[[rule]]", "two brackets"]),
    "bad TOML": ("[[rule]\nmetric = ", ["not valid TOML", "line 1"]),
    "confidence of 0": ("confidence = 0\n" + RULE, ["`confidence`", "between 0 and 1"]),
    "confidence of 1": ("confidence = 1.0\n" + RULE, ["`confidence`", "between 0 and 1"]),
    "confidence in percent": ("confidence = 95\n" + RULE, ["`confidence`", "got 95"]),
    "confidence of nan": ("confidence = nan\n" + RULE, ["confidence must be a finite number"]),
    "truth as confidence": ("confidence = true\n" + RULE, ["confidence must be a finite number"]),
    "text as confidence": ('confidence = "high"\n' + RULE, ["confidence must be a finite number"]),
    "pinned without ids": (RULE + "[pinned]\n", ["[pinned]", "`ids`"]),
    "pinned to nothing": (RULE + '[pinned]\nids = ""\n', ["[pinned]", "`ids`"]),
    "pinned to a number": (RULE + "[pinned]\nids = 3\n", ["[pinned]", "`ids`"]),
    "pinned of a wrong type": (
        'pinned = "a.csv"\n' + RULE,
        ["[pinned]", "to be a table", "with `ids`"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_policy_that_means_nothing_is_refused(case: str, tmp_path: Path) -> None:
    text, words = REFUSED[case]
    with pytest.raises(PolicyError) as refused:
        read(tmp_path, text)
    sentence = str(refused.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    assert not sentence.endswith("..")
    assert sentence.startswith(str(tmp_path / "gate.toml"))
    assert [word for word in words if word not in sentence] == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "does not exist"),
        (b"\xff\xfe\x00 not text", "cannot be read as a policy"),
        (b"", "has no [[rule]]"),
    ],
)
def test_a_file_that_is_no_policy(content: bytes | None, words: str, tmp_path: Path) -> None:
    file = tmp_path / "gate.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(PolicyError, match=re.escape(words)) as refused:
        Policy.read(file)
    assert str(file) in str(refused.value)
    assert str(refused.value).endswith(".")


def test_a_folder_is_no_policy(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot be read as a policy"):
        Policy.read(tmp_path)


def test_arrays_within_arrays_without_end_are_no_policy(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="nested too deeply") as refused:
        read(tmp_path, "confidence = " + "[" * 5_000 + "]" * 5_000)
    assert str(refused.value).startswith(str(tmp_path / "gate.toml"))


def test_a_number_too_long_to_read_is_no_policy(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="not valid TOML"):
        read(tmp_path, "confidence = " + "9" * 5_000)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Policy.from_dict(None), "Expected `document` to be a dict"),
        (lambda: Policy.from_dict([("rule", [])]), "Expected `document` to be a dict"),
        (lambda: Policy.read(None), "Expected `path` to be the path of a policy"),
        (lambda: Policy(rules=None), "expected `rules` to hold Rule objects"),
        (lambda: Policy(rules=(), pinned=5), "expected `pinned` to be the path"),
        (lambda: Rule(metric="churn", min=0), "churn is always from 0 to 1, so min = 0 would pass"),
        (lambda: Rule(metric="churn", min=0, max=1), "min = 0 and max = 1 would pass anything"),
        (lambda: Policy(rules=()), "policy has no [[rule]] and no [pinned] ids"),
        (lambda: Policy(rules=({"metric": "churn"},)), "expected `rules` to hold Rule objects"),
        (lambda: Policy(rules=(Rule(metric="churn", max=0.1),), confidence=95), "`confidence`"),
        (lambda: Rule(metric="churn"), "no limit on churn"),
        (lambda: Rule(metric="charm", max=0.1), "no metric 'charm'"),
        (lambda: Rule(metric="churn", max=2), "`max` of churn to be from 0 to 1"),
        (lambda: Rule(metric="churn", max="2 %"), "max must be a finite number"),
        (lambda: Rule(metric="churn", max=0.1, by=""), "`by` to be the name of one column"),
        (lambda: Rule(metric="churn", max=0.1, only=("a",)), "name their column with `by`"),
        (lambda: Rule(metric="churn", max=0.1, min_n=-1), "`min_n`"),
        (lambda: Rule(metric="churn", max=0.1, judge="jury"), "interval or point"),
    ],
)
def test_what_is_made_in_python_is_checked_as_what_is_read(
    make: Callable[[], object], words: str
) -> None:
    with pytest.raises(PolicyError, match=re.escape(words)) as refused:
        make()
    assert str(refused.value).endswith(".")


def test_a_rule_made_in_python_is_the_rule_that_is_read() -> None:
    made = Rule(metric="negative_flip_ratio", max=1, by="target", only=["a", 7])  # type: ignore[arg-type]
    given = {"metric": "negative_flip_ratio", "max": 1.0, "by": "target", "only": ["a", "7"]}
    assert Policy(rules=[made]) == Policy.from_dict({"rule": [given]})  # type: ignore[arg-type]


def test_a_group_named_more_than_once_is_judged_once() -> None:
    rule = {"metric": "churn", "max": 0.1, "by": "target", "only": ["0", "0", 0, "1"]}
    assert Policy.from_dict({"rule": [rule]}).rules[0].only == ("0", "1")


@pytest.mark.parametrize(
    ("metric", "key", "limit", "words"),
    [
        ("relative_negative_flip_rate", "max", 40, "from 0 to 5, but got 40; 40 % is written 0.4."),
        ("relative_negative_flip_rate", "max", -0.5, "from 0 to 5, but got -0.5."),
        ("surrogate_churn", "max", 10, "from 0 to 5, but got 10; 10 % is written 0.1."),
        ("margin_new", "min", 60, "from 0 to 1, but got 60; 60 % is written 0.6."),
        ("accuracy_gain", "min", -2, "from -1 to 1, but got -2; -2 % is written -0.02."),
        ("churn_ratio", "max", -1, "to be 0 or more, but got -1."),
        ("negative_flip_ratio", "min", -0.1, "to be 0 or more, but got -0.1."),
        ("logit_displacement", "max", -3, "to be 0 or more, but got -3."),
        ("mcnemar_p", "min", 5, "from 0 to 1, but got 5."),
    ],
)
def test_a_limit_that_no_value_can_reach(metric: str, key: str, limit: float, words: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(words)):
        Policy.from_dict({"rule": [{"metric": metric, key: limit, "judge": "point"}]})


@pytest.mark.parametrize(
    ("metric", "limit"),
    [("relative_negative_flip_rate", 1.2), ("churn_ratio", 12), ("logit_displacement", 400)],
)
def test_a_limit_above_1_where_values_are(metric: str, limit: float) -> None:
    assert Policy.from_dict({"rule": [{"metric": metric, "max": limit}]}).rules[0].max == limit


def test_a_metric_that_is_nearly_one_is_asked_about() -> None:
    with pytest.raises(PolicyError, match=r"did you mean 'negative_flip_rate'\?\); known are"):
        Policy.from_dict({"rule": [{"metric": "negativ_flip_rate", "max": 0.1}]})


def test_a_confidence_in_percent_is_told_how_to_write_it() -> None:
    with pytest.raises(PolicyError, match=r"but got 95; 95 % is written 0\.95\."):
        Policy.from_dict({"confidence": 95, "rule": [{"metric": "churn", "max": 0.1}]})
