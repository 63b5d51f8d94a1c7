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
@options.with_sides
def compare_command(
    old: options.Old,
    new: options.New = None,
    by: options.By = None,
    control: options.Control = None,
    cluster: options.Cluster = None,
    samples: options.Samples = None,
    samples_budget: options.SamplesBudget = options.DEFAULT_BUDGET,
    sides: options.SideFlags = options.NO_FLAGS,
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

    in_service, replacement = _sides(old, new, sides)
    read = partial(read_predictions, id=sides.id, target=sides.target, label=sides.label)
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


def _sides(old: str, new: str | None, flags: options.SideFlags) -> tuple[Predictions, Predictions]:
    """Read both models, from two files or from two columns of one."""
    from flipguard.predictions.read import read_predictions

    if new is None and (flags.label_old is None or flags.label_new is None):
        raise InputError(
            "Missing argument NEW. Usage: OLD NEW, or OLD --label-old COL --label-new COL if both "
            "models are columns of one file."
        )
    found = []
    for path, label, name, flag in (
        (old, flags.label_old, flags.name_old, "--label-old"),
        (new or old, flags.label_new, flags.name_new, "--label-new"),
    ):
        columns = {"id": flags.id, "target": flags.target, "label": label or flags.label}
        try:
            side = read_predictions(path, **columns)
        except InputError as problem:
            if label is None:
                raise
            raise InputError(str(problem).replace("`label=`", flag)) from problem
        if new is None:
            # Scores in the file are of one model, and nothing says of which.
            side = replace(side, scores=None, name=f"{path}:{label}")
        found.append(side if name is None else replace(side, name=name))
    return found[0], found[1]
