"""The command line: parsing and calling, nothing else."""

from __future__ import annotations

import os
import sys

import typer

from flipguard._version import __version__
from flipguard.cli import (
    compare,
    demo,
    ensemble,
    gate,
    matrix,
    methods,
    metrics,
    predict,
    report,
    study,
    train,
)
from flipguard.cli.arguments import with_flags
from flipguard.errors import FlipguardError, printable

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
        typer.echo(f"flipguard {__version__}")
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
    report,
    matrix,
    ensemble,
    train,
    predict,
    study,
    demo,
    methods,
    metrics,
):
    module.register(app)


def main() -> None:
    """Runs the command line; what a user can mend is one sentence and exit code 2."""
    try:
        app()
    except FlipguardError as problem:
        # What a file holds may be quoted in the sentence: it must not steer the terminal.
        text = with_flags(str(problem))
        print(f"flipguard: {printable(text, longest=20_000)}", file=sys.stderr)
        raise SystemExit(2) from None
    except Exception as bug:
        # Not 1, which a gate would read as a verdict: nothing was judged.
        if os.environ.get("FLIPGUARD_TRACEBACK"):
            raise
        print(
            f"flipguard: this is a bug ({type(bug).__name__}: {printable(str(bug))}); "
            "set FLIPGUARD_TRACEBACK=1 to see where, and report it, please.",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("flipguard: interrupted; nothing was written.", file=sys.stderr)
        raise SystemExit(130) from None
