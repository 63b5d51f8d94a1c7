"""From a specification to a drawing: an SVG that needs no script, and what makes it answer."""

from __future__ import annotations

import re
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from flipguard.report.drawer import drawn

if TYPE_CHECKING:
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


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart: what it shows in a sentence, and its specification; drawn when it is asked to be."""

    id: str
    title: str
    sentence: str
    spec: Spec

    @cached_property
    def svg(self) -> Markup:
        """The drawing, which needs no script."""
        from markupsafe import Markup, escape

        svg = _named_apart(drawn("vegalite_to_svg", self.spec), self.id)
        told = escape(self.sentence)
        svg = svg.replace("<svg ", f'<svg role="img" aria-label="{told}" ', 1)
        return Markup(svg)  # noqa: S704 (Vega escapes what it draws)

    @cached_property
    def vega(self) -> dict[str, Any]:
        """The specification as the browser reads it, compiled here so that the browser need not."""
        return {**drawn("vegalite_to_vega", self.spec), "description": self.sentence}


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


def runtime() -> str:
    """The script that makes the charts answer."""
    with _one_bundle:
        return _runtime()


def prepare() -> None:
    """Have the process that draws warmed up, and the script made, while other work is done."""

    def make() -> None:
        # What goes wrong is raised once the script is asked for.
        with suppress(Exception):
            runtime()
            drawn("vegalite_to_svg", {"data": {"values": []}, "mark": "point"})

    threading.Thread(target=make, daemon=True).start()


_one_bundle = threading.Lock()


@lru_cache(maxsize=1)
def _runtime() -> str:
    return NOTICE + str(drawn("javascript_bundle", BUNDLE))
