"""`flipguard predict`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from flipguard.cli.output import check_destinations, line
from flipguard.errors import MissingExtraError

RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="A finished run.", show_default=False)
]
Split = Annotated[str, typer.Option("--split", metavar="NAME", help="train or test.")]
Out = Annotated[
    Path, typer.Option("--out", metavar="FILE", help="The prediction file.", show_default=False)
]


def _as_its_name_says(out: Path, write: Callable[[Path], None]) -> None:
    """Any format that a prediction table may have, by way of an NPZ."""
    import tempfile

    from flipguard.predictions.read import read_predictions
    from flipguard.predictions.write import write_predictions

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "predictions.npz"
        write(path)
        write_predictions(read_predictions(path), out)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("predict")(predict_command)


def predict_command(run: RunFolder, out: Out, split: Split = "test") -> None:
    """Writes a run's predictions as a table that compare and gate read.

    Example: [bold]flipguard predict runs/v2 --split test --out v2.npz[/bold]
    """
    try:
        from flipguard.training import Run
        from flipguard.training import predict as predicted
        from flipguard.training.predict import alone_at
    except ModuleNotFoundError as problem:
        raise MissingExtraError(
            "Predicting", package=problem.name or "torch", extra="train"
        ) from problem

    from flipguard.predictions.formats import format_of
    from flipguard.runs.history import run_files

    check_destinations(run_files(str(run)), other=str(out))
    format_of(out)
    finished = Run.read(run)
    if out.suffix == ".npz":
        predicted(finished, split=split, out=out)
    else:
        with alone_at(out):
            _as_its_name_says(out, lambda path: predicted(finished, split=split, out=path))
    line(f"{out}: predictions of {run} on its {split} set")
