"""`flipguard compare`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from flipguard.comparison import Comparison
    from flipguard.engines.plan import Want
    from flipguard.policy import Policy


All = Annotated[bool, typer.Option("--all", help="Show all metrics, not only the key ones.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compare")(compare_command)


@options.with_outputs
def compare_command(
    old: options.Old,
    new: options.New,
    by: options.By = None,
    control: options.Control = None,
    cluster: options.Cluster = None,
    samples: options.Samples = None,
    samples_budget: options.SamplesBudget = options.DEFAULT_BUDGET,
    id: options.Id = None,
    target: options.Target = None,
    label: options.Label = None,
    correct: options.Correct = None,
    on_missing: options.OnMissingOption = options.OnMissing.error,
    confidence: options.Confidence = 0.95,
    correction: options.Correction = options.CorrectionChoice.holm,
    exponent: options.Exponent = 1.0,
    engine: options.EngineOption = options.Engine.local,
    all: All = False,
    **outputs: str | None,
) -> None:
    """Show what the update from OLD to NEW breaks and fixes.

    Example: [bold]flipguard compare old.parquet new.parquet --by target --flips flips.csv[/bold]
    """
    check_destinations([old, new, *(control or []), *([samples] if samples else [])], **outputs)
    check_samples(samples, samples_budget, outputs["html"])
    result = compared(
        old,
        new,
        by=by,
        control=control,
        cluster=cluster,
        id=id,
        target=target,
        label=label,
        correct=correct,
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
    new: str,
    *,
    by: list[str] | None,
    control: list[str] | None,
    cluster: str | None,
    id: str | None,
    target: str | None,
    label: str | None,
    correct: str | None,
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

    read = partial(read_predictions, id=id, target=target, label=label, correct=correct)
    in_service, replacement = read(old), read(new)
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
