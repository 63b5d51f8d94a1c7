"""Output with one control, with several, and with controls that never flip."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from flipguard import Policy, Predictions, check, compare, read_predictions
from flipguard.comparison import Comparison
from flipguard.policy import Rule
from flipguard.render.markdown import comparison_markdown
from flipguard.render.terminal import verdict_parts
from flipguard.render.words import what_controls_show, what_ratios_say

N = 200


def model(*flips: int) -> Predictions:
    labels = np.zeros(N, dtype=int)
    labels[:20] = 1
    labels[list(flips)] = 1 - labels[list(flips)]
    return Predictions.from_arrays(labels=labels, targets=np.zeros(N, dtype=int))


def update(new: Predictions, *controls: Predictions, by: tuple[str, ...] = ()) -> Comparison:
    return compare(old=model(), new=new, control=controls, by=by)


def floor(result: Comparison, metric: str = "negative_flip_rate") -> tuple[float, float, str]:
    found = next(f for f in result.noise_floor if f.metric == metric)
    return found.low, found.high, found.verdict


def test_two_controls_with_one_flip_each_do_not_condemn_two_flips() -> None:
    result = update(model(50, 51), model(60), model(70))
    for metric in ("negative_flip_rate", "churn", "accuracy_gain"):
        low, high, verdict = floor(result, metric)
        assert low < high
        assert verdict == "within"
    assert floor(update(model(*range(50, 70)), model(60), model(70)))[2] == "above"


def test_two_controls_without_a_flip_do_not_condemn_one() -> None:
    low, high, verdict = floor(update(model(50), model(), model()))
    assert low == 0 < high
    assert verdict == "within"


def test_how_little_few_controls_show_is_told() -> None:
    two = update(model(50, 51), model(60), model(70))
    rate = two.noise_floor[0]
    assert rate.shows == pytest.approx(rate.high - 1 / N)
    assert 0 < rate.five_show < rate.shows
    told = what_controls_show(two)
    seen, five = told.split("; with five controls that vary as much: ")
    assert seen.startswith("With 2 controls, the smallest changes that can be told from noise, in ")
    for floor in two.noise_floor:
        assert f"{floor.metric} {100 * floor.shows:.2f}" in seen
        assert f"{floor.metric} {100 * floor.five_show:.2f}" in five
    assert told in comparison_markdown(two).replace("\\", "")
    found = json.loads(two.to_json())["noise_floor"]["negative_flip_rate"]
    assert found["shows"] == pytest.approx(rate.shows)
    assert what_controls_show(update(model(50), *(model(60 + i) for i in range(5)))) == ""
    assert what_controls_show(update(model(50), model(60))) == ""


def written(folder: Path, **flips: list[int]) -> list[Predictions]:
    for name, flipped in flips.items():
        lines = [f"{i},0,{int((i < 20) != (i in flipped))}\n" for i in range(N)]
        (folder / f"{name}.csv").write_text("id,target,label\n" + "".join(lines))
    return [read_predictions(folder / f"{name}.csv") for name in flips]


def test_a_control_that_is_given_twice_counts_once(tmp_path: Path) -> None:
    old, new, control, copy, other = written(
        tmp_path, old=[], new=[50], control=[60], copy=[60], other=[70]
    )
    once = compare(old=old, new=new, control=control)
    for again in (control, copy, read_predictions(tmp_path / ".." / tmp_path.name / "copy.csv")):
        twice = compare(old=old, new=new, control=[control, again])
        assert any("given more than once and counts once" in note for note in twice.notes)
        assert twice.controls == once.controls
        assert twice.noise_floor == ()
        assert twice["negative_flip_ratio"] == once["negative_flip_ratio"]
    three = compare(old=old, new=new, control=[control, other, copy])
    assert three.noise_floor == compare(old=old, new=new, control=[control, other]).noise_floor
    assert not any("more than once" in note for note in once.notes)


def test_another_column_of_the_same_file_is_another_control(tmp_path: Path) -> None:
    lines = [f"{i},0,{int(i < 20)},{int(i < 21)},{int(i < 22)}\n" for i in range(N)]
    (tmp_path / "all.csv").write_text("id,target,old,first,second\n" + "".join(lines))
    columns = ("old", "first", "second")
    old, first, second = (read_predictions(tmp_path / "all.csv", label=name) for name in columns)
    result = compare(old=old, new=first, control=[first, second])
    assert len(result.noise_floor) == 3


def test_old_or_new_as_a_control_is_told(tmp_path: Path) -> None:
    old, new = written(tmp_path, old=[], new=[50])
    for role, control in (("old", old), ("new", new)):
        told = compare(old=old, new=new, control=control).notes
        assert any(
            f"is the same file as {role}; give an untreated retrain" in note for note in told
        )


def test_controls_that_change_the_same_samples_count_as_one() -> None:
    same = update(model(50), model(60, 61), model(60, 61))
    assert any("change the same samples, so they count as one" in note for note in same.notes)
    once = update(model(50), model(60, 61))
    assert same.noise_floor == ()
    assert same["churn_ratio"] == once["churn_ratio"]
    assert len(same.controls) == 1
    differ = update(model(50), model(60, 61), model(60, 62))
    assert not any("same samples" in note for note in differ.notes)
    assert len(differ.noise_floor) == 3


@pytest.mark.parametrize("controls", [1, 2])
def test_a_ratio_to_controls_without_flips_is_infinite(controls: int) -> None:
    result = update(model(*range(20, 150)), *[model()] * controls)
    for name, flips in (("churn_ratio", "changed labels"), ("negative_flip_ratio", "negative")):
        ratio = result[name]
        assert ratio.is_defined
        assert ratio.value == ratio.high == math.inf
        assert 10 < ratio.low < 200
        found = json.loads(result.to_json())["metrics"][name]
        assert (found["value"], found["high"]) == (None, None)
        assert found["low"] == pytest.approx(ratio.low)
        assert any(f"{name} is infinite: new has 130 {flips}" in note for note in result.notes)
    assert "| `negative_flip_ratio` | ∞ | " in comparison_markdown(result)


def test_one_flip_against_none_is_told_in_the_singular() -> None:
    notes = update(model(20), model()).notes
    assert any("new has 1 negative flip, and no control has any" in note for note in notes)


def test_a_ratio_of_nothing_to_nothing_is_undefined() -> None:
    result = update(model(), model())
    assert math.isnan(result["negative_flip_ratio"].value)
    assert math.isnan(result["negative_flip_ratio"].high)
    assert not any("infinite" in note for note in result.notes)


def test_a_ratio_to_controls_without_flips_is_infinite_with_clusters_too() -> None:
    rows = {"labels": np.zeros(N, dtype=int), "targets": np.zeros(N, dtype=int)}
    old = Predictions.from_arrays(**rows, slices={"user": np.arange(N) // 5})
    new = Predictions.from_arrays(labels=(np.arange(N) % 2), targets=rows["targets"])
    control = Predictions.from_arrays(labels=rows["labels"])
    result = compare(old=old, new=new, control=control, cluster="user")
    ratio = result["negative_flip_ratio"]
    assert ratio.value == ratio.high == math.inf
    assert 1 < ratio.low < math.inf
    without = compare(old=old, new=old, control=control, cluster="user")["churn_ratio"]
    assert math.isnan(without.value)
    assert math.isnan(without.low)


def test_what_the_interval_of_a_ratio_is_about_is_told_next_to_it() -> None:
    one = update(model(*range(50, 70)), model(*range(60, 90)))
    assert what_ratios_say(one).startswith("Ratios to one control compare these two models")
    assert what_ratios_say(one) in comparison_markdown(one)
    two = update(model(*range(50, 70)), model(*range(60, 90)), model(*range(60, 100)))
    assert what_ratios_say(two).startswith("Intervals of ratios to 2 controls include ")
    assert what_ratios_say(update(model(50))) == ""


def test_a_ratio_to_two_controls_that_differ_is_wide() -> None:
    new, few, many = model(*range(20, 60)), model(*range(20, 50)), model(*range(20, 90))
    one = update(new, few)["negative_flip_ratio"]
    two = update(new, few, many)["negative_flip_ratio"]
    assert one.low > 1
    assert two.low < 0.5 < 2 < two.high


def test_controls_whose_range_covers_everything_are_said_to_show_nothing() -> None:
    apart = update(model(0), model(*range(N // 8)), model(*range(N // 8, N // 2)))
    assert (apart.noise_floor[0].low, apart.noise_floor[0].high) == (0.0, 1.0)
    assert what_controls_show(apart) == (
        "2 controls that differ this much cannot show any change; give more controls."
    )


def test_where_the_seeds_leave_a_ratio_open_more_controls_are_asked_for() -> None:
    policy = Policy(rules=(Rule(metric="negative_flip_ratio", max=2.0),))
    result = update(model(*range(20, 60)), model(*range(20, 50)), model(*range(20, 90)))
    ((judgement,),) = (rule.judgements for rule in check(result, policy).rules)
    assert judgement.verdict == "inconclusive"
    assert judgement.reason == (
        "no number of samples decides if the 2 controls differ as much as here; give more controls"
    )


def test_a_gate_on_a_ratio_tells_what_its_interval_is_about() -> None:
    policy = Policy(rules=(Rule(metric="negative_flip_ratio", max=2.0),))
    verdict = check(update(model(50), model(60)), policy)
    told = " ".join(str(getattr(part, "renderable", part)) for part in verdict_parts(verdict))
    assert "Ratios to one control compare these two models" in told


def test_large_ratios_and_high_confidences_are_written_in_full(tmp_path: Path) -> None:
    old, new, control = written(tmp_path, old=[], new=[50, 51], control=[50])
    result = compare(old=old, new=new, control=control, confidence=0.99999999)
    told = comparison_markdown(result)
    assert "99.999999 % intervals" in told
    assert result["churn_ratio"].high > 1e6
    assert f"{result['churn_ratio'].high:,.0f}" in told
