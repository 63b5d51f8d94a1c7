"""`flipguard methods`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from flipguard.cli.output import show, write_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from flipguard.methods import Method

Name = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="Show this method with its options.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("methods")(methods_command)


def methods_command(name: Name = None, json: AsJson = False) -> None:
    """List the training methods, or show one of them with its options.

    Also lists which defaults differ from the paper.

    Example: [bold]flipguard methods elodi[/bold]
    """
    import json as json_module

    from flipguard.methods import METHODS, method_of

    chosen = [method_of(one) for one in (METHODS if name is None else [name])]
    if json:
        rows = [
            {
                "name": name or method.name,
                "sentence": method.sentence,
                "paper": method.paper,
                "needs": sorted(method.default_needs().names),
                "options": {o.name: named.get(o.name, o.default) for o in method.settable},
                "departures": method.default_departures(named),
                "weights": method.default_weights(named),
            }
            for method, named in chosen
        ]
        write_text(json_module.dumps(rows, indent=2, ensure_ascii=False) + "\n", "-")
    parts = _listed([one for one, _ in chosen]) if name is None else _card(name, *chosen[0])
    show(parts, stdout_taken=json)


def _listed(methods: list[Method]) -> Iterator[RenderableType]:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("method", "what it is", "paper"):
        table.add_column(column, no_wrap=column == "method")
    for method in methods:
        table.add_row(method.name, method.sentence, method.paper)
    yield table
    yield ""
    yield "Defaults that differ from the paper (--set options.preset=paper uses its values):"
    departures = Table(box=None, pad_edge=False, show_header=False)
    departures.add_column(no_wrap=True)
    for method in methods:
        for index, departure in enumerate(method.default_departures()):
            departures.add_row("" if index else method.name, departure)
    yield departures


def _card(name: str, method: Method, named: Mapping[str, str]) -> Iterator[RenderableType]:
    """Yield a method's sentence, paper, needs and options."""
    from rich.table import Table

    from flipguard.methods.base import format_value

    yield f"{name}: {method.sentence}"
    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_row("paper", method.paper)
    facts.add_row("needs", method.needed() or "nothing but data")
    yield facts
    yield ""
    if not method.options:
        yield "It has no options."
        return
    table = Table(box=None, pad_edge=False)
    for column in ("option", "default", "what it is"):
        table.add_column(column, no_wrap=column != "what it is")
    for option in method.settable:
        choices = f" Choices: {', '.join(option.choices)}." if option.choices else ""
        # A configuration file cannot hold None, so an option without a value is shown in words.
        value = named.get(option.name, option.default)
        default = "none" if value is None else format_value(value)
        table.add_row(option.name, default, f"{option.sentence}{choices}")
    yield table
    yield ""
    if departures := method.default_departures(named):
        yield "By default this differs from the paper:"
        yield from (f"- {departure}" for departure in departures)
        yield ""
    if weights := method.default_weights(named):
        yield "How to write a weight of the paper:"
        yield from (f"- {one}" for one in weights)
        yield ""
    yield f"Set one with: flipguard train --method {name} --set options.NAME=VALUE"
