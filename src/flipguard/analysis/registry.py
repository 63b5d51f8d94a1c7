"""The analyses by name: what each shows, which models and options it takes, and its picture."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from flipguard.analysis import pictures, tables
from flipguard.analysis.claims import Analysis
from flipguard.analysis.law import law
from flipguard.analysis.members import MemberScores
from flipguard.analysis.rank import rank
from flipguard.analysis.reading import read_members
from flipguard.analysis.sizes import sizes
from flipguard.analysis.tables import TextTable
from flipguard.analysis.uncertainty import uncertainty
from flipguard.errors import InputError, any_of, nearest
from flipguard.predictions.sides import GivenSide


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisRow:
    """One analysis: its function of members, and how its result is shown.

    `options` are the function's own; `roles` are the groups of models that it takes beyond old and
    new.
    """

    name: str
    summary: str
    paper: str
    run: Callable[..., Analysis[Any]]
    table: Callable[[Any], TextTable]
    draw: Callable[[Any, Any, pictures.Theme], None]
    height: float
    options: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()


_ROWS = (
    AnalysisRow(
        name="sizes",
        summary="Error and negative flip rate against ensemble size, without retraining.",
        paper="PCT figure 3, ELODI figure 2",
        run=sizes,
        table=tables.sizes_table,
        draw=pictures.draw_sizes,
        height=2.9,
        options=("draws", "seed"),
    ),
    AnalysisRow(
        name="law",
        summary="Logit displacement of models and ensembles, against the normal law.",
        paper="ELODI sections 3.1 and 3.3, figures 5, 9 and 10",
        run=law,
        table=tables.law_table,
        draw=pictures.draw_law,
        height=5.4,
        options=("sample", "draws", "seed"),
    ),
    AnalysisRow(
        name="rank",
        summary="Rank of a flip's wrong class in the old model, and displacement by class.",
        paper="ELODI figure 4 and equation 5",
        run=rank,
        table=tables.rank_table,
        draw=pictures.draw_rank,
        height=2.9,
        options=("top", "exponent"),
    ),
    AnalysisRow(
        name="uncertainty",
        summary="Uncertainty of flipped and of other samples, before and after a treatment.",
        paper="PCT figure 4",
        run=uncertainty,
        table=tables.uncertainty_table,
        draw=pictures.draw_uncertainty,
        height=2.9,
        roles=("treated", "judge"),
    ),
)

ANALYSES: Mapping[str, AnalysisRow] = MappingProxyType({row.name: row for row in _ROWS})


def analysis_of(name: str) -> AnalysisRow:
    """Return an analysis by its name; raise with the names that there are."""
    if name in ANALYSES:
        return ANALYSES[name]
    raise InputError(
        f"Expected the name of an analysis, but got {name!r}; "
        + nearest(name, ANALYSES, all_in=f"the analyses are {', '.join(ANALYSES)}")
    )


def analyze(
    name: str,
    *,
    old: Sequence[GivenSide] | MemberScores,
    new: Sequence[GivenSide] = (),
    treated: Sequence[GivenSide] = (),
    judge: Sequence[GivenSide] = (),
    members: bool = False,
    on_missing: Literal["error", "drop"] = "error",
    id: str | None = None,
    target: str | None = None,
    **options: Any,
) -> Analysis[Any]:
    """Analyze two groups of models, read from prediction files or runs.

    `old` may also be `MemberScores`, which hold all groups. `options` are those of the analysis.
    """
    row = analysis_of(name)
    for option in options:
        if option not in row.options:
            known = f"it has {any_of(row.options)}" if row.options else "it has no options"
            raise InputError(f"Expected no `{option}=` with {name}; {known}.")
    for role, group in (("treated", treated), ("judge", judge)):
        if len(group) and role not in row.roles:
            takers = [one.name for one in _ROWS if role in one.roles]
            raise InputError(
                f"Expected no `{role}=` with {name}; only {any_of(takers)} takes such models."
            )
    if not isinstance(old, MemberScores):
        old = read_members(
            old=old,
            new=new,
            treated=treated,
            judge=judge,
            members=members,
            on_missing=on_missing,
            id=id,
            target=target,
        )
    return row.run(old, **options)


def plot_analysis(
    result: Analysis[Any],
    path: str | os.PathLike[str],
    *,
    theme: Literal["light", "dark"] = "light",
) -> None:
    """Draw an analysis as a PNG, SVG or PDF file, by its suffix."""
    row = analysis_of(result.name)
    pictures.draw(result, path, theme=theme, panels=row.draw, height=row.height)
