"""`flipguard init`."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from flipguard.cli import options
from flipguard.cli.output import check_destinations, line, write_text
from flipguard.errors import InputError

if TYPE_CHECKING:
    from flipguard.comparison import Comparison
    from flipguard.predictions.table import Predictions
    from flipguard.starter_policies import StarterPolicy, StarterRule


class UpdateKind(StrEnum):
    """The kinds of update that there is a starter policy for."""

    retrain = "retrain"
    quantization = "quantization"
    classes = "classes"


KindArgument = Annotated[UpdateKind, typer.Argument(metavar="KIND", help="Kind of update.")]
OldOption = Annotated[
    str | None,
    typer.Option(
        "--old", metavar="OLD", help="Predictions of the model in service, for --control."
    ),
]
ControlOption = Annotated[
    list[str] | None,
    typer.Option(
        "--control",
        metavar="FILE",
        help="Predictions of an untreated retrain, from which the limits are set; may be repeated.",
    ),
]
OutOption = Annotated[
    str, typer.Option("--out", metavar="FILE", help="Policy to write; - prints it.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("init")(init_command)


def init_command(
    kind: KindArgument = UpdateKind.retrain,
    old: OldOption = None,
    control: ControlOption = None,
    out: OutOption = "gate.toml",
    id: options.Id = None,
    target: options.Target = None,
    label: options.Label = None,
    correct: options.Correct = None,
    on_missing: options.OnMissingOption = options.OnMissing.error,
) -> None:
    """Write a commented starter policy for a retrain, a quantization or added classes.

    With --old and --control, limits are the worst that the retrains may do to the old model,
    allowing for sampling error.

    Example: [bold]flipguard init retrain --old old.parquet --control retrained.parquet[/bold]
    """
    from flipguard.starter_policies import STARTERS

    if (old is None) != (not control):
        given, lacks = ("--old", "--control") if old is not None else ("--control", "--old")
        raise InputError(
            f"Expected {lacks} next to {given}: limits are measured on how retrains differ from "
            "the old model; give both, or neither."
        )
    if out != "-" and os.path.exists(out):
        raise InputError(f"{out} exists already; remove it, or name another file with --out.")
    check_destinations([*([old] if old else []), *(control or [])], other=out)
    starter = STARTERS[kind.value]
    measured: dict[StarterRule, float] = {}
    classes, graded = True, False
    if old is not None:
        from flipguard.predictions.read import read_predictions

        in_service, *controls = (
            read_predictions(path, id=id, target=target, label=label, correct=correct)
            for path in (old, *(control or []))
        )
        measured = _measured(starter, in_service, controls, on_missing)
        # Graded rows may have no target, and then no classes that could be judged.
        graded = in_service.correct is not None
        classes = in_service.column("target") is not None
    write_text(starter.text(measured, classes=classes, graded=graded), out)
    if out != "-":
        line(f"{out}: a starter policy; read its comments, and set its limits")


def _measured(
    starter: StarterPolicy,
    in_service: Predictions,
    controls: list[Predictions],
    on_missing: options.OnMissing,
) -> dict[StarterRule, float]:
    """Return per rule the worst end of the intervals of the controls against old."""
    from flipguard.comparison import compare

    by = [] if in_service.column("target") is None else ["target"]
    ends: dict[StarterRule, list[float]] = {rule: [] for rule in starter.rules}
    for control in controls:
        result = compare(old=in_service, new=control, by=by, on_missing=on_missing.value)
        for rule in starter.rules:
            if not rule.by_class and not result[rule.metric].is_defined:
                raise InputError(
                    f"{rule.metric} cannot be measured on {in_service.name} and {control.name}; "
                    "give files with predicted classes and a target column (--label, --target)."
                )
            ends[rule] += _ends(rule, result)
    # Without a class that is large enough, a rule for classes keeps its default.
    return {rule: _worst(rule, found) for rule, found in ends.items() if found}


def _ends(rule: StarterRule, result: Comparison) -> list[float]:
    """Return the worse end of the interval, or of those of all classes that are large enough."""
    from flipguard.starter_policies import LEAST_SAMPLES

    estimates = [result[rule.metric]]
    if rule.by_class:
        estimates = [group[rule.metric] for group in result.by.get("target", ())]
        estimates = [estimate for estimate in estimates if estimate.n >= LEAST_SAMPLES]
    return [estimate.high if rule.key == "max" else estimate.low for estimate in estimates]


def _worst(rule: StarterRule, ends: list[float]) -> float:
    if rule.key == "max":
        return max(ends)
    # A loss is allowed if retrains have one; a gain is never demanded because they have one.
    return min(*ends, 0.0) if rule.metric == "accuracy_gain" else min(ends)
