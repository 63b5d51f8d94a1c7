"""Fill the templates into one HTML page with its style, its scripts and its content policy."""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from flipguard.errors import MissingExtraError
from flipguard.metrics import METRICS
from flipguard.render.numbers import isolated, script_json, shown, visible
from flipguard.report.charts import runtime
from flipguard.report.flips import KIND_WORDS
from flipguard.report.page import Page

if TYPE_CHECKING:
    from jinja2 import Environment

# The page also works without JavaScript. The last script starts what the others define.
SCRIPTS = ("page.js", "tables.js", "samples.js", "charts.js", "start.js")


def html_of(page: Page) -> str:
    """The page as one HTML text that needs no other file."""
    from markupsafe import Markup

    style, script, charts = asset("report.css"), own_script(), runtime()
    for text in (script, charts):
        if "</script" in text.lower() or "<!--" in text:
            raise ValueError("A script of the page contains text that would end it early.")
    # Files of this package and of Vega, not of a user.
    own = {
        "style": Markup(style),  # noqa: S704
        "script": Markup(script),  # noqa: S704
        "runtime": Markup(charts),  # noqa: S704
    }
    return (
        _templates()
        .get_template("page.html")
        .render(
            page=page,
            policy=content_policy(style=style, scripts=(script, charts)),
            sentences={name: metric.sentence for name, metric in METRICS.items()},
            kinds=KIND_WORDS,
            **own,
        )
    )


def content_policy(*, style: str, scripts: tuple[str, ...]) -> str:
    """The Content-Security-Policy: allow these scripts, this style and embedded images only."""
    run = " ".join(_hash(script) for script in scripts)
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {run}",
            f"style-src {_hash(style)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def own_script() -> str:
    """The page's own script, wrapped in one scope so that it defines no global names."""
    parts = "\n".join(asset(name) for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{parts}}})();\n'


@lru_cache(maxsize=8)
def asset(name: str) -> str:
    """The text of a file in the folder `assets`."""
    return files("flipguard.report").joinpath("assets", name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _templates() -> Environment:
    try:
        from jinja2 import Environment, FunctionLoader, StrictUndefined
    except ModuleNotFoundError as problem:
        raise MissingExtraError("The HTML report", package="jinja2", extra="report") from problem

    def load(name: str) -> str:
        place = files("flipguard.report").joinpath("templates", name)
        return place.read_text(encoding="utf-8")

    environment = Environment(
        loader=FunctionLoader(load),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "shown": shown,
        "isolated": isolated,
        "plain_name": lambda text: visible(text, longest=60),
        "sentence": lambda text: visible(text, longest=600),
        "command": lambda text: visible(text, longest=4_000),
        "plain": json_number,
        "grouped": lambda n: "–" if n is None else f"{n:,}",
        "sure": lambda value: "–" if value is None else f"{100 * value:.1f} %",
        "script_json": script_json,
    }
    return environment


def json_number(value: Any) -> str:
    """A number as JSON writes it; empty if it is undefined."""
    return "" if value is None else repr(value)
