"""`flipguard analyze`."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flipguard.cli import options
from flipguard.cli.output import check_destinations, say_written, show, write_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from flipguard.analysis import Analysis


class ThemeChoice(StrEnum):
    """The page that a picture is for."""

    light = "light"
    dark = "dark"


HOLDS = {True: ("holds", "green"), False: ("does not hold", "red"), None: ("unclear", "yellow")}

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Analysis: sizes, law, rank or uncertainty.")
]
OldModels = Annotated[
    list[str] | None,
    typer.Option(
        "--old",
        metavar="FILE",
        help="Predictions or run of an old model; may be repeated, and hold * in quotation marks.",
    ),
]
NewModels = Annotated[
    list[str] | None,
    typer.Option("--new", metavar="FILE", help="Predictions or run of a new model; like --old."),
]
Treated = Annotated[
    list[str] | None,
    typer.Option(
        "--treated",
        metavar="FILE",
        help="New model trained with a treatment, to compare with --new (uncertainty).",
    ),
]
Judge = Annotated[
    list[str] | None,
    typer.Option(
        "--judge",
        metavar="FILE",
        help="Models that measure uncertainty, in place of the old ones (uncertainty).",
    ),
]
MembersOfRuns = Annotated[
    bool,
    typer.Option(
        "--members",
        help="Take the members of a run's ensemble, not the run; of `ensemble` runs always.",
    ),
]
Draws = Annotated[
    int | None,
    typer.Option("--draws", metavar="N", help="Draws of members per size (sizes, law)."),
]
Seed = Annotated[
    int | None, typer.Option("--seed", metavar="N", help="Random seed of the draws (sizes, law).")
]
Sample = Annotated[
    str | None,
    typer.Option("--sample", metavar="ID", help="Sample of the picture's histogram (law)."),
]
Top = Annotated[
    int | None, typer.Option("--top", metavar="K", help="Number of top classes (rank).")
]
ExponentP = Annotated[
    float | None,
    typer.Option("--exponent", metavar="P", help="Exponent p of the displacement's norm (rank)."),
]
Json = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write JSON; - is standard output."),
]
Plot = Annotated[
    str | None, typer.Option("--plot", metavar="FILE", help="Write a picture (.png, .svg or .pdf).")
]
Theme = Annotated[
    ThemeChoice, typer.Option("--theme", help="Colours of the picture, for a light or a dark page.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("analyze")(analyze_command)


def analyze_command(
    name: Name,
    old: OldModels = None,
    new: NewModels = None,
    treated: Treated = None,
    judge: Judge = None,
    members: MembersOfRuns = False,
    draws: Draws = None,
    seed: Seed = None,
    sample: Sample = None,
    top: Top = None,
    exponent: ExponentP = None,
    json: Json = None,
    plot: Plot = None,
    theme: Theme = ThemeChoice.light,
    id: options.Id = None,
    target: options.Target = None,
    on_missing: options.OnMissingOption = options.OnMissing.error,
) -> None:
    """Show why samples flip: the analyses of the papers, on your models.

    Example: [bold]flipguard analyze sizes --old 'a*.npz' --new 'b*.npz' --plot sizes.png[/bold]
    """
    from flipguard.analysis.reading import matching
    from flipguard.analysis.registry import analysis_of, analyze, plot_analysis
    from flipguard.plots import check_picture

    analysis_of(name)
    given = {"old": old, "new": new, "treated": treated, "judge": judge}
    groups = {role: matching(paths or (), role) for role, paths in given.items()}
    check_destinations([path for group in groups.values() for path in group], json=json, other=plot)
    if plot is not None:
        check_picture(plot, of="an analysis")
    chosen: dict[str, Any] = {
        "draws": draws,
        "seed": seed,
        "sample": sample,
        "top": top,
        "exponent": exponent,
    }
    result = analyze(
        name,
        old=groups["old"],
        new=groups["new"],
        treated=groups["treated"],
        judge=groups["judge"],
        members=members,
        on_missing=on_missing.value,
        id=id,
        target=target,
        **{option: value for option, value in chosen.items() if value is not None},
    )
    if json is not None:
        write_text(result.to_json(), json)
    show(analysis_parts(result), stdout_taken=json == "-")
    if plot is not None:
        plot_analysis(result, plot, theme=theme.value)
    say_written([json, plot], stdout_taken=json == "-")


def analysis_parts(result: Analysis[Any]) -> Iterator[RenderableType]:
    """The sentence of an analysis, its table, and the claims with their verdicts."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from flipguard.analysis.registry import analysis_of

    yield Text(f"{result.name}  ({result.n:,} samples)", style="bold")
    yield Text(result.sentence)
    text = analysis_of(result.name).table(result)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for i, heading in enumerate(text.headings):
        table.add_column(heading, justify="left" if i == 0 else "right")
    for row in text.rows:
        table.add_row(*row)
    yield Padding(table, (1, 0, 1, 2))
    for line in text.below:
        yield Padding(Text(line, style="dim"), (0, 0, 0, 2))
    yield Text("\nWhat the papers state, on these data:", style="bold")
    claims = Table(box=None, pad_edge=False, show_header=False)
    for claim in result.claims:
        word, colour = HOLDS[claim.holds]
        number = f"{claim.value:.3g} ({claim.low:.3g} to {claim.high:.3g})"
        claims.add_row(Text(word, style=colour), Text(f"{claim.text}: {number}"))
    yield Padding(claims, (0, 0, 1, 2))
