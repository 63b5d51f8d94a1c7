"""`law`: does logit displacement follow the normal law, and how does it fall with ensemble size?

ELODI sections 3.1 and 3.3, figures 5, 9 and 10. The law is checked on all samples; one of them, of
middling displacement unless another is chosen, is also shown as the paper's figures show theirs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from flipguard.analysis.claims import Analysis, CheckedClaim
from flipguard.analysis.displacement_law import (
    FloatArray,
    GroupSplit,
    NormLaw,
    all_inner_products,
    gaps,
    law_of,
    redrawn,
    squared_distances,
    squared_norms,
)
from flipguard.analysis.members import IntArray, MemberScores
from flipguard.analysis.subsets import orders_of, weights_of_sizes
from flipguard.errors import InputError, listed
from flipguard.statistics._arrays import critical_value
from flipguard.statistics.generalized_chi2 import generalized_chi2_pdf
from flipguard.statistics.sample_means import CONFIDENCE, ValueInterval

DRAWS, SEED = 1_000, 0
# Samples, evenly spread, on which the statistic is computed again for models that follow the law.
TESTED, REDRAWN = 40, 99
LEAST_MODELS, LEAST_PAIRS = 3, 4
# A distribution function that differs by less counts as the same.
CLOSE_FIT = 0.05
SLOPE = (-1.05, -0.95)
BINS, POINTS, LEVELS = 40, 201, 20
# Draws of a size and samples for the trace: their means are exact enough with few.
TRACE_DRAWS, REPLICATES = 100, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How well the law fits the displacement of pairs of single models, over all samples.

    `gap` is the mean over samples of Kolmogorov and Smirnov's statistic, and `expected` what it is
    for models that follow the law. `p_value` is the share of such models with a larger gap.
    `levels` counts the values of the law's distribution function, in bins of equal width, and
    `expected_levels` what is expected of them.
    `rejected` is the share of samples whose own test has p < 0.05.
    """

    pairs: int
    gap: float
    expected: float
    p_value: float
    rejected: float
    levels: tuple[int, ...]
    expected_levels: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Mean over samples of squared displacement and of the trace of its covariance, by size."""

    sizes: tuple[int, ...]
    covariance: tuple[float, ...]
    squared_displacement: tuple[float, ...]
    slope: float
    slope_low: float
    slope_high: float
    slope_squared_displacement: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """The mean displacement between the groups, without what few members add to its square.

    `share` is its square over the mean squared displacement of single models.
    """

    squared: float
    share: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The norms of one sample's displacement by ensemble size: drawn, and by the law."""

    id: object
    sizes: tuple[int, ...]
    edges: tuple[float, ...]
    counts: tuple[tuple[int, ...], ...]
    at: tuple[float, ...]
    density: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LawData:
    """Displacement of logits, over all samples. Without a new group, the old one is halved.

    `dimension` is the number of equal eigenvalues that would spread the squared norm as much: the
    fewer, the less isotropic the displacement is.
    """

    old: tuple[str, ...]
    new: tuple[str, ...]
    central: bool
    classes: int
    dimension: float
    fit: Fit
    trace: Trace
    shift: Shift
    sample: Shown


def law(
    members: MemberScores, *, sample: str | None = None, draws: int = DRAWS, seed: int = SEED
) -> Analysis[LawData]:
    """The displacement of logits between two models and two ensembles, against the normal law."""
    split = GroupSplit.of(members)
    _refuse(members, split, draws)
    random = np.random.default_rng(seed)
    products = all_inner_products(members)[:, : split.models, : split.models]
    by_law = law_of(products, split)
    fit, interval = _fit(products, split, by_law, random)
    shift = _shift(products.mean(axis=0), split)
    trace = _trace(products.mean(axis=0), split, shift, random)
    at = _place_of(members, by_law, sample)
    old, new = members.names["old"], members.names.get("new", ())
    data = LawData(
        old=tuple(old),
        new=tuple(new),
        central=split.central,
        classes=len(members.class_names),
        dimension=float(by_law.spread.sum() ** 2 / ((by_law.weights**2).sum() * members.n)),
        fit=fit,
        trace=trace,
        shift=shift,
        sample=_shown(members.ids[at], products[at : at + 1], split, draws, random),
    )
    return Analysis(
        name="law",
        n=members.n,
        data=data,
        sentence=_sentence(data),
        claims=_claims(data, interval),
    )


def _refuse(members: MemberScores, split: GroupSplit, draws: int) -> None:
    if members.kind != "logits":
        raise InputError(
            "Expected logits, because the law is about their displacement, but the models have "
            "probabilities; give logits."
        )
    if min(len(split.old), len(split.new)) < LEAST_MODELS:
        raise InputError(
            f"Expected at least {LEAST_MODELS} models of each group to estimate a law, or twice as "
            f"many of one, but got {members.count('old')} old and {members.count('new')} new; give "
            "more with `old=` and `new=`."
        )
    if draws < 1:
        raise InputError(f"Expected `draws=` to be 1 or more, but got {draws}.")


def _fit(
    products: FloatArray, split: GroupSplit, by_law: NormLaw, random: np.random.Generator
) -> tuple[Fit, ValueInterval]:
    """Return the fit, and the gap beyond what is expected, with its interval.

    The law is estimated from the models that it is compared with, so its gap is smaller than a
    table says. What is expected therefore comes from models that are drawn from the law.
    """
    pairs = split.pairs()
    levels = by_law.cdf(squared_distances(products, pairs))
    each = gaps(levels)
    tested = products[np.unique(np.linspace(0, len(products) - 1, TESTED).round().astype(int))]
    edges = np.linspace(0, 1, LEVELS + 1)
    null, expected = np.zeros(REDRAWN), np.zeros(LEVELS)
    for i in range(REDRAWN):
        drawn = redrawn(tested, split, random)
        of_law = law_of(drawn, split).cdf(squared_distances(drawn, pairs))
        null[i] = gaps(of_law).mean()
        expected += np.histogram(of_law, edges)[0]
    gap = float(each.mean())
    low, high = np.quantile(null, (0.025, 0.975))
    fit = Fit(
        pairs=len(pairs),
        gap=gap,
        expected=float(null.mean()),
        p_value=float((1 + (null >= gap).sum()) / (1 + REDRAWN)),
        rejected=_rejected(each, len(pairs)),
        levels=tuple(np.histogram(levels, edges)[0].tolist()),
        expected_levels=tuple((expected / expected.sum() * levels.size).tolist()),
    )
    return fit, (gap - fit.expected, float(gap - high), float(gap - low))


def _rejected(each: FloatArray, pairs: int) -> float:
    from scipy.stats import kstwo

    return float((kstwo.sf(each, pairs) < 0.05).mean())


def _shift(mean_products: FloatArray, split: GroupSplit) -> Shift:
    """Return the squared mean displacement without bias, with its interval over the members."""
    squared, total = _shift_parts(mean_products, list(split.old), list(split.new))
    left_out = []
    for side, other, swap in ((split.old, split.new, False), (split.new, split.old, True)):
        values = []
        for one in side:
            rest = [model for model in side if model != one]
            sides = (list(other), rest) if swap else (rest, list(other))
            part, whole = _shift_parts(mean_products, *sides)
            values.append(part / whole if whole else float("nan"))
        left_out.append(np.array(values))
    variance = sum((len(v) - 1) / len(v) * ((v - v.mean()) ** 2).sum() for v in left_out)
    degrees = min(len(v) for v in left_out) - 1
    reach = float(critical_value(confidence=CONFIDENCE, degrees=degrees)) * math.sqrt(variance)
    share = squared / total if total else float("nan")
    return Shift(squared=squared, share=share, low=share - reach, high=share + reach)


def _shift_parts(products: FloatArray, old: list[int], new: list[int]) -> tuple[float, float]:
    """Return the unbiased squared shift, and the mean squared displacement of all pairs."""
    total = float(
        products[old, old].mean()
        + products[new, new].mean()
        - 2 * products[np.ix_(old, new)].mean()
    )
    spread = 0.0
    for side in (old, new):
        block, count = products[np.ix_(side, side)], len(side)
        spread += float(np.trace(block) - block.mean() * count) / (count - 1)
    return total - spread, total


def _trace(
    mean_products: FloatArray,
    split: GroupSplit,
    shift: Shift,
    random: np.random.Generator,
) -> Trace:
    """Return squared displacement by size from disjoint draws, and its part that is covariance."""
    most = min(len(split.old), len(split.new))
    every = np.arange(1, most + 1)
    weights = _differences(split, TRACE_DRAWS, every, random)
    squares = squared_norms(mean_products[None], weights.reshape(len(weights), -1))
    drawn = squares.reshape(weights.shape[1:])
    displacement = drawn.mean(axis=0)
    # Of the mean displacement's square, the unbiased estimate is taken: the draws share it.
    squared = 0.0 if split.central else shift.squared
    again = random.integers(TRACE_DRAWS, size=(REPLICATES, TRACE_DRAWS))
    slopes = [_slope(every, drawn[one].mean(axis=0) - squared) for one in again]
    low, high = np.quantile(slopes, (0.025, 0.975))
    return Trace(
        sizes=tuple(every.tolist()),
        covariance=tuple((displacement - squared).tolist()),
        squared_displacement=tuple(displacement.tolist()),
        slope=_slope(every, displacement - squared),
        slope_low=float(low),
        slope_high=float(high),
        slope_squared_displacement=_slope(every, displacement),
    )


def _slope(sizes: IntArray, values: FloatArray) -> float:
    """Return the slope of values by size, both on a logarithmic scale."""
    if len(sizes) < 2 or (values <= 0).any():
        return float("nan")
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def _differences(
    split: GroupSplit, draws: int, sizes: IntArray, random: np.random.Generator
) -> FloatArray:
    """Return weights of new minus old ensembles of each size, shape (models, draws, sizes)."""
    if split.central:
        orders = orders_of(split.models, draws, random)
        new, old = (weights_of_sizes(one, sizes) for one in (orders[:, ::-1], orders))
        return np.asarray(new - old)
    found = np.zeros((split.models, draws, len(sizes)))
    for side, sign in ((split.old, -1.0), (split.new, 1.0)):
        orders = orders_of(len(side), draws, random)
        found[list(side)] = sign * weights_of_sizes(orders, sizes)
    return found


def _place_of(members: MemberScores, by_law: NormLaw, sample: str | None) -> int:
    """Return the place of a sample by its id; without one, of the median displacement."""
    if sample is None:
        expected = by_law.spread + by_law.squared_shift
        return int(np.argsort(expected, kind="stable")[(len(expected) - 1) // 2])
    places = [i for i, one in enumerate(members.ids) if str(one) == sample]
    if not places:
        raise InputError(
            f"Expected `sample=` to be the id of a sample, but there is no {sample!r}; ids are "
            f"such as {listed(members.ids[:3])}."
        )
    return places[0]


def _shown(
    id: object,
    products: FloatArray,
    split: GroupSplit,
    draws: int,
    random: np.random.Generator,
) -> Shown:
    """Return one sample's norms at sizes 1, 2, 4, … of which half the models at most are drawn.

    Draws that share most of their members are hardly draws, and vary less than the law says.
    """
    most = min(len(split.old), len(split.new)) // (1 if split.central else 2)
    sizes = np.array([2**i for i in range(int(math.log2(max(1, most))) + 1)])
    weights = _differences(split, draws, sizes, random)
    norms = np.sqrt(squared_norms(products, weights.reshape(len(weights), -1)))
    drawn = norms.reshape(draws, len(sizes))
    edges = np.linspace(0.0, 1.05 * float(drawn.max()) or 1.0, BINS + 1)
    at_norms = np.linspace(edges[0], edges[-1], POINTS)
    density = []
    for size in sizes.tolist():
        one = law_of(products, split, size, drawn=True)
        squares = at_norms**2 - one.rest[0]
        # Of the norm r, the density is 2 r times that of its square.
        density.append(2 * at_norms * generalized_chi2_pdf(squares, one.weights[0], one.shifts[0]))
    return Shown(
        id=id,
        sizes=tuple(sizes.tolist()),
        edges=tuple(edges.tolist()),
        counts=tuple(tuple(np.histogram(one, edges)[0].tolist()) for one in drawn.T),
        at=tuple(at_norms.tolist()),
        density=tuple(tuple(one.tolist()) for one in density),
    )


def _claims(data: LawData, interval: ValueInterval) -> tuple[CheckedClaim, ...]:
    fits = CheckedClaim.below(
        "Members' logits follow a normal law: largest gap between the distribution of displacement "
        "and its generalized chi-squared law, beyond chance",
        interval,
        CLOSE_FIT,
    )
    trace = data.trace
    falls = CheckedClaim.between(
        "The covariance of displacement falls as 1/m: slope of its trace on logarithmic scales",
        (trace.slope, trace.slope_low, trace.slope_high),
        SLOPE,
    )
    shift = CheckedClaim.above(
        "The groups' mean logits differ, as those of two architectures do: share of squared "
        "displacement that no ensemble removes",
        (data.shift.share, data.shift.low, data.shift.high),
        0.0,
    )
    return fits, falls, shift


def _sentence(data: LawData) -> str:
    trace, fit = data.trace, data.fit
    left = math.sqrt(trace.squared_displacement[-1] / trace.squared_displacement[0])
    word = "differs from" if fit.p_value < 0.05 else "fits"
    return (
        f"Between ensembles of {trace.sizes[-1]} the logits move {100 * left:.0f} % as far as "
        f"between single models; the normal law {word} what single models do "
        f"(p = {fit.p_value:.2f}); {100 * max(0.0, data.shift.share):.0f} % of their squared "
        "displacement is a shift that no ensemble removes."
    )
