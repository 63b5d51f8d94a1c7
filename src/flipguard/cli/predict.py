"""`flipguard predict`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from flipguard.cli.options import AllowCode
from flipguard.cli.output import check_destinations, line
from flipguard.errors import MissingExtraError

RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a finished run.", show_default=False)
]
Split = Annotated[
    str, typer.Option("--split", metavar="NAME", help="Data to predict: train, validation or test.")
]
Out = Annotated[
    Path,
    typer.Option("--out", metavar="FILE", help="Prediction file to write.", show_default=False),
]


def _write_as_named(out: Path, write: Callable[[Path], None]) -> None:
    """Write any format of prediction tables, converted from an NPZ."""
    import tempfile

    from flipguard.predictions.read import read_predictions
    from flipguard.predictions.write import write_predictions

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "predictions.npz"
        write(path)
        write_predictions(read_predictions(path), out)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("predict")(predict_command)


def predict_command(
    run: RunFolder, out: Out, split: Split = "test", allow_code: AllowCode = False
) -> None:
    """Write the predictions of a run to a file that compare and gate can read.

    Only runs that were trained with --set scope.validation=0.1 have a validation split.

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

    check_destinations([str(run)], other=str(out))
    format_of(out)
    finished = Run.read(run)
    if out.suffix == ".npz":
        predicted(finished, split=split, out=out, allow_code=allow_code)
    else:
        with alone_at(out):
            _write_as_named(
                out,
                lambda path: predicted(finished, split=split, out=path, allow_code=allow_code),
            )
    line(f"{out}: predictions of {run} on its {split} set")
