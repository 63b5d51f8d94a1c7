"""Three commands, walked through: how many functions a reader opens, and what they pass.

A walk is traced while the command runs, in a process of its own, because what is cached there is
not called again. Each function of flipguard has one caller: the one that called it first.

WORK lists the functions of each walk in which something happens to the user's data. Who wants to
know what a command does opens these, and every function on the way to them: its first caller, that
one's caller, and so on up to `main`. The length of a walk is how many different functions these
are. What they call besides, such as checks and formatting, can be skipped at first reading.

A limit of LENGTH is what was measured; it may only fall.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

ROOT = Path(__file__).parents[1]
DATA = "mnist1d:train=200,test=100"

WORK = {
    "compare": """
        cli.output.check_destinations
        cli.output.wants_of
        predictions.read.read_predictions
        predictions.table.with_roles
        comparison.compare
        engines.local.count
        engines.alignment.paired_rows
        engines.score_kernel.side_and_pair_rows
        engines.score_statistics.sums_by_group
        engines.outcomes.label_sums
        engines.count_table.CountTable.groups
        estimates.estimate_groups
        metric_kinds.RateKind.interval
        statistics.rates.wilson
        report.write.report_page
        report.page.build_page
        report.candidate.candidate_of
        report.html.html_of
        cli.output.write_outputs
    """,
    "train": """
        runs.config.from_dict
        training.train.train_with
        methods.base.Method.complete
        training.checks.check_needs
        data.registry.load_data
        models.registry.build_model
        training.strategies.plan_members
        training.strategies.MemberPlan.run
        training.fused.train_group
        training.teachers.load_teachers
        methods.elodi._build
        losses.inhibition.LogitDifferenceInhibition.forward
        training.trainee.StudentTrainee.forward
        training.loop.loop
        training.batches.EpochBatches.epoch
        training.evaluate.FlipTracker.rates
        training.checkpoint.CheckpointStore.save
        training.predict.write_test_predictions
        training.run_setup.RunSetup.finish
    """,
    "study": """
        studies.job.prepare_job
        studies.read_study.study_of
        studies.paper_tables.paper_tables
        studies.scales.scale_of
        studies.plan.plan_study
        studies.run_graph.Graph.add
        runs.key.run_key
        studies.run.run_studies
        worker_pool.WorkerPool.run
        studies.collect.collect_rows
        studies.measure.measured
        studies.measure.counts_of
        studies.analyses.analyses_of
        studies.results.result_facts
        studies.merge_seeds.merge_with_existing
        studies.results.write_result
        studies.show.result_parts
        studies.results.Result.agreement
        studies.explanations.contradictions
        studies.sentences.verdict_lines
    """,
}
LENGTH = {"compare": 30, "train": 30, "study": 30}
# Five on each walk, in the order in which they are first called.
LANDMARKS = {
    "compare": (
        "predictions.read.read_predictions",
        "comparison.compare",
        "engines.local.count",
        "cli.output.write_outputs",
        "report.page.build_page",
    ),
    "train": (
        "runs.config.from_dict",
        "training.train.train_with",
        "training.strategies.MemberPlan.run",
        "training.loop.loop",
        "training.predict.write_test_predictions",
    ),
    "study": (
        "studies.job.prepare_job",
        "studies.plan.plan_study",
        "worker_pool.WorkerPool.run",
        "studies.collect.collect_rows",
        "studies.show.result_parts",
    ),
}


def arguments(walk: str, folder: Path) -> list[str]:
    if walk == "compare":
        old, new = (predictions(folder / f"{side}.parquet") for side in ("old", "new"))
        outputs = {"--html": "report.html", "--flips": "flips.csv", "--json": "result.json"}
        given = [part for flag, name in outputs.items() for part in (flag, str(folder / name))]
        return ["compare", old, new, "--by", "group", *given]
    settings = {"recipe.epochs": "1"}
    if walk == "train":
        settings |= {"options.members": "3", "recipe.batch_size": "50", "machine.device": "cpu"}
        settings |= {"machine.threads": "1"}
        command = ["train", "--method", "elodi", "--data", DATA, "--model", "mlp:hidden=16"]
        command += ["--fuse", "on", "--out", str(folder / "run")]
    else:
        settings |= {"data": DATA}
        command = ["study", "run", "pct.table2a", "--seeds", "1", "--members", "2"]
        command += ["--processes", "2", "--out", str(folder)]
    return [
        *command,
        *(part for key, value in settings.items() for part in ("--set", f"{key}={value}")),
    ]


def predictions(path: Path) -> str:
    """A table of 200 rows with the scores of three classes."""
    rows = 200
    random = np.random.default_rng(len(path.stem) + ord(path.stem[0]))
    logits, target = random.normal(size=(rows, 3)), np.arange(rows) % 3
    logits[np.arange(rows), target] += 1.5
    columns = {"id": np.arange(rows), "target": target, "group": np.arange(rows) % 2}
    scores = {f"logit_{i}": logits[:, i] for i in range(3)}
    pl.DataFrame(columns | scores).write_parquet(path)
    return str(path)


def traced(walk: str, folder: Path) -> dict[str, str]:
    """Every function that the command called, with its first caller, in the order of calls."""
    out = folder / "trace.json"
    command = [sys.executable, "-m", "tests.tracing", str(out), *arguments(walk, folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(out.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("walk", list(WORK))
def test_a_walk_is_short_and_passes_its_landmarks(walk: str, tmp_path: Path) -> None:
    callers = traced(walk, tmp_path)
    work = WORK[walk].split()
    assert [name for name in work if name not in callers] == []
    opened: set[str] = set()
    for name in work:
        while name:
            opened.add(name)
            name = callers[name]
    assert "cli.main" in opened
    assert len(opened) <= LENGTH[walk], sorted(opened)
    called = [name for name in callers if name in LANDMARKS[walk]]
    assert tuple(called) == LANDMARKS[walk]
    assert len(called) == 5
