"""`flipguard train`."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flipguard.cli.arguments import with_flags
from flipguard.cli.options import AllowCode
from flipguard.cli.output import TIME_IS_UP, line, say
from flipguard.errors import InputError, MissingExtraError, printable

if TYPE_CHECKING:
    from flipguard.training import Config, Run

STANDARD_ERROR = 2

Method = Annotated[
    str | None,
    typer.Option(
        "--method",
        metavar="NAME",
        help="Training method; `flipguard methods` lists all.",
    ),
]
Data = Annotated[
    str | None,
    typer.Option("--data", metavar="NAME", help="Data set: a name, a file or a folder."),
]
Model = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="Model: mlp, resnet20, timm:…")
]
Out = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Folder of the run.", show_default=False)
]
Old = Annotated[
    list[str] | None,
    typer.Option(
        "--old", metavar="RUN", help="Run of the old model, to stay close to and to compare with."
    ),
]
Seed = Annotated[int | None, typer.Option("--seed", help="Random seed.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Configuration file (TOML).")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="One setting, such as recipe.epochs=40."),
]
Fix = Annotated[
    str | None,
    typer.Option(
        "--fix",
        metavar="SOURCES",
        help="Sources of randomness to hold fixed: init,order,augment,dropout,hardware.",
    ),
]
Fuse = Annotated[
    str | None,
    typer.Option(
        "--fuse",
        metavar="auto|on|off",
        help="Train the members of an ensemble as one network; auto: on a GPU, and in "
        "parallel on a CPU.",
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue a run that was stopped.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("train")(train_command)


def train_command(
    out: Out,
    method: Method = None,
    data: Data = None,
    model: Model = None,
    old: Old = None,
    seed: Seed = None,
    config: ConfigFile = None,
    set: Set = None,
    fix: Fix = None,
    fuse: Fuse = None,
    resume: Resume = False,
    allow_code: AllowCode = False,
) -> None:
    """Train a model by a method, into a folder that can be resumed, compared and audited.

    Settings come from --config, then from the other flags, then from --set. If machine.minutes
    stops the training, the exit code is 3.

    Example: [bold]flipguard train --method fd-lm --old runs/v1 --seed 2 --out runs/v2[/bold]
    """
    try:
        from flipguard.models.code import allowing_code
        from flipguard.runs.config import fix_randomness, from_dict, set_values, with_entries
        from flipguard.runs.folder import check_place
        from flipguard.training.interrupting import finish_epoch_on_interrupt, interrupted
        from flipguard.training.monitor import LineMonitor
        from flipguard.training.train import train_with
    except ModuleNotFoundError as problem:
        raise MissingExtraError(
            "Training", package=problem.name or "torch", extra="train"
        ) from problem

    check_place(out)
    has_settings = any((method, data, model, old, set, fix))
    values = _written(config, out, resume=resume, has_settings=has_settings)
    given = {"method": method, "data": data, "model": model, "old": old and list(old)}
    values |= {name: value for name, value in given.items() if value is not None}
    if seed is not None:
        values = with_entries(values, "seeds", {"seed": seed})
    if fix is not None:
        values = fix_randomness(values, [source.strip() for source in fix.split(",")])
    if fuse is not None:
        values = with_entries(values, "machine", {"fuse": fuse})
    settings = from_dict(set_values(values, set or []))
    stopped_by_hand = False
    try:
        with allowing_code(allow_code), finish_epoch_on_interrupt(_say_that_the_epoch_is_finished):
            run = train_with(None, settings, out, resume=resume, monitor=LineMonitor(_tell))
            stopped_by_hand = interrupted() and not run.finished
    except KeyboardInterrupt:
        stopped_by_hand = True
    if stopped_by_hand:
        say(f"{out}: interrupted{_way_on(out, settings)}")
        raise typer.Exit(130)
    _say_how_it_ended(run, out)


def _tell(text: str) -> None:
    line(with_flags(text))


def _say_how_it_ended(run: Run, out: Path) -> None:
    if not run.finished:
        line(f"{out}: time limit reached; continue with: flipguard train --out {out} --resume")
        raise typer.Exit(TIME_IS_UP)
    line(f"{out}: finished; predictions of the test set are in {out}/predictions/test.npz")
    if run.config.scope.validation is not None:
        line(f"predictions of the validation set are in {out}/predictions/validation.npz")


def _say_that_the_epoch_is_finished() -> None:
    # Without a buffer, because the signal may come while a buffer is being written.
    with suppress(OSError):
        os.write(
            STANDARD_ERROR,
            b"interrupted: finishing this epoch first; press Ctrl-C again to stop at once\n",
        )


def _way_on(out: Path, settings: Config) -> str:
    """Return what was saved of an interrupted run, and how to continue it."""
    from flipguard.runs.folder import CHECKPOINT
    from flipguard.training import Run
    from flipguard.training.checks import trains_members

    if not (out / "run.json").exists():
        if trains_members(settings):
            return (
                " while members were trained; finished members are kept; run the same command "
                "again to continue"
            )
        return " before anything was saved; run the same command again"
    resumed = f"flipguard train --out {out} --resume"
    if (out / CHECKPOINT).exists():
        return f"; continue from the last checkpoint with: {resumed}"
    run = Run.read(out)
    if trains_members(run.config) and "members" not in run.document:
        return f" while members were trained, whose states are kept; continue with: {resumed}"
    return f" before an epoch was saved; start it again with: {resumed}"


def _written(config: Path | None, out: Path, *, resume: bool, has_settings: bool) -> dict[str, Any]:
    """Return the settings of the file, or of the run to resume if the command names none."""
    from flipguard.runs.config import read_toml

    if config is not None:
        return read_toml(config)
    if resume and ((out / "run.json").exists() or not has_settings):
        # Settings that are not given are those of the run; different ones are refused.
        return _begun(out)
    return {}


def _begun(out: Path) -> dict[str, Any]:
    from flipguard.runs.config import as_dict
    from flipguard.training import Run

    if not (out / "run.json").exists():
        raise InputError(
            f"Expected {printable(str(out))} to be a run, but there is no run.json in it; give "
            "a folder that `flipguard train --out` wrote. If members were being trained, "
            "repeat the same command without `--resume` to continue."
        )
    values = as_dict(Run.read(out).config)
    del values["machine"][
        "minutes"
    ]  # the limit of the earlier start, with which this one would stop at once
    return values
