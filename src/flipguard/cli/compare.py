"""`flipguard compare`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from flipguard.cli import options
from flipguard.cli.arguments import with_flags
from flipguard.cli.output import (
    Finished,
    check_destinations,
    check_samples,
    progress,
    typed,
    wants_of,
    write_outputs,
)

if TYPE_CHECKING:
    from flipguard.comparison import Comparison
    from flipguard.engines.plan import Want
    from flipguard.gate import Verdict
    from flipguard.policy import Policy
    from flipguard.predictions.table import Predictions
    from flipguard.report.page import Page


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
        on_missing=on_missing,
        confidence=confidence,
        correction=correction,
        exponent=exponent,
        engine=engine,
        wants=wants_of(outputs),
    )
    page = page_of(result, outputs["html"], samples=samples, budget=samples_budget)
    from flipguard.render.terminal import comparison_parts

    finished = Finished(destinations=outputs, result=result, page=page)
    write_outputs(finished, comparison_parts(result, all_metrics=all))


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
    from flipguard.gate import check_columns
    from flipguard.predictions.read import read_predictions

    def read(path: str) -> Predictions:
        return read_predictions(path, id=id, target=target, label=label)

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


def page_of(
    result: Comparison,
    html: str | None,
    *,
    samples: str | None,
    budget: str,
    verdict: Verdict | None = None,
) -> Page | None:
    """Return the contents of the report if it is wanted, after checking its options."""
    if html is None:
        return None
    from flipguard.report.write import report_page

    return report_page(
        result, verdict=verdict, samples=samples, samples_budget=budget, command=typed()
    )
