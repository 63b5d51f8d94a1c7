"""`flipguard adopt`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flipguard.cli.arguments import with_flags
from flipguard.cli.options import AllowCode
from flipguard.cli.output import line
from flipguard.errors import InputError, MissingExtraError, listed

Model = Annotated[
    str,
    typer.Option(
        "--model",
        metavar="SPEC",
        help="Model: timm:NAME, torchvision:NAME, hf:PATH, python:MODULE:FUNCTION.",
        show_default=False,
    ),
]
Data = Annotated[
    str,
    typer.Option(
        "--data", metavar="NAME", help="Data set: a name, a file or a folder.", show_default=False
    ),
]
Out = Annotated[
    Path, typer.Option("--out", metavar="RUN", help="Folder of the run.", show_default=False)
]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="FILE|NAME",
        help="State dict (.safetensors, .pt, .pth), or name of weights of torchvision such as "
        "IMAGENET1K_V1 (default: those that the library publishes).",
    ),
]
Classes = Annotated[
    Path | None,
    typer.Option(
        "--classes",
        metavar="FILE",
        help="Classes of the model in the order of its outputs: one per line, or JSON.",
    ),
]
InputSize = Annotated[
    str | None,
    typer.Option("--input-size", metavar="N|H,W", help="Size of the images that the model reads."),
]
Resize = Annotated[
    str | None,
    typer.Option(
        "--resize",
        metavar="N|H,W",
        help="Resize before the centre crop: the shorter side, or height and width.",
    ),
]
Interpolation = Annotated[
    str | None,
    typer.Option(
        "--interpolation", metavar="NAME", help="Filter of the resizing: bilinear, bicubic, …"
    ),
]
Mean = Annotated[
    str | None,
    typer.Option("--mean", metavar="R,G,B", help="Mean of each channel, for values from 0 to 1."),
]
Std = Annotated[
    str | None, typer.Option("--std", metavar="R,G,B", help="Deviation of each channel.")
]
DataRoot = Annotated[
    str | None,
    typer.Option("--data-root", metavar="DIR", help="Folder of named data sets."),
]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="auto, cpu or cuda.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("adopt")(adopt_command)


def adopt_command(
    model: Model,
    data: Data,
    out: Out,
    weights: Weights = None,
    classes: Classes = None,
    input_size: InputSize = None,
    resize: Resize = None,
    interpolation: Interpolation = None,
    mean: Mean = None,
    std: Std = None,
    data_root: DataRoot = None,
    device: Device = "auto",
    allow_code: AllowCode = False,
) -> None:
    """Turn a model that was trained elsewhere into a finished run.

    Input size, resize, mean and deviation come with the model's library, unless a flag gives them.

    Example: [bold]flipguard adopt --model timm:resnet50 --weights w.pt --data dogs --out v1[/bold]
    """
    try:
        from flipguard.runs.image_settings import ImageSettings
        from flipguard.training import adopt
    except ModuleNotFoundError as problem:
        raise MissingExtraError(
            "Adopting a model", package=problem.name or "torch", extra="train"
        ) from problem

    settings = ImageSettings(
        input_size=_sizes("--input-size", input_size),
        resize=_sizes("--resize", resize),
        interpolation=interpolation,
        mean=_numbers("--mean", mean),
        std=_numbers("--std", std),
    )
    adopt(
        model,
        data,
        out,
        weights=weights,
        classes=classes,
        preprocessing=settings,
        data_root=data_root,
        device=device,
        allow_code=allow_code,
        report=lambda text: line(with_flags(text)),
    )
    line(f"{out}: finished; predictions of the test set are in {out}/predictions/test.npz")


def _sizes(flag: str, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        found = tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        found = ()
    if len(found) not in (1, 2) or min(found) < 1:
        raise InputError(
            f"Expected `{flag}` to be a number of pixels, or height and width such as 224,192, but "
            f"got {listed([text])}."
        )
    return found


def _numbers(flag: str, text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"Expected `{flag}` to be one number, or one per channel such as 0.485,0.456,0.406, "
            f"but got {listed([text])}."
        ) from None
