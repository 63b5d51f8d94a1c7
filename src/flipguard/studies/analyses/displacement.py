"""How far the logits of one sample move between two ensembles whose members are drawn at random.

Members are drawn, without replacement, from all that a group of lines has on a side, over all
seeds. Beside the histogram stands what a normal law says: N(μ₂ - μ₁, (Σ₁ + Σ₂) / m), with the
means and covariances of the single models.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flipguard.studies.analyses.base import Analysed, Array, counted, histogram, updates_of
from flipguard.studies.planning import Plan
from flipguard.studies.predictions import members_of, predictions_of

DRAWS, LAW_DRAWS = 2_000, 20_000
BINS = 40
WITHIN = 0.995  # the share of draws up to the last edge; those beyond are in the last bin
SAMPLE = 0  # an arbitrary one: the first of the test samples
SEED = 0


def displacements(plan: Plan) -> dict[int, Analysed]:
    """Norms of the displacement, as drawn and as the law has them, of each size of ensembles."""
    wanted = plan.study.histogram
    assert wanted is not None
    pools: dict[str | None, tuple[Array, Array]] = {}
    norms: dict[int, tuple[int, Array, Array]] = {}
    random = np.random.default_rng(SEED)
    for place in wanted.places:
        line, updates = plan.study.lines[place], updates_of(plan, place)
        if not updates:
            continue
        if line.group not in pools:
            pools[line.group] = pools_of(plan, line.group)
        size = len(members_of(updates[0].new))
        drawn = drawn_norms(*pools[line.group], size, random)
        norms[place] = (size, drawn, law_norms(*pools[line.group], size, random))
    furthest = max((np.quantile(drawn, WITHIN) for _, drawn, _ in norms.values()), default=1.0)
    edges = np.linspace(0.0, furthest, BINS + 1)
    return {
        place: Analysed(
            histogram=histogram(
                "displacement",
                edges,
                {"drawn": [counted(drawn, edges)], "normal law": [counted(law, edges)]},
                size=size,
            )
        )
        for place, (size, drawn, law) in norms.items()
    }


def pools_of(plan: Plan, group: str | None) -> tuple[Array, Array]:
    """The sample's logits by every single model of old's side, and of new's."""
    places = [i for i, line in enumerate(plan.study.lines) if line.group == group]
    updates = [update for place in places for update in updates_of(plan, place)]
    old, new = (
        # By name, since an ensemble of two has the members of an ensemble of one.
        {member.resolve(): None for run in runs for member in members_of(run)}
        for runs in ([update.old for update in updates], [update.new for update in updates])
    )
    return _logits(old), _logits(new)


def _logits(members: dict[Path, None]) -> Array:
    return np.stack([predictions_of([member]).logits[SAMPLE] for member in members]).astype(float)


def drawn_norms(old: Array, new: Array, size: int, random: np.random.Generator) -> Array:
    """Norms of the displacement between ensembles of so many members, drawn again and again."""
    sides = []
    for pool in (old, new):
        order = np.argsort(random.random((DRAWS, len(pool))), axis=1)
        sides.append(pool[order[:, :size]].mean(1))
    found: Array = np.linalg.norm(sides[1] - sides[0], axis=1)
    return found


def law_norms(old: Array, new: Array, size: int, random: np.random.Generator) -> Array:
    """The same of displacements that follow the normal law; of a single model, only its mean."""
    between = new.mean(0) - old.mean(0)
    if min(len(old), len(new)) < 2:
        return np.full(1, np.linalg.norm(between))
    spread = (np.cov(old.T) + np.cov(new.T)) / size
    drawn = random.multivariate_normal(between, spread, LAW_DRAWS, check_valid="ignore")
    found: Array = np.linalg.norm(drawn, axis=1)
    return found
