"""`flipguard report`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flipguard.cli import options
from flipguard.cli.arguments import with_renames
from flipguard.cli.output import (
    check_destinations,
    check_samples,
    line,
    typed,
    write_text,
)
from flipguard.cli.progress import progress
from flipguard.errors import InputError

if TYPE_CHECKING:
    from flipguard.comparison import Comparison
    from flipguard.policy import Policy
    from flipguard.predictions.table import Predictions

Runs = Annotated[
    list[str],
    typer.Argument(metavar="RUN…", help="Finished runs or prediction files of the candidates."),
]
Out = Annotated[
    str, typer.Option("--out", metavar="FILE", help="Page to write.", show_default=False)
]
OldRun = Annotated[
    str | None,
    typer.Option(
        "--old",
        metavar="RUN",
        help="The model in service (default: the old model that the runs name).",
    ),
]
ControlRun = Annotated[
    str | None,
    typer.Option(
        "--control",
        metavar="RUN",
        help="The control (default: the first of several runs with method none).",
    ),
]
Confidence = Annotated[
    float | None,
    typer.Option(
        "--confidence",
        help="Confidence of every interval (default: 0.95, or that of the policy).",
    ),
]
PolicyFile = Annotated[
    str | None,
    typer.Option("--policy", metavar="FILE", help="Judge each candidate by this policy."),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report")(report_command)


def report_command(
    runs: Runs,
    out: Out,
    old: OldRun = None,
    control: ControlRun = None,
    policy: PolicyFile = None,
    by: options.By = None,
    samples: options.Samples = None,
    samples_budget: options.SamplesBudget = options.DEFAULT_BUDGET,
    on_missing: options.OnMissingOption = options.OnMissing.error,
    confidence: Confidence = None,
) -> None:
    """Write one page about finished runs: what each breaks, how it was trained, what that cost.

    Example: [bold]flipguard report runs/control runs/v2 --out report.html[/bold]
    """
    from flipguard.gate import check
    from flipguard.policy import Policy
    from flipguard.render.words import headline
    from flipguard.report.runs import assign_roles
    from flipguard.report.write import check_extra, report_html

    check_extra()
    given = [*runs, *(place for place in (old, control, policy, samples) if place is not None)]
    check_destinations(given, html=out)
    check_samples(samples, samples_budget, out)
    if policy is not None and confidence is not None:
        raise InputError(
            "Expected --confidence or --policy, but got both; set the confidence in the policy."
        )
    rules = None if policy is None else Policy.read(policy)
    chosen = assign_roles(runs, old=old, control=control)
    check_destinations(chosen.files, html=out)
    results = _compared(
        chosen.candidates,
        old=chosen.old,
        control=chosen.control,
        by=by or [],
        on_missing=on_missing,
        confidence=0.95 if confidence is None else confidence,
        rules=rules,
    )
    verdicts = {} if rules is None else {name: check(r, rules) for name, r in results.items()}
    page = report_html(
        results,
        verdict=verdicts,
        samples=samples,
        samples_budget=samples_budget,
        runs=chosen.folders,
        command=typed(),
    )
    write_text(page, out)
    if out != "-":
        for name, result in results.items():
            word = f"{verdicts[name].verdict}: " if name in verdicts else ""
            line(f"{name}: {word}{headline(result)}")
        line(f"{out}: open it in any browser")


def _read(place: str) -> Predictions:
    """Return the predictions of a run or of a file, whose columns no flag can name."""
    from flipguard.predictions.read import read_predictions

    try:
        found = read_predictions(place)
    except InputError as problem:
        raise InputError(with_renames(str(problem))) from problem
    # The page calls every run by the name of its folder.
    return replace(found, name=Path(found.name).name) if os.path.isdir(place) else found


def _compared(
    candidates: dict[str, str],
    *,
    old: str,
    control: str | None,
    by: list[str],
    on_missing: options.OnMissing,
    confidence: float,
    rules: Policy | None,
) -> dict[str, Comparison]:
    from flipguard.comparison import compare
    from flipguard.policy_checks import check_columns
    from flipguard.report import WANTS
    from flipguard.report.runs import same_place

    results = {}
    for name, place in candidates.items():
        in_service, candidate = _read(old), _read(place)
        if rules is not None:
            check_columns(rules, old=in_service, new=candidate)
        with progress(f"comparing {name}") as text:
            result = compare(
                old=in_service,
                new=candidate,
                # The control is a candidate too, but is not its own control.
                control=[] if control is None or same_place(place, control) else [_read(control)],
                by=[*(rules.by if rules is not None else ()), *by],
                on_missing=on_missing.value,
                confidence=confidence if rules is None else rules.confidence,
                wants=WANTS,
                progress=text,
            )
        results[name] = replace(result, notes=tuple(map(with_renames, result.notes)))
    return results
