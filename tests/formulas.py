"""Formulas that the documentation prints, evaluated as they are printed."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SIGNS = {"·": "*", "−": "-", "√": "sqrt"}


def evaluated(page: str, names: Sequence[str], **given: float) -> float:
    """Return the last of some named values, each by its line ``name = …`` of the page.

    A letter with ² is the square of that letter if it is given, or else a value that is given
    squared.
    """
    lines = (ROOT / page).read_text().splitlines()
    known = {name.replace("²", "_squared"): value for name, value in given.items()}
    for name in names:
        (line,) = (line for line in lines if re.match(rf"{name} += ", line))
        formula = line.partition("=")[2].strip()
        formula = re.sub(
            r"(\w)²", lambda m: m[1] + ("_squared" if f"{m[1]}²" in given else "**2"), formula
        )
        formula = formula.replace(")²", ")**2")
        for sign, python in SIGNS.items():
            formula = formula.replace(sign, python)
        known[name] = eval(formula, {"sqrt": math.sqrt, "max": max}, known)
    return known[names[-1]]
