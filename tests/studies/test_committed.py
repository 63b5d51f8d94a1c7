"""Committed results are of the runs that their commands would make today.

A run's name is made of all that decides what it becomes. Where a scale, a study or a method has
changed since, rows and commands no longer belong together, and whoever repeats one gets another.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flipguard.studies.differences import differences
from flipguard.studies.joining import is_of
from flipguard.studies.planning import plan_of
from flipguard.studies.reading import study_of
from flipguard.studies.results import read_result
from flipguard.studies.running import recipe_of
from flipguard.studies.scales import scale_of

ROWS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
RESULTS = [
    path
    for folder in ("studies", "explanations")
    for path in sorted((ROWS / folder).glob("*.json"))
    if {"study", "rows"} <= json.loads(path.read_text(encoding="utf-8")).keys()
]


def test_there_are_some() -> None:
    assert len(RESULTS) > 90


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_result_is_of_the_runs_of_its_command(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    study = study_of(document["study"])
    result = read_result(path, study)
    scale = scale_of(result.scale).set(result.given)
    plan = plan_of(study, scale, seeds=result.seeds, out=Path(), machine={})
    assert is_of(result, plan)
    assert document["differences"] == differences(plan)
    if "setting" in document:
        assert document["setting"]["recipe"] == recipe_of(plan)
    for setting in result.given:
        assert f"--set {setting}" in document["command"]
