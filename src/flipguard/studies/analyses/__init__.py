"""Figures that count samples instead of naming rates, from what finished runs said of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from flipguard.studies.analyses.base import Analysed
from flipguard.studies.analyses.displacement import displacements
from flipguard.studies.analyses.margins import margins_of_new
from flipguard.studies.analyses.ranks import ranks
from flipguard.studies.analyses.uncertainty import uncertainties
from flipguard.studies.planning import Plan

ANALYSES: Mapping[str, Callable[[Plan], dict[int, Analysed]]] = MappingProxyType(
    {
        "uncertainty": uncertainties,
        "rank": ranks,
        "displacement": displacements,
        "margin": margins_of_new,
    }
)


def analyses_of(plan: Plan) -> dict[int, Analysed]:
    """What a study's histogram shows, by the places of its lines; nothing if it has none."""
    wanted = plan.study.histogram
    return {} if wanted is None else ANALYSES[wanted.of](plan)
