"""The public names, and what importing them costs."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys

import polars as pl
import pytest

import flipguard

# What the documentation shows, and what it takes to use that: exceptions, types, the table.
PUBLIC = {
    "METRICS",
    "Comparison",
    "Estimate",
    "FlipCounts",
    "FlipguardError",
    "InputError",
    "MissingExtraError",
    "Policy",
    "PolicyError",
    "Predictions",
    "Verdict",
    "__version__",
    "check",
    "compare",
    "compare_models",
    "ensemble",
    "matrix",
    "read_predictions",
    "write_predictions",
    "write_report",
}


def test_the_public_names_are_listed():
    assert set(flipguard.__all__) == PUBLIC
    assert len(flipguard.__all__) == len(PUBLIC)
    assert dir(flipguard) == sorted(PUBLIC)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_is_there(name):
    assert getattr(flipguard, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'flipguard' has no attribute 'comparisons'"):
        flipguard.comparisons  # noqa: B018


def test_old_and_new_cannot_be_swapped_by_position():
    parameters = inspect.signature(flipguard.compare).parameters
    for name in ("old", "new"):
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default is inspect.Parameter.empty
    table = flipguard.Predictions.from_arrays(labels=[1])
    with pytest.raises(TypeError):
        flipguard.compare(table, table)


def test_no_public_function_takes_old_or_new_by_position():
    for name in flipguard.__all__:
        value = getattr(flipguard, name)
        if not inspect.isfunction(value):
            continue
        for parameter in inspect.signature(value).parameters.values():
            if parameter.name in ("old", "new"):
                assert parameter.kind is inspect.Parameter.KEYWORD_ONLY, name


@pytest.mark.parametrize("name", ["InputError", "PolicyError", "MissingExtraError"])
def test_one_except_catches_all(name):
    assert issubclass(getattr(flipguard, name), flipguard.FlipguardError)


def compared():
    target = [0] * 100
    old = flipguard.Predictions.from_arrays(labels=[1] * 10 + [0] * 90, targets=target)
    new = flipguard.Predictions.from_arrays(
        labels=[0] * 3 + [1] * 9 + [0] * 88, targets=target, name="new"
    )
    return flipguard.compare(old=old, new=new)


def judged():
    rule = {"metric": "negative_flip_rate", "max": 0.001}
    return flipguard.check(compared(), flipguard.Policy.from_dict({"rule": [rule]}))


def loaded_by(code: str) -> set[str]:
    """The top-level packages that a fresh interpreter has loaded after some code."""
    program = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return {name.split(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


HEAVY = {"torch", "matplotlib", "polars", "pyarrow", "scipy", "numpy", "pandas", "pyspark"} | {
    "jinja2",
    "markupsafe",
    "vl_convert",
    "PIL",
}


def test_importing_the_package_loads_nothing_heavy():
    assert loaded_by("import flipguard") & HEAVY == set()


def test_comparing_loads_neither_torch_nor_plotting():
    code = (
        "import flipguard as fg\n"
        "table = fg.Predictions.from_arrays(labels=[1, 2], targets=[1, 1])\n"
        "fg.compare(old=table, new=table, by=['target']).to_json()"
    )
    loaded = loaded_by(code)
    assert "polars" in loaded
    assert loaded & {"torch", "matplotlib", "pandas", "pyspark"} == set()
    assert loaded & {"jinja2", "markupsafe", "vl_convert", "PIL"} == set()


@pytest.mark.parametrize("make", [compared, judged])
def test_printing_a_result_shows_what_the_command_line_shows(make):
    shown = make()
    text = str(shown)
    assert text == shown.summary()
    assert "fixes 3 of 100 samples and breaks 2" in " ".join(text.split())
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "\x1b" not in text
    assert shown.to_markdown().startswith("### ")
    assert "<table" in shown._repr_html_()
    assert len(repr(shown)) < 200


def test_a_printed_verdict_begins_with_the_verdict():
    assert judged().summary().startswith("FAIL  1 rule failed, even allowing for sampling error: ")
    assert "inconclusive" not in judged()._repr_html_()


def test_the_summary_of_a_comparison_can_show_all_metrics():
    assert "mcnemar_p" not in compared().summary()
    assert "mcnemar_p" in compared().summary(all_metrics=True)


def test_unknown_metrics_columns_and_groups_are_told_with_those_there_are():
    table = flipguard.Predictions.from_arrays(
        labels=[0, 1, 1], targets=[0, 1, 0], slices={"site": ["north", "south", "south"]}
    )
    result = flipguard.compare(old=table, new=table, by="site")
    for ask, told in (
        (lambda: result.by["sight"], "There are no groups by 'sight' in this comparison; did you "),
        (lambda: result.by["target"], "comparison; the columns are 'site'."),
        (
            lambda: result.by["site"]["nroth"],
            "There is no group 'nroth' of column 'site'; did you mean north or south? "
            "the groups are 'north', 'south'.",
        ),
        (lambda: result["chrun"], "There is no metric 'chrun'; did you mean churn? the metrics "),
        (lambda: result.by["site"]["north"]["chrun"], "There is no metric 'chrun'; did you mean "),
        (
            lambda: flipguard.compare(old=table, new=table).by["site"],
            "There are no groups by 'site', because this comparison has no group-by columns; "
            "compare with by=['site'].",
        ),
    ):
        with pytest.raises(flipguard.InputError) as refused:
            ask()
        assert told in str(refused.value)
        assert isinstance(refused.value, KeyError)
    assert ("sight" in result.by, result.by.get("sight")) == (False, None)
    assert "chrun" not in result.whole


def test_predictions_are_described_in_one_line():
    names = ["cat", "dog"]
    table = flipguard.Predictions.from_arrays(
        ids=[1, 2], targets=names, logits=[[1.0, 2.0]] * 2, class_names=names, name="v1.csv"
    )
    assert repr(table) == "<Predictions 'v1.csv': id, target, logits of 2 classes>"
    frame = {"key": [1, 2], "truth": [0, 1], "label": [0, 0]}
    renamed = flipguard.Predictions.from_frame(pl.DataFrame(frame), id="key", target="truth")
    assert repr(renamed) == "<Predictions 'predictions': id in 'key', target in 'truth', label>"
