"""Arguments and options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

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

Old = Annotated[
    str,
    typer.Argument(
        metavar="OLD",
        help="Model in service: a file of predictions, several as a pattern in quotes, or a run.",
    ),
]
New = Annotated[
    str | None,
    typer.Argument(
        metavar="NEW",
        help="Its replacement: predictions or a run. Left out if both models are columns of OLD.",
        show_default=False,
    ),
]
Files = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL…",
        help="Prediction files or runs; several files of one model as a pattern in quotes.",
    ),
]
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
Id = Annotated[
    str | None,
    typer.Option("--id", metavar="COL", help="Column of ids; row: match rows by position."),
]
Target = Annotated[
    str | None, typer.Option("--target", metavar="COL", help="Column of true classes.")
]
Label = Annotated[
    str | None, typer.Option("--label", metavar="COL", help="Column of predicted classes.")
]
Correct = Annotated[
    str | None,
    typer.Option(
        "--correct",
        metavar="COL",
        help="Column that says whether a row is right: 0/1, true/false, pass/fail or C/I; also "
        "error, refused or unparsed.",
    ),
]
PositiveScore = Annotated[
    str | None,
    typer.Option("--positive-score", metavar="COL", help="Column of scores of the positive class."),
]
Threshold = Annotated[
    float | None,
    typer.Option("--threshold", metavar="T", help="Score from which a row is positive."),
]
ThresholdNew = Annotated[
    float | None,
    typer.Option(
        "--threshold-new", metavar="T", help="The same for NEW and the controls, if it differs."
    ),
]
Positive = Annotated[
    str | None,
    typer.Option(
        "--positive", metavar="NAME", help="Positive class, if targets are not 0/1 or true/false."
    ),
]
LabelOld = Annotated[
    str | None,
    typer.Option(
        "--label-old", metavar="COL", help="Column of classes that the old model predicts."
    ),
]
LabelNew = Annotated[
    str | None,
    typer.Option(
        "--label-new", metavar="COL", help="Column of classes that the new model predicts."
    ),
]
NameOld = Annotated[
    str | None, typer.Option("--name-old", metavar="NAME", help="Name of the old model in outputs.")
]
NameNew = Annotated[
    str | None, typer.Option("--name-new", metavar="NAME", help="Name of the new model in outputs.")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SideFlags:
    """The flags that say what the columns of OLD and NEW mean, and what the models are called."""

    id: Id = None
    target: Target = None
    label: Label = None
    correct: Correct = None
    positive_score: PositiveScore = None
    threshold: Threshold = None
    threshold_new: ThresholdNew = None
    positive: Positive = None
    label_old: LabelOld = None
    label_new: LabelNew = None
    name_old: NameOld = None
    name_new: NameNew = None


def with_outputs(command: Callable[..., None]) -> Callable[..., None]:
    """Show the flags of `SideFlags` and `OUTPUTS` in a command that takes them as ``**flags``."""
    own = inspect.signature(command, eval_str=True)
    shown = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
    sides = inspect.signature(SideFlags, eval_str=True).parameters.values()
    outputs = [
        inspect.Parameter(
            flag,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[str | None, option],
        )
        for flag, option in OUTPUT_FLAGS.items()
    ]
    # The options of the report follow the flag that writes it.
    place = [p.name for p in shown].index("samples")
    shown[place:place] = outputs
    place = [p.name for p in shown].index("on_missing")
    shown[place:place] = sides
    # Typer passes every value by name.
    named = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in shown]
    command.__signature__ = own.replace(parameters=named)  # type: ignore[attr-defined]
    return command


def parted(flags: dict[str, Any]) -> tuple[SideFlags, dict[str, str | None]]:
    """Return the flags of the sides, and those of the outputs."""
    outputs = {name: value for name, value in flags.items() if name in OUTPUT_FLAGS}
    sides = {name: value for name, value in flags.items() if name not in OUTPUT_FLAGS}
    return SideFlags(**sides), outputs
