"""Advisory rules, required groups, and starter policies."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from flipguard import Policy, PolicyError, Predictions, check, compare
from flipguard.corrections import failing_alphas
from flipguard.starter_policies import STARTERS, rounded_outwards
from tests.commands import flipguard
from tests.designed import Flips, judged

BREAKS_A_TENTH = Flips(both_right=900, negative=100)
FAILS = {"metric": "negative_flip_rate", "max": 0.02}
PASSES = {"metric": "negative_flip_rate", "max": 0.5}
OPEN = {"metric": "negative_flip_rate", "max": 0.1}
ADVISORY = {"level": "advisory"}


# -- advisory rules --------------------------------------------------------------------------------


@pytest.mark.parametrize(("rule", "outcome"), [(FAILS, "fail"), (OPEN, "inconclusive")])
def test_an_advisory_rule_is_reported_and_decides_nothing(
    rule: dict[str, Any], outcome: str
) -> None:
    verdict = judged(BREAKS_A_TENTH, PASSES, rule | ADVISORY)
    assert verdict.verdict == "pass"
    assert verdict.exit_code == 0
    assert [one.verdict for one in verdict.rules] == ["pass", outcome]
    rows = json.loads(verdict.to_json())["rules"]
    assert [row["verdict"] for row in rows] == ["pass", outcome]
    assert [row.get("level") for row in rows] == [None, "advisory"]
    for text in (verdict.summary(), verdict.to_markdown(), verdict._repr_html_()):
        plain = " ".join(text.replace("\\", "").split())
        assert f"advisory only: negative_flip_rate ({outcome})" in plain
        assert plain.count("advisory") == 2


def test_other_rules_decide_next_to_an_advisory_one() -> None:
    assert judged(BREAKS_A_TENTH, FAILS, PASSES | ADVISORY).verdict == "fail"
    assert judged(BREAKS_A_TENTH, OPEN, FAILS | ADVISORY).verdict == "inconclusive"
    assert "advisory only" not in judged(BREAKS_A_TENTH, FAILS, PASSES | ADVISORY).summary()


def test_only_advisory_rules_are_no_policy() -> None:
    with pytest.raises(PolicyError, match="has only advisory rules, so it would pass anything"):
        Policy.from_dict({"rule": [FAILS | ADVISORY]})
    pinned = Policy.from_dict({"rule": [FAILS | ADVISORY], "pinned": {"ids": "ids.txt"}})
    assert pinned.blocking == ()
    with pytest.raises(PolicyError, match="`level` to be blocking or advisory, but got 'loose'"):
        Policy.from_dict({"rule": [FAILS | {"level": "loose"}]})


@pytest.mark.parametrize("correction", ["holm", "benjamini-hochberg"])
def test_an_advisory_rule_makes_no_other_rule_more_lenient(correction: str) -> None:
    rules = [FAILS, {"metric": "accuracy_gain", "min": -0.01}]
    noise = [{"metric": "churn", "max": 0.01 * i, **ADVISORY} for i in range(1, 8)]
    result = judged(BREAKS_A_TENTH, *rules).comparison

    def alphas(*given: dict[str, Any]) -> list[list[float]]:
        policy = Policy.from_dict({"rule": list(given), "correction": correction})
        return failing_alphas(policy, [[result.whole]] * len(given))

    assert alphas(*rules, *noise)[:2] == alphas(*rules)


# -- required groups -------------------------------------------------------------------------------


def by_task(tasks: list[str], rule: dict[str, Any]) -> str:
    side = Predictions.from_arrays(
        labels=["a"] * len(tasks), targets=["a"] * len(tasks), slices={"task": tasks}
    )
    result = compare(old=side, new=side, by="task")
    whole = {"metric": "negative_flip_rate", "by": "task", "max": 0.5, **rule}
    return check(result, Policy.from_dict({"rule": [whole]}, name="gate.toml")).verdict


def test_a_required_group_must_be_there() -> None:
    tasks = ["gsm8k"] * 50 + ["mmlu"] * 50 + ["rare"] * 3
    required = {"require": ["gsm8k", "mmlu"]}
    assert by_task(tasks, required | {"min_n": 10}) == "pass"
    with pytest.raises(PolicyError, match="requires group 'gsm8k' of 'task', but it has no sample"):
        by_task(tasks[50:], required)
    with pytest.raises(PolicyError, match="only 3 samples there instead of min_n = 10"):
        by_task(tasks, {"require": ["rare"], "min_n": 10})


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ({"require": ["a"]}, "`require` applies to groups; name their column with `by`"),
        ({"by": "task", "require": []}, "`require` to be a list of groups"),
        ({"by": "task", "require": "a"}, "`require` to be a list of groups"),
        ({"by": "task", "require": ["a"], "only": ["b"]}, "`require` names 'a', which `only`"),
    ],
)
def test_requirements_that_make_no_sense(rule: dict[str, Any], told: str) -> None:
    with pytest.raises(PolicyError, match=told):
        Policy.from_dict({"rule": [FAILS | rule]})


# -- starter policies ------------------------------------------------------------------------------


def files(folder: Path) -> list[Path]:
    rng = np.random.default_rng(3)
    target = rng.choice(["a", "b", "c"], 600)
    paths = []
    for i, name in enumerate(("old", "first", "second")):
        wrong = rng.random(600) < 0.1 + 0.02 * i
        label = np.where(wrong, rng.choice(["a", "b", "c"], 600), target)
        path = folder / f"{name}.csv"
        pl.DataFrame({"id": range(600), "target": target, "label": label}).write_csv(path)
        paths.append(path)
    return paths


@pytest.mark.parametrize("kind", STARTERS)
def test_a_starter_policy_can_be_used_at_once(tmp_path: Path, kind: str) -> None:
    old, new, _ = files(tmp_path)
    done = flipguard("init", kind, folder=tmp_path)
    assert done.code == 0, done.err
    assert flipguard("init", kind, "--out", "-").out == (tmp_path / "gate.toml").read_text()
    ran = flipguard("gate", old, new, "--policy", tmp_path / "gate.toml")
    assert ran.code in (0, 1, 3), ran.err
    again = flipguard("init", kind, folder=tmp_path)
    assert again.code == 2
    assert "gate.toml exists already" in again.err


@pytest.mark.parametrize("kind", STARTERS)
def test_what_a_starter_policy_suggests_is_valid(kind: str) -> None:
    text = STARTERS[kind].text({})
    # A comment that looks like TOML is TOML.
    lines = [line.removeprefix("# ") for line in text.splitlines()]
    keys = ("[", "metric =", "min", "max", "by =", "level", "judge", "require", "correction", "ids")
    document = tomllib.loads("\n".join(line for line in lines if line.startswith(keys)))
    policy = Policy.from_dict(document)
    assert len(policy.rules) > len(tomllib.loads(text)["rule"])
    assert policy.pinned is not None


@pytest.mark.parametrize("kind", STARTERS)
def test_limits_from_controls_are_the_worst_ends_of_their_intervals(
    tmp_path: Path, kind: str
) -> None:
    old, *controls = files(tmp_path)
    flags = [text for control in controls for text in ("--control", control)]
    done = flipguard("init", kind, "--old", old, *flags, folder=tmp_path)
    assert done.code == 0, done.err
    policy = Policy.read(tmp_path / "gate.toml")
    sides = [Predictions.from_frame(pl.read_csv(path), name=path.name) for path in (old, *controls)]
    results = [compare(old=sides[0], new=control, by="target") for control in sides[1:]]
    for rule in policy.rules:
        groups = [
            group
            for result in results
            for group in ([result.whole] if rule.by is None else result.by[rule.by])
        ]
        ends = [group[rule.metric] for group in groups]
        if rule.max is not None:
            assert rule.max == rounded_outwards(max(e.high for e in ends), "max")
        else:
            least = min(e.low for e in ends)
            least = min(least, 0.0) if rule.metric == "accuracy_gain" else least
            assert rule.min == rounded_outwards(least, "min")
    for control in controls:
        ran = flipguard("gate", old, control, "--policy", tmp_path / "gate.toml")
        assert ran.code == 0, ran.out


def test_controls_are_measured_against_old(tmp_path: Path) -> None:
    old, control, _ = files(tmp_path)
    for given, lacks in ((("--control", control), "--old"), (("--old", old), "--control")):
        done = flipguard("init", *given, folder=tmp_path)
        assert done.code == 2
        assert f"Expected {lacks} next to" in done.err
    bare = tmp_path / "bare.csv"
    pl.read_csv(old).drop("target").write_csv(bare)
    done = flipguard("init", "--old", bare, "--control", bare, folder=tmp_path)
    assert done.code == 2
    assert "negative_flip_rate cannot be measured" in done.err
    assert not (tmp_path / "gate.toml").exists()


def test_samples_of_one_file_may_be_left_out_of_the_limits(tmp_path: Path) -> None:
    old, control, _ = files(tmp_path)
    part = tmp_path / "part.csv"
    pl.read_csv(control)[:-1].write_csv(part)
    refused = flipguard("init", "--old", old, "--control", part, folder=tmp_path)
    assert refused.code == 2
    assert "--on-missing drop" in refused.err
    done = flipguard(
        "init", "--old", old, "--control", part, "--on-missing", "drop", folder=tmp_path
    )
    assert done.code == 0, done.err
