"""`flipguard study` and the terminal output of its commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flipguard.cli import options
from flipguard.cli.arguments import with_flags
from flipguard.cli.output import TIME_IS_UP, check_destinations, say, show, typed, write_text
from flipguard.cli.progress import progress
from flipguard.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from rich.console import JustifyMethod, RenderableType

    from flipguard.studies.job import StudyJob
    from flipguard.studies.results import Result
    from flipguard.studies.run import Outcome


MOST_NAMED = 6

HELP = """Reproduce the papers' tables and figures at a scale of your choice.

Example: [bold]flipguard study run elodi.table1 --scale mnist1d --seeds 3[/bold]
"""
DEFAULT_OUT, DEFAULT_SCALE = Path("flipguard-studies"), "mnist1d"

Id = Annotated[
    str, typer.Argument(metavar="ID", help="A study, such as elodi.table1, or a result file.")
]
Ids = Annotated[
    list[str],
    typer.Argument(metavar="ID…", help="Studies, such as elodi.table1, or all."),
]
Scale = Annotated[
    str, typer.Option("--scale", metavar="NAME", help="Scale: mnist1d, cifar100, imagenet …")
]
AnyScale = Annotated[
    str | None,
    typer.Option("--scale", metavar="NAME", help="Scale of the result, if there are several."),
]
Out = Annotated[
    Path,
    typer.Option("--out", metavar="DIR", help="Folder for the runs and results of all studies."),
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
        help="First seed. Results of other seeds in the folder are merged with the new ones.",
    ),
]
Members = Annotated[
    int | None,
    typer.Option("--members", metavar="N", help="Largest number of members in an ensemble."),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="One setting of the scale: recipe.epochs=40, roles.small=lenet5, "
        "options.fd-lm.weight=0.1, scope.validation=0.1, data_root=DIR.",
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        metavar="N",
        help="Runs at the same time (default: one per core, or two per GPU).",
    ),
]
Device = Annotated[str, typer.Option("--device", metavar="auto|cpu|cuda", help="Where to train.")]
Devices = Annotated[
    str | None,
    typer.Option("--devices", metavar="0,1,…", help="GPUs to use; processes are spread over them."),
]
Fuse = Annotated[
    str,
    typer.Option(
        "--fuse",
        metavar="auto|on|off",
        help="Train untreated runs that differ only by seed as one network; auto: on a GPU.",
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        "--minutes",
        metavar="N",
        help="Time limit; the same command continues. Exit code 3 if results are missing.",
    ),
]
PlanOnly = Annotated[
    bool,
    typer.Option("--plan", help="Show what would be trained and how long it takes; train nothing."),
]
Time = Annotated[
    bool,
    typer.Option("--time", help="With --plan: run a few steps of each model to time it here."),
]
Plot = Annotated[
    str | None,
    typer.Option("--plot", metavar="FILE", help="Write a picture (.png, .svg or .pdf)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def named(task: StudyJob) -> str:
    """Return the name of the study, or how many studies there are."""
    count = len(task.plans)
    return task.plans[0].study.id if count == 1 else f"{count} studies"


def outcome_parts(task: StudyJob, outcome: Outcome) -> list[RenderableType]:
    """Return every result, and how far all of them agree with the papers."""
    from flipguard.studies.results import result_path
    from flipguard.studies.show import overview_line, overview_table, result_parts

    parts: list[RenderableType] = []
    for number, result in enumerate(outcome.results):
        if number:
            parts.append("")
        parts += result_parts(result)
        parts += ["", str(result_path(task.out, result.study.id, result.scale))]
    if len(outcome.results) > 1:
        parts += ["", overview_table(outcome.results), "", overview_line(outcome.results)]
    return parts


def what_is_left(task: StudyJob, outcome: Outcome) -> str:
    """Return what is left to do after the time limit."""
    from flipguard.formatting import format_seconds

    left = task.left
    return (
        f"time limit reached with {len(left)} of {len(task.nodes)} runs left, about "
        f"{format_seconds(task.seconds(left))}, of {_named(outcome.missing)}; run the same command "
        "again to continue."
    )


def without_results(outcome: Outcome) -> str:
    """Return which studies have no result, to follow the error that says why."""
    if len(outcome.results) + len(outcome.missing) < 2 or not outcome.missing:
        return ""
    return f" There is no result of {_named(outcome.missing)}."


def _named(studies: Sequence[str]) -> str:
    return ", ".join(studies) if len(studies) <= MOST_NAMED else f"{len(studies)} studies"


def plan_parts(task: StudyJob) -> list[RenderableType]:
    """Return what would be trained, and how long it should take."""
    from rich.table import Table

    from flipguard.studies.job import plan_rows, plan_summary

    table = Table(box=None, pad_edge=False)
    for head, right in (("method", 0), ("model", 0), ("runs", 1), ("there", 1), ("each", 1)):
        # On a narrow terminal names are wrapped, and numbers are not.
        side: JustifyMethod = "right" if right else "left"
        table.add_column(head, justify=side, no_wrap=bool(right), overflow="fold")
    table.add_column("all", justify="right", no_wrap=True)
    for method, model, runs, there, each, total in plan_rows(task):
        table.add_row(method, model, str(runs), str(there), each, total)
    # A dictionary keeps each label once, and in order.
    not_run: dict[tuple[str, str], dict[str, None]] = {}
    for plan in task.plans:
        of = f" of {plan.study.id}" if len(task.plans) > 1 else ""
        for place, why in plan.left_out.items():
            line = plan.study.lines[place]
            label = line.label if line.pair is None else "cells of the matrix"
            not_run.setdefault((of, why), {})[label] = None
    left_out = [f"Not run{of}: {'; '.join(labels)}. {why}" for (of, why), labels in not_run.items()]
    left_out += [f"Left out: {study}. {why}" for study, why in task.left_out.items()]
    text = [plan_summary(task), *left_out]
    if task.no_data is not None:
        text.append(f"Data is missing: {task.no_data}")
    told = map(with_flags, text)
    return [_plan_head(task), "", table, "", *told, "Nothing was trained."]


def _plan_head(task: StudyJob) -> str:
    first = task.plans[0]
    counts = sorted({len(plan.seeds) for plan in task.plans})
    seeds = f"{' to '.join(map(str, counts[:: len(counts) - 1 or 1]))} seed{'s' * (counts != [1])}"
    if len(task.plans) > 1:
        names = ", ".join(plan.study.id for plan in task.plans)
        return f"{named(task)} at {first.scale.name}, {seeds}: {names}."
    lines = len({update.line for update in first.updates})
    title = first.study.title_at(pretrained=first.scale.pretrained)
    return f"{named(task)} at {first.scale.name}: {title}\n{lines} rows, {seeds}."


def register(app: typer.Typer) -> None:
    """Add the command and its subcommands."""
    study = typer.Typer(
        help=HELP,
        no_args_is_help=True,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    study.command("list")(list_studies)
    study.command("run")(run_command)
    study.command("show")(show_study)
    app.add_typer(study, name="study")


def list_studies(json: AsJson = False) -> None:
    """List the studies and scales, one line each.

    Example: [bold]flipguard study list[/bold]
    """
    import json as json_module

    from rich.table import Table

    from flipguard.studies.read_study import studies
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


def run_command(
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
    time: Time = False,
) -> None:
    """Train what studies need, and print their numbers next to those of the papers.

    Studies in one folder share their runs: finished runs are kept, and stopped runs continue.

    Example: [bold]flipguard study run elodi.table1 --scale cifar100 --plan[/bold]
    """
    try:
        from flipguard.studies.job import plan_summary, prepare_job
        from flipguard.studies.run import run_studies
    except ModuleNotFoundError as problem:
        raise MissingExtraError(
            "Running a study", package=problem.name or "torch", extra="train"
        ) from problem

    _check_times(minutes, time=time, plan=plan)
    task = prepare_job(
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
        timed=time,
    )
    if plan:
        show(plan_parts(task), stdout_taken=False)
        return
    for study, why in task.left_out.items():
        _tell(f"{study} is left out: {why}")
    say(f"{named(task)} at {scale}: {with_flags(plan_summary(task))}")
    with _resumable(), progress("training") as shown:
        outcome = run_studies(task, command=typed(), minutes=minutes, progress=shown, report=_tell)
    show(outcome_parts(task, outcome), stdout_taken=False)
    if outcome.failed is not None:
        raise InputError(f"{outcome.failed}{without_results(outcome)}")
    if outcome.missing:
        _tell(what_is_left(task, outcome))
        raise typer.Exit(TIME_IS_UP)


def _check_times(minutes: float | None, *, time: bool, plan: bool) -> None:
    if time and not plan:
        raise InputError("Expected `--time` together with `--plan`, but got it alone; add it.")
    if minutes is not None and not 0 < minutes < float("inf"):
        raise InputError(f"Expected `--minutes` to be above 0, but got {minutes:g}.")


def _tell(line: str) -> None:
    say(f"flipguard: {with_flags(line)}")


@contextmanager
def _resumable() -> Iterator[None]:
    """Say after Ctrl-C how the command continues, and end it."""
    try:
        yield
    except KeyboardInterrupt:
        _tell("stopped; run the same command again to continue.")
        raise typer.Exit(130) from None


def show_study(
    id: Id,
    scale: AnyScale = None,
    out: Out = DEFAULT_OUT,
    markdown: options.Markdown = None,
    plot: Plot = None,
) -> None:
    """Show the result of a study next to the paper, and how far they agree.

    Example: [bold]flipguard study show elodi.table1 --plot table1.png[/bold]
    """
    check_destinations([], markdown=markdown, other=plot)
    if plot is not None:
        from flipguard.plots import check_picture

        check_picture(plot, of="a study")
    from flipguard.studies.show import markdown_of, result_parts

    is_file = id.endswith(".json") or Path(id).is_file()
    result = _of_file(id, scale, out) if is_file else _of_study(id, scale, out)
    if markdown is not None:
        write_text(markdown_of(result), markdown)
    show(result_parts(result), stdout_taken=markdown == "-")
    if plot is not None:
        from flipguard.studies.draw import plot_result

        plot_result(result, plot)


def _of_file(name: str, scale: str | None, out: Path) -> Result:
    """Read a result from any file."""
    from flipguard.studies.results import result_in

    for option, given in (("--scale", scale), ("--out", out if out != DEFAULT_OUT else None)):
        if given is not None:
            raise InputError(
                f"Expected no `{option}` with a result file, but got {given}; remove it, since "
                f"only {name} is read."
            )
    return result_in(Path(name))


def _of_study(id: str, scale: str | None, out: Path) -> Result:
    """Read the result of a study from the folder of all results."""
    from flipguard.studies.read_study import study_of
    from flipguard.studies.results import read_result, result_path, results_in
    from flipguard.studies.scales import scale_of

    study = study_of(id)
    if scale is None:
        found = [path.name.split(".")[-2] for path in results_in(out) if _is_of(path, id)]
        if len(found) > 1:
            raise InputError(
                f"Expected `--scale`, because {id} has several results; give one of "
                f"{', '.join(found)}."
            )
        scale = found[0] if found else DEFAULT_SCALE
    return read_result(result_path(out, id, scale_of(scale).name), study)


def _is_of(path: Path, id: str) -> bool:
    """Return whether a file is a result of a study, whose id contains a dot."""
    return path.name.rsplit(".", 2)[0] == id
