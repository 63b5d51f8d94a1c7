"""The gate: rules against intervals, groups, pinned samples, and the JSON of both documents."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.stats import binom
from statsmodels.stats.proportion import proportion_confint

from flipguard import (
    METRICS,
    InputError,
    Policy,
    PolicyError,
    Predictions,
    Verdict,
    check,
    compare,
)
from flipguard.corrections import rule_alphas
from flipguard.counts import FlipCounts, StatisticsLayout
from flipguard.estimates import GroupCounts, intervals
from flipguard.gate import Judgement
from flipguard.inconclusive import rounded_up
from flipguard.render.words import (
    corrections,
    explanation,
    headline,
    judged_numbers,
    limit,
)
from tests.cases import measured
from tests.designed import Flips, judged, policy, update

NFR_2 = {"metric": "negative_flip_rate", "max": 0.02}


def only(verdict: Verdict) -> Judgement:
    (rule,) = verdict.rules
    (judgement,) = rule.judgements
    return judgement


def with_flips(n: int, negative: int, positive: int = 0) -> Flips:
    """n samples, half of the rest right in both models and half wrong in both."""
    rest = n - negative - positive
    return Flips(
        both_right=rest // 2, negative=negative, positive=positive, wrong_same=rest - rest // 2
    )


@pytest.mark.parametrize("result", [None, {}, "result.json"])
def test_only_a_comparison_is_judged(result: object) -> None:
    with pytest.raises(InputError, match="Expected `result` to be a Comparison, but got"):
        check(result, policy(NFR_2))  # type: ignore[arg-type]


# -- one rule against one interval ---------------------------------------------------------------


@pytest.mark.parametrize("negative", [30, 60, 80, 82, 85, 86, 100, 112, 118, 120, 121, 125, 500])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_a_maximum_is_judged_by_the_whole_interval(negative: int, confidence: float) -> None:
    # The interval is the wider of Wilson's and Clopper and Pearson's, here from statsmodels.
    ends = [
        proportion_confint(negative, 5000, alpha=1 - confidence, method=method)
        for method in ("wilson", "beta")
    ]
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    expected = "pass" if high <= 0.02 else "fail" if low > 0.02 else "inconclusive"
    verdict = judged(with_flips(5000, negative), NFR_2, confidence=confidence)
    judgement = only(verdict)
    assert judgement.verdict == verdict.verdict == expected
    assert judgement.value == negative / 5000
    assert judgement.n == 5000
    assert (judgement.low, judgement.high) == pytest.approx((low, high), abs=1e-9)


def test_the_maximum_cases_above_reach_every_outcome() -> None:
    verdicts = [judged(with_flips(5000, k), NFR_2) for k in (60, 100, 125)]
    assert {verdict.verdict for verdict in verdicts} == {"pass", "inconclusive", "fail"}
    # So that `if check(...):` never ships what failed.
    assert [bool(verdict) for verdict in verdicts] == [True, False, False]


@pytest.mark.parametrize(
    ("negative", "positive", "expected"),
    [(10, 10, "pass"), (10, 40, "pass"), (40, 40, "inconclusive"), (90, 10, "fail")],
)
def test_non_inferiority_by_a_minimum(negative: int, positive: int, expected: str) -> None:
    rule = {"metric": "accuracy_gain", "min": -0.015}
    judgement = only(judged(with_flips(1000, negative, positive), rule))
    assert judgement.verdict == expected
    assert judgement.value == pytest.approx((positive - negative) / 1000)
    # The interval is the one that the comparison tells, and it alone decides.
    old, new = update(with_flips(1000, negative, positive))
    gain = compare(old=old, new=new)["accuracy_gain"]
    assert (judgement.low, judgement.high) == (gain.low, gain.high)
    decided = "pass" if gain.low >= -0.015 else "fail" if gain.high < -0.015 else "inconclusive"
    assert decided == expected


@pytest.mark.parametrize(
    ("negative", "positive", "expected"),
    [
        (20, 20, "pass"),
        (20, 90, "fail"),
        (90, 20, "fail"),
        (20, 45, "inconclusive"),
        (300, 300, "inconclusive"),
    ],
)
def test_equivalence_by_both_limits(negative: int, positive: int, expected: str) -> None:
    rule = {"metric": "accuracy_gain", "min": -0.02, "max": 0.02}
    assert judged(with_flips(1000, negative, positive), rule).verdict == expected


def test_the_limit_itself_is_within_the_limit() -> None:
    zero = {"metric": "negative_flip_rate", "max": 0.0, "judge": "point"}
    none_breaks = {"metric": "backward_trust_compatibility", "min": 1.0, "judge": "point"}
    assert judged(with_flips(100, 0), zero).verdict == "pass"
    assert judged(Flips(both_right=100), none_breaks).verdict == "pass"


@pytest.mark.parametrize(("negative", "expected"), [(19, "pass"), (20, "pass"), (21, "fail")])
def test_judged_by_the_point_the_interval_does_not_matter(negative: int, expected: str) -> None:
    judgement = only(judged(with_flips(1000, negative), {**NFR_2, "judge": "point"}))
    assert judgement.verdict == expected
    assert judgement.low < 0.02 < judgement.high


def test_a_p_value_is_judged_by_the_point() -> None:
    rule = {"metric": "mcnemar_p", "min": 0.05, "judge": "point"}
    assert judged(with_flips(1000, 20, 25), rule).verdict == "pass"
    assert judged(with_flips(1000, 20, 60), rule).verdict == "fail"


# -- the verdict ---------------------------------------------------------------------------------

PASSES = {"metric": "negative_flip_rate", "max": 0.10}
FAILS = {"metric": "negative_flip_rate", "max": 0.01}
OPEN = {"metric": "negative_flip_rate", "max": 0.03}


@pytest.mark.parametrize(
    "rules",
    [
        chosen
        for k in (1, 2, 3)
        for chosen in itertools.permutations([("pass", 0), ("fail", 1), ("inconclusive", 2)], k)
    ],
)
def test_the_verdict_is_that_of_the_worst_rule(rules: tuple[tuple[str, int], ...]) -> None:
    given = [(PASSES, FAILS, OPEN)[i] for _, i in rules]
    verdict = judged(with_flips(1000, 30), *given)
    outcomes = [outcome for outcome, _ in rules]
    assert [rule.verdict for rule in verdict.rules] == outcomes
    worst = next(o for o in ("fail", "inconclusive", "pass") if o in outcomes)
    assert verdict.verdict == worst
    assert verdict.exit_code == {"pass": 0, "fail": 1, "inconclusive": 3}[worst]


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("surrogate_churn", "class scores of the new model and class scores of the old model"),
        ("expected_calibration_error_new", "class scores of the new model"),
        ("margin_old", "class scores of the old model"),
        ("logit_displacement", "logits of both models"),
        ("churn_ratio", "a control"),
        ("negative_flip_ratio", "a control"),
    ],
)
def test_what_cannot_be_measured_is_refused_not_passed(metric: str, words: str) -> None:
    with pytest.raises(PolicyError) as refused:
        judged(with_flips(1000, 0), PASSES, {"metric": metric, "max": 0.9})
    assert metric in str(refused.value)
    assert words in str(refused.value)
    assert str(refused.value).endswith(".")


@pytest.mark.parametrize("metric", [m for m in METRICS if "target" in METRICS[m].needs])
def test_without_targets_nothing_about_right_and_wrong_is_judged(metric: str) -> None:
    old, new = update(with_flips(100, 3), targets=False)
    limit = "min" if METRICS[metric].better == "higher" else "max"
    rule = policy({"metric": metric, limit: 0.5, "judge": "point"})
    with pytest.raises(PolicyError, match="targets"):
        check(compare(old=old, new=new), rule)


def test_churn_needs_no_targets() -> None:
    old, new = update(with_flips(1000, 5), targets=False)
    verdict = check(compare(old=old, new=new), policy({"metric": "churn", "max": 0.05}))
    assert verdict.verdict == "pass"


@pytest.mark.parametrize("judge", ["interval", "point"])
def test_an_undefined_value_is_inconclusive(judge: str) -> None:
    # The new model makes no error, so there is no share of its errors.
    verdict = judged(
        Flips(both_right=90, positive=10),
        {"metric": "negative_flip_impact", "max": 0.9, "judge": judge},
    )
    judgement = only(verdict)
    assert verdict.verdict == "inconclusive"
    assert judgement.as_json()["value"] is None
    assert judgement.reason is not None
    assert "undefined" in judgement.reason


def test_targets_that_nobody_knows_are_inconclusive() -> None:
    verdict = judged(Flips(unlabelled_same=90, unlabelled_different=10), NFR_2)
    assert verdict.verdict == "inconclusive"


def test_one_cluster_is_one_observation_and_decides_nothing() -> None:
    flips = with_flips(1000, 0)
    old, new = update(flips, slices={"user": ["u"] * flips.n})
    verdict = check(compare(old=old, new=new, cluster="user"), policy(PASSES))
    judgement = only(verdict)
    assert verdict.verdict == "inconclusive"
    assert judgement.reason is not None
    assert "one cluster" in judgement.reason
    assert "no interval" in judgement.reason
    assert headline(verdict.comparison).endswith("accuracy changes by +0.00 points.")


# -- groups --------------------------------------------------------------------------------------


def test_groups_below_min_n_are_listed_but_not_judged() -> None:
    groups = {"large": with_flips(1000, 0), "small": Flips(negative=49)}
    rule = {"metric": "negative_flip_rate", "by": "group", "max": 0.10, "min_n": 50}
    verdict = judged(groups, rule)
    found = {j.group: j for j in verdict.rules[0].judgements}
    assert verdict.verdict == "pass"
    assert found["small"].verdict == "not_judged"
    assert (found["small"].value, found["small"].n) == (1.0, 49)
    assert found["large"].verdict == "pass"
    # One sample more, and it is judged.
    assert judged({**groups, "small": Flips(negative=50)}, rule).verdict == "fail"


def test_where_every_group_is_too_small_nothing_was_shown() -> None:
    groups = {"a": with_flips(20, 0), "b": with_flips(30, 0)}
    rule = {"metric": "negative_flip_rate", "by": "group", "max": 0.5, "min_n": 31}
    verdict = judged(groups, rule)
    assert verdict.verdict == "inconclusive"
    assert {j.verdict for j in verdict.rules[0].judgements} == {"not_judged"}


def test_too_few_samples_for_a_rule_on_the_whole() -> None:
    rule = {"metric": "negative_flip_rate", "max": 0.5, "min_n": 101}
    assert judged(with_flips(100, 0), rule).verdict == "inconclusive"


def test_only_judges_the_named_groups() -> None:
    groups = {"stop_sign": with_flips(500, 0), "cat": Flips(negative=500)}
    rule = {"metric": "negative_flip_rate", "by": "group", "max": 0.05}
    assert judged(groups, rule).verdict == "fail"
    verdict = judged(groups, {**rule, "only": ["stop_sign"]})
    assert verdict.verdict == "pass"
    assert [j.group for j in verdict.rules[0].judgements] == ["stop_sign"]


def test_only_with_an_absent_group_is_refused() -> None:
    rule = {"metric": "churn", "by": "group", "max": 0.5, "only": ["cat", "stop_sing"]}
    with pytest.raises(PolicyError) as refused:
        judged({"stop_sign": with_flips(50, 0), "cat": with_flips(50, 0)}, rule)
    assert "'stop_sing'" in str(refused.value)
    assert "'stop_sign'" in str(refused.value)


def test_groups_that_were_not_compared_are_counted() -> None:
    old, new = update({"a": with_flips(50, 0)})
    rules = policy({"metric": "churn", "by": "group", "max": 0.5})
    expected = check(compare(old=old, new=new, by="group"), rules)
    assert check(compare(old=old, new=new), rules).to_json() == expected.to_json()


def test_the_worst_group_comes_first() -> None:
    groups = {f"g{k}": with_flips(500, k) for k in (0, 10, 25, 30, 100, 200)}
    rule = {"metric": "negative_flip_rate", "by": "group", "max": 0.05}
    judgements = judged(groups, rule).rules[0].judgements
    assert [j.group for j in judgements] == ["g200", "g100", "g30", "g25", "g10", "g0"]
    assert [j.verdict for j in judgements] == [
        "fail",
        "fail",
        "inconclusive",
        "inconclusive",
        "pass",
        "pass",
    ]


def adjusted_by_hand(p_values: list[float], correction: str) -> list[float]:
    """The textbook procedures, read aloud."""
    m = len(p_values)
    order = sorted(range(m), key=lambda i: p_values[i])
    adjusted = [math.nan] * m
    if correction == "holm":
        running = 0.0
        for rank, i in enumerate(order):
            running = max(running, (m - rank) * p_values[i])
            adjusted[i] = min(running, 1.0)
    else:
        running = 1.0
        for rank, i in reversed(list(enumerate(order, start=1))):
            running = min(running, p_values[i] * m / rank)
            adjusted[i] = running
    return adjusted


@pytest.mark.parametrize("correction", ["holm", "benjamini-hochberg"])
def test_a_group_fails_where_its_adjusted_p_value_is_within_alpha(correction: str) -> None:
    limit, n = 0.05, 4000
    flips = [*range(150, 200, 5), *range(200, 260, 3)]
    groups = {f"g{k}": with_flips(n, k) for k in flips}
    rule = {
        "metric": "negative_flip_rate",
        "by": "group",
        "max": limit,
        "correction": correction,
    }
    found = {j.group: j for j in judged(groups, rule).rules[0].judgements}
    # The inverse of the interval: the larger p value of the score test and the exact test.
    p_values = []
    for k in flips:
        z = (k / n - limit) / math.sqrt(limit * (1 - limit) / n)
        exact = 2 * binom.sf(k - 1, n, limit)
        p_values.append(max(math.erfc(z / math.sqrt(2)), exact) if k > limit * n else 1.0)
    adjusted = adjusted_by_hand(p_values, correction)
    failed = {k for k in flips if found[f"g{k}"].verdict == "fail"}
    assert failed == {k for k, p in zip(flips, adjusted, strict=True) if p <= 0.05}
    assert 0 < len(failed) < len([p for p in p_values if p <= 0.05])


@pytest.mark.parametrize("correction", ["none", "holm", "benjamini-hochberg"])
@pytest.mark.parametrize(
    "rule",
    [
        {"metric": "negative_flip_rate", "max": 0.05},
        {"metric": "accuracy_gain", "min": -0.03},
        {"metric": "accuracy_gain", "min": -0.03, "max": 0.03},
    ],
)
def test_the_interval_that_is_told_is_the_one_that_decided(
    rule: dict[str, Any], correction: str
) -> None:
    pairs = itertools.product([0, 5, 10, 20, 30, 36, 60], [0, 15, 30, 40, 60])
    groups = {f"{k}-{j}": with_flips(400, k, j) for k, j in pairs}
    verdict = judged(groups, {**rule, "by": "group", "correction": correction})
    low, high = rule.get("min", -math.inf), rule.get("max", math.inf)
    outcomes = set()
    for judgement in verdict.rules[0].judgements:
        inside = low <= judgement.low and judgement.high <= high
        outside = judgement.low > high or judgement.high < low
        expected = "pass" if inside else "fail" if outside else "inconclusive"
        assert judgement.verdict == expected, judgement
        outcomes.add(expected)
    assert outcomes == {"pass", "fail", "inconclusive"}


def test_a_correction_makes_failing_harder_and_passing_no_different() -> None:
    groups = {f"g{k}": with_flips(400, k) for k in (0, 4, 8, 15, 20, 25, 30, 31, 32, 60)}
    rule = {"metric": "negative_flip_rate", "by": "group", "max": 0.05}
    plain, holm = (
        {j.group: j for j in judged(groups, {**rule, "correction": c}).rules[0].judgements}
        for c in ("none", "holm")
    )

    def of(found: dict[str | None, Judgement], outcome: str) -> set[str | None]:
        return {name for name, j in found.items() if j.verdict == outcome}

    assert of(holm, "pass") == of(plain, "pass") != set()
    assert of(holm, "fail") < of(plain, "fail")
    # Only the end that could fail is wider.
    for name in of(plain, "fail"):
        assert holm[name].low <= plain[name].low
        assert holm[name].high == plain[name].high
    assert any(holm[name].low < plain[name].low for name in of(plain, "fail"))


def test_holm_keeps_false_alarms_over_groups_within_five_percent() -> None:
    """Twenty groups that are all exactly at the limit: no failure would be right."""
    rng = np.random.default_rng(7)
    worlds, groups, n, limit = 100, 10, 300, 0.10
    alarms = {"none": 0, "holm": 0}
    for _ in range(worlds):
        flips = rng.binomial(n, limit, size=groups)
        old, new = update({f"g{i}": with_flips(n, int(k)) for i, k in enumerate(flips)}, ids=False)
        result = compare(old=old, new=new, by=["group"])
        for correction in alarms:
            rule = {
                "metric": "negative_flip_rate",
                "by": "group",
                "max": limit,
                "correction": correction,
            }
            alarms[correction] += check(result, policy(rule)).verdict == "fail"
    # A group fails by its lower end alone, which is 2.5 % of chance at 95 % confidence.
    assert alarms["holm"] <= 0.05 * worlds
    assert alarms["none"] > 0.05 * worlds


# -- how many samples would decide ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("flips", "rule"),
    [
        (with_flips(1000, 18), NFR_2),
        (with_flips(1000, 23), NFR_2),
        (with_flips(10_000, 195), NFR_2),
        (with_flips(1000, 40, 38), {"metric": "accuracy_gain", "min": -0.015}),
        (with_flips(1000, 60, 40), {"metric": "accuracy_gain", "min": -0.015}),
        (with_flips(500, 40, 45), {"metric": "accuracy_gain", "min": -0.03, "max": 0.03}),
        (with_flips(500, 4), {"metric": "negative_flip_impact", "max": 0.02}),
        (with_flips(500, 20), {"metric": "relative_negative_flip_rate", "max": 0.2}),
        (with_flips(500, 20), {"metric": "churn", "min": 0.05, "max": 1}),
    ],
)
def test_the_further_samples_do_decide_with_their_chance(
    flips: Flips, rule: dict[str, Any]
) -> None:
    judgement = only(judged(flips, rule))
    assert judgement.verdict == "inconclusive"
    even, most = judgement.samples_needed_even, judgement.samples_needed_90
    assert even is not None
    assert most is not None
    assert even < most
    table = np.array(
        [flips.both_right, flips.negative, flips.positive, flips.wrong_same, flips.wrong_different]
    )
    rng = np.random.default_rng(8)
    for further, chance in ((even, 0.5), (most, 0.9)):
        larger = table + rng.multinomial(further, table / table.sum(), size=4000)
        assert decided(larger, rule).mean() == pytest.approx(chance, abs=0.06)


def decided(tables: Any, rule: dict[str, Any]) -> Any:
    layout = StatisticsLayout(has_target=True)
    values = np.zeros((len(tables), len(layout.names)))
    values[:, :5] = tables
    low, high = intervals(METRICS[rule["metric"]], FlipCounts(layout, values), 0.95)
    least, most = rule.get("min", -math.inf), rule.get("max", math.inf)
    return ((least <= low) & (high <= most)) | (low > most) | (high < least)


def test_a_rate_of_zero_is_decided_for_certain() -> None:
    judgement = only(judged(with_flips(150, 0), NFR_2))
    further = judgement.samples_needed_even
    assert further == judgement.samples_needed_90
    assert further is not None
    assert judged(with_flips(150 + further, 0), NFR_2).verdict == "pass"
    assert judged(with_flips(149 + further, 0), NFR_2).verdict == "inconclusive"


@pytest.mark.parametrize("clusters", [None, 40])
def test_a_mean_and_clusters_are_planned_for(clusters: int | None) -> None:
    rng = np.random.default_rng(2)
    n = 400
    target = np.zeros(n, dtype=int)
    scores = rng.dirichlet([8, 1, 1], size=(2, n))
    slices = {"user": np.arange(n) % (clusters or n)}
    old, new = (
        Predictions.from_arrays(probabilities=s, targets=target, slices=slices) for s in scores
    )
    result = compare(old=old, new=new, cluster="user" if clusters else None)
    for name in ("margin_new", "negative_flip_rate", "accuracy_gain"):
        high = result[name].high
        limit = 0.3 * result[name].value + 0.7 * high
        judgement = only(
            check(result, policy({"metric": name, "min": METRICS[name].range[0], "max": limit}))
        )
        even, most = judgement.samples_needed_even, judgement.samples_needed_90
        assert even is not None
        assert most is not None
        assert 0 < even < most < 50 * n


def test_on_the_limit_no_number_of_samples_decides() -> None:
    judgement = only(judged(with_flips(1000, 20), NFR_2))
    assert judgement.verdict == "inconclusive"
    row = judgement.as_json()
    assert row["samples_needed_even"] is row["samples_needed_90"] is None
    assert row["reason"] == "no number of samples decides, because the value lies on its limit"


def test_a_value_off_its_limit_is_not_said_to_lie_on_it() -> None:
    # The old model is never wrong, so nothing is learnt about the new model's errors there.
    flips = Flips(both_right=90, negative=10)
    judgement = only(judged(flips, {"metric": "relative_negative_flip_rate", "max": 0.5}))
    assert judgement.value == 1.0
    assert judgement.reason == "no number of samples decides, if the rates stay as they are"


def test_a_case_that_would_not_fail_is_not_said_to_fail() -> None:
    rule = {"metric": "relative_negative_flip_rate", "max": 0}
    judgement = only(judged(Flips(both_right=40, wrong_same=1), rule))
    assert judgement.reason is not None
    assert "fails it" not in judgement.reason
    assert judged(Flips(both_right=40, negative=1), rule).verdict == "inconclusive"


@pytest.mark.parametrize(
    ("rule", "flips", "shown"),
    [
        ({"metric": "negative_flip_rate", "max": 0.02}, (1000, 5), ("≤ 2.00 %", "0.50 %", "0.16")),
        ({"metric": "negative_flip_rate", "max": 0}, (1000, 1), ("≤ 0.00 %", "0.100 %", "0.003")),
        ({"metric": "negative_flip_rate", "max": 5e-6}, (50, 0), ("≤ 0.0005 %", "0.0000 %", "0")),
        ({"metric": "accuracy_gain", "min": -0.02003}, (50, 1), ("≥ -2.003 points", "-2.000", "-")),
        ({"metric": "accuracy_gain", "min": -0.02}, (50, 1), ("≥ -2.00 points", "-2.00 ", "-")),
    ],
)
def test_a_number_does_not_look_like_a_limit_that_it_is_not(
    rule: dict[str, Any], flips: tuple[int, int], shown: tuple[str, str, str]
) -> None:
    judgement = only(judged(with_flips(*flips), rule))
    value, ends = judged_numbers(judgement)
    found = (limit(judgement.rule), value, ends)
    assert [one.startswith(start) for one, start in zip(found, shown, strict=True)] == [True] * 3


@pytest.mark.parametrize("judge", ["interval", "point"])
def test_a_relative_limit_that_no_update_exceeds_is_no_pass(judge: str) -> None:
    """The relative rate is at most 1 / 0.8 if the old model is right on 80 % of the samples."""
    everything = Flips(negative=400, wrong_same=100)
    broken = Flips(both_right=390, negative=10, positive=100)
    rule = {"metric": "relative_negative_flip_rate", "judge": judge}
    for flips in (everything, broken):
        judgement = only(judged(flips, {**rule, "max": 1.25}))
        assert judgement.verdict == "inconclusive"
        assert judgement.reason == (
            "relative_negative_flip_rate cannot exceed 125.00 % if the old model is right on 80 % "
            "of the samples, so every update would pass; use a smaller `max`"
        )
    assert only(judged(broken, {**rule, "max": 0.5})).verdict == "fail"
    assert only(judged(broken, {**rule, "min": 0.5, "max": 2})).verdict == "pass"
    groups = {"always right": Flips(negative=50), "seldom": Flips(negative=20, wrong_same=80)}
    verdicts = {
        judgement.group: judgement.verdict
        for judgement in judged(groups, {**rule, "max": 2, "by": "group"}).rules[0].judgements
    }
    assert verdicts == {"always right": "inconclusive", "seldom": "pass"}


@pytest.mark.parametrize(
    ("rule", "flips"),
    [
        ({"metric": "negative_flip_rate", "max": 0}, with_flips(100, 0)),
        ({"metric": "backward_trust_compatibility", "min": 1}, with_flips(100, 0)),
    ],
)
def test_no_number_of_samples_passes_a_limit_that_allows_no_flip(
    rule: dict[str, Any], flips: Flips
) -> None:
    judgement = only(judged(flips, rule))
    assert judgement.verdict == "inconclusive"
    assert judgement.samples_needed_90 is None
    assert judgement.reason is not None
    assert "one flip fails it" in judgement.reason
    assert judged(with_flips(100, 1), rule).verdict == "fail"


# -- too few samples or clusters to pass ---------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "end"),
    [
        (NFR_2, "without any flip the upper end would be 16.8 %"),
        (
            {"metric": "backward_trust_compatibility", "min": 0.98},
            "without any flip the lower end would be",
        ),
        ({"metric": "error_rate_new", "max": 0.02}, "at 0 % the upper end would be 16.8 %"),
    ],
)
def test_too_few_samples_for_a_limit_are_said_to_be_too_few(rule: dict[str, Any], end: str) -> None:
    judgement = only(judged(Flips(both_right=20), rule))
    assert judgement.verdict == "inconclusive"
    assert judgement.reason is not None
    assert "20 samples are too few for a limit of" in judgement.reason
    assert end in judgement.reason


def test_counts_of_one_have_their_words_in_the_singular() -> None:
    few = only(judged(Flips(both_right=1), NFR_2))
    assert explanation(few).startswith("1 sample is too few for a limit of 2 %")
    more = replace(few, reason=None, samples_needed_even=1, samples_needed_90=1)
    assert explanation(more) == "about 1 more sample to pass, if the rates stay as they are"


def test_a_number_is_not_told_twice() -> None:
    judgement = only(judged(Flips(both_right=1), NFR_2, confidence=0.999999))
    assert judgement.samples_needed_even != judgement.samples_needed_90
    needed = (judgement.samples_needed_even, judgement.samples_needed_90)
    assert len({rounded_up(number) for number in needed if number is not None}) == 1
    assert "for 90 %" not in explanation(judgement)


def test_samples_for_a_mean_of_scores_depend_on_the_chance() -> None:
    scores = np.random.default_rng(5).dirichlet(np.ones(3), size=(2, 50))
    target = scores[0].argmax(1)
    old, new = (Predictions.from_arrays(probabilities=s, targets=target) for s in scores)
    result = compare(old=old, new=new)
    for metric in ("margin_new", "surrogate_churn"):
        limit = 0.4 * result[metric].value + 0.6 * result[metric].high
        judgement = only(check(result, policy({"metric": metric, "max": limit})))
        assert judgement.verdict == "inconclusive"
        even, most = judgement.samples_needed_even, judgement.samples_needed_90
        assert even is not None
        assert most is not None
        assert even < 0.9 * most


def test_a_limit_near_all_keeps_its_figures() -> None:
    rule = {"metric": "backward_trust_compatibility", "min": 0.9995}
    assert "for a limit of 99.95 %" in explanation(only(judged(Flips(both_right=20), rule)))


def test_too_few_samples_for_a_limit_on_a_mean() -> None:
    scores = np.tile([0.1, 0.2, 0.7], (20, 1))
    side = Predictions.from_arrays(probabilities=scores, targets=[2] * 20)
    rule = {"metric": "surrogate_churn", "max": 0.02}
    for cluster, found, end in (
        (None, "20 samples", "25.3"),
        ("user", "10 clusters", "36.7"),
    ):
        sides = Predictions.from_arrays(
            probabilities=scores, targets=[2] * 20, slices={"user": [i // 2 for i in range(20)]}
        )
        result = compare(old=sides, new=side, cluster=cluster)
        judgement = only(check(result, policy(rule)))
        assert judgement.reason is not None
        assert judgement.reason.startswith(
            f"{found} are too few for a limit of 2 %: even at 0 % the upper end would be {end} %"
        )
        assert f"{100 * judgement.high:.1f}" == end


def clustered(flips: list[int], size: int = 100) -> Verdict:
    target = np.zeros(len(flips) * size, dtype=int)
    new = np.concatenate([np.arange(size) < k for k in flips]).astype(int)
    user = np.repeat(np.arange(len(flips)), size)
    old = Predictions.from_arrays(labels=target, targets=target, slices={"user": user})
    result = compare(
        old=old, new=Predictions.from_arrays(labels=new, targets=target), cluster="user"
    )
    return check(result, policy(NFR_2))


def test_ten_clusters_are_too_few_for_two_percent() -> None:
    judgement = only(clustered([1] * 10))
    assert judgement.verdict == "inconclusive"
    assert judgement.reason is not None
    assert "10 clusters are too few for a limit of 2 %: even without any flip" in judgement.reason
    assert "the upper end would be 17.9 %" in judgement.reason
    assert "at the rate seen (1 %), about" in judgement.reason
    assert judgement.reason.endswith("if they are like those seen")


def test_too_few_clusters_to_pass_can_still_fail() -> None:
    assert clustered([90] * 10).verdict == "fail"


def test_more_flips_in_clusters_never_give_a_better_verdict() -> None:
    rng = np.random.default_rng(4)
    order = {"pass": 0, "inconclusive": 1, "fail": 2}
    for clusters in (10, 130):
        flips = rng.integers(0, 2, size=clusters)
        found = []
        for _ in range(3):
            found.append(order[clustered(list(flips), 30).verdict])
            flips = np.minimum(flips + rng.binomial(1, 0.2, len(flips)), 30)
        assert found == sorted(found)


@pytest.mark.parametrize(
    ("name", "sign"),
    [("accuracy_gain", -1), ("churn_correct", 1), ("backward_trust_compatibility", -1)],
)
def test_more_flips_in_clusters_never_give_a_better_interval(name: str, sign: int) -> None:
    rng = np.random.default_rng(8)
    layout, metric = StatisticsLayout(has_target=True), METRICS[name]
    right, flip = layout.columns["both_right"], layout.columns["negative_flip"]
    for clusters in (2, 5, 30):
        for confidence in (0.5, 0.95, 0.999):
            values = np.zeros((clusters, len(layout.names)))
            sizes = rng.choice([1, 5, 40], size=clusters)
            values[:, :4] = [rng.multinomial(n, rng.dirichlet([8, 1, 1, 2])) for n in sizes]
            values[0, right] += 3
            before = (-math.inf, -math.inf)
            for _ in range(3):
                table = FlipCounts(layout, values.copy())
                ends = GroupCounts(counts=table.total(), clusters=table).interval(
                    metric, confidence
                )
                now = sorted(sign * end for end in ends)
                assert np.all(np.array(now) >= np.array(before) - 1e-7)
                before = (now[0], now[1])
                values[0, right] -= 1
                values[0, flip] += 1


@pytest.mark.parametrize("correction", ["none", "holm", "benjamini-hochberg"])
@pytest.mark.parametrize(
    "rule",
    [
        {"metric": "negative_flip_rate", "max": 0.05},
        {"metric": "accuracy_gain", "min": -0.03},
        {"metric": "relative_negative_flip_rate", "max": 0.25},
    ],
)
def test_more_flips_never_give_a_better_verdict(rule: dict[str, Any], correction: str) -> None:
    rng = np.random.default_rng(5)
    order = {"pass": 0, "inconclusive": 1, "fail": 2}
    negative, right = rng.integers(0, 8, size=3), rng.integers(60, 200, size=3)
    found = []
    for _ in range(5):
        groups = {
            str(i): Flips(both_right=int(r - k), negative=int(k), wrong_same=30)
            for i, (r, k) in enumerate(zip(right, negative, strict=True))
        }
        verdict = judged(groups, {**rule, "by": "group", "correction": correction})
        found.append(order[verdict.verdict])
        negative = np.minimum(negative + rng.integers(0, 25, size=3), right)
    assert found == sorted(found)
    assert found[-1] == 2


FLIP_METRICS = (
    *("negative_flip_rate", "accuracy_gain", "negative_flip_impact", "churn", "churn_correct"),
    *("backward_trust_compatibility", "backward_error_compatibility", "error_rate_new"),
    "relative_negative_flip_rate",
)


@pytest.mark.parametrize("name", FLIP_METRICS)
@pytest.mark.parametrize("confidence", [0.5, 0.95, 1 - 0.05 / 1000])
def test_one_more_flip_never_gives_a_better_end_in_any_small_table(
    name: str, confidence: float
) -> None:
    layout, metric = StatisticsLayout(has_target=True), METRICS[name]
    # The first two cells are samples that stay right, and negative flips.
    cells = ("both_right", "negative_flip", "positive_flip", "wrong_same", "wrong_different")
    columns = [layout.columns[cell] for cell in cells]
    one_more = np.array([-1, 1, 0, 0, 0])
    sign = -1 if metric.better == "higher" else 1
    for n in (1, 2, 4, 7):
        tables = [t for t in itertools.product(range(n + 1), repeat=5) if sum(t) == n and t[0]]
        ends = []
        for table in (np.array(tables), np.array(tables) + one_more):
            values = np.zeros((len(table), len(layout.names)))
            values[:, columns] = table
            counts = FlipCounts(layout, values)
            ends.append(np.array([metric.value(counts), *intervals(metric, counts, confidence)]))
        before, after = ends
        assert not (np.isnan(after) & ~np.isnan(before)).any()
        # The upper end of the relative rate can fall by 0.1 %, as docs/gate.md says.
        slack = 1e-3 if name == "relative_negative_flip_rate" else 1e-9
        assert not (sign * (after - before) < -slack * np.abs(before) - 1e-12).any()


# -- many rules ----------------------------------------------------------------------------------


def test_holm_over_rules_spends_alpha_once() -> None:
    p = [np.array([0.001]), np.array([0.002, 0.9]), np.array([0.02]), np.array([math.nan])]
    assert rule_alphas(p, "holm", 0.06) == pytest.approx([0.02, 0.06, 0.03, 0.06])
    # A rule with a group that has not failed keeps its share of alpha.
    p[2] = np.array([0.04])
    assert rule_alphas(p, "holm", 0.06) == pytest.approx([0.02, 0.03, 0.03, 0.03])
    p[2] = np.array([0.02])
    assert rule_alphas(p, "benjamini-hochberg", 0.06) == pytest.approx([0.06] * 4)
    assert rule_alphas(p[2:], "benjamini-hochberg", 0.06) == pytest.approx([0.06] * 2)
    assert rule_alphas(p, "none", 0.06) == [0.06] * 4
    assert rule_alphas(p[3:], "holm", 0.06) == [0.06]


SIX_RULES = [{"metric": "negative_flip_rate", "max": 0.02 + i / 1e6} for i in range(6)]


@pytest.mark.parametrize("correction", ["holm", "benjamini-hochberg"])
def test_a_corrections_makes_only_failing_harder(correction: str) -> None:
    document = {"rule": [*SIX_RULES, {"metric": "churn", "max": 0.02, "judge": "point"}]}
    old, new = update(with_flips(1000, 31))
    result = compare(old=old, new=new)
    plain, corrected = (
        check(result, Policy.from_dict({**document, **more}))
        for more in ({}, {"correction": correction})
    )
    assert {rule.verdict for rule in plain.rules} == {"fail"}
    found = parsed(corrected.to_json())
    assert found["correction"] == correction
    assert [row.get("correction") for row in found["rules"]] == [correction] * 6 + [None]
    # With six equal p values Holm needs one of alpha / 6, Benjamini and Hochberg one of alpha.
    expected = "inconclusive" if correction == "holm" else "fail"
    assert {rule.verdict for rule in corrected.rules[:6]} == {expected}
    assert corrected.rules[6].verdict == "fail"
    for before, after in zip(plain.rules[:6], corrected.rules[:6], strict=True):
        (one,), (two,) = before.judgements, after.judgements
        assert two.low <= one.low
        assert two.high == one.high


def test_a_corrections_is_told_only_where_there_are_several() -> None:
    result = compare(**dict(zip(("old", "new"), update(with_flips(1000, 5)), strict=True)))
    for rules, told in (([NFR_2], False), ([NFR_2, NFR_2], True)):
        verdict = check(result, Policy.from_dict({"correction": "holm", "rule": rules}))
        assert ("number of rules" in corrections(verdict)) is told


def test_a_rule_over_groups_takes_the_correction_of_its_policy() -> None:
    groups = {f"g{k}": with_flips(400, k) for k in (0, 8, 20, 31, 32, 60)}
    old, new = update(groups)
    result = compare(old=old, new=new, by=["group"])
    rule = {"metric": "negative_flip_rate", "by": "group", "max": 0.05}
    own, taken = (
        check(result, Policy.from_dict(document)).rules[0].judgements
        for document in (
            {"rule": [{**rule, "correction": "holm"}]},
            {"rule": [rule], "correction": "holm"},
        )
    )
    assert [(j.group, j.verdict, j.low) for j in own] == [
        (j.group, j.verdict, j.low) for j in taken
    ]
    for document in ({"rule": [{**rule, "correction": "holm"}]}, {"rule": [rule, NFR_2]}):
        verdict = check(result, Policy.from_dict({"correction": "holm", **document}))
        assert "for the number of groups of group (Holm" in corrections(verdict)
        assert {row["correction"] for row in verdict.as_dict()["rules"]} == {"holm"}


@pytest.mark.parametrize(
    ("rule", "over_rules", "told"),
    [
        ({"correction": "holm"}, "none", "Holm's correction"),
        ({}, "holm", "Holm's correction"),
        ({"correction": "holm"}, "benjamini-hochberg", "Holm's correction"),
        ({}, "none", None),
        ({"judge": "point"}, "none", None),
    ],
)
def test_a_correction_over_groups_is_told_wherever_it_comes_from(
    rule: dict[str, Any], over_rules: str, told: str | None
) -> None:
    old, new = update({"a": with_flips(400, 8), "b": with_flips(400, 20)})
    over_groups = {"metric": "negative_flip_rate", "by": "group", "max": 0.05, **rule}
    policy = Policy.from_dict({"rule": [over_groups], "correction": over_rules})
    said = corrections(check(compare(old=old, new=new, by=["group"]), policy))
    wanted = (
        f"Failing by negative_flip_rate is corrected for the number of groups of group ({told})."
    )
    assert said == (wanted if told else "")


# -- flips over none -----------------------------------------------------------------------------


def test_flips_against_a_control_without_any_are_no_pass() -> None:
    n = 2000
    target = np.zeros(n, dtype=int)
    old, control = (
        Predictions.from_arrays(labels=target, targets=target, name=name)
        for name in ("old", "control")
    )
    flips = [
        compare(
            old=old,
            new=Predictions.from_arrays(labels=(np.arange(n) < k).astype(int), targets=target),
            control=control,
        )
        for k in (0, 1000)
    ]
    rule = policy({"metric": "churn_ratio", "max": 1.5, "judge": "point"})
    none, many = (only(check(result, rule)) for result in flips)
    assert (none.verdict, many.verdict) == ("inconclusive", "fail")
    row = parsed(check(flips[1], rule).to_json())["rules"][0]
    assert row["value"] is None
    assert row["reason"] == "no control has any flip, so the ratio is infinite"
    judgement = only(check(flips[1], policy({"metric": "churn_ratio", "max": 1.5})))
    assert judgement.verdict == "fail"
    assert judgement.low > 100
    assert math.isinf(judgement.high)


# -- clusters ------------------------------------------------------------------------------------


def test_rows_that_belong_together_widen_the_interval() -> None:
    """Ten rows a user, all alike: the evidence is that of the users, not of the rows."""
    users = 200
    rng = np.random.default_rng(3)
    flipped = np.repeat(rng.random(users) < 0.05, 10)
    target = np.zeros(users * 10, dtype=int)
    old = Predictions.from_arrays(
        labels=target, targets=target, slices={"user": np.repeat(np.arange(users), 10)}
    )
    new = Predictions.from_arrays(labels=flipped.astype(int), targets=target)
    rule = policy({"metric": "negative_flip_rate", "max": float(flipped.mean()) + 0.015})
    alone, together = (
        only(check(compare(old=old, new=new, cluster=cluster), rule)) for cluster in (None, "user")
    )
    assert alone.value == together.value == flipped.mean()
    # Variance is ten times as large, so the interval is about √10 times as wide.
    ratio = (together.high - together.low) / (alone.high - alone.low)
    assert 2.6 < ratio < 4.0
    assert (alone.verdict, together.verdict) == ("pass", "inconclusive")


# -- two retrains of one model -------------------------------------------------------------------


def test_an_update_that_changes_nothing_is_seldom_called_a_regression() -> None:
    rng = np.random.default_rng(11)
    n, pairs, failed, passed = 2000, 300, 0, 0
    rule = policy({"metric": "accuracy_gain", "min": -0.02})
    for _ in range(pairs):
        # One model's chance to be right on each sample; two trainings draw from it.
        chance = rng.beta(6, 1.5, size=n)
        target = np.zeros(n, dtype=np.int64)
        old, new = (
            Predictions.from_arrays(
                labels=(rng.random(n) > chance).astype(np.int64), targets=target
            )
            for _ in range(2)
        )
        verdict = check(compare(old=old, new=new), rule).verdict
        failed += verdict == "fail"
        passed += verdict == "pass"
    assert failed <= 0.05 * pairs
    # And not because nothing is ever decided.
    assert passed >= 0.2 * pairs


# -- pinned samples ------------------------------------------------------------------------------


def pinned_policy(folder: Path, name: str, ids: list[str], *, header: str = "id") -> Policy:
    path = folder / name
    table = pl.DataFrame({header: ids}, schema={header: pl.String})
    if name.endswith(".txt"):
        path.write_text("\n".join(ids) + "\n", encoding="utf-8")
    elif name.endswith(".csv"):
        table.write_csv(path)
    elif name.endswith(".tsv"):
        table.write_csv(path, separator="\t")
    elif name.endswith(".jsonl"):
        table.write_ndjson(path)
    elif name.endswith(".parquet"):
        table.write_parquet(path)
    return Policy.from_dict({"pinned": {"ids": name}}, folder=folder)


# s0, s1 stay right; s2, s3 flip; s4 was wrong and is right; s5, s6 are wrong in both.
SIX = Flips(both_right=2, negative=2, positive=1, wrong_same=1, wrong_different=1)
FORMATS = ["pins.txt", "pins.csv", "pins.tsv", "pins.jsonl", "pins.parquet"]


@pytest.mark.parametrize("name", FORMATS)
def test_a_pinned_sample_that_flips_fails(name: str, tmp_path: Path) -> None:
    old, new = update(SIX)
    verdict = check(
        compare(old=old, new=new), pinned_policy(tmp_path, name, ["s0", "s3", "s5", "s2"])
    )
    assert verdict.verdict == "fail"
    assert verdict.pinned is not None
    assert sorted(verdict.pinned.flipped) == ["s2", "s3"]
    (row,) = verdict.as_dict()["rules"]
    assert row["metric"] == "pinned"
    assert (row["value"], row["n"], row["verdict"]) == (2, 4, "fail")
    assert sorted(row["flipped"]) == ["s2", "s3"]


@pytest.mark.parametrize("name", FORMATS)
def test_what_old_already_got_wrong_is_no_flip(name: str, tmp_path: Path) -> None:
    old, new = update(SIX)
    pins = pinned_policy(tmp_path, name, ["s0", "s1", "s4", "s5", "s6"])
    verdict = check(compare(old=old, new=new), pins)
    assert verdict.verdict == "pass"
    assert verdict.pinned is not None
    assert (verdict.pinned.n, verdict.pinned.flipped) == (5, ())


def test_a_pinned_flip_outweighs_rules_that_hold(tmp_path: Path) -> None:
    (tmp_path / "pins.txt").write_text("s998\n", encoding="utf-8")
    old, new = update(Flips(both_right=998, negative=2))
    document = {"rule": [NFR_2], "pinned": {"ids": "pins.txt"}}
    verdict = check(compare(old=old, new=new), Policy.from_dict(document, folder=tmp_path))
    assert verdict.rules[0].verdict == "pass"
    assert verdict.verdict == "fail"


def test_numbers_as_ids_are_pinned_by_their_text(tmp_path: Path) -> None:
    target = np.zeros(10, dtype=int)
    labels = np.arange(10) // 8
    old = Predictions.from_arrays(labels=target, targets=target, ids=np.arange(10))
    new = Predictions.from_arrays(labels=labels, targets=target, ids=np.arange(10))
    for name in ("pins.txt", "pins.csv", "pins.jsonl"):
        path = tmp_path / name
        path.write_text(
            {"pins.txt": "7\n8\n", "pins.csv": "id\n7\n8\n", "pins.jsonl": '{"id":7}\n{"id":8}\n'}[
                name
            ],
            encoding="utf-8",
        )
        pins = Policy.from_dict({"pinned": {"ids": name}}, folder=tmp_path)
        verdict = check(compare(old=old, new=new), pins)
        assert verdict.pinned is not None
        assert verdict.pinned.flipped == ("8",)


@pytest.mark.parametrize("name", ["pins.txt", "pins.csv"])
@pytest.mark.parametrize(
    ("ids", "pins"),
    [
        (["1.0", "2.0"], ["1.0", "2.0"]),
        (["1.0", "2.0"], ["2"]),
        ([1, 2], ["2.0"]),
        # Not all of these are numbers, so each is as written, also where a file pins one number.
        (["x", "2.0"], ["2.0"]),
        ([False, True], ["True"]),
        ([False, True], ["true"]),
    ],
    ids=str,
)
def test_pinned_ids_are_read_as_ids_are(
    ids: list[Any], pins: list[str], name: str, tmp_path: Path
) -> None:
    old = Predictions.from_arrays(labels=["a", "a"], targets=["a", "a"], ids=ids)
    new = Predictions.from_arrays(labels=["a", "b"], ids=ids)
    verdict = check(compare(old=old, new=new), pinned_policy(tmp_path, name, pins))
    assert verdict.pinned is not None
    assert (verdict.pinned.n, len(verdict.pinned.flipped)) == (len(pins), 1)


def test_pinned_truth_values_are_the_texts_of_the_test_set(tmp_path: Path) -> None:
    old = Predictions.from_arrays(labels=["a", "a"], targets=["a", "a"], ids=["False", "True"])
    new = Predictions.from_arrays(labels=["a", "b"], ids=["False", "True"])
    (tmp_path / "pins.jsonl").write_text('{"id": true}\n')
    pins = Policy.from_dict({"pinned": {"ids": "pins.jsonl"}}, folder=tmp_path)
    assert check(compare(old=old, new=new), pins).verdict == "fail"


@pytest.mark.parametrize(
    ("name", "ids", "words"),
    [
        ("pins.csv", ["s0", "s77"], "'s77'"),
        ("pins.csv", ["s1", "s0", "s1"], "pins id 's1' more than once; list each sample once."),
        ("pins.txt", [], "pins no sample"),
        ("pins.csv", [], "pins no sample"),
        ("absent.csv.", [], "does not exist"),
        ("pins.npz", None, "cannot be read as NPZ"),
        ("pins.xml", None, "no format known"),
    ],
)
def test_pins_that_mean_nothing_are_refused(
    name: str, ids: list[str] | None, words: str, tmp_path: Path
) -> None:
    old, new = update(SIX)
    if ids is None:
        (tmp_path / name).write_bytes(b"x")
    pins = pinned_policy(tmp_path, name, ids or [])
    with pytest.raises(PolicyError) as refused:
        check(compare(old=old, new=new), pins)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_pins_without_a_column_of_ids_are_refused(tmp_path: Path) -> None:
    old, new = update(SIX)
    pins = pinned_policy(tmp_path, "pins.csv", ["s0"], header="sample")
    with pytest.raises(PolicyError, match=r"no column 'id'.*'sample'"):
        check(compare(old=old, new=new), pins)


def test_a_damaged_file_of_pins_is_refused(tmp_path: Path) -> None:
    old, new = update(SIX)
    (tmp_path / "pins.parquet").write_bytes(b"PAR1 and then nothing")
    pins = Policy.from_dict({"pinned": {"ids": "pins.parquet"}}, folder=tmp_path)
    with pytest.raises(PolicyError, match="cannot be read"):
        check(compare(old=old, new=new), pins)


def test_a_folder_of_pins_is_refused(tmp_path: Path) -> None:
    old, new = update(SIX)
    (tmp_path / "pins").mkdir()
    pins = Policy.from_dict({"pinned": {"ids": "pins"}}, folder=tmp_path)
    with pytest.raises(PolicyError, match="is a folder, not a file"):
        check(compare(old=old, new=new), pins)


def test_pins_need_ids_and_targets(tmp_path: Path) -> None:
    pins = pinned_policy(tmp_path, "pins.txt", ["s0"])
    old, new = update(SIX, ids=False)
    with pytest.raises(PolicyError, match="has no ids"):
        check(compare(old=old, new=new), pins)
    old, new = update(SIX, targets=False)
    with pytest.raises(PolicyError, match="needs a target column"):
        check(compare(old=old, new=new), pins)


def test_a_pinned_sample_without_target_that_changed_is_refused(tmp_path: Path) -> None:
    old, new = update(Flips(both_right=1, unlabelled_same=1, unlabelled_different=1))
    with pytest.raises(PolicyError, match=r"'s2'.*no target"):
        check(compare(old=old, new=new), pinned_policy(tmp_path, "pins.txt", ["s0", "s2"]))
    # Its label is the same in both, so whatever is true, it did not flip.
    verdict = check(compare(old=old, new=new), pinned_policy(tmp_path, "pins.txt", ["s0", "s1"]))
    assert verdict.verdict == "pass"


def test_a_pinned_sample_that_was_dropped_is_refused(tmp_path: Path) -> None:
    old = Predictions.from_arrays(labels=[0, 0], targets=[0, 0], ids=["a", "b"])
    new = Predictions.from_arrays(labels=[0], targets=[0], ids=["a"])
    result = compare(old=old, new=new, on_missing="drop")
    assert check(result, pinned_policy(tmp_path, "pins.txt", ["a"])).verdict == "pass"
    with pytest.raises(PolicyError, match="'b'"):
        check(result, pinned_policy(tmp_path, "pins.txt", ["a", "b"]))


# -- JSON ----------------------------------------------------------------------------------------

ROW = {"metric", "by", "group", "limit", "value", "low", "high", "n", "verdict"}
CELLS = {"both_right", "negative_flip", "positive_flip", "wrong_same", "wrong_different"}
# Whatever else the documents hold: keys may be added, and each addition is a decision.
EXTRA_ROW = {
    "judge",
    "correction",
    "samples_needed_even",
    "samples_needed_90",
    "reason",
    "flipped",
}
EXTRA_VERDICT = {"policy", "confidence", "correction"}
EXTRA_COMPARISON = {"significance", "controls", "noise_floor", "cluster", "notes"}


def parsed(text: str) -> Any:
    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is no JSON")

    return json.loads(text, parse_constant=refuse)


def scored_update() -> tuple[Predictions, Predictions, list[Predictions]]:
    rng = np.random.default_rng(5)
    n = 600
    target = rng.integers(0, 3, n)
    slices = {"site": rng.choice(["north", "south"], n), "user": rng.integers(0, 40, n)}
    shared = rng.normal(size=(n, 3)) + 2 * np.eye(3)[target]
    old, new, *controls = (
        Predictions.from_arrays(
            logits=shared + rng.normal(size=(n, 3)),
            targets=target,
            ids=np.arange(n),
            slices=slices,
            name=name,
        )
        for name in ("old", "new", "first", "second")
    )
    return old, new, controls


def test_the_comparison_has_the_documented_shape() -> None:
    old, new, controls = scored_update()
    result = compare(
        old=old, new=new, by=["target", "site"], control=controls, cluster="user", confidence=0.9
    )
    document = parsed(result.to_json())
    named = {"schema", "old", "new", "n", "confidence", "counts", "rows", "metrics", "by"}
    assert named <= set(document)
    assert set(document) - named <= EXTRA_COMPARISON
    assert document["schema"] == "flipguard.comparison/1"
    assert (document["old"], document["new"]) == ("old", "new")
    assert (document["n"], document["confidence"]) == (600, 0.9)
    assert document["rows"] == {
        "matched": 600,
        "only_old": 0,
        "only_new": 0,
        "not_in_control": 0,
    }
    assert set(document["by"]) == {"target", "site"}
    assert set(document["by"]["target"]) == {"0", "1", "2"}
    assert set(document["by"]["site"]) == {"north", "south"}
    wholes = [document, *document["by"]["target"].values(), *document["by"]["site"].values()]
    for whole in wholes:
        assert set(whole["counts"]) == CELLS
        assert sum(whole["counts"].values()) == whole["n"]
        assert set(whole["metrics"]) == set(METRICS)
        for name, estimate in whole["metrics"].items():
            assert set(estimate) == {"value", "low", "high", "n"}, name
    for column in ("target", "site"):
        for cell in CELLS:
            parts = document["by"][column].values()
            assert sum(part["counts"][cell] for part in parts) == document["counts"][cell]
    assert document["metrics"]["negative_flip_rate"]["value"] == pytest.approx(
        document["counts"]["negative_flip"] / 600
    )


RATES = {name for name in METRICS if name.endswith("_rate") and not name.startswith("relative")} | {
    "error_rate_old",
    "error_rate_new",
    "negative_flip_impact",
    "churn",
    "churn_correct",
    "churn_incorrect",
    "wrong_to_wrong",
    "backward_trust_compatibility",
    "backward_error_compatibility",
    "expected_calibration_error_old",
    "expected_calibration_error_new",
    "margin_old",
    "margin_new",
    "mcnemar_p",
}


def test_rates_are_between_0_and_1() -> None:
    old, new, controls = scored_update()
    document = compare(old=old, new=new, control=controls, by=["target"]).as_dict()
    for whole in (document, *document["by"]["target"].values()):
        for name in RATES:
            estimate = whole["metrics"][name]
            ends = [estimate["value"], estimate["low"], estimate["high"]]
            assert all(0 <= end <= 1 for end in ends if end is not None), (name, ends)
            if name != "mcnemar_p":
                assert estimate["low"] <= estimate["high"]
        gain = whole["metrics"]["accuracy_gain"]
        assert -1 <= gain["low"] <= gain["value"] <= gain["high"] <= 1


@pytest.mark.parametrize("both_right", [0, 1, 4])
def test_few_samples_give_null_never_nan_or_0(both_right: int) -> None:
    for negative, positive, same, different in itertools.product([0, 2], repeat=4):
        flips = Flips(
            both_right=both_right,
            negative=negative,
            positive=positive,
            wrong_same=same,
            wrong_different=different,
        )
        if not flips.n:
            continue
        old, new = update(flips)
        metrics = parsed(measured(old=old, new=new, controls=[new, old]).to_json())["metrics"]
        right_old = both_right + negative
        wrong_new = negative + same + different
        assert (metrics["churn_correct"]["value"] is None) == (right_old == 0)
        assert (metrics["negative_flip_impact"]["value"] is None) == (wrong_new == 0)
        expected = right_old == 0 or wrong_new == 0
        assert (metrics["relative_negative_flip_rate"]["value"] is None) == expected
        assert metrics["surrogate_churn"] == {"value": None, "low": None, "high": None, "n": 0}


def test_without_targets_the_counts_of_right_and_wrong_are_null() -> None:
    old, new = update(with_flips(10, 2), targets=False)
    document = parsed(compare(old=old, new=new).to_json())
    assert {document["counts"][cell] for cell in CELLS} == {None}
    assert document["metrics"]["negative_flip_rate"]["value"] is None
    assert document["metrics"]["churn"]["value"] == 0.2


def test_the_verdict_has_the_documented_shape(tmp_path: Path) -> None:
    (tmp_path / "pins.txt").write_text("3\n", encoding="utf-8")
    old, new, _ = scored_update()
    document = {
        "confidence": 0.9,
        "rule": [
            {"metric": "negative_flip_rate", "max": 0.9},
            {"metric": "accuracy_gain", "min": -0.02, "max": 0.02},
            {"metric": "churn", "by": "site", "max": 0.3, "correction": "holm", "min_n": 10},
            {"metric": "mcnemar_p", "by": "target", "min": 0.01, "judge": "point", "min_n": 10**6},
        ],
        "pinned": {"ids": "pins.txt"},
    }
    rules = Policy.from_dict(document, folder=tmp_path)
    result = compare(old=old, new=new, by=rules.by, confidence=rules.confidence)
    verdict = check(result, rules)
    found = parsed(verdict.to_json())
    named = {"schema", "verdict", "rules", "comparison"}
    assert named <= set(found)
    assert set(found) - named <= EXTRA_VERDICT
    assert found["schema"] == "flipguard.verdict/1"
    assert found["verdict"] == verdict.verdict
    assert found["comparison"] == parsed(result.to_json())
    for row in found["rules"]:
        assert set(row) >= ROW
        assert set(row) - ROW <= EXTRA_ROW
        assert row["verdict"] in ("pass", "fail", "inconclusive", "not_judged")
        assert row["limit"]
        assert set(row["limit"]) <= {"min", "max"}
    told = [(row["metric"], row["by"], row["group"]) for row in found["rules"]]
    assert told[:2] == [("negative_flip_rate", None, None), ("accuracy_gain", None, None)]
    assert sorted(told[2:4]) == [("churn", "site", "north"), ("churn", "site", "south")]
    assert sorted(told[4:7]) == [("mcnemar_p", "target", str(i)) for i in range(3)]
    assert told[7:] == [("pinned", None, None)]
    assert found["rules"][1]["limit"] == {"min": -0.02, "max": 0.02}
    whole = found["comparison"]["metrics"]["negative_flip_rate"]
    assert {key: found["rules"][0][key] for key in ("value", "low", "high", "n")} == whole


@pytest.mark.parametrize("correction", ["holm", "benjamini-hochberg", "none"])
def test_the_comparison_tells_how_it_corrected(correction: Any) -> None:
    old, new, _ = scored_update()
    result = compare(old=old, new=new, by=["site"], correction=correction)
    significance = parsed(result.to_json())["significance"]["site"]
    assert significance["correction"] == correction
    assert set(significance["groups"]) == {"north", "south"}


def test_names_that_are_no_plain_text_survive_json() -> None:
    hostile = 'a"\\\n\x1b[31m\u202eé😀'
    old, new = update({hostile: with_flips(20, 1), "": with_flips(20, 1)})
    document = parsed(compare(old=old, new=new, by=["group"]).to_json())
    # The empty text is a missing value.
    assert set(document["by"]["group"]) == {hostile, "(missing)"}
