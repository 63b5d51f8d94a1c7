"""`rank`: where does the other model rank a flipped sample's wrong class?

ELODI figure 4, and equation 5: how much of the displacement is in the classes with the highest
logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flipguard.analysis.claims import Analysis, CheckedClaim, in_percent
from flipguard.analysis.members import Array, MemberScores, mean_scores
from flipguard.errors import InputError
from flipguard.statistics.sample_means import ValueInterval, around, ratio_of_sums

# All further ranks are counted with the last one.
MOST_RANKS = 20
TOP, EXPONENT = 10, 2.0
MOST = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The old models' ranks of the wrong classes of negative flips, from 1.

    `counts` has one number per rank; the last one counts all further ranks too. `in_top` is the
    share of ranks up to `top`.
    """

    pairs: int
    flips: int
    counts: tuple[int, ...]
    mean: float
    low: float
    high: float
    second: float
    in_top: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TopShares:
    """The share of the displacement in the old ensemble's top classes, by their number."""

    classes: tuple[int, ...]
    all_samples: tuple[float, ...]
    flipped: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankData:
    """Ranks between pairs of single models, and between the ensembles of all models.

    A pair is a model of each group; no model is in two. `ensembles` is None where each group is
    one model. `chance` is the mean rank of a random class that is not the right one.
    """

    old: tuple[str, ...]
    new: tuple[str, ...]
    classes: int
    top: int
    exponent: float
    chance: float
    models: Ranks
    ensembles: Ranks | None
    displacement: TopShares


def rank(
    members: MemberScores, *, top: int | None = None, exponent: float = EXPONENT
) -> Analysis[RankData]:
    """The rank of flips' wrong classes in the old model, and displacement by rank."""
    classes = len(members.class_names)
    top = min(TOP, max(2, classes // 10)) if top is None else top
    _refuse(members, top, exponent)
    pairs = min(members.count("old"), members.count("new"))
    counted = _Counted(members.n, pairs, shares_at(classes, top))
    for rows, block in members.blocks():
        counted.add(rows, block["old"], block["new"], members.targets[rows], exponent)
    models = counted.ranks([counted.of_pairs[:, i] for i in range(pairs)], top)
    several = max(members.count("old"), members.count("new")) > 1
    flipped = counted.of_ensembles > 0
    data = RankData(
        old=tuple(members.names["old"]),
        new=tuple(members.names["new"]),
        classes=classes,
        top=top,
        exponent=exponent,
        chance=(classes + 2) / 2,
        models=models,
        ensembles=counted.ranks([counted.of_ensembles], top) if several else None,
        displacement=TopShares(
            classes=counted.sizes,
            all_samples=_shares(counted.parts, np.ones(members.n, dtype=np.bool_)),
            flipped=_shares(counted.parts, flipped),
        ),
    )
    return Analysis(
        name="rank", n=members.n, data=data, sentence=_sentence(data), claims=_claims(data, counted)
    )


def _refuse(members: MemberScores, top: int, exponent: float) -> None:
    if not members.count("new"):
        raise InputError("Expected models of both groups, but there are no new ones; add `new=`.")
    classes = len(members.class_names)
    if not 1 <= top <= classes:
        raise InputError(f"Expected `top=` to be between 1 and {classes:,} classes, but got {top}.")
    if not exponent > 0:
        raise InputError(f"Expected `exponent=` to be above 0, but got {exponent:g}.")


def shares_at(classes: int, top: int) -> tuple[int, ...]:
    """Return the numbers of top classes at which the displacement's share is shown.

    >>> shares_at(100, 10)
    (1, 2, 3, 5, 10, 20, 50, 100)
    """
    steps = {3, *(base * 10**power for power in range(7) for base in (1, 2, 5)), top, classes}
    return tuple(sorted(one for one in steps if one <= classes))


class _Counted:
    """Ranks of flips and parts of the displacement, collected block by block."""

    def __init__(self, n: int, pairs: int, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        self.of_pairs = np.zeros((n, pairs), dtype=np.int32)  # 0 where there is no flip
        self.of_ensembles = np.zeros(n, dtype=np.int32)
        self.parts = np.zeros((n, len(sizes)))

    def add(self, rows: slice, old: Array, new: Array, targets: Array, exponent: float) -> None:
        """Count a block of scores of shape (models, rows, classes)."""
        for i in range(self.of_pairs.shape[1]):
            self.of_pairs[rows, i] = flip_ranks(old[i], new[i], targets)
        first, second = mean_scores(old), mean_scores(new)
        self.of_ensembles[rows] = flip_ranks(first, second, targets)
        moved = np.abs(second - first) ** exponent
        order = np.argsort(-first, axis=1, kind="stable")
        sums = np.cumsum(np.take_along_axis(moved, order, axis=1), axis=1)
        self.parts[rows] = sums[:, np.array(self.sizes) - 1]

    def ranks(self, each: Sequence[Array], top: int) -> Ranks:
        """Return the ranks of some comparisons of the same samples."""
        table = np.stack(each, axis=1)
        found = table[table > 0]
        counts = np.bincount(np.minimum(found, MOST_RANKS), minlength=MOST_RANKS + 1)[1:]
        value, low, high = ratio_of_sums(table.sum(axis=1), (table > 0).sum(axis=1))
        return Ranks(
            pairs=len(each),
            flips=len(found),
            counts=tuple(counts.tolist()),
            mean=value,
            low=low,
            high=high,
            second=_mean(found == 2),
            in_top=_mean(found <= top),
        )


def flip_ranks(old: Array, new: Array, targets: Array) -> Array:
    """Return the old model's rank of the new model's class, from 1; 0 where no negative flip is.

    >>> old, new = np.array([[3.0, 1.0, 2.0]]), np.array([[0.0, 1.0, 0.0]])
    >>> flip_ranks(old, new, np.array([0]))
    array([3], dtype=int32)
    """
    predicted = new.argmax(axis=1)
    flipped = np.flatnonzero((old.argmax(axis=1) == targets) & (predicted != targets))
    found = np.zeros(len(targets), dtype=np.int32)
    own = old[flipped, predicted[flipped]]
    found[flipped] = 1 + (old[flipped] > own[:, None]).sum(axis=1)
    return found


def _mean(values: Array) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _shares(parts: Array, kept: Array) -> tuple[float, ...]:
    """Return the sums of parts, over that of all classes, which is the last one."""
    total = parts[kept].sum(axis=0)
    return tuple((total / total[-1]).tolist()) if total[-1] > 0 else (float("nan"),) * len(total)


def _claims(data: RankData, counted: _Counted) -> tuple[CheckedClaim, ...]:
    table, top = counted.of_pairs, data.top
    flips = (table > 0).sum(axis=1)
    near = ((table > 0) & (table <= top)).sum(axis=1)
    by_chance = (top - 1) / (data.classes - 1)
    claims = [
        CheckedClaim.above(
            f"The wrong class of a flip ranks high in the old model: share in its top {top} "
            f"({in_percent(by_chance, decimals=1)} by chance)",
            ratio_of_sums(near, flips),
            by_chance,
        )
    ]
    if data.ensembles is not None:
        one = counted.of_ensembles[:, None]
        claims.append(
            CheckedClaim.above(
                "Even more so between ensembles: share of flips whose wrong class was second, "
                "minus that between single models",
                _difference_of_ratios(
                    ((one == 2).sum(axis=1), (one > 0).sum(axis=1)),
                    ((table == 2).sum(axis=1), flips),
                ),
                0.0,
            )
        )
    at = data.displacement.classes.index(top)
    claims.append(
        CheckedClaim.above(
            f"Few classes hold most of the displacement: share in the old model's top {top} of "
            f"{data.classes:,} classes",
            ratio_of_sums(counted.parts[:, at], counted.parts[:, -1]),
            MOST,
        )
    )
    return tuple(claims)


def _difference_of_ratios(first: tuple[Array, Array], second: tuple[Array, Array]) -> ValueInterval:
    """Return the difference of two ratios of sums over the same samples, with its interval."""
    value, parts = 0.0, np.zeros(1)
    for (top, bottom), sign in ((first, 1.0), (second, -1.0)):
        mean = float(bottom.mean())
        if mean == 0:
            return float("nan"), float("nan"), float("nan")
        ratio = float(top.mean()) / mean
        value += sign * ratio
        parts = parts + sign * (top - ratio * bottom) / mean
    return around(value, parts)


def _sentence(data: RankData) -> str:
    ranks = data.models
    if not ranks.flips:
        return "There are no negative flips between the models, so no ranks."
    text = (
        f"The wrong class of {in_percent(ranks.second, decimals=0)} of the flips between single "
        f"models was the old model's second; its mean rank is {ranks.mean:.1f}, by chance "
        f"{data.chance:.1f}."
    )
    if data.ensembles is not None and data.ensembles.flips:
        text += f" Between ensembles it is {in_percent(data.ensembles.second, decimals=0)}."
    share = data.displacement.all_samples[data.displacement.classes.index(data.top)]
    return (
        f"{text} The top {data.top} of {data.classes:,} classes hold "
        f"{in_percent(share, decimals=0)} of the displacement."
    )
