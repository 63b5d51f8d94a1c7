"""Arguments and options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


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
        help="Write the report, one self-contained page; - is standard output.",
    ),
]
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
Flips = Annotated[
    str | None,
    typer.Option(
        "--flips",
        metavar="FILE",
        help="Write the samples whose label changed, worst first (.csv, .jsonl, .parquet …); "
        "- is standard output, as CSV.",
    ),
]
AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Run the code that a python: model names.")
]
