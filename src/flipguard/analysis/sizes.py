"""`sizes`: error and negative flip rate against ensemble size, from saved members' logits.

PCT figure 3 and ELODI figure 2. An ensemble of m members is the mean of any m of the models, so all
sizes and many draws of each are counted without retraining.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from flipguard.analysis.claims import Analysis, CheckedClaim, in_percent
from flipguard.analysis.members import Array, MemberScores
from flipguard.analysis.subsets import (
    FloatArray,
    PackedScores,
    lead_of,
    orders_of,
    packed,
    weights_of_sizes,
    winners,
)
from flipguard.errors import InputError
from flipguard.statistics.sample_means import (
    ValueInterval,
    around,
    mean_of,
    ratio_of_ratios,
    ratio_of_sums,
)

DRAWS, SEED = 100, 0
# Means over samples of normal ensembles are exact enough with fewer draws.
LAW_DRAWS = 25
# A relative fall of the error by less counts as flat.
FLAT = 0.05
# The law predicts a rate if it is within this factor of it.
CLOSE = (0.9, 1.1)
# The expansion of a rate in powers of m^(-1/2) that the normal law has, fitted from this size on.
FIRST_FITTED, POWERS = 2, (0.0, -0.5, -1.0)
LEAST_FITTED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeCurve:
    """A rate by ensemble size, and the range of single draws.

    `low` and `high` are 95 % intervals of `mean` over samples, for these models. Of the draws of a
    size, 95 % are between `draw_low` and `draw_high`.
    """

    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    draw_low: tuple[float, ...]
    draw_high: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LawCurve:
    """Rates by ensemble size if members' logits follow the normal law of these models."""

    sizes: tuple[int, ...]
    error_rate_old: tuple[float, ...]
    error_rate_new: tuple[float, ...]
    negative_flip_rate: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extrapolated:
    """The negative flip rate of larger ensembles; the last size is None, for no limit."""

    sizes: tuple[int | None, ...]
    negative_flip_rate: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizesData:
    """Rates by ensemble size. Without a new group, both sides are drawn from the old one."""

    old: tuple[str, ...]
    new: tuple[str, ...]
    draws: int
    seed: int
    sizes: tuple[int, ...]
    error_rate_old: SizeCurve
    error_rate_new: SizeCurve
    negative_flip_rate: SizeCurve
    relative_negative_flip_rate: SizeCurve
    churn: SizeCurve
    law: LawCurve
    extrapolated: Extrapolated


@dataclass(frozen=True, slots=True)
class _Rates:
    """Error of old and new, negative flips and churn, by sample and size and by draw and size."""

    by_sample: FloatArray  # (4, samples, sizes)
    by_draw: FloatArray  # (4, draws, sizes)

    @classmethod
    def empty(cls, n: int, draws: int, sizes: int) -> _Rates:
        """Return rates that are zero, to be added to."""
        return cls(np.zeros((4, n, sizes)), np.zeros((4, draws, sizes)))

    def add(self, rows: slice, targets: Array, old: Array, new: Array) -> None:
        """Count the predictions of some rows, each of shape (rows, draws, sizes)."""
        right = targets[:, None, None]
        wrong_old, wrong_new = old != right, new != right
        counted = (wrong_old, wrong_new, ~wrong_old & wrong_new, old != new)
        for i, each in enumerate(counted):
            self.by_sample[i, rows] = each.mean(axis=1)
            self.by_draw[i] += each.sum(axis=0) / self.by_sample.shape[1]

    def mean(self, kind: int) -> FloatArray:
        """Return a rate by size."""
        return np.asarray(self.by_sample[kind].mean(axis=0))


ERROR_OLD, ERROR_NEW, NEGATIVE, CHURN = range(4)


def sizes(members: MemberScores, *, draws: int = DRAWS, seed: int = SEED) -> Analysis[SizesData]:
    """Error and negative flip rate against ensemble size, each over many draws of members."""
    most = _largest(members)
    if draws < 1:
        raise InputError(f"Expected `draws=` to be 1 or more, but got {draws}.")
    every = np.arange(1, most + 1)
    law_sizes = np.array([m for m in every if m == most or math.log2(m).is_integer()])
    drawn = _Rates.empty(members.n, draws, len(every))
    by_law = _Rates.empty(members.n, LAW_DRAWS, len(law_sizes))
    random = np.random.default_rng(seed)
    weights = _drawn_weights(members, draws, every, random)
    law_weights = _law_weights(members, LAW_DRAWS, law_sizes, random)
    for rows, block in members.blocks():
        targets = members.targets[rows]
        old, new = block["old"], block.get("new", block["old"])
        found = [
            _predicted(scores, every, weights[i], law_sizes, law_weights[i])
            for i, scores in enumerate((old, new))
        ]
        drawn.add(rows, targets, found[0][0], found[1][0])
        by_law.add(rows, targets, found[0][1], found[1][1])
    data = _data(members, drawn, by_law, every, law_sizes, draws=draws, seed=seed)
    return Analysis(
        name="sizes",
        n=members.n,
        data=data,
        sentence=_sentence(data),
        claims=_claims(data, drawn, by_law),
    )


def _largest(members: MemberScores) -> int:
    """Return the largest size of two ensembles without a common member."""
    old, new = members.count("old"), members.count("new")
    most = min(old, new) if new else old // 2
    if most < 2:
        raise InputError(
            "Expected at least 2 models of each group to compare ensemble sizes, or 4 of one, but "
            f"got {old} old and {new} new; give more with `old=` and `new=`."
        )
    return most


def _drawn_weights(
    members: MemberScores, draws: int, every: Array, random: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Return the weights of old and new ensembles, shape (models, draws, sizes)."""
    orders = orders_of(members.count("old"), draws, random)
    if not members.count("new"):
        # The first and the last models of an order have none in common.
        return weights_of_sizes(orders, every), weights_of_sizes(orders[:, ::-1], every)
    others = orders_of(members.count("new"), draws, random)
    return weights_of_sizes(orders, every), weights_of_sizes(others, every)


def _law_weights(
    members: MemberScores, draws: int, law_sizes: Array, random: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Return weights that make normal ensembles with the members' mean and covariance.

    The mean of m of M models, drawn without replacement, varies about the mean of all by the
    covariance times 1/m - 1/M; two from one pool vary against each other by minus 1/M.
    """
    if members.count("new"):
        return tuple(  # type: ignore[return-value]
            _normal(
                count,
                random.standard_normal((count, draws, len(law_sizes))),
                np.sqrt(np.maximum(1 / law_sizes - 1 / count, 0.0)),
            )
            for count in (members.count("old"), members.count("new"))
        )
    count = members.count("old")
    first, second = random.standard_normal((2, count, draws, len(law_sizes)))
    together = np.sqrt(np.maximum(1 / law_sizes - 2 / count, 0.0))
    apart = np.sqrt(1 / law_sizes)
    long, short = (together + apart) / 2, (together - apart) / 2
    return (
        _normal(count, long * first + short * second, np.ones(len(law_sizes))),
        _normal(count, short * first + long * second, np.ones(len(law_sizes))),
    )


def _normal(count: int, numbers: FloatArray, scale: FloatArray) -> FloatArray:
    centred = numbers - numbers.mean(axis=0)
    return np.asarray(1 / count + centred * scale / math.sqrt(count - 1))


def _predicted(
    scores: Array, every: Array, weights: FloatArray, law_sizes: Array, law_weights: FloatArray
) -> tuple[Array, Array]:
    """Return the classes that drawn ensembles predict, and normal ones: (rows, draws, sizes)."""
    lead, n = lead_of(scores), scores.shape[1]
    # The scores of one class by all models lie together, because they are weighed together.
    by_class = np.ascontiguousarray(scores.transpose(1, 2, 0))
    drawn = np.empty((n, *weights.shape[1:]), dtype=np.int32)
    by_law = np.empty((n, *law_weights.shape[1:]), dtype=np.int32)
    # The larger the ensembles, the fewer classes can win, so a few sizes are taken at a time.
    drawn[:, :, 0] = scores.argmax(axis=2)[weights[:, :, 0].argmax(axis=0)].T
    for first in 2 ** np.arange(1, int(every[-1]).bit_length()):
        here = (every >= first) & (every < 2 * first)
        groups = packed(by_class, lead.can_win(int(first)))
        drawn[:, :, here] = _winners(groups, weights[:, :, here], n)
    for i, size in enumerate(law_sizes.tolist()):
        groups = packed(by_class, lead.can_win_by_law(size))
        by_law[:, :, [i]] = _winners(groups, law_weights[:, :, [i]], n)
    return drawn, by_law


def _winners(groups: list[PackedScores], weights: FloatArray, n: int) -> Array:
    top = winners(groups, weights.reshape(len(weights), -1), n)
    return top.reshape(n, *weights.shape[1:])


def _curve(by_sample: FloatArray, by_draw: FloatArray) -> SizeCurve:
    ends = [mean_of(one) for one in by_sample.T]
    value, low, high = (tuple(one) for one in zip(*ends, strict=True))
    return SizeCurve(mean=value, low=low, high=high, **_range(by_draw))


def _range(by_draw: FloatArray) -> dict[str, tuple[float, ...]]:
    low, high = np.quantile(by_draw, (0.025, 0.975), axis=0)
    return {"draw_low": tuple(low.tolist()), "draw_high": tuple(high.tolist())}


def _relative(rates: _Rates) -> SizeCurve:
    """Return negative flips relative to those of two independent models of the same errors."""
    ends = []
    for old, new, flips in zip(*(rates.by_sample[i].T for i in range(3)), strict=True):
        ends.append(ratio_of_ratios(((flips, 1.0), (1 - old, -1.0), (new, -1.0))))
    value, low, high = (tuple(one) for one in zip(*ends, strict=True))
    old, new, flips = rates.by_draw[:3]
    chance = (1 - old) * new
    relative = np.divide(flips, chance, out=np.zeros_like(flips), where=chance > 0)
    return SizeCurve(mean=value, low=low, high=high, **_range(relative))


def _data(
    members: MemberScores,
    drawn: _Rates,
    by_law: _Rates,
    every: Array,
    law_sizes: Array,
    *,
    draws: int,
    seed: int,
) -> SizesData:
    curves = [_curve(a, b) for a, b in zip(drawn.by_sample, drawn.by_draw, strict=True)]
    law = [tuple(by_law.mean(kind).tolist()) for kind in (ERROR_OLD, ERROR_NEW, NEGATIVE)]
    return SizesData(
        old=tuple(members.names["old"]),
        new=tuple(members.names.get("new", ())),
        draws=draws,
        seed=seed,
        sizes=tuple(every.tolist()),
        error_rate_old=curves[ERROR_OLD],
        error_rate_new=curves[ERROR_NEW],
        negative_flip_rate=curves[NEGATIVE],
        relative_negative_flip_rate=_relative(drawn),
        churn=curves[CHURN],
        law=LawCurve(
            sizes=tuple(law_sizes.tolist()),
            error_rate_old=law[0],
            error_rate_new=law[1],
            negative_flip_rate=law[2],
        ),
        extrapolated=_extrapolated(drawn.by_sample[NEGATIVE], every),
    )


def _extrapolated(flips: FloatArray, every: Array) -> Extrapolated:
    """Fit the expansion of the normal law, and return it at larger sizes and without a limit.

    If a sample's margin is normal with variance 1/m, its rate is a function of m^(1/2), and the
    mean over samples has an expansion in powers of m^(-1/2). The fit is linear in the rates, so
    each sample's part in it is known.
    """
    most = int(every[-1])
    if most < LEAST_FITTED:
        return Extrapolated(sizes=(), negative_flip_rate=(), low=(), high=())
    fitted = every[every >= FIRST_FITTED].astype(np.float64)
    # The mean of few large ensembles varies more than that of many small ones.
    root = np.sqrt(1 / fitted)[:, None]
    inverse = np.linalg.pinv(root * fitted[:, None] ** POWERS) * root.T
    ends = []
    for size in (2 * most, 4 * most, math.inf):
        terms = np.array([size**power if power else 1.0 for power in POWERS])
        parts = flips[:, every >= FIRST_FITTED] @ (terms @ inverse)
        ends.append(around(float(parts.mean()), parts))
    value, low, high = (tuple(one) for one in zip(*ends, strict=True))
    return Extrapolated(
        sizes=(2 * most, 4 * most, None), negative_flip_rate=value, low=low, high=high
    )


def _claims(data: SizesData, drawn: _Rates, by_law: _Rates) -> tuple[CheckedClaim, ...]:
    most = data.sizes[-1]
    half = max(1, most // 2)
    error, flips = drawn.by_sample[ERROR_NEW].T, drawn.by_sample[NEGATIVE].T
    claims = [
        CheckedClaim.below(
            f"The error is soon flat: from m = {half} to {most} it falls by less than "
            f"{in_percent(FLAT, decimals=0)} of itself",
            _fall(error[most - 1], error[half - 1]),
            FLAT,
        ),
        CheckedClaim.above(
            f"NFR goes on falling: its fall from m = {half} to {most}, as a share of itself",
            _fall(flips[most - 1], flips[half - 1]),
            0.0,
        ),
        CheckedClaim.below(
            f"NFR falls faster than the error: what is left of NFR at m = {most}, over what is "
            "left of the error",
            ratio_of_ratios(
                (
                    (flips[most - 1], 1.0),
                    (flips[0], -1.0),
                    (error[most - 1], -1.0),
                    (error[0], 1.0),
                )
            ),
            1.0,
        ),
        CheckedClaim.between(
            "The normal law of the logits predicts the NFR of single models: predicted over found",
            ratio_of_sums(by_law.by_sample[NEGATIVE].T[0], flips[0]),
            CLOSE,
        ),
    ]
    if data.extrapolated.sizes:
        limit = (
            data.extrapolated.negative_flip_rate[-1],
            data.extrapolated.low[-1],
            data.extrapolated.high[-1],
        )
        text = "NFR stays above zero however large both ensembles are"
        claims.append(CheckedClaim.above(text, limit, 0.0))
    return tuple(claims)


def _fall(last: FloatArray, first: FloatArray) -> ValueInterval:
    """Return how much of a rate is gone, as a share of it."""
    value, low, high = ratio_of_sums(last, first)
    return 1 - value, 1 - high, 1 - low


def _sentence(data: SizesData) -> str:
    flips, error, most = data.negative_flip_rate.mean, data.error_rate_new.mean, data.sizes[-1]
    text = (
        f"From single models to ensembles of {most}, NFR goes from {in_percent(flips[0])} to "
        f"{in_percent(flips[-1])} and the new error from {in_percent(error[0])} to "
        f"{in_percent(error[-1])}."
    )
    if not data.extrapolated.sizes:
        return text
    rate, low, high = (
        100 * max(0.0, one[-1])
        for one in (
            data.extrapolated.negative_flip_rate,
            data.extrapolated.low,
            data.extrapolated.high,
        )
    )
    return (
        f"{text} Extrapolated without limit of size, NFR is {rate:.2f} % ({low:.2f} to {high:.2f})."
    )
