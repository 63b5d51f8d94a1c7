"""Figures that count samples instead of showing rates, from the predictions of finished runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from flipguard.analysis.uncertainty import rates_of_halves
from flipguard.counts import flip_cells
from flipguard.statistics.sample_means import separation
from flipguard.studies.measure import RunLogits, align_on_ids, member_folders, read_run_logits
from flipguard.studies.plan import ComparedPair, StudyPlan
from flipguard.studies.study import StudyRow

Array = npt.NDArray[Any]
DIGITS = 6

MARGIN_EDGES = np.linspace(0.0, 1.0, 21)

DRAWS, LAW_DRAWS = 2_000, 20_000
BINS = 40
WITHIN = 0.995  # the share of draws up to the last edge; those beyond are in the last bin
SAMPLE = 0  # an arbitrary one: the first of the test samples
SEED = 0

# All further ranks are counted with the last one, which is then called "20 and more".
MOST_RANKS = 20

UNCERTAINTY_EDGES = np.linspace(0.0, 0.5, 26)
FLIPPED, OTHERS = "negative flips", "other samples"
# The uncertainty of every sample, and whether it is a negative flip.
Seen: TypeAlias = tuple[Array, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysed:
    """Values by seed, which are metrics of the line, and a histogram as plain values for JSON.

    A histogram has `edges` of bins, and `counts`: by name, one list per seed. It is `open` if
    values beyond the last edge were counted in the last bin.
    """

    values: dict[str, list[float]] = field(default_factory=dict)
    histogram: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # about this line alone


def updates_of(plan: StudyPlan, place: int) -> list[ComparedPair]:
    """Return the updates of a line, one per seed; none if a scale leaves the line out."""
    return [update for update in plan.updates if update.line == place]


def counted(values: Array, edges: Array) -> list[int]:
    """Return the number of values in each bin; those beyond the last edge count in the last one."""
    inside = np.clip(values, edges[0], edges[-1])
    found: list[int] = np.histogram(inside, edges)[0].tolist()
    return found


def histogram(
    of: str, edges: Array, values: Mapping[str, Sequence[Array]], **more: Any
) -> dict[str, Any]:
    """Return a histogram of values, given one array per seed, as plain values for JSON."""
    every = [one for some in values.values() for one in some]
    return {
        "of": of,
        "edges": [round(float(edge), DIGITS) for edge in edges],
        "counts": {name: [counted(one, edges) for one in some] for name, some in values.items()},
        # Values may exceed the last edge by rounding alone.
        "open": any(bool((one > edges[-1] + 10**-DIGITS).any()) for one in every),
        **more,
    }


def mean_or_nan(values: Array) -> float:
    """Return the mean; nan of an empty array, without a warning."""
    return float(values.mean()) if len(values) else float("nan")


def margins_of_new(plan: StudyPlan) -> dict[int, Analysed]:
    """Return histograms of the new models' margins on the test samples."""
    wanted = plan.study.histogram
    assert wanted is not None
    found = {}
    for place in wanted.places:
        margins = []
        for update in updates_of(plan, place):
            shares = np.sort(read_run_logits(update.sides[1]).probabilities, axis=1)
            margins.append(shares[:, -1] - shares[:, -2])
        if margins:
            found[place] = Analysed(
                histogram=histogram("margin", MARGIN_EDGES, {"test samples": margins})
            )
    return found


def displacements(plan: StudyPlan) -> dict[int, Analysed]:
    """Return histograms of displacement norms, drawn and by the normal law, per ensemble size."""
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
        size, there = len(member_folders(updates[0].new)), min(len(old), len(new))
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


def one_architecture(plan: StudyPlan, line: StudyRow) -> bool:
    """Return whether the old and the new model differ only by their seeds."""
    old, new = (
        (plan.scale.models(model.role or ""), dataclasses.replace(model, role="", generation=None))
        for model in (line.old, line.new)
    )
    return old == new


def pools_of(plan: StudyPlan, group: str | None) -> tuple[Array, Array]:
    """Return the sample's logits by every single old model and every single new model."""
    places = [i for i, line in enumerate(plan.study.lines) if line.group == group]
    updates = [update for place in places for update in updates_of(plan, place)]
    old, new = (
        # By folder, because an ensemble of two contains the member of an ensemble of one.
        {member.resolve(): None for run in runs for member in member_folders(run)}
        for runs in ([update.old for update in updates], [update.new for update in updates])
    )
    return _logits(old), _logits(new)


def _logits(members: dict[Path, None]) -> Array:
    return np.stack([read_run_logits([member]).logits[SAMPLE] for member in members]).astype(float)


def norms_within(pool: Array, size: int, random: np.random.Generator) -> Array:
    """Return norms between two ensembles from one pool without a common member."""
    order = _orders(pool, random)
    first, second = pool[order[:, :size]].mean(1), pool[order[:, size : 2 * size]].mean(1)
    found: Array = np.linalg.norm(second - first, axis=1)
    return found


def norms_between(old: Array, new: Array, size: int, random: np.random.Generator) -> Array:
    """Return norms between two ensembles of this size, each drawn from another pool."""
    first, second = (pool[_orders(pool, random)[:, :size]].mean(1) for pool in (old, new))
    found: Array = np.linalg.norm(second - first, axis=1)
    return found


def _orders(pool: Array, random: np.random.Generator) -> Array:
    """Return a random order of a pool's models for each draw."""
    found: Array = np.argsort(random.random((DRAWS, len(pool))), axis=1)
    return found


def law_within(pool: Array, size: int, random: np.random.Generator) -> Array:
    """Return the norms of `norms_within` for displacements that follow the normal law."""
    return _law(np.zeros(pool.shape[1]), 2 * np.cov(pool.T) / size, random)


def law_between(old: Array, new: Array, size: int, random: np.random.Generator) -> Array:
    """Return the norms of `norms_between` for displacements that follow the normal law."""
    spread = sum(np.cov(pool.T) / size * (1 - size / len(pool)) for pool in (old, new))
    return _law(new.mean(0) - old.mean(0), np.asarray(spread), random)


def _law(mean: Array, spread: Array, random: np.random.Generator) -> Array:
    drawn = random.multivariate_normal(mean, spread, LAW_DRAWS, check_valid="ignore")
    found: Array = np.linalg.norm(drawn, axis=1)
    return found


def ranks(plan: StudyPlan) -> dict[int, Analysed]:
    """Return the old model's ranks of the wrong classes of negative flips."""
    wanted = plan.study.histogram
    assert wanted is not None
    found = {}
    for place in wanted.places:
        updates = updates_of(plan, place)
        if not updates:
            continue
        of_seeds, classes = [], 0
        for update in updates:
            old, new = align_on_ids(*(read_run_logits(side) for side in update.sides))
            of_seeds.append(ranks_of_flips(old, new))
            classes = len(old.class_names)
        edges = np.arange(min(classes, MOST_RANKS) + 1) + 0.5
        found[place] = Analysed(
            values={
                "flip_rank": [mean_or_nan(one) for one in of_seeds],
                # The mean rank of a random class other than the first, which is the right one.
                "flip_rank_by_chance": [(classes + 2) / 2 for _ in of_seeds],
                "flip_second": [mean_or_nan(one == 2) for one in of_seeds],
            },
            histogram=histogram("rank", edges, {"negative flips": of_seeds}),
        )
    return found


def ranks_of_flips(old: RunLogits, new: RunLogits) -> Array:
    """Return the old model's rank of the new model's wrong class, from 1, per negative flip."""
    predicted = new.predicted
    flips = flip_cells(old.predicted, predicted, new.target)["negative_flip"]
    place = {name: index for index, name in enumerate(old.class_names)}
    # A class that the old model does not know has no rank.
    wrong = np.array([place.get(str(name), -1) for name in predicted[flips]], dtype=np.int64)
    logits, wrong = old.logits[flips][wrong >= 0], wrong[wrong >= 0]
    own = logits[np.arange(len(wrong)), wrong]
    found: Array = 1 + (logits > own[:, None]).sum(1)
    return found


def uncertainties(plan: StudyPlan) -> dict[int, Analysed]:
    """Return the uncertainty of flipped samples, and how well it separates them from others."""
    wanted = plan.study.histogram
    assert wanted is not None
    # Computed once per seed, although several lines use it.
    judged = {seed: uncertainty_of(judge) for seed, judge in plan.judges.items()}
    seen = {
        place: [_seen(update, *judged[update.seed]) for update in updates_of(plan, place)]
        for place in wanted.places
    }
    found = {}
    for place, of_seeds in seen.items():
        control = plan.study.control_of(place)
        of_control = seen.get(control, []) if control is not None and control != place else []
        if of_seeds:
            found[place] = _analysed(of_seeds, of_control)
    return found


def uncertainty_of(ensemble: Path) -> tuple[Array, Array]:
    """Return the ids of the test samples, and the uncertainty of each."""
    members = member_folders(ensemble)
    ids = read_run_logits(members[:1]).ids
    # Read twice and summed, because the probabilities of many classes take much memory.
    together = sum(read_run_logits([member]).probabilities for member in members)
    top = np.asarray(together).argmax(1)
    every = np.arange(len(top))
    shares = [read_run_logits([member]).probabilities[every, top] for member in members]
    return ids, np.std(shares, axis=0)


def _seen(update: ComparedPair, ids: Array, uncertainty: Array) -> Seen:
    """Return the uncertainty of every sample, and whether it is a negative flip."""
    old, new = align_on_ids(*(read_run_logits(side) for side in update.sides))
    order = np.argsort(ids)
    places = order[np.searchsorted(ids, new.ids, sorter=order)]
    flipped = flip_cells(old.predicted, new.predicted, new.target)["negative_flip"]
    return uncertainty[places], flipped


def _analysed(seen: list[Seen], control: list[Seen]) -> Analysed:
    """Return the values of each seed, with the ratio to the control if there is one."""
    values: dict[str, list[float]] = {}
    for number, (uncertainty, flipped) in enumerate(seen):
        sure, unsure = rates_of_halves(uncertainty, flipped)
        of_seed = {
            "flip_rate_sure": sure,
            "flip_rate_unsure": unsure,
            "uncertainty_flipped": mean_or_nan(uncertainty[flipped]),
            "uncertainty_others": mean_or_nan(uncertainty[~flipped]),
            "flips_told_apart": separation(uncertainty, flipped)[0],
        }
        if control:
            was_sure, was_unsure = rates_of_halves(*control[number])
            # If the control has no flips in a half, there is no ratio.
            left = [
                now / was if was else float("nan")
                for now, was in ((sure, was_sure), (unsure, was_unsure))
            ]
            of_seed["flips_left_sure"], of_seed["flips_left_unsure"] = left
            of_seed["flips_left_apart"] = left[1] - left[0]
        for name, value in of_seed.items():
            values.setdefault(name, []).append(value)
    samples = {
        FLIPPED: [uncertainty[flipped] for uncertainty, flipped in seen],
        OTHERS: [uncertainty[~flipped] for uncertainty, flipped in seen],
    }
    return Analysed(values=values, histogram=histogram("uncertainty", UNCERTAINTY_EDGES, samples))


ANALYSES: Mapping[str, Callable[[StudyPlan], dict[int, Analysed]]] = MappingProxyType(
    {
        "uncertainty": uncertainties,
        "rank": ranks,
        "displacement": displacements,
        "margin": margins_of_new,
    }
)


def analyses_of(plan: StudyPlan) -> dict[int, Analysed]:
    """Return the analyses of a study's histogram by its lines' indices; empty if it has none."""
    wanted = plan.study.histogram
    return {} if wanted is None else ANALYSES[wanted.of](plan)
