"""`flipguard study`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flipguard.cli import options
from flipguard.cli.output import check_destinations, progress, show, typed, write_text
from flipguard.cli.streams import say
from flipguard.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from flipguard.studies.results import Result

HELP = """The papers' tables and figures: train them at a scale of yours, beside the papers.

Example: [bold]flipguard study run elodi.table1 --scale mnist1d --seeds 3[/bold]
"""
TIME_IS_UP = 3  # neither done nor failed, as an inconclusive gate is
DEFAULT_OUT, DEFAULT_SCALE = Path("flipguard-studies"), "mnist1d"

Id = Annotated[
    str, typer.Argument(metavar="ID", help="A study, such as elodi.table1, or a result's file.")
]
Ids = Annotated[
    list[str],
    typer.Argument(metavar="ID…", help="Studies, such as elodi.table1; all: as many as there are."),
]
Scale = Annotated[
    str, typer.Option("--scale", metavar="NAME", help="How large: mnist1d, cifar100, imagenet …")
]
AnyScale = Annotated[
    str | None,
    typer.Option("--scale", metavar="NAME", help="Of which scale, if there are several."),
]
Out = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Where runs and results are, of all studies.")
]
Seeds = Annotated[
    int | None,
    typer.Option("--seeds", metavar="N", help="Number of seeds (default depends on the scale)."),
]
FirstSeed = Annotated[
    int,
    typer.Option(
        "--first-seed",
        metavar="N",
        help="The first of them. A result of other seeds that is there becomes one with the new.",
    ),
]
Members = Annotated[
    int | None, typer.Option("--members", metavar="N", help="At most so many in an ensemble.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="One setting of the scale: recipe.epochs=40, roles.small=lenet5, "
        "options.fd-lm.weight=0.1, data_root=DIR.",
    ),
]
Processes = Annotated[
    int | None,
    typer.Option("--processes", metavar="N", help="Runs at once; as many as cores, or 2 a GPU."),
]
Device = Annotated[str, typer.Option("--device", metavar="auto|cpu|cuda", help="Where to train.")]
Devices = Annotated[
    str | None,
    typer.Option("--devices", metavar="0,1,…", help="Several GPUs, which processes take in turn."),
]
Fuse = Annotated[
    str,
    typer.Option(
        "--fuse",
        metavar="auto|on|off",
        help="Untreated runs that differ by seed alone as one network; auto: on a GPU.",
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        "--minutes",
        metavar="N",
        help="Train no longer; the same command then goes on. Exit code 3 if results are missing.",
    ),
]
PlanOnly = Annotated[
    bool, typer.Option("--plan", help="Say what would be trained and how long; train nothing.")
]
Plot = Annotated[
    str | None,
    typer.Option("--plot", metavar="FILE", help="Draw it as a picture (.png, .svg or .pdf)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print them as JSON.")]


def register(app: typer.Typer) -> None:
    """Adds the command and its parts."""
    study = typer.Typer(
        help=HELP,
        no_args_is_help=True,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    study.command("list")(list_studies)
    study.command("run")(run)
    study.command("show")(show_study)
    app.add_typer(study, name="study")


def list_studies(json: AsJson = False) -> None:
    """What studies and scales there are, a line each.

    Example: [bold]flipguard study list[/bold]
    """
    import json as json_module

    from rich.table import Table

    from flipguard.studies.reading import studies
    from flipguard.studies.scales import scales

    if json:
        document = {
            "studies": [
                {"id": study.id, "title": study.title, "rows": len(study.lines)}
                for study in studies().values()
            ],
            "scales": [
                {"name": scale.name, "sentence": scale.sentence} for scale in scales().values()
            ],
        }
        write_text(json_module.dumps(document, indent=2, ensure_ascii=False) + "\n", "-")
    table = Table(box=None, pad_edge=False)
    table.add_column("study", no_wrap=True)
    table.add_column("what it shows")
    table.add_column("rows", justify="right")
    for study in studies().values():
        table.add_row(study.id, study.title, str(len(study.lines)))
    sizes = Table(box=None, pad_edge=False)
    sizes.add_column("scale", no_wrap=True)
    sizes.add_column("what it is")
    for scale in scales().values():
        sizes.add_row(scale.name, scale.sentence)
    show([table, "", sizes], stdout_taken=json)


def run(
    ids: Ids,
    scale: Scale = DEFAULT_SCALE,
    seeds: Seeds = None,
    first_seed: FirstSeed = 0,
    out: Out = DEFAULT_OUT,
    members: Members = None,
    set: Set = None,
    processes: Processes = None,
    device: Device = "auto",
    devices: Devices = None,
    fuse: Fuse = "auto",
    minutes: Minutes = None,
    plan: PlanOnly = False,
) -> None:
    """Trains what tables need, and prints them beside the papers' numbers.

    Runs are shared by all studies in a folder: what is finished is never trained again, and what
    was stopped goes on.

    Example: [bold]flipguard study run elodi.table1 --scale cifar100 --plan[/bold]
    """
    try:
        from flipguard.studies.running import run_studies
        from flipguard.studies.tasks import plan_summary, prepared
    except ModuleNotFoundError as problem:
        raise MissingExtraError(
            "Running a study", package=problem.name or "torch", extra="train"
        ) from problem
    from flipguard.cli.study_parts import (
        named,
        outcome_parts,
        plan_parts,
        what_is_left,
        without_results,
    )

    if minutes is not None and not 0 < minutes < float("inf"):
        raise InputError(f"Expected `--minutes` to be above 0, but got {minutes:g}.")
    task = prepared(
        ids,
        scale=scale,
        out=out,
        seeds=seeds,
        first_seed=first_seed,
        members=members,
        settings=set or (),
        processes=processes,
        device=device,
        devices=devices,
        fuse=fuse,
        plan_only=plan,
    )
    if plan:
        show(plan_parts(task), stdout_taken=False)
        return
    for study, why in task.left_out.items():
        say(f"flipguard: {study} is left out: {why}")
    say(f"{named(task)} at {scale}: {plan_summary(task)}")
    try:
        with progress("training") as told:
            outcome = run_studies(
                task,
                command=typed(),
                minutes=minutes,
                progress=told,
                report=lambda line: say(f"flipguard: {line}"),
            )
    except KeyboardInterrupt:
        say("flipguard: stopped; run the same command again to continue.")
        raise typer.Exit(130) from None
    show(outcome_parts(task, outcome), stdout_taken=False)
    if outcome.failed is not None:
        raise InputError(f"{outcome.failed}{without_results(outcome)}")
    if outcome.missing:
        say(f"flipguard: {what_is_left(task, outcome)}")
        raise typer.Exit(TIME_IS_UP)


def show_study(
    id: Id,
    scale: AnyScale = None,
    out: Out = DEFAULT_OUT,
    markdown: options.Markdown = None,
    plot: Plot = None,
) -> None:
    """A study that was run, beside the paper, and how far they agree.

    Example: [bold]flipguard study show elodi.table1 --plot table1.png[/bold]
    """
    check_destinations([], markdown=markdown, other=plot)
    if plot is not None:
        from flipguard.plots.picture import check_picture

        check_picture(plot, of="a study")
    from flipguard.studies.render import markdown_of, result_parts

    is_file = id.endswith(".json") or Path(id).is_file()
    result = _of_file(id, scale, out) if is_file else _of_study(id, scale, out)
    if markdown is not None:
        write_text(markdown_of(result), markdown)
    show(result_parts(result), stdout_taken=markdown == "-")
    if plot is not None:
        from flipguard.studies.drawing import plot_result

        plot_result(result, plot)


def _of_file(name: str, scale: str | None, out: Path) -> Result:
    """A result that lies anywhere, such as one that a newer one replaced."""
    from flipguard.studies.results import result_in

    for option, given in (("--scale", scale), ("--out", out if out != DEFAULT_OUT else None)):
        if given is not None:
            raise InputError(
                f"Expected no `{option}` beside a result's file, but got {given}; leave it out, "
                f"since {name} is all that is read."
            )
    return result_in(Path(name))


def _of_study(id: str, scale: str | None, out: Path) -> Result:
    """The result of a study in the folder of all."""
    from flipguard.studies.reading import study_of
    from flipguard.studies.results import read_result, result_path, results_in
    from flipguard.studies.scales import scale_of

    study = study_of(id)
    if scale is None:
        found = [path.name.split(".")[-2] for path in results_in(out) if _is_of(path, id)]
        if len(found) > 1:
            raise InputError(
                f"Expected `--scale` to say which result of {id}, but got none; there are "
                f"{', '.join(found)}."
            )
        scale = found[0] if found else DEFAULT_SCALE
    return read_result(result_path(out, id, scale_of(scale).name), study)


def _is_of(path: Path, id: str) -> bool:
    """Whether a file is a result of a study, whose names have a dot themselves."""
    return path.name.rsplit(".", 2)[0] == id
