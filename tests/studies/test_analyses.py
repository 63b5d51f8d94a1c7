"""Figures that count samples: what is counted, of runs that were made up, and how it is shown."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from tests.studies.test_running import flipguard

from flipguard.errors import InputError
from flipguard.predictions.npz import write_npz
from flipguard.studies.analyses import ANALYSES, analyses_of
from flipguard.studies.analyses.displacement import drawn_norms, law_norms
from flipguard.studies.analyses.ranks import ranks_of_flips
from flipguard.studies.analyses.uncertainty import told_apart, uncertainty_of
from flipguard.studies.claims import read_claim
from flipguard.studies.judging import judged, spread_interval
from flipguard.studies.panels import matrices_of, panels_of
from flipguard.studies.planning import Plan, plan_of
from flipguard.studies.predictions import Predictions
from flipguard.studies.reading import read_study, study_of
from flipguard.studies.results import Result, Row, read_result, write_result
from flipguard.studies.scales import scale_of
from flipguard.studies.study import HISTOGRAMS

SAMPLES, CLASSES = 400, ["0", "1", "2", "3"]
SEEDS = (0, 1)


def said(logits: list[list[float]], targets: list[int]) -> Predictions:
    return Predictions(
        ids=np.arange(len(targets)),
        logits=np.asarray(logits, dtype=np.float32),
        targets=np.asarray(targets),
        class_names=("ant", "bee", "cat"),
    )


def written(folder: Path, seed: int, members: list[str] | None = None) -> None:
    """A run that only looks finished: what it said, and who its members are."""
    random = np.random.default_rng(seed)
    targets = np.arange(SAMPLES) % len(CLASSES)
    logits = random.normal(size=(SAMPLES, len(CLASSES))).astype(np.float32)
    logits[np.arange(SAMPLES), targets] += 1.0
    (folder / "predictions").mkdir(parents=True, exist_ok=True)
    write_npz(
        folder / "predictions" / "test.npz",
        ids=np.arange(SAMPLES),
        targets=targets,
        logits=logits,
        class_names=CLASSES,
    )
    document = {
        "schema": "flipguard.run/1",
        "status": "finished",
        "config": {},
        "data": {"class_names": CLASSES, "input_shape": [40]},
        "members": members or [],
    }
    (folder / "run.json").write_text(json.dumps(document))


def planned(id: str, out: Path) -> Plan:
    """The plan of a study whose runs all look finished."""
    plan = plan_of(
        study_of(id),
        scale_of("mnist1d"),
        seeds=SEEDS,
        out=out,
        machine={"device": "cpu"},
        most_members=4,
    )
    for number, node in enumerate(plan.nodes):
        members = [f"../members/{one.name}" for one in sorted(node.after)]
        written(node.folder, number, members)
    return plan


def result_of(plan: Plan, out: Path) -> Result:
    from flipguard.studies.collect import collected

    result = Result(
        study=plan.study,
        scale="mnist1d",
        given=(),
        seeds=SEEDS,
        rows=collected(plan),
        facts={"roles": {"small": "mlp:hidden=64"}},
    )
    path = out / "results" / f"{plan.study.id}.mnist1d.json"
    write_result(result, path)
    return read_result(path, plan.study)


def test_every_kind_of_histogram_has_a_name() -> None:
    assert set(ANALYSES) == set(HISTOGRAMS)


# -- what is counted -----------------------------------------------------------------------------


def test_the_rank_of_a_wrong_class_by_name() -> None:
    old = said([[3, 2, 1], [3, 1, 2], [3, 2, 1], [1, 3, 2]], [0, 0, 0, 0])
    new = said([[1, 3, 2], [1, 3, 2], [3, 2, 1], [1, 3, 2]], [0, 0, 0, 0])
    # The third is still right, and the fourth was wrong before.
    assert ranks_of_flips(old, new).tolist() == [2, 3]
    turned = Predictions(
        ids=new.ids,
        logits=new.logits[:, [2, 1, 0]],
        targets=2 - new.targets,
        class_names=("cat", "bee", "ant"),
    )
    assert ranks_of_flips(old, turned).tolist() == [2, 3]


def test_uncertainty_is_how_far_members_disagree(tmp_path: Path) -> None:
    for name, seed in (("members/a", 1), ("members/b", 1), ("members/c", 2)):
        written(tmp_path / name, seed)
    written(tmp_path / "alike", 3, ["../members/a", "../members/b"])
    written(tmp_path / "unlike", 3, ["../members/a", "../members/c"])
    ids, same = uncertainty_of(tmp_path / "alike")
    assert ids.tolist() == list(range(SAMPLES))
    assert same.max() == 0
    _, other = uncertainty_of(tmp_path / "unlike")
    assert 0 < other.mean() < other.max() <= 0.5


def test_how_well_flips_are_told_apart() -> None:
    values = np.array([0.1, 0.2, 0.2, 0.3])
    assert told_apart(values, np.array([False, False, False, True])) == 1.0
    assert told_apart(values, np.array([False, True, False, False])) == pytest.approx(0.5)
    assert np.isnan(told_apart(values, np.zeros(4, dtype=bool)))


def test_displacements_shrink_as_the_law_says() -> None:
    random = np.random.default_rng(0)
    pools = [random.normal(size=(200, 5)) for _ in range(2)]
    means = []
    for size in (1, 4, 16):
        drawn, law = drawn_norms(*pools, size, random), law_norms(*pools, size, random)
        assert drawn.mean() == pytest.approx(law.mean(), rel=0.05)
        means.append(drawn.mean())
    assert means[0] / means[1] == pytest.approx(2, rel=0.1)
    assert means[1] / means[2] == pytest.approx(2, rel=0.1)
    assert len(law_norms(pools[0][:1], pools[1][:1], 1, random)) == 1


# -- studies -------------------------------------------------------------------------------------


def test_flips_by_uncertainty(tmp_path: Path) -> None:
    plan = planned("pct.figure4", tmp_path)
    assert set(plan.judges) == set(SEEDS)
    nodes = {node.folder: node for node in plan.nodes}
    for seed, judge in plan.judges.items():
        assert nodes[judge].config.method == "ensemble"
        # Neither old nor new is one of its members.
        compared = {u.old for u in plan.updates} | {u.new for u in plan.updates}
        assert not nodes[judge].after & compared
        assert nodes[judge].seed == seed
    result = result_of(plan, tmp_path)
    for row in result.rows:
        counts = row.histogram["counts"]
        flips = [sum(one) for one in counts["negative flips"]]
        others = [sum(one) for one in counts["other samples"]]
        assert [a + b for a, b in zip(flips, others, strict=True)] == [SAMPLES] * len(SEEDS)
        rates = [flip / SAMPLES for flip in flips]
        assert row.values["negative_flip_rate"] == pytest.approx(rates)
        halves = zip(row.values["flip_rate_sure"], row.values["flip_rate_unsure"], strict=True)
        assert [(a + b) / 2 for a, b in halves] == pytest.approx(rates)
    first, second = panels_of(result)
    assert [curve.label for curve in first.curves] == ["other samples", "negative flips"]
    assert [curve.label for curve in second.curves] == ["untreated", "FD-LM"]


def test_ranks_of_flips(tmp_path: Path) -> None:
    result = result_of(planned("elodi.figure4", tmp_path), tmp_path)
    for row in result.rows:
        for counts, flips in zip(
            row.histogram["counts"]["negative flips"],
            row.values["negative_flip_rate"],
            strict=True,
        ):
            assert sum(counts) == round(SAMPLES * flips)
            assert counts[0] == 0  # old was right: the wrong class was not first
        assert row.values["flip_rank_by_chance"] == (3.0, 3.0)
    (panel,) = panels_of(result)
    assert [name for name, _ in panel.bins()] == ["1", "2", "3", "4"]


def test_displacement_by_size(tmp_path: Path) -> None:
    result = result_of(planned("elodi.figure5", tmp_path), tmp_path)
    shown = [row for row in result.rows if row.histogram]
    assert [row.histogram["size"] for row in shown] == [1, 2, 4] * 2
    assert {sum(row.histogram["counts"]["drawn"][0]) for row in shown} == {2000}
    assert [len(panel.curves) for panel in panels_of(result)] == [6, 6]


def test_confidence_of_three_lines(tmp_path: Path) -> None:
    plan = planned("churn.figure2", tmp_path)
    result = result_of(plan, tmp_path)
    shown = [result.line(row).new.method for row in result.rows if row.histogram]
    assert sorted(shown) == ["codistill-skl", "entropy", "none"]
    (panel,) = panels_of(result)
    assert all(curve.values.sum() == pytest.approx(100) for curve in panel.curves)
    assert set(analyses_of(plan)) == set(plan.study.histogram.places)  # type: ignore[union-attr]


def test_every_two_models(tmp_path: Path) -> None:
    plan = planned("pct.figure2", tmp_path)
    assert len(plan.nodes) == len(SEEDS) * 2 * len(plan.study.matrix)
    result = result_of(plan, tmp_path)
    gained, flips = matrices_of(result)
    assert flips.values.shape == (6, 6)
    row = next(r for r in result.rows if result.line(r).pair == ("small", "weak"))
    assert flips.values[0, 3] == pytest.approx(100 * row.mean("negative_flip_rate"))
    at = 100 * (row.mean("error_rate_old") - row.mean("error_rate_new"))
    assert gained.values[0, 3] == pytest.approx(at)
    assert result.claims()[0][1] != "disagree"  # of two seeds, nothing can be said for sure


def test_ensembles_of_many_architectures_are_no_runs(tmp_path: Path) -> None:
    plan = planned("elodi.figure2", tmp_path)
    scale = scale_of("mnist1d")
    nodes = {node.folder: node for node in plan.nodes}
    many = [u for u in plan.updates if plan.study.lines[u.line].group == "many architectures"]
    assert len(many) == 3 * len(SEEDS)
    for update in many:
        size = plan.study.lines[update.line].x
        for side, role in ((update.old_parts, "many_weak"), (update.new_parts, "many_strong")):
            models = [nodes[folder].config.model for folder in side]
            assert len(set(models)) == len(models) == size
            # Every seed begins with another architecture.
            assert models[0] == scale.many[role][update.seed]
    result = result_of(plan, tmp_path)
    row = next(r for r in result.rows if result.line(r).group == "many architectures")
    assert len(row.values["negative_flip_rate"]) == len(SEEDS)


def test_both_sides_of_a_series_vary() -> None:
    for figure in ("pct.figure3", "elodi.figure2", "elodi.figure5"):
        for line in study_of(figure).lines:
            assert line.old.options["members"] == line.new.options["members"] == line.x
    alphas = [line for line in study_of("elodi.figure6").lines if line.group == "a"]
    assert all(line.old.options["alpha"] == line.x for line in alphas)


def test_a_calibrated_guide_of_many_architectures(tmp_path: Path) -> None:
    plan = planned("elodi.table8", tmp_path)
    nodes = {node.folder: node for node in plan.nodes}
    lines = {plan.study.lines[u.line].label: nodes[u.new].config for u in plan.updates}
    weak, strong, calibrated = (
        lines[f"All-diff-weak{mark} → All-diff-{other}{mark}"]
        for mark, other in (("", "weak"), ("", "strong"), ("‡", "strong"))
    )
    for config in (weak, strong, calibrated):
        models = [nodes[Path(folder)].config.model for folder in config.guides]
        assert len(set(models)) == len(models) == 4
    # Members that leave samples out to be calibrated on are others.
    assert not set(strong.guides) & set(calibrated.guides)
    assert {nodes[Path(f)].config.scope.samples for f in strong.guides} == {1.0}
    assert all(nodes[Path(f)].config.scope.samples < 1 for f in calibrated.guides)


# -- shown ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("id", "told"),
    [
        ("pct.figure4", "Untreated: flipped and other samples: samples"),
        ("elodi.figure4", "Where the wrong class of a flip stood in old: % of negative flips"),
        ("elodi.figure5", "How far one sample's logits move, two architectures: % of draws"),
        ("churn.figure2", "How sure new is of the test samples: % of test samples"),
        ("pct.figure2", "Accuracy gained, from old (down) to new (across), in percent"),
    ],
)
def test_it_is_shown_written_and_drawn(id: str, told: str, tmp_path: Path) -> None:
    result_of(planned(id, tmp_path), tmp_path)
    page, picture = tmp_path / "page.md", tmp_path / "picture.svg"
    done = flipguard(
        "show", id, "--out", str(tmp_path), "--markdown", str(page), "--plot", str(picture)
    )
    assert done.code == 0, done.err
    assert told in done.out
    assert f"**{told}**" in page.read_text()
    assert picture.stat().st_size > 5000
    # Tables stand apart from what is around them, else they would be none.
    blocks = [block for block in page.read_text().split("\n\n") if "|---" in block.replace(" ", "")]
    assert all(line.startswith("|") for block in blocks for line in block.strip().splitlines())


def test_a_result_without_histograms_is_still_shown(tmp_path: Path) -> None:
    """As one that was written before there were any."""
    study = study_of("elodi.figure5")
    rows = tuple(
        Row(place=place, values={"logit_displacement": (1.0, 2.0)})
        for place in range(len(study.lines))
    )
    result = Result(study=study, scale="mnist1d", given=(), seeds=SEEDS, rows=rows, facts={})
    write_result(result, tmp_path / "results" / "elodi.figure5.mnist1d.json")
    done = flipguard(
        "show", "elodi.figure5", "--out", str(tmp_path), "--plot", str(tmp_path / "p.png")
    )
    assert done.code == 0, done.err
    assert panels_of(result) == []


# -- claims --------------------------------------------------------------------------------------

LINES = study_of("elodi.figure2").lines
ONE, TWO = ({"group": group, "x": 4} for group in ("one architecture", "two architectures"))


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ({"lower": ONE, "than": TWO}, "agree"),
        ({"lower": TWO, "than": ONE}, "disagree"),
        ({"lower": 0, "than": {"group": "one architecture"}}, "agree"),
        ({"lower": 1.5, "than": {"group": "one architecture"}}, "disagree"),
        ({"lower": {"group": "one architecture"}, "than": 9}, "agree"),
        ({"lower": TWO, "than": {**TWO, "metric": "churn"}}, "agree"),
        # Of values that lie further apart, and of such that lie alike.
        ({"of": "spread", "lower": ONE, "than": TWO}, "agree"),
        ({"of": "spread", "lower": ONE, "than": ONE}, "undecided"),
    ],
)
def test_claims(claim: dict[str, object], verdict: str) -> None:
    read = read_claim({"says": "so", "metric": "negative_flip_rate", **claim}, LINES, "x.toml")

    def values(place: int, metric: str) -> list[float]:
        wide = LINES[place].group != "one architecture"
        values = [3.0, 2.0, 4.0, 1.5, 4.5, 2.5] if wide else [1.0, 1.1, 0.9, 1.05, 0.95, 1.02]
        return [10 * value for value in values] if metric == "churn" else values

    assert judged(read, values) == verdict
    assert judged(read, lambda *_: ()) == "undecided"


def test_two_seeds_say_nothing_of_a_spread() -> None:
    claim = {"says": "so", "metric": "churn", "of": "spread", "lower": ONE, "than": TWO}
    read = read_claim(claim, LINES, "x.toml")

    def values(place: int, _: str) -> list[float]:
        return [0.3, 0.4] if LINES[place].group != "one architecture" else [0.30, 0.31]

    assert judged(read, values) == "undecided"
    low, high = spread_interval([1, 2, 3, 4, 5], [1, 2, 3, 4, 5])
    assert (low, high) == pytest.approx((-math.log(9.6045), math.log(9.6045)), rel=1e-4)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('histogram = { of = "colours" }', "`histogram` to be of uncertainty, rank"),
        ('histogram = { of = "rank", judge = "nobody" }', "`judge` to be one of `models`"),
        ('histogram = { of = "rank", lines = [{ label = "x" }] }', "a line with {'label': 'x'}"),
        ('[[claims]]\nsays = "a"\nmetric = "churn"\nlower = {}\nthan = {}', "one line with {}"),
    ],
)
def test_a_malformed_figure_is_refused(text: str, says: str) -> None:
    series = '\n[[series]]\nlabel = "{x}"\nx = [1, 2]\nnew = { role = "small" }\n'
    with pytest.raises(InputError) as refused:
        read_study(text + series, id="elodi.figure4")
    assert says in str(refused.value)
