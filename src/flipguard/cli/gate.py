"""`flipguard gate`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from flipguard.cli import options
from flipguard.cli.compare import compared
from flipguard.cli.output import (
    check_destinations,
    check_samples,
    wants_of,
    write_outputs,
)

PolicyOption = Annotated[
    str,
    typer.Option(
        "--policy",
        metavar="FILE",
        help="Policy file (TOML); `flipguard init` writes one.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("gate")(gate_command)


@options.with_outputs
def gate_command(
    old: options.Old,
    new: options.New = None,
    *,
    policy: PolicyOption,
    by: options.By = None,
    control: options.Control = None,
    cluster: options.Cluster = None,
    samples: options.Samples = None,
    samples_budget: options.SamplesBudget = options.DEFAULT_BUDGET,
    on_missing: options.OnMissingOption = options.OnMissing.error,
    correction: options.Correction = options.CorrectionChoice.holm,
    exponent: options.Exponent = 1.0,
    engine: options.EngineOption = options.Engine.local,
    **flags: Any,
) -> None:
    """Judge by a policy whether NEW may replace OLD.

    Exit code 0: pass; 1: fail; 2: could not be judged; 3: inconclusive.

    Example: [bold]flipguard gate old.parquet new.parquet --policy gate.toml[/bold]
    """
    sides, outputs = options.parted(flags)
    inputs = [old, new or old, policy, *(control or []), *([samples] if samples else [])]
    check_destinations(inputs, **outputs)
    check_samples(samples, samples_budget, outputs["html"])
    from flipguard.gate import check
    from flipguard.policy import Policy
    from flipguard.render.terminal import verdict_parts

    rules = Policy.read(policy)
    result = compared(
        old,
        new,
        by=by,
        control=control,
        cluster=cluster,
        sides=sides,
        on_missing=on_missing,
        confidence=rules.confidence,
        correction=correction,
        exponent=exponent,
        engine=engine,
        # Pinned samples are searched among the flips.
        wants=(*wants_of(outputs), *(("flips",) if rules.pinned is not None else ())),
        rules=rules,
    )
    verdict = check(result, rules)
    parts = verdict_parts(verdict)
    write_outputs(result, parts, outputs, verdict=verdict, samples=samples, budget=samples_budget)
    raise typer.Exit(verdict.exit_code)
