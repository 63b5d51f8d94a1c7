"""Pictures of the terminal for the gallery, drawn from the output of the commands."""

from __future__ import annotations

import importlib.util
import io
import os
import tempfile
from functools import cache
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from flipguard import Policy, check, compare, read_predictions
from flipguard.render.terminal import comparison_parts, verdict_parts
from pages.places import ROOT

EXAMPLE = ROOT / "examples" / "road_signs.py"
WIDTH = 80

# The colours of the report's dark theme.
THEME = TerminalTheme(
    (26, 30, 38),
    (233, 236, 242),
    [(71, 80, 99), (255, 157, 118), (87, 205, 189), (240, 202, 108),
     (127, 198, 243), (236, 149, 211), (87, 205, 189), (167, 176, 192)],
    [(152, 163, 182), (255, 157, 118), (87, 205, 189), (240, 202, 108),
     (169, 171, 255), (236, 149, 211), (87, 205, 189), (255, 255, 255)],
)  # fmt: skip

# The template of rich, but with the reader's own font: nothing is fetched.
SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, "SF Mono", "Cascadia Mono", "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width;
}}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


@cache
def results() -> dict[str, object]:
    """Comparisons and verdicts of the example's predictions."""
    found = importlib.util.spec_from_file_location("road_signs", EXAMPLE)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    with tempfile.TemporaryDirectory() as folder:
        module.FOLDER = Path(folder)
        module.generate()
        here = os.getcwd()
        os.chdir(folder)
        try:
            old = read_predictions("old.parquet")
            read = {
                name: read_predictions(f"{name}.parquet") for name in ("retrained", "congruent")
            }
            policy = Policy.read("gate.toml")
            return {
                "compare": compare(old=old, new=read["retrained"], by=["weather"]),
                "gate": check(compare(old=old, new=read["retrained"], by=["target"]), policy),
                "pass": check(compare(old=old, new=read["congruent"], by=["target"]), policy),
            }
        finally:
            os.chdir(here)


COMMANDS = {
    "compare": "flipguard compare old.parquet retrained.parquet --by weather",
    "gate": "flipguard gate old.parquet retrained.parquet --policy gate.toml",
    "pass": "flipguard gate old.parquet congruent.parquet --policy gate.toml",
}


def terminal(name: str) -> str:
    """Return a command and its output, as SVG."""
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, highlight=False,
        markup=False, emoji=False, color_system="truecolor",
    )  # fmt: skip
    console.print(Text("$ ", "dim") + Text(COMMANDS[name], "bold"))
    result = results()[name]
    parts = comparison_parts(result) if name == "compare" else verdict_parts(result)
    for part in parts:
        console.print(part)
    svg = console.export_svg(title="", theme=THEME, code_format=SVG, unique_id=f"flipguard-{name}")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"
