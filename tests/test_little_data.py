"""A pass that rests on little data says how large a loss it may have missed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flipguard import Comparison, Policy, Predictions, Verdict, check, compare, write_report
from flipguard.render.words import explanation, little_data
from tests.effort import tries

# Right and right, negative flip, positive flip, wrong and wrong.
Cells = tuple[int, int, int, int]


def comparison(groups: dict[str, Cells], times: int = 1) -> Comparison:
    old, new, names = [], [], []
    for name, cells in groups.items():
        for cell, was, now in zip(cells, (1, 1, 0, 0), (1, 0, 1, 0), strict=True):
            old += [was] * cell * times
            new += [now] * cell * times
            names += [name] * cell * times
    ids = range(len(old))
    return compare(
        old=Predictions.from_arrays(ids=ids, correct=old, slices={"g": names}),
        new=Predictions.from_arrays(ids=ids, correct=new),
        by="g",
    )


def judged(result: Comparison, **rule: Any) -> Verdict:
    return check(result, Policy.from_dict({"rule": [rule]}))


def told(verdict: Verdict) -> list[float]:
    (rule,) = verdict.rules
    return [j.not_excluded for j in rule.judgements if j.not_excluded is not None]


def sentence(verdict: Verdict) -> str:
    (rule,) = verdict.rules
    return little_data(rule) or explanation(rule.judgements[0])


RULES = st.one_of(
    st.fixed_dictionaries(
        {
            "metric": st.sampled_from(["negative_flip_rate", "error_rate_new", "flip_rate"]),
            "max": st.sampled_from([0.0, 0.005, 0.05, 0.3]),
        }
    ),
    st.fixed_dictionaries(
        {
            "metric": st.just("backward_trust_compatibility"),
            "min": st.sampled_from([0.7, 0.95, 0.99]),
        }
    ),
    st.fixed_dictionaries(
        {"metric": st.just("accuracy_gain"), "min": st.sampled_from([-0.2, -0.03, 0.0])}
    ),
)
CELLS = st.tuples(st.integers(1, 80), st.integers(0, 3), st.integers(0, 5), st.integers(0, 9)).map(
    lambda cells: (3 * cells[0], *cells[1:])
)


@settings(max_examples=tries(150), deadline=None)
@given(
    CELLS,
    CELLS,
    RULES,
    st.sampled_from(["point", "interval"]),
    st.booleans(),
    st.sampled_from([0, 40, 200]),
    st.integers(2, 6),
)
def test_more_data_never_makes_it_appear(
    first: Cells, second: Cells, rule: dict[str, Any], judge: str, by: bool, least: int, times: int
) -> None:
    rule = {**rule, "judge": judge}
    if by:
        rule |= {"by": "g", "min_n": least}
    groups = {"a": first, "b": second}
    few = judged(comparison(groups), **rule)
    assume(few.verdict == "pass")
    more = judged(comparison(groups, times), **rule)
    assert len(told(few)) <= 1
    if more.verdict == "pass" and not told(few):
        assert not told(more)
    assert len(told(more)) <= 1


@pytest.mark.parametrize("n", [30, 60, 200, 1_000, 3_000])
def test_no_flip_in_n_samples(n: int) -> None:
    """A rule that looks at the value alone misses about three flips in n, the rule of three."""
    verdict = judged(
        comparison({"a": (n, 0, 0, 0)}), metric="negative_flip_rate", max=0.0, judge="point"
    )
    (end,) = told(verdict)
    assert 3.0 / n <= end <= 4.0 / n
    found = sentence(verdict)
    assert found.startswith(f"with {n:,} samples, a value up to ")
    assert found.endswith(" cannot be excluded; judged by its value alone")


def test_enough_data_says_nothing() -> None:
    rule = {"metric": "negative_flip_rate", "max": 0.0, "judge": "point"}
    assert not told(judged(comparison({"a": (5_000, 0, 0, 0)}), **rule))
    # The limit allows ten points, and chance hides fewer than five.
    loose = {"metric": "negative_flip_rate", "max": 0.1}
    assert told(judged(comparison({"a": (60, 0, 0, 0)}), **loose))
    assert not told(judged(comparison({"a": (90, 0, 0, 0)}), **loose))


def test_only_a_loss_is_told() -> None:
    gain = {"metric": "accuracy_gain", "min": -0.05}
    better = judged(comparison({"a": (100, 2, 20, 0)}), **gain)
    assert (better.verdict, told(better)) == ("pass", [])
    verdict = judged(comparison({"a": (200, 2, 3, 0)}), **gain)
    (end,) = told(verdict)
    assert end == verdict.rules[0].judgements[0].low
    text = f"with 205 samples, a loss of {-100 * end:.2f} points cannot be excluded"
    assert sentence(verdict) == text


def test_a_fail_and_an_open_rule_say_nothing() -> None:
    rule = {"metric": "negative_flip_rate", "max": 0.01}
    for cells in ((50, 50, 0, 0), (100, 1, 0, 0)):
        verdict = judged(comparison({"a": cells}), **rule)
        assert verdict.verdict != "pass"
        assert not told(verdict)


def test_groups_that_were_not_judged() -> None:
    groups = {"big": (5_000, 5, 5, 50), "stop": (12, 0, 0, 0), "go": (30, 0, 0, 0)}
    rule = {"metric": "negative_flip_rate", "max": 0.05, "by": "g", "min_n": 50}
    verdict = judged(comparison(groups), **rule)
    assert verdict.verdict == "pass"
    (end,) = told(verdict)
    assert end == verdict.comparison.by["g"]["stop"]["negative_flip_rate"].high
    text = "group 'stop' was not judged: with 12 samples, a value up to 26.46 % cannot be excluded"
    assert sentence(verdict) == text


def test_every_output_says_it_once(tmp_path: Any) -> None:
    groups = {"a|b": (100, 0, 0, 0), "c": (90, 0, 0, 0)}
    result = comparison(groups)
    for rule in (
        {"metric": "negative_flip_rate", "max": 0.05, "by": "g", "judge": "point"},
        {"metric": "negative_flip_rate", "max": 0.0, "judge": "point"},
    ):
        verdict = judged(result, **rule)
        (end,) = told(verdict)
        rows = json.loads(verdict.to_json())["rules"]
        assert [row["not_excluded"] for row in rows if "not_excluded" in row] == [end]
        page = tmp_path / "r.html"
        write_report(result, page, verdict=verdict)
        for text in (
            verdict.summary(),
            verdict.to_markdown(),
            verdict._repr_html_(),
            page.read_text(),
        ):
            # The terminal breaks the sentence in its column.
            assert text.count("excluded") == 1


def test_metrics_of_scores_have_no_sentence() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(20, 3))
    side = Predictions.from_arrays(logits=logits, targets=logits.argmax(1))
    verdict = judged(
        compare(old=side, new=side), metric="logit_displacement", max=1.0, judge="point"
    )
    assert verdict.verdict == "pass"
    assert not told(verdict)
