"""Figures that count samples: what is counted, of runs that were made up, and how it is shown."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from tests.studies.test_running import flipguard

from flipguard.archives import write_npz
from flipguard.errors import InputError
from flipguard.runs.config import Config, as_dict
from flipguard.studies.analyses import (
    ANALYSES,
    analyses_of,
    histogram,
    law_between,
    law_within,
    norms_between,
    norms_within,
    ranks_of_flips,
    uncertainty_of,
)
from flipguard.studies.claims import check_claim, read_claim, spread_interval
from flipguard.studies.collect import differences
from flipguard.studies.measure import RunLogits
from flipguard.studies.panels import matrices_of, panels_of
from flipguard.studies.plan import StudyPlan, plan_study
from flipguard.studies.read_study import read_study, study_of
from flipguard.studies.results import Result, Row, read_result, write_result
from flipguard.studies.run_graph import first_of
from flipguard.studies.scales import scale_of
from flipguard.studies.sentences import verdict_lines
from flipguard.studies.study import HISTOGRAM_METRICS, HISTOGRAMS, ClaimSide

SAMPLES, CLASSES = 400, ["0", "1", "2", "3"]
SEEDS = (0, 1)


def said(logits: list[list[float]], targets: list[int]) -> RunLogits:
    return RunLogits(
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


def told(config: Config) -> str:
    """All that makes a run, but for the machine."""
    return json.dumps({k: v for k, v in as_dict(config).items() if k != "machine"}, sort_keys=True)


def planned(id: str, out: Path, seeds: tuple[int, ...] = SEEDS) -> StudyPlan:
    """The plan of a study whose runs all look finished."""
    plan = plan_study(
        study_of(id),
        scale_of("mnist1d"),
        seeds=seeds,
        out=out,
        machine={"device": "cpu"},
        most_members=4,
    )
    for number, node in enumerate(plan.nodes):
        members = [f"../members/{one.name}" for one in sorted(node.after)]
        written(node.folder, number, members)
    return plan


def result_of(plan: StudyPlan, out: Path) -> Result:
    from flipguard.studies.collect import collect_rows

    result = Result(
        study=plan.study,
        scale="mnist1d",
        given=(),
        seeds=plan.seeds,
        rows=collect_rows(plan),
        facts={"setting": {"data": "d", "epochs": 3, "models": {"small": "mlp:hidden=64"}}},
    )
    path = out / "results" / f"{plan.study.id}.mnist1d.json"
    write_result(result, path)
    return read_result(path, plan.study)


def test_every_kind_of_histogram_has_a_name() -> None:
    assert set(ANALYSES) == set(HISTOGRAMS) >= set(HISTOGRAM_METRICS)


# -- what is counted -----------------------------------------------------------------------------


def test_the_rank_of_a_wrong_class_by_name() -> None:
    old = said([[3, 2, 1], [3, 1, 2], [3, 2, 1], [1, 3, 2]], [0, 0, 0, 0])
    new = said([[1, 3, 2], [1, 3, 2], [3, 2, 1], [1, 3, 2]], [0, 0, 0, 0])
    # The third is still right, and the fourth was wrong before.
    assert ranks_of_flips(old, new).tolist() == [2, 3]
    turned = RunLogits(
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


@pytest.mark.parametrize("count", [16, 200])
@pytest.mark.parametrize("size", [1, 4, 8])
def test_displacements_are_as_the_law_says_also_of_few_models(count: int, size: int) -> None:
    """Half of a pool drawn without replacement varies by a factor of the root of two less."""
    for seed in range(5):
        random = np.random.default_rng(seed)
        old, new = (random.normal(size=(count, 5)) for _ in range(2))
        drawn = norms_between(old, new + 1.0, size, random)
        law = law_between(old, new + 1.0, size, random)
        # The mean of squares is exact, whatever the values' own law.
        assert (drawn**2).mean() == pytest.approx((law**2).mean(), rel=0.06)
        every = np.concatenate([old, new])
        drawn, law = norms_within(every, size, random), law_within(every, size, random)
        assert (drawn**2).mean() == pytest.approx((law**2).mean(), rel=0.06)
        expected = 2 * np.trace(np.cov(every.T)) / size
        assert (law**2).mean() == pytest.approx(expected, rel=0.06)


def test_two_ensembles_of_one_pool_have_no_member_in_common() -> None:
    pool = np.eye(4)  # of four models, two and two: each draw is as far as can be
    assert norms_within(pool, 2, np.random.default_rng(0)) == pytest.approx(1.0)


def test_what_lies_beyond_the_last_bin_is_said() -> None:
    edges = np.array([0.5, 1.5, 2.5])
    inside = histogram("rank", edges, {"a": [np.array([1, 2, 2])]})
    beyond = histogram("rank", edges, {"a": [np.array([1, 2, 2]), np.array([1, 7])]})
    assert (inside["open"], inside["counts"]) == (False, {"a": [[1, 2]]})
    assert (beyond["open"], beyond["counts"]) == (True, {"a": [[1, 2], [1, 1]]})


def test_a_last_bin_that_is_open_is_called_so() -> None:
    def names(id: str, edges: list[float], is_open: bool) -> list[str]:
        study = study_of(id)
        counts = [[1] * (len(edges) - 1)]
        of = study.histogram.of  # type: ignore[union-attr]
        shown = {"of": of, "edges": edges, "counts": {"negative flips": counts}, "open": is_open}
        row = Row(place=0, values={}, histogram=shown)
        result = Result(study=study, scale="x", given=(), seeds=(0,), rows=(row,), facts={})
        return [name for name, _ in panels_of(result)[0].bins()]

    assert names("elodi.figure4", [0.5, 1.5, 2.5], False) == ["1", "2"]
    assert names("elodi.figure4", [0.5, 1.5, 2.5], True) == ["1", "2 and more"]
    assert names("elodi.figure5", [0.0, 1.5, 3.0], False)[-1] == "1.50 to 3.00"
    assert names("elodi.figure5", [0.0, 1.5, 3.0], True)[-1] == "from 1.50 on"


# -- studies -------------------------------------------------------------------------------------


def test_flips_by_uncertainty(tmp_path: Path) -> None:
    plan = planned("pct.figure4", tmp_path)
    assert set(plan.judges) == set(SEEDS)
    nodes = {node.folder: node for node in plan.nodes}
    for seed, judge in plan.judges.items():
        assert nodes[judge].config.method == "ensemble"
        # Neither old nor new is one of its members, under whatever name.
        compared = {folder for u in plan.updates for folder in (u.old, u.new)}
        members = [nodes[folder].config for folder in nodes[judge].after]
        others = [nodes[folder].config for folder in compared]
        assert len(members) == 4
        assert not {told(one) for one in members} & {told(one) for one in others}
        assert not {one.seeds.seed for one in members} & {one.seeds.seed for one in others}
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
    plain, treated = result.rows
    assert "flips_left_sure" not in plain.values  # all of its own would be no news
    for half in ("sure", "unsure"):
        pairs = zip(
            treated.values[f"flip_rate_{half}"], plain.values[f"flip_rate_{half}"], strict=True
        )
        assert treated.values[f"flips_left_{half}"] == pytest.approx([a / b for a, b in pairs])
    apart = np.subtract(treated.values["flips_left_unsure"], treated.values["flips_left_sure"])
    assert treated.values["flips_left_apart"] == pytest.approx(apart)
    assert "who judges, ensemble: members = 4 for 16" in differences(plan)
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


def test_a_size_without_enough_models_is_left_out(tmp_path: Path) -> None:
    plan = planned("elodi.figure5", tmp_path, seeds=(0,))  # four models a side
    result = result_of(plan, tmp_path)
    sizes = [row.histogram.get("size") for row in result.rows if row.values]
    assert sizes == [1, 2, None] * 2
    noted = [line for line in verdict_lines(result) if "not in the histogram" in line]
    assert noted == [
        f"Note: {group}, m = 4: not in the histogram, since there are 4 models a side to draw 4 of."
        for group in ("one architecture", "two architectures")
    ]


def test_margins_of_three_lines(tmp_path: Path) -> None:
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
    (claim,) = (found for _, found in result.claims())
    assert (claim.judged, claim.of) == (36, 36)
    assert claim.verdict in ("agree", "undecided")  # two seeds rarely say it for sure

    def verdict(flips: dict[tuple[str, str], tuple[float, ...]]) -> str:
        rows = tuple(
            Row(place=r.place, values={"negative_flip_rate": flips.get(pair, (0.1, 0.11))})
            for r in result.rows
            if (pair := result.line(r).pair) is not None
        )
        told = verdict_lines(dataclasses.replace(result, rows=rows))
        return next(line for line in told if "above zero" in line).rpartition(". ")[2]

    assert verdict({}) == "Here it holds."
    assert verdict({("weak", "large"): (0.0, 0.0)}) == "Here it does not hold."
    assert verdict({("weak", "large"): (0.0, 0.2)}) == "Here it is undecided."
    few = {line.pair: () for line in plan.study.lines if "weak" in (line.pair or ())}
    assert verdict(few) == (  # type: ignore[arg-type]
        "Here it holds, judged by the 25 of 36 lines that were run."
    )


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
            assert models[0] == scale.many[role][first_of(8, update.seed, role == "many_weak")]
            # Members share neither the order of samples nor how these are augmented.
            seeds = [nodes[folder].config.seeds for folder in side]
            for source in ("init", "order", "augment"):
                assert len({one.of(source) for one in seeds}) == size  # type: ignore[arg-type]
    result = result_of(plan, tmp_path)
    row = next(r for r in result.rows if result.line(r).group == "many architectures")
    assert len(row.values["negative_flip_rate"]) == len(SEEDS)


def test_old_and_new_of_many_architectures_do_not_turn_together() -> None:
    firsts = [(first_of(8, seed, 1), first_of(8, seed, 0)) for seed in range(64)]
    assert len(set(firsts)) == 64  # every first old one meets every first new one
    for side in (0, 1):
        assert {pair[side] for pair in firsts[:8]} == set(range(8))


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


def test_references_of_one_kind_are_one_ensemble(tmp_path: Path) -> None:
    plan = planned("elodi.table8", tmp_path)
    nodes = {node.folder: node.config for node in plan.nodes}
    shared = set()
    for update in plan.updates:
        line, old, new = plan.study.lines[update.line], nodes[update.old], nodes[update.new]
        references = line.label.split(" → ")
        if set(old.guides) & set(new.guides):
            assert old.guides == new.guides
            assert old.model != new.model
            shared.add(line.label)
        elif len(references) == 2:
            assert references[0] != references[1]
    assert len(shared) == 3


def test_errors_of_fewer_samples_are_no_part_of_the_agreement() -> None:
    study = study_of("elodi.table8")
    rows = tuple(
        Row(place=place, values=dict.fromkeys(study.metrics, (0.1 + 0.01 * place, 0.101)))
        for place in range(len(study.lines))
    )
    result = Result(study=study, scale="x", given=(), seeds=SEEDS, rows=rows, facts={})
    (place,) = (i for i, line in enumerate(study.lines) if "‡" in line.label)
    pairs = result.agreement().pairs
    metrics = {pair.metric for pair in pairs if place in (pair.first, pair.second)}
    assert metrics == {"negative_flip_rate"}
    assert {pair.metric for pair in pairs} == set(study.metrics)


# -- shown ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("id", "told"),
    [
        ("pct.figure4", "Untreated: flipped and other samples: samples"),
        ("elodi.figure4", "Where the wrong class of a flip stood in old: % of negative flips"),
        ("elodi.figure5", "How far one sample's logits move, two architectures: % of draws"),
        ("churn.figure2", "Margin of the new model on the test samples: % of test samples"),
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

CLAIM = '[[claims]]\nsays = "a"\nmetric = "churn"\n'
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

    def values(place: int, side: ClaimSide) -> list[float]:
        wide = LINES[place].group != "one architecture"
        values = [3.0, 2.0, 4.0, 1.5, 4.5, 2.5] if wide else [1.0, 1.1, 0.9, 1.05, 0.95, 1.02]
        return [10 * value for value in values] if side.metric == "churn" else values

    assert check_claim(read, values).verdict == verdict
    assert check_claim(read, lambda *_: ()).verdict == "not run"


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.0, 0.0, 0.0], "disagree"),  # exactly at the number: not above it
        ([0.1, 0.1, 0.1], "agree"),
        ([0.0, 0.0, 0.1], "undecided"),
        ([0.0], "undecided"),
        ([math.nan, 0.10, 0.11], "agree"),
        ([math.nan, math.nan, 0.1], "undecided"),
    ],
)
def test_claims_against_a_number(values: list[float], verdict: str) -> None:
    claim = {"says": "so", "metric": "churn", "lower": 0, "than": ONE}
    assert check_claim(read_claim(claim, LINES, "x.toml"), lambda *_: values).verdict == verdict


def test_seeds_without_a_value_are_left_out_and_counted() -> None:
    study = study_of("elodi.figure4")
    values = {
        "flip_rank": [(math.nan, 2.0, 2.2, 2.1), (2.9, 3.0, 3.2, 3.1)],
        "flip_rank_by_chance": [(6.0,) * 4] * 2,
        "flip_second": [(math.nan, 0.5, 0.6, 0.7), (0.1,) * 4],
    }
    rows = tuple(
        Row(place=place, values={name: some[place] for name, some in values.items()})
        for place in (0, 1)
    )
    result = Result(study=study, scale="x", given=(), seeds=(0, 1, 2, 3), rows=rows, facts={})
    assert rows[0].mean("flip_rank") == pytest.approx(2.1)
    assert rows[0].error("flip_rank") == pytest.approx(0.1 / math.sqrt(3))
    assert [found.verdict for _, found in result.claims()] == ["agree", "disagree"]
    noted = [line for line in verdict_lines(result) if "left out of its mean" in line]
    assert noted == [
        "Note: single models: 1 of 4 seeds have no value of rank, second, and are left out of its "
        "mean and of claims."
    ]


def test_two_seeds_say_nothing_of_a_spread() -> None:
    claim = {"says": "so", "metric": "churn", "of": "spread", "lower": ONE, "than": TWO}
    read = read_claim(claim, LINES, "x.toml")

    def values(place: int, _: ClaimSide) -> list[float]:
        return [0.3, 0.4] if LINES[place].group != "one architecture" else [0.30, 0.31]

    assert check_claim(read, values).verdict == "undecided"
    low, high = spread_interval([1, 2, 3, 4, 5], [1, 2, 3, 4, 5])
    assert (low, high) == pytest.approx((-math.log(9.6045), math.log(9.6045)), rel=1e-4)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('histogram = { of = "colours" }', "`histogram` to be of uncertainty, rank"),
        ('histogram = { of = "rank", judge = "nobody" }', "`judge` to be one of `models`"),
        ('histogram = { of = "rank", lines = [{ label = "x" }] }', "a line with {'label': 'x'}"),
        (
            '[[claims]]\nsays = "a"\nmetric = "churn"\nlower = {}\nthan = {}',
            "as many lines on both sides",
        ),
        (f'{CLAIM}of = "mean"\nlower = 0\nthan = {{ x = 1 }}', "`of` of a claim to be 'spread'"),
        (f'{CLAIM}of = "spread"\nlower = 0\nthan = {{ x = 1 }}', "a number on one side"),
        (f"{CLAIM}lower = 0\nthan = 1", "a number on one side of a claim at most"),
        (f"{CLAIM}lower = 0\nthan = {{ y = 1 }}", "expected group, label, x, but got 'y'"),
        (f'{CLAIM}lower = 0\nthan = {{ x = 1, metric = "mood" }}', "but got 'mood'"),
        (f'{CLAIM}lower = 0\nthan = {{ x = 1, metric = "flip_rank" }}', "but got 'flip_rank'"),
        (f'{CLAIM}lower = "a"\nthan = {{ x = 1 }}', "to be a number or a table, but got 'a'"),
        (f"{CLAIM}than = {{ x = 1 }}", "expected a claim to have lower"),
        (f'{CLAIM}lower = 0\nthan = {{ x = 1, curve = "test" }}', "one of the study's curves"),
        (f"{CLAIM}lower = 0\nthan = {{ x = 1, first = 3 }}", "`first` only with it"),
        ('from_scratch = { title = "a" }', "expected `from_scratch` to have note"),
        (f"{CLAIM}colour = 1\nlower = 0\nthan = {{ x = 1 }}", "but got 'colour'"),
    ],
)
def test_a_malformed_figure_is_refused(text: str, says: str) -> None:
    series = '\n[[series]]\nlabel = "{x}"\nx = [1, 2]\nnew = { role = "small" }\n'
    with pytest.raises(InputError) as refused:
        read_study(text + series, id="elodi.figure4")
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
