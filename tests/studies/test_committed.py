"""Committed results are of the runs that their commands would make today.

A run's key is made of all that decides what it becomes, the version of its method's formula too.
Where a scale, a study or a method has changed since, rows and commands no longer belong together,
and repeating one gives another. Rows from before a change of a formula say so, and no others do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flipguard.studies.collect import differences, recipe_of
from flipguard.studies.merge_seeds import run_names
from flipguard.studies.plan import StudyPlan, plan_study
from flipguard.studies.read_study import study_of
from flipguard.studies.results import Row, read_result
from flipguard.studies.scales import scale_of

ROWS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
RESULTS = [
    path
    for folder in ("studies", "explanations")
    for path in sorted((ROWS / folder).glob("*.json"))
    if {"study", "rows"} <= json.loads(path.read_text(encoding="utf-8")).keys()
]


def changes_since(row: Row, plan: StudyPlan) -> tuple[str, ...]:
    """The changes of formulas that came after the runs of a row; none for current runs."""
    if {side: list(names) for side, names in row.runs.items()} == run_names(plan)[row.place]:
        return ()
    nodes = {node.folder: node for node in plan.nodes}

    def behind(folder: Path) -> Iterator[str]:
        for needed in sorted(nodes[folder].after):
            yield from behind(needed)
        yield from nodes[folder].changes

    sides = [u.sides for u in plan.updates if u.line == row.place]
    changes = [one for old, new in sides for folder in (*old, *new) for one in behind(folder)]
    assert changes, f"{row.place}: its runs would be others now"
    return tuple(dict.fromkeys(changes))


def test_there_are_some() -> None:
    assert len(RESULTS) > 90


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_result_is_of_the_runs_of_its_command(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    study = study_of(document["study"])
    result = read_result(path, study)
    scale = scale_of(result.scale).set(result.given)
    machine = scale.precision_on(document["device"]["kind"])
    plan = plan_study(study, scale, seeds=result.seeds, out=Path(), machine=machine)
    rows = [row for row in result.rows if row.why_not is None]
    assert {row.place for row in rows} == run_names(plan).keys()
    for row in rows:
        assert row.made_before == changes_since(row, plan)
    assert document["differences"] == differences(plan)
    if "setting" in document:
        assert document["setting"]["recipe"] == recipe_of(plan)
    for setting in result.given:
        assert f"--set {setting}" in document["command"]


# Files whose rows of co-distillation are from before gradients were clipped per model.
COUPLED = {"settings_resnet9_clip", "settings_resnet9_decay", "settings_resnet9_decay_strong"}


def test_settings_of_coupled_co_distillation_are_marked() -> None:
    """These rows name no runs, so only new runs can replace the mark."""
    for path in sorted(ROWS.glob("settings_*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        for row in document["rows"]:
            coupled = path.stem in COUPLED and row["method"].startswith("codistill")
            assert row.get("made_before", []) == ["clipping per model"] * coupled, path.stem
