"""The main table of each analysis, as text: headings and rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flipguard.analysis.claims import Analysis, in_percent
from flipguard.analysis.law import LawData
from flipguard.analysis.rank import MOST_RANKS, RankData, Ranks
from flipguard.analysis.sizes import SizeCurve, SizesData
from flipguard.analysis.uncertainty import Flipped, UncertaintyData


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """A table of text; the first column is of words, the others of numbers."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    below: tuple[str, ...] = ()


def sizes_table(result: Analysis[SizesData]) -> TextTable:
    """Rates by ensemble size, with the range of draws."""
    data = result.data
    law = dict(zip(data.law.sizes, data.law.negative_flip_rate, strict=True))
    rows = []
    for i, size in enumerate(data.sizes):
        rows.append(
            (
                f"{size}",
                in_percent(data.error_rate_old.mean[i]),
                in_percent(data.error_rate_new.mean[i]),
                in_percent(data.negative_flip_rate.mean[i]),
                _draws(data.negative_flip_rate, i),
                in_percent(law[size]) if size in law else "",
                in_percent(data.relative_negative_flip_rate.mean[i], decimals=0),
            )
        )
    extra = data.extrapolated
    for i, size_or_none in enumerate(extra.sizes):
        name = "no limit" if size_or_none is None else f"{size_or_none}"
        rate, low, high = extra.negative_flip_rate[i], extra.low[i], extra.high[i]
        ends = f"({100 * max(0.0, low):.2f} to {100 * max(0.0, high):.2f})"
        rows.append((name, "", "", f"({in_percent(max(0.0, rate))})", ends, "", ""))
    below = [f"Means over {data.draws:,} draws of members. By law: members' logits are normal."]
    if extra.sizes:
        below.append("In parentheses: extrapolated, with the interval over samples.")
    return TextTable(
        headings=("m", "error old", "error new", "NFR", "95 % of draws", "by law", "rel. NFR"),
        rows=tuple(rows),
        below=tuple(below),
    )


def _draws(curve: SizeCurve, i: int) -> str:
    return f"{100 * curve.draw_low[i]:.2f} to {100 * curve.draw_high[i]:.2f}"


def law_table(result: Analysis[LawData]) -> TextTable:
    """Squared displacement by ensemble size, and its covariance."""
    trace = result.data.trace
    rows = tuple(
        (f"{size}", f"{math.sqrt(squared):.3f}", f"{squared:.3f}", f"{covariance:.3f}")
        for size, squared, covariance in zip(
            trace.sizes, trace.squared_displacement, trace.covariance, strict=True
        )
    )
    fit, shown = result.data.fit, result.data.sample
    return TextTable(
        headings=("m", "displacement", "squared", "covariance trace"),
        rows=rows,
        below=(
            f"Fit of {fit.pairs} pairs per sample: gap {fit.gap:.3f}, expected {fit.expected:.3f}, "
            f"p = {fit.p_value:.2f}; {in_percent(fit.rejected, decimals=1)} of the samples have "
            "p < 0.05.",
            f"The displacement varies as in {result.data.dimension:.1f} of "
            f"{result.data.classes:,} dimensions. In the picture: sample {shown.id}.",
        ),
    )


def rank_table(result: Analysis[RankData]) -> TextTable:
    """Share of flips by the old model's rank of their wrong class."""
    data = result.data
    every = [data.models, *([] if data.ensembles is None else [data.ensembles])]
    last = max((i for one in every for i, count in enumerate(one.counts) if count), default=1)
    rows = [
        (
            f"{i + 1}" + ("+" if i + 1 == MOST_RANKS else ""),
            *(_share(one, one.counts[i]) for one in every),
        )
        for i in range(1, last + 1)
    ]
    shares = ", ".join(
        f"{size:,}: {in_percent(share, decimals=0)}"
        for size, share in zip(
            data.displacement.classes, data.displacement.all_samples, strict=True
        )
    )
    headings = ("rank", "single models", "ensembles")[: 1 + len(every)]
    return TextTable(
        headings=headings,
        rows=tuple(rows),
        below=(f"Share of the displacement in the old model's top classes: {shares}.",),
    )


def _share(ranks: Ranks, count: int) -> str:
    return in_percent(count / ranks.flips, decimals=1) if ranks.flips else "–"


def uncertainty_table(result: Analysis[UncertaintyData]) -> TextTable:
    """Uncertainty of flipped samples, by measure and update."""
    rows = []
    for measure in result.data.measures:
        updates: Sequence[tuple[str, Flipped | None]] = (
            ("untreated", measure.untreated),
            ("treated", measure.treated),
        )
        for name, found in updates:
            if found is not None:
                rows.append(
                    (
                        f"{measure.name}, {name}",
                        f"{found.flips:,}",
                        f"{found.mean:.3f}",
                        f"{measure.mean_of_others:.3f}",
                        f"{found.auc:.3f}",
                        f"{found.auc_low:.3f} to {found.auc_high:.3f}",
                        in_percent(found.rate_sure),
                        in_percent(found.rate_unsure),
                    )
                )
    return TextTable(
        headings=("", "flips", "mean", "others", "AUC", "interval", "NFR sure", "unsure"),
        rows=tuple(rows),
        below=(
            "NFR sure and unsure: of the less uncertain half of the samples, and of the other.",
        ),
    )
