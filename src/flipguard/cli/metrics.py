"""`flipguard metrics`."""

from __future__ import annotations

from typing import Annotated

import typer

from flipguard.cli.output import show, write_text

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("metrics")(metrics_command)


def metrics_command(json: AsJson = False) -> None:
    """List the metrics, one line each.

    Example: [bold]flipguard metrics --json[/bold]
    """
    import json as json_module

    from flipguard.metrics import METRICS
    from flipguard.render.terminal import metric_parts

    if json:
        rows = [
            {
                "name": metric.name,
                "sentence": metric.sentence,
                "formula": metric.formula,
                "needs": sorted(metric.needs),
                "better": metric.better,
            }
            for metric in METRICS.values()
        ]
        write_text(json_module.dumps(rows, indent=2, ensure_ascii=False) + "\n", "-")
    show(metric_parts(), stdout_taken=json)
