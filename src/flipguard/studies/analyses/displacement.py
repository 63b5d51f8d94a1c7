"""How far the logits of one sample move between two ensembles whose members are drawn at random.

Members are drawn, without replacement, from all that a group of lines has, over all seeds. Beside
the histogram stands what a normal law says, with the means and covariances of the single models.

Of two architectures, each side has its pool, and members are drawn from N models of it. The law is
N(μ₂ - μ₁, (Σ₁ + Σ₂) / m · (1 - m / N)): means of m out of N vary less than those of m new models.
Of one architecture, all models are one pool, and two ensembles without a member in common are drawn
from it. What the small pool takes from the spread of each, it gives to their difference, because
what one has drawn the other cannot: the law is N(0, 2 Σ / m) exactly, as in the paper.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from flipguard.studies.analyses.base import Analysed, Array, histogram, updates_of
from flipguard.studies.planning import Plan
from flipguard.studies.predictions import members_of, predictions_of
from flipguard.studies.study import Line

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
    found: dict[int, Analysed] = {}
    random = np.random.default_rng(SEED)
    for place in wanted.places:
        line, updates = plan.study.lines[place], updates_of(plan, place)
        if not updates:
            continue
        if line.group not in pools:
            pools[line.group] = pools_of(plan, line.group)
        old, new = pools[line.group]
        size, there = len(members_of(updates[0].new)), min(len(old), len(new))
        if there < 2 * size:
            # Draws that share most of their members are hardly draws.
            note = f"not in the histogram, since there are {there} models a side to draw {size} of"
            found[place] = Analysed(notes=(note,))
        elif one_architecture(plan, line):
            every = np.concatenate([old, new])
            drawn = norms_within(every, size, random)
            norms[place] = (size, drawn, law_within(every, size, random))
        else:
            drawn = norms_between(old, new, size, random)
            norms[place] = (size, drawn, law_between(old, new, size, random))
    furthest = max((np.quantile(drawn, WITHIN) for _, drawn, _ in norms.values()), default=1.0)
    edges = np.linspace(0.0, furthest, BINS + 1)
    for place, (size, drawn, law) in norms.items():
        shown = {"drawn": [drawn], "normal law": [law]}
        found[place] = Analysed(histogram=histogram("displacement", edges, shown, size=size))
    return found


def one_architecture(plan: Plan, line: Line) -> bool:
    """Whether old and new differ by nothing but their seeds."""
    old, new = (
        (plan.scale.models(model.role or ""), dataclasses.replace(model, role="", generation=None))
        for model in (line.old, line.new)
    )
    return old == new


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


def norms_within(pool: Array, size: int, random: np.random.Generator) -> Array:
    """Norms between two ensembles of one pool that have no member in common."""
    order = _orders(pool, random)
    first, second = pool[order[:, :size]].mean(1), pool[order[:, size : 2 * size]].mean(1)
    found: Array = np.linalg.norm(second - first, axis=1)
    return found


def norms_between(old: Array, new: Array, size: int, random: np.random.Generator) -> Array:
    """Norms between ensembles of so many members, each drawn from its own pool."""
    first, second = (pool[_orders(pool, random)[:, :size]].mean(1) for pool in (old, new))
    found: Array = np.linalg.norm(second - first, axis=1)
    return found


def _orders(pool: Array, random: np.random.Generator) -> Array:
    """The models of a pool in an order of chance, draw by draw."""
    found: Array = np.argsort(random.random((DRAWS, len(pool))), axis=1)
    return found


def law_within(pool: Array, size: int, random: np.random.Generator) -> Array:
    """The same as `norms_within` of displacements that follow the normal law."""
    return _law(np.zeros(pool.shape[1]), 2 * np.cov(pool.T) / size, random)


def law_between(old: Array, new: Array, size: int, random: np.random.Generator) -> Array:
    """The same as `norms_between` of displacements that follow the normal law."""
    spread = sum(np.cov(pool.T) / size * (1 - size / len(pool)) for pool in (old, new))
    return _law(new.mean(0) - old.mean(0), np.asarray(spread), random)


def _law(mean: Array, spread: Array, random: np.random.Generator) -> Array:
    drawn = random.multivariate_normal(mean, spread, LAW_DRAWS, check_valid="ignore")
    found: Array = np.linalg.norm(drawn, axis=1)
    return found
