"""Arguments and options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import typer

from flipguard.cli.output import OUTPUTS


class OnMissing(StrEnum):
    """What to do with ids that only one file has."""

    error = "error"
    drop = "drop"


class Engine(StrEnum):
    """The engine that counts."""

    local = "local"
    spark = "spark"


class CorrectionChoice(StrEnum):
    """The correction for many groups."""

    holm = "holm"
    benjamini_hochberg = "benjamini-hochberg"
    none = "none"


DEFAULT_BUDGET = "4MB"

Old = Annotated[str, typer.Argument(metavar="OLD", help="Model in service: predictions or a run.")]
New = Annotated[str, typer.Argument(metavar="NEW", help="Its replacement: predictions or a run.")]
Files = Annotated[list[str], typer.Argument(metavar="MODEL…", help="Prediction files or runs.")]
By = Annotated[
    list[str] | None,
    typer.Option("--by", metavar="COL", help="Break results down by this column; may be repeated."),
]
Control = Annotated[
    list[str] | None,
    typer.Option(
        "--control",
        metavar="MODEL",
        help="Predictions or run of an untreated retrain (a control); may be repeated.",
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="COL",
        help="Column of clusters: rows that belong together, such as one user's.",
    ),
]
Id = Annotated[str | None, typer.Option("--id", metavar="COL", help="Column of ids.")]
Target = Annotated[
    str | None, typer.Option("--target", metavar="COL", help="Column of true classes.")
]
Label = Annotated[
    str | None, typer.Option("--label", metavar="COL", help="Column of predicted classes.")
]
OnMissingOption = Annotated[
    OnMissing,
    typer.Option("--on-missing", help="Ids that only one file has: refuse them, or drop them."),
]
Confidence = Annotated[float, typer.Option("--confidence", help="Confidence of every interval.")]
Correction = Annotated[
    CorrectionChoice,
    typer.Option("--correction", help="Correction for many groups when groups are marked."),
]
Exponent = Annotated[float, typer.Option("--exponent", help="Exponent a of surrogate_churn.")]
EngineOption = Annotated[Engine, typer.Option("--engine", help="Engine that counts.")]
# The flags of the outputs of `compare` and `gate`.
OUTPUT_FLAGS = {
    output.flag: typer.Option(f"--{output.flag}", metavar="FILE", help=output.help)
    for output in OUTPUTS
}
Json = Annotated[str | None, OUTPUT_FLAGS["json"]]
Markdown = Annotated[str | None, OUTPUT_FLAGS["markdown"]]
Samples = Annotated[
    str | None,
    typer.Option(
        "--samples",
        metavar="WHERE",
        help="Samples for the report: a folder of images named by id, an .npz of images and ids, a "
        "table of ids and texts, or a column of texts or addresses.",
    ),
]
SamplesBudget = Annotated[
    str,
    typer.Option(
        "--samples-budget",
        metavar="SIZE",
        help="Size limit for samples in the report, such as 5MB.",
    ),
]
AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Run the code that a python: model names.")
]


def with_outputs(command: Callable[..., None]) -> Callable[..., None]:
    """Show one flag per row of `OUTPUTS` in the signature of a command that takes ``**outputs``."""
    own = inspect.signature(command, eval_str=True)
    shown = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
    # The options of the report follow the flag that writes it.
    place = [p.name for p in shown].index("samples")
    shown[place:place] = [
        inspect.Parameter(
            flag,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=None,
            annotation=Annotated[str | None, option],
        )
        for flag, option in OUTPUT_FLAGS.items()
    ]
    command.__signature__ = own.replace(parameters=shown)  # type: ignore[attr-defined]
    return command
