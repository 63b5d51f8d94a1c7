"""What counts, and what is said about it: pairs once, claims that fail, studies that do not fit."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from tests.studies.made_up import as_in_the_paper

from flipguard.studies.collect import differences
from flipguard.studies.plan import plan_study
from flipguard.studies.read_study import studies, study_of
from flipguard.studies.results import Result, Row, as_document, read_result
from flipguard.studies.scales import scale_of
from flipguard.studies.sentences import verdict_lines
from flipguard.studies.show import PairTally, overview_line, pairs_of, title_of

COMMITTED = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "studies"
FINE_TUNED = ("pct.table2b", "elodi.table2", "elodi.table4")


def committed(scale: str) -> list[Result]:
    paths = [COMMITTED / f"{study}.{scale}.json" for study in studies()]
    return [
        read_result(path, study_of(path.name.rsplit(".", 2)[0])) for path in paths if path.exists()
    ]


@pytest.mark.parametrize("study", FINE_TUNED)
def test_what_is_trained_from_scratch_is_not_called_fine_tuned(study: str) -> None:
    result = read_result(COMMITTED / f"{study}.mnist1d.json", study_of(study))
    title = title_of(result)
    assert "from scratch" in title
    assert "fine-tuned" not in title
    assert "BERT" not in title
    assert "fine-tuned" in result.study.title
    assert result.agreement().pairs == ()
    assert as_document(result)["agreement"]["clear"] == 0
    assert any(
        line.startswith("Agreement: not counted. The paper's models are fine-tuned")
        for line in verdict_lines(result)
    )
    assert PairTally.of([result]).clear == 0


def test_at_a_scale_with_pretrained_weights_the_same_study_counts() -> None:
    result = dataclasses.replace(as_in_the_paper("elodi.table4"), scale="agnews")
    assert title_of(result) == f"elodi.table4 at agnews: {study_of('elodi.table4').title}"
    assert len(result.agreement().pairs) == 4


def test_no_other_study_of_a_paper_says_that_it_fine_tunes() -> None:
    """A title that says so needs a title for scales that train from scratch."""
    lacking = [
        study.id
        for study in studies().values()
        if any(word in study.title for word in ("fine-tuned", "BERT")) and not study.from_scratch
    ]
    assert lacking == []


def test_a_comparison_that_two_tables_share_is_counted_once() -> None:
    one = as_in_the_paper("churn.table2")
    rows = tuple(dataclasses.replace(row) for row in one.rows)
    other = dataclasses.replace(one, rows=rows)
    alone, both = PairTally.of([one]), PairTally.of([one, other])
    assert alone.clear == both.clear > 20
    assert (alone.repeats, both.repeats) == (0, both.clear)
    assert f"{both.clear} more pairs repeat a comparison" in overview_line([one, other])
    # At another scale, or with another value in one seed, it is another comparison.
    assert PairTally.of([one, dataclasses.replace(other, scale="cifar10")]).repeats == 0
    assert [len(pairs) for pairs in pairs_of([one, other])] == [alone.clear, 0]


@pytest.mark.parametrize(("scale", "repeats"), [("mnist1d", 64), ("cifar10", 33), ("cifar100", 2)])
def test_how_many_pairs_of_the_committed_tables_are_repeats(scale: str, repeats: int) -> None:
    """Counted another way: by the paper's and our values of both rows."""
    results = committed(scale)
    asked, found = set(), 0
    for result in results:
        mine = set()
        for pair in result.agreement().pairs:
            sides = frozenset(
                (
                    result.line(row).paper.cells[pair.metric].value,  # type: ignore[union-attr]
                    str(row.values[pair.metric]),
                )
                for row in (result.rows[pair.first], result.rows[pair.second])
            )
            mine.add((pair.metric, sides))
            found += (pair.metric, sides) in asked
        asked |= mine
    assert PairTally.of(results).repeats == found == repeats


def test_claims_that_fail_are_among_those_that_are_counted() -> None:
    failing = {
        (result.study.id, says)
        for result in committed("mnist1d")
        for says, found in result.claims()
        if found.verdict == "disagree"
    }
    assert {study for study, _ in failing} == {
        *("pct.figure5", "elodi.table1", "elodi.table6", "elodi.table10", "elodi.figure6"),
        "churn.figure3",
    }
    assert ("elodi.table1", "ELODI (K = 10) beats earlier methods in relative NFR.") in failing
    tally = PairTally.of(committed("mnist1d"))
    assert tally.fails == len(failing)
    told = f"{tally.holds} hold, {tally.fails} do not, and"
    assert told in overview_line(committed("mnist1d"))


def test_a_claim_about_early_epochs_is_about_the_curve() -> None:
    study = study_of("pct.figure5")
    metric = "relative_negative_flip_rate"

    def row(place: int, rates: list[float | None]) -> Row:
        curves = {"test": {metric: [[rate, 0.2, 0.1, 9.0] for rate in rates]}}
        return Row(place=place, values={metric: (0.5,) * len(rates)}, curves=curves)

    early = next(claim for claim in study.claims if claim.lower.first)
    for first, second, verdict in (
        ([0.9, 0.91, 0.92], [0.5, 0.51, 0.52], "agree"),
        ([0.5, 0.51, 0.52], [0.9, 0.91, 0.92], "disagree"),
        ([0.9, None, 0.92], [0.5, 0.51, 0.52], "agree"),
    ):
        rows = (row(0, first), row(1, second))
        result = Result(
            study=study, scale="mnist1d", given=(), seeds=(0, 1, 2), rows=rows, facts={}
        )
        judged = dict(result.claims())[early.says]
        assert judged.verdict == verdict


def test_a_table_about_a_gpu_says_where_it_was_run() -> None:
    result = read_result(COMMITTED / "churn.table6.mnist1d.json", study_of("churn.table6"))
    told = "\n".join(verdict_lines(result))
    assert "no two of the rows" not in told
    assert "The paper separates 2 pairs of these rows clearly, but in each pair this device" in told
    assert (
        "about the randomness of a GPU. This result was made on a CPU, so it shows nothing" in told
    )
    on_gpu = dataclasses.replace(result, facts={"device": {"kind": "cuda", "name": "a GPU"}})
    assert "This result was made on" not in "\n".join(verdict_lines(on_gpu))


PAPERS_SIZE = {
    **dict.fromkeys((one for one in studies() if one.startswith(("pct", "elodi"))), "imagenet"),
    "pct.table2b": "inaturalist",
    "elodi.table2": "inaturalist",
    "churn.table1": "cifar10-450",
}


@pytest.mark.parametrize("study", sorted(PAPERS_SIZE.keys() - {"elodi.table4"}))
def test_something_differs_from_the_paper_at_its_own_scale(study: str) -> None:
    scale = scale_of(PAPERS_SIZE[study])
    plan = plan_study(study_of(study), scale, seeds=[0], out=Path(), machine={})
    found = differences(plan)
    assert "recipe: the last incomplete batch of every epoch is dropped" in found
    assert "recipe: weight decay leaves out biases and norms" not in found
    # Where the paper names them: see PyTorch's example.
    assert any(one.startswith("inputs: ") for one in found) == study.startswith("churn")
    # The equations are as printed.
    assert not any("in the paper" in one for one in found)


@pytest.mark.parametrize(
    ("study", "scale", "told"),
    [
        ("pct.figure2", "imagenet", "models: the text names AlexNet, ResNet-152 and DenseNet;"),
        ("pct.figure2", "imagenet", "recipe of torchvision:alexnet: learning_rate = 0.01"),
        ("elodi.table8", "imagenet", "models: the paper does not say which DLA"),
        ("elodi.table1", "imagenet", "bu-cr: holds out 10% of the training samples"),
        ("elodi.table2", "inaturalist", "recipe: the paper follows PCT's protocol"),
        ("churn.table2", "inaturalist", "recipe: the paper states none for iNaturalist"),
        ("churn.table2", "svhn", "recipe: the paper states none for SVHN"),
        ("churn.table2", "cifar10-450", "hardware: the paper trains on TPUs"),
        ("churn.table2", "mnist1d", "skl: floor = 1e-07, 0.0 in the paper"),
    ],
)
def test_what_differs_is_named(study: str, scale: str, told: str) -> None:
    plan = plan_study(study_of(study), scale_of(scale), seeds=[0], out=Path(), machine={})
    assert any(one.startswith(told) for one in differences(plan))


def test_the_first_classes_differ_from_the_paper_where_a_scale_takes_them() -> None:
    def named(scale: str) -> list[str]:
        plan = plan_study(
            study_of("pct.table5b"), scale_of(scale), seeds=[0], out=Path(), machine={}
        )
        return [one for one in differences(plan) if one.startswith("the old model's classes")]

    assert named("mnist1d") == [
        "the old model's classes: the first 5, where PCT draws them at random"
    ]
    assert named("imagenet") == []


def test_what_the_user_changes_differs() -> None:
    """Regularisers of all classes, and a decay of matrices alone."""
    told = ["recipe.decay_biases_and_norms=false", "options.skl.floor=1e-7", "data=cifar10"]
    scale = scale_of("imagenet").set([*told, "machine.precision=bf16-mixed"])
    plan = plan_study(study_of("churn.table2"), scale, seeds=[0], out=Path(), machine={})
    found = differences(plan)
    assert "recipe: weight decay leaves out biases and norms" in found
    assert "data: cifar10 with 1,000 classes for ImageNet" in found
    assert "precision: bf16-mixed" in found
    assert any(one.startswith("skl: floor = 1e-07, 0.0 in the paper") for one in found)
    top = [(node.config.method, node.config.options.get("k")) for node in plan.nodes]
    assert {("entropy", 10), ("skl", 10), ("codistill-skl+entropy", 10)} <= set(top)


def test_every_table_with_bu_cr_says_that_it_learns_from_fewer_samples() -> None:
    with_it = [
        study
        for study in studies().values()
        if any("bu-cr" in (line.old.method, line.new.method) for line in study.lines)
    ]
    assert with_it
    for study in with_it:
        assert any("BU-CR" in note and "10 % fewer samples" in note for note in study.notes)
    document = json.loads((COMMITTED / "elodi.table1.mnist1d.json").read_text())
    assert "bu-cr: holds out 10% of the training samples" in document["differences"]
