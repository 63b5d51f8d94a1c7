"""`flipguard matrix`."""

from __future__ import annotations

from typing import Annotated

import typer

from flipguard.cli import options
from flipguard.cli.output import check_destinations, say_written, show, write_text

Plot = Annotated[
    str | None,
    typer.Option("--plot", metavar="FILE", help="Write a picture (.png, .svg or .pdf)."),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("matrix")(matrix_command)


def matrix_command(
    files: options.Files,
    json: options.Json = None,
    plot: Plot = None,
    id: options.Id = None,
    target: options.Target = None,
    label: options.Label = None,
    correct: options.Correct = None,
    on_missing: options.OnMissingOption = options.OnMissing.error,
) -> None:
    """Show negative flips, churn and accuracy gain of every ordered pair of models.

    Example: [bold]flipguard matrix v1.parquet v2.parquet v3.parquet --plot matrix.png[/bold]
    """
    check_destinations(files, json=json, other=plot)
    from flipguard.matrices import matrix as matrix_of
    from flipguard.plots import check_models, check_picture, plot_matrix
    from flipguard.predictions.read import read_predictions
    from flipguard.render.terminal import matrix_parts

    if plot is not None:
        check_picture(plot, of="a matrix")
        check_models(len(files))
    models = [
        read_predictions(path, id=id, target=target, label=label, correct=correct) for path in files
    ]
    result = matrix_of(models, on_missing=on_missing.value)
    if json is not None:
        write_text(result.to_json(), json)
    show(matrix_parts(result), stdout_taken=json == "-")
    if plot is not None:
        plot_matrix(result, plot)
    say_written([json, plot], stdout_taken=json == "-")
