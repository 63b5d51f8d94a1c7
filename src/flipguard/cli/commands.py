"""All commands, as one application."""

from __future__ import annotations

import typer

from flipguard._version import __version__
from flipguard.cli import (
    adopt,
    analyze,
    compare,
    demo,
    ensemble,
    gate,
    init,
    matrix,
    methods,
    metrics,
    predict,
    report,
    study,
    train,
)
from flipguard.cli.output import line

app = typer.Typer(
    name="flipguard",
    help="Measure what a model update breaks, judge if it may ship, train so that less breaks.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        line(f"flipguard {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and stop."
    ),
) -> None:
    """Measure what a model update breaks, judge whether it may ship, train so that less breaks."""


for module in (
    compare,
    gate,
    init,
    report,
    matrix,
    ensemble,
    analyze,
    train,
    adopt,
    predict,
    study,
    demo,
    methods,
    metrics,
):
    module.register(app)
