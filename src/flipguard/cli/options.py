"""The arguments and options that commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class OnMissing(StrEnum):
    """What to do with ids that are on one side only."""

    error = "error"
    drop = "drop"


class Engine(StrEnum):
    """Where to count."""

    local = "local"
    spark = "spark"


class CorrectionChoice(StrEnum):
    """How to correct for looking at many groups."""

    holm = "holm"
    benjamini_hochberg = "benjamini-hochberg"
    none = "none"


DEFAULT_BUDGET = "4MB"

Old = Annotated[str, typer.Argument(metavar="OLD", help="Predictions of the model in service.")]
New = Annotated[str, typer.Argument(metavar="NEW", help="Predictions of its replacement.")]
Files = Annotated[list[str], typer.Argument(metavar="FILE…", help="Prediction files.")]
By = Annotated[
    list[str] | None,
    typer.Option("--by", metavar="COL", help="Break results down by this column; may be repeated."),
]
Control = Annotated[
    list[str] | None,
    typer.Option(
        "--control",
        metavar="FILE",
        help="Predictions of an untreated retrain (a control); may be repeated.",
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster", metavar="COL", help="Rows that belong together (one user, one video)."
    ),
]
Id = Annotated[str | None, typer.Option("--id", metavar="COL", help="The column of ids.")]
Target = Annotated[
    str | None, typer.Option("--target", metavar="COL", help="The column of true classes.")
]
Label = Annotated[
    str | None, typer.Option("--label", metavar="COL", help="The column of predicted classes.")
]
OnMissingOption = Annotated[
    OnMissing,
    typer.Option("--on-missing", help="Ids on one side only: refuse, or leave them out."),
]
Confidence = Annotated[
    float, typer.Option("--confidence", help="The confidence of every interval.")
]
Correction = Annotated[
    CorrectionChoice,
    typer.Option("--correction", help="Correction over groups when marking changes."),
]
Exponent = Annotated[float, typer.Option("--exponent", help="The exponent a of surrogate_churn.")]
EngineOption = Annotated[Engine, typer.Option("--engine", help="Where to count.")]
Json = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write JSON; - is standard output.")
]
Markdown = Annotated[
    str | None,
    typer.Option(
        "--markdown",
        metavar="FILE",
        help="Write Markdown for a pull request; - is standard output.",
    ),
]
Html = Annotated[
    str | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="Write the report: one page that needs nothing but a browser; - is standard output.",
    ),
]
Samples = Annotated[
    str | None,
    typer.Option(
        "--samples",
        metavar="WHERE",
        help="The samples for the report: a folder of images named by id, an .npz of images and "
        "ids, a table of ids and texts, or a column of texts or addresses.",
    ),
]
SamplesBudget = Annotated[
    str,
    typer.Option(
        "--samples-budget", metavar="SIZE", help="How much of them the report may hold: 5MB."
    ),
]
Flips = Annotated[
    str | None,
    typer.Option(
        "--flips",
        metavar="FILE",
        help="Write the samples that changed, worst first (.csv, .jsonl, .parquet …); "
        "- is standard output, as CSV.",
    ),
]
