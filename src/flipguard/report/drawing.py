"""From a specification to a drawing: an SVG that needs no script, and what makes it answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from flipguard.errors import MissingExtraError

if TYPE_CHECKING:
    from types import ModuleType

    from markupsafe import Markup

    from flipguard.report.charts.base import Spec

# Vega's own build of itself, with the interpreter of expressions, so that no text is ever compiled.
BUNDLE = "window.flipguardEmbed = vegaEmbed;"
ARIA = r' (?:role|aria-[a-z]+)="[^"]*"'
NAME = r'(\bid="|url\(#)((?:clip|gradient)[^")]*)'
NOTICE = """\
/*! Vega, Vega-Lite and Vega-Embed: Copyright (c) University of Washington Interactive Data Lab and
contributors, BSD 3-Clause License (https://github.com/vega/vega/blob/main/LICENSE). */
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart: the drawing, what it shows in a sentence, and its specification for the browser."""

    id: str
    title: str
    sentence: str
    svg: Markup
    vega: dict[str, Any]


def drawn(spec: Spec, *, id: str, title: str, sentence: str) -> Chart:
    """Draws a chart; its specification is compiled here, so that the browser need not."""
    from markupsafe import Markup, escape

    convert = _converter()
    svg = convert.vegalite_to_svg(spec)
    svg = _named_apart(svg, id)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{escape(sentence)}" ', 1)
    vega = convert.vegalite_to_vega(spec)
    vega["description"] = sentence
    return Chart(
        id=id,
        title=title,
        sentence=sentence,
        svg=Markup(svg),  # noqa: S704 (Vega escapes what it draws)
        vega=vega,
    )


def _named_apart(svg: str, id: str) -> str:
    """The drawing with names of its own, and as one picture; its parts are told by a table.

    Several drawings share the page, and so the names in them; and the numbers in those names count
    on from drawing to drawing, so that the same page would never be the same again.
    """
    names: dict[str, str] = {}

    def renamed(found: re.Match[str]) -> str:
        return found[1] + names.setdefault(found[2], f"{id}-{len(names)}")

    def tag(found: re.Match[str]) -> str:
        return re.sub(NAME, renamed, re.sub(ARIA, "", found[0]))

    # Only within tags: a label may read like an attribute.
    return re.sub(r"<[^>]*>", tag, svg)


@lru_cache(maxsize=1)
def runtime() -> str:
    """The script that makes the charts answer."""
    return NOTICE + str(_converter().javascript_bundle(BUNDLE))


def _converter() -> ModuleType:
    try:
        import vl_convert
    except ModuleNotFoundError as problem:
        raise MissingExtraError(
            "The HTML report", package="vl-convert-python", extra="report"
        ) from problem
    found: ModuleType = vl_convert
    return found
