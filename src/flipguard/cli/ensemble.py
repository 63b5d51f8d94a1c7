"""`flipguard ensemble`."""

from __future__ import annotations

from typing import Annotated

import typer

from flipguard.cli import options
from flipguard.cli.output import check_destinations, line

Out = Annotated[
    str, typer.Option("--out", metavar="FILE", help="Prediction file to write.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ensemble")(ensemble_command)


def ensemble_command(
    files: options.Files,
    out: Out,
    id: options.Id = None,
    target: options.Target = None,
    label: options.Label = None,
    on_missing: options.OnMissingOption = options.OnMissing.error,
) -> None:
    """Average the logits (or probabilities) of several models into one prediction file.

    Example: [bold]flipguard ensemble a.npz b.npz c.npz --out ensemble.npz[/bold]
    """
    from flipguard.ensembles import ensemble as averaged
    from flipguard.predictions.read import read_predictions
    from flipguard.predictions.write import write_predictions

    check_destinations(files, other=out)
    members = [read_predictions(path, id=id, target=target, label=label) for path in files]
    write_predictions(averaged(members, name=out, on_missing=on_missing.value), out)
    line(f"{out}: the average of {len(members)} models")
