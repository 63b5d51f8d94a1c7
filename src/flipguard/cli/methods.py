"""`flipguard methods`."""

from __future__ import annotations

from typing import Annotated

import typer

from flipguard.cli.output import show, write_text
from flipguard.errors import MissingExtraError

AsJson = Annotated[bool, typer.Option("--json", help="Print them as JSON.")]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("methods")(methods)


def methods(json: AsJson = False) -> None:
    """What training methods there are, a line each.

    Example: [bold]flipguard methods --json[/bold]
    """
    import json as json_module

    try:
        from flipguard.methods import METHODS
    except ModuleNotFoundError as problem:
        raise MissingExtraError(
            "Listing methods", package=problem.name or "torch", extra="train"
        ) from problem
    from rich.table import Table

    if json:
        rows = [
            {
                "name": method.name,
                "sentence": method.sentence,
                "paper": method.paper,
                "needs": sorted(method.needs),
                "options": {option.name: option.default for option in method.options},
            }
            for method in METHODS.values()
        ]
        write_text(json_module.dumps(rows, indent=2, ensure_ascii=False) + "\n", "-")
    table = Table(box=None, pad_edge=False)
    for column in ("method", "what it is", "paper"):
        table.add_column(column, no_wrap=column == "method")
    for method in METHODS.values():
        table.add_row(method.name, method.sentence, method.paper)
    show([table], stdout_taken=json)
