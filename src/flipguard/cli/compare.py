"""`flipguard compare`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flipguard.cli import options
from flipguard.cli.arguments import with_flags
from flipguard.cli.output import (
    check_destinations,
    check_samples,
    wants_of,
    write_outputs,
)
from flipguard.cli.progress import progress
from flipguard.errors import InputError

if TYPE_CHECKING:
    from flipguard.comparison import Comparison
    from flipguard.engines.plan import Want
    from flipguard.policy import Policy
    from flipguard.predictions.table import Predictions


All = Annotated[bool, typer.Option("--all", help="Show all metrics, not only the key ones.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compare")(compare_command)


@options.with_outputs
def compare_command(
    old: options.Old,
    new: options.New = None,
    by: options.By = None,
    control: options.Control = None,
    cluster: options.Cluster = None,
    samples: options.Samples = None,
    samples_budget: options.SamplesBudget = options.DEFAULT_BUDGET,
    on_missing: options.OnMissingOption = options.OnMissing.error,
    confidence: options.Confidence = 0.95,
    correction: options.Correction = options.CorrectionChoice.holm,
    exponent: options.Exponent = 1.0,
    engine: options.EngineOption = options.Engine.local,
    all: All = False,
    **flags: Any,
) -> None:
    """Show what the update from OLD to NEW breaks and fixes.

    Example: [bold]flipguard compare old.parquet new.parquet --by target --flips flips.csv[/bold]
    """
    sides, outputs = options.parted(flags)
    check_destinations(
        [old, new or old, *(control or []), *([samples] if samples else [])], **outputs
    )
    check_samples(samples, samples_budget, outputs["html"])
    result = compared(
        old,
        new,
        by=by,
        control=control,
        cluster=cluster,
        sides=sides,
        on_missing=on_missing,
        confidence=confidence,
        correction=correction,
        exponent=exponent,
        engine=engine,
        wants=wants_of(outputs),
    )
    from flipguard.render.terminal import comparison_parts

    parts = comparison_parts(result, all_metrics=all)
    write_outputs(result, parts, outputs, samples=samples, budget=samples_budget)


def compared(
    old: str,
    new: str | None,
    *,
    by: list[str] | None,
    control: list[str] | None,
    cluster: str | None,
    sides: options.SideFlags,
    on_missing: options.OnMissing,
    confidence: float,
    correction: options.CorrectionChoice,
    exponent: float,
    engine: options.Engine,
    wants: Iterable[Want],
    rules: Policy | None = None,
) -> Comparison:
    """Return the comparison for these options, grouped also as the policy needs."""
    from flipguard.comparison import compare as compare_predictions
    from flipguard.policy_checks import check_columns
    from flipguard.predictions.read import read_predictions
    from flipguard.predictions.sides import naming_own_label

    found = []
    for side in _sides_of(old, new, sides):
        with naming_own_label(side.own_label):
            found.append(side.called(read_predictions(side.path, **side.columns)))
    in_service, replacement = found
    scored = _scored(sides, new=True)

    def read(path: str) -> Predictions:
        columns: dict[str, Any] = {"id": sides.id, "target": sides.target, "label": sides.label}
        return read_predictions(path, **columns, correct=sides.correct, **scored)

    if rules is not None:
        check_columns(rules, old=in_service, new=replacement)
    with progress("comparing") as told:
        result = compare_predictions(
            old=in_service,
            new=replacement,
            by=[*(rules.by if rules is not None else ()), *(by or [])],
            control=[read(path) for path in control or []],
            cluster=cluster,
            confidence=confidence,
            correction=correction.value,
            on_missing=on_missing.value,
            exponent=exponent,
            engine=engine.value,
            wants=wants,
            progress=told,
        )
    return replace(result, notes=tuple(map(with_flags, result.notes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """How one side is read and called; `own_label` is the argument that names its classes alone."""

    path: str
    columns: dict[str, Any]
    own_label: str | None
    name: str | None
    shared: bool

    def called(self, side: Predictions) -> Predictions:
        from flipguard.predictions.sides import as_column_of_shared_table

        if self.shared:
            side = as_column_of_shared_table(side, self.columns["label"])
        return side if self.name is None else replace(side, name=self.name)


def _sides_of(old: str, new: str | None, flags: options.SideFlags) -> list[_Side]:
    """Return how both models are read, from two files or from two columns of one."""
    from flipguard.predictions.sides import are_columns_of_one_table

    if new is None and (flags.label_old is None or flags.label_new is None):
        raise InputError(
            "Missing argument NEW. Usage: OLD NEW, or OLD --label-old COL --label-new COL if both "
            "models are columns of one file."
        )
    if flags.threshold_new is not None and flags.threshold is None:
        raise InputError(
            "Expected --threshold with --threshold-new: the score from which a row of OLD is "
            "positive."
        )
    shared = are_columns_of_one_table(old, new or old, flags.label_old, flags.label_new)
    return [
        _Side(
            path=path,
            columns={
                "id": flags.id,
                "target": flags.target,
                "label": label or flags.label,
                "correct": flags.correct,
                **_scored(flags, new=argument == "label_new"),
            },
            own_label=None if label is None else argument,
            name=name,
            shared=shared,
        )
        for path, label, name, argument in (
            (old, flags.label_old, flags.name_old, "label_old"),
            (new or old, flags.label_new, flags.name_new, "label_new"),
        )
    ]


def _scored(flags: options.SideFlags, *, new: bool) -> dict[str, Any]:
    """Return how the scores of the positive class of one side are read."""
    threshold = flags.threshold_new if new and flags.threshold_new is not None else flags.threshold
    return {
        "positive_score": flags.positive_score,
        "threshold": threshold,
        "positive": flags.positive,
    }
