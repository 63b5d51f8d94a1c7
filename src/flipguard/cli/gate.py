"""`flipguard gate`."""

from __future__ import annotations

from typing import Annotated

import typer

from flipguard.cli import options
from flipguard.cli.compare import compared, page_of
from flipguard.cli.output import check_destinations, check_samples, deliver, linked

PolicyOption = Annotated[
    str, typer.Option("--policy", metavar="FILE", help="The rules, in TOML.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("gate")(gate)


def gate(
    old: options.Old,
    new: options.New,
    policy: PolicyOption,
    by: options.By = None,
    control: options.Control = None,
    cluster: options.Cluster = None,
    json: options.Json = None,
    markdown: options.Markdown = None,
    flips: options.Flips = None,
    html: options.Html = None,
    samples: options.Samples = None,
    samples_budget: options.SamplesBudget = options.DEFAULT_BUDGET,
    id: options.Id = None,
    target: options.Target = None,
    label: options.Label = None,
    on_missing: options.OnMissingOption = options.OnMissing.error,
    correction: options.Correction = options.CorrectionChoice.holm,
    exponent: options.Exponent = 1.0,
    engine: options.EngineOption = options.Engine.local,
) -> None:
    """May NEW replace OLD? The verdict first, then each rule.

    Exit code 0: pass; 1: fail; 2: could not be judged; 3: inconclusive.

    Example: [bold]flipguard gate old.parquet new.parquet --policy gate.toml[/bold]
    """
    check_destinations(
        [old, new, policy, *(control or []), *([samples] if samples else [])],
        json=json,
        markdown=markdown,
        flips=flips,
        html=html,
    )
    check_samples(samples, samples_budget, html)
    from flipguard.gate import check
    from flipguard.policy import Policy
    from flipguard.render.markdown import verdict_markdown
    from flipguard.render.terminal import verdict_parts

    rules = Policy.read(policy)
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
        confidence=rules.confidence,
        correction=correction,
        exponent=exponent,
        engine=engine,
        rules=rules,
    )
    verdict = check(result, rules)
    page = page_of(result, html, samples=samples, budget=samples_budget, verdict=verdict)
    deliver(
        parts=verdict_parts(verdict),
        documents=(
            (json, verdict.to_json),
            (markdown, lambda: linked(verdict_markdown(verdict), markdown, html)),
        ),
        flips=(flips, result.flips),
        page=(html, page),
    )
    raise typer.Exit(verdict.exit_code)
