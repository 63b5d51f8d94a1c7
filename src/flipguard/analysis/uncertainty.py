"""`uncertainty`: were flipped samples uncertain before the update, and which does a treatment keep?

PCT figure 4. The uncertainty is that of the mean prediction of the old models, or of an ensemble
that judges: its entropy, its margin, and how far its members disagree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flipguard.analysis.claims import Analysis, CheckedClaim, in_percent
from flipguard.analysis.members import Array, MemberScores, mean_scores
from flipguard.errors import InputError
from flipguard.statistics.sample_means import ValueInterval, around, mean_of, separation

FloatArray = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
BINS = 25
# Flips left in both halves of the samples count as alike if they differ by less.
ALIKE = 0.1
RARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Flipped:
    """The uncertainty of one update's negative flips.

    `auc` is the chance that a flipped sample is more uncertain than another. `rate_sure` and
    `rate_unsure` are the shares of flips in the less uncertain half of all samples and in the rest.
    """

    flips: int
    counts: tuple[int, ...]
    mean: float
    auc: float
    auc_low: float
    auc_high: float
    rate_sure: float
    rate_unsure: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One measure of uncertainty: a histogram of flipped and of other samples."""

    name: str
    edges: tuple[float, ...]
    others: tuple[int, ...]
    mean_of_others: float
    untreated: Flipped
    treated: Flipped | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UncertaintyData:
    """Uncertainty of flipped and of other samples, by several measures.

    `others` are the samples that the untreated update does not flip.
    """

    old: tuple[str, ...]
    new: tuple[str, ...]
    treated: tuple[str, ...]
    judge: tuple[str, ...]
    measures: tuple[Measure, ...]


def uncertainty(members: MemberScores) -> Analysis[UncertaintyData]:
    """The uncertainty of flipped and of other samples, before and after a treatment."""
    if not members.count("new"):
        raise InputError("Expected models of both groups, but there are no new ones; add `new=`.")
    judge = "judge" if members.count("judge") else "old"
    values, flips = _measured(members, judge)
    data = UncertaintyData(
        old=tuple(members.names["old"]),
        new=tuple(members.names["new"]),
        treated=tuple(members.names.get("treated", ())),
        judge=tuple(members.names[judge]),
        measures=tuple(_measure(name, each, flips) for name, each in values.items()),
    )
    return Analysis(
        name="uncertainty",
        n=members.n,
        data=data,
        sentence=_sentence(data),
        claims=_claims(values["entropy"], flips),
    )


def _measured(members: MemberScores, judge: str) -> tuple[dict[str, FloatArray], dict[str, Mask]]:
    """Return the uncertainty of every sample by every measure, and which samples flip."""
    names = ["entropy", "margin", *(["disagreement"] if members.count(judge) > 1 else [])]
    values = {name: np.zeros(members.n) for name in names}
    flips = {
        role: np.zeros(members.n, dtype=np.bool_)
        for role in ("new", "treated")
        if members.count(role)
    }
    for rows, block in members.blocks():
        targets = members.targets[rows]
        right = mean_scores(block["old"]).argmax(axis=1) == targets
        for role, flipped in flips.items():
            flipped[rows] = right & (mean_scores(block[role]).argmax(axis=1) != targets)
        for name, each in uncertainty_measures(members, block[judge]).items():
            values[name][rows] = each
    return values, flips


def uncertainty_measures(members: MemberScores, scores: Array) -> dict[str, FloatArray]:
    """Return the uncertainty of an ensemble's predictions, from scores (models, rows, classes).

    `entropy` (in nats) and `margin` (1 minus the largest probability, plus the second largest) are
    those of the mean of the members' probabilities. `disagreement` is the standard deviation over
    members of the probability of the class with the largest mean.
    """
    mean = np.zeros(scores.shape[1:])
    for one in scores:
        mean += members.probabilities(one)
    mean /= len(scores)
    highest = np.partition(mean, -2, axis=1)[:, -2:]
    with np.errstate(divide="ignore", invalid="ignore"):
        surprise = np.where(mean > 0, -mean * np.log(mean), 0.0)
    found = {
        "entropy": surprise.sum(axis=1),
        "margin": 1 - (highest[:, 1] - highest[:, 0]),
    }
    if len(scores) > 1:
        every, top = np.arange(len(mean)), mean.argmax(axis=1)
        # Computed a second time, because the probabilities of many classes take much memory.
        shares = [members.probabilities(one)[every, top] for one in scores]
        found["disagreement"] = np.std(shares, axis=0)
    return found


def _measure(name: str, values: FloatArray, flips: dict[str, Mask]) -> Measure:
    edges = np.linspace(0.0, float(values.max()) or 1.0, BINS + 1)
    others = values[~flips["new"]]
    treated = flips.get("treated")
    return Measure(
        name=name,
        edges=tuple(edges.tolist()),
        others=tuple(np.histogram(others, edges)[0].tolist()),
        mean_of_others=_mean(others),
        untreated=_flipped(values, flips["new"], edges),
        treated=None if treated is None else _flipped(values, treated, edges),
    )


def _flipped(values: FloatArray, flipped: Mask, edges: FloatArray) -> Flipped:
    auc, low, high = separation(values, flipped)
    sure, unsure = rates_of_halves(values, flipped)
    return Flipped(
        flips=int(flipped.sum()),
        counts=tuple(np.histogram(values[flipped], edges)[0].tolist()),
        mean=_mean(values[flipped]),
        auc=auc,
        auc_low=low,
        auc_high=high,
        rate_sure=sure,
        rate_unsure=unsure,
    )


def rates_of_halves(values: FloatArray, flipped: Mask) -> tuple[float, float]:
    """Return the share of flips in the less uncertain half of the samples, and in the other."""
    sure = values <= np.median(values)
    return _mean(flipped[sure]), _mean(flipped[~sure])


def _mean(values: Array) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _claims(values: FloatArray, flips: dict[str, Mask]) -> tuple[CheckedClaim, ...]:
    flipped = flips["new"]
    claims = [
        CheckedClaim.above(
            "Flipped samples were more uncertain: chance that a flipped sample has the higher "
            "entropy (0.5 if alike)",
            separation(values, flipped),
            0.5,
        ),
        CheckedClaim.below(
            "But uncertainty does not separate them: share of flips among samples at least as "
            "uncertain as the median flip",
            _flips_above_their_median(values, flipped),
            RARE,
        ),
    ]
    if "treated" in flips:
        claims.append(
            CheckedClaim.between(
                "The treatment removes flips almost uniformly: share left in the uncertain half of "
                "the samples, minus that in the other",
                _left_apart(values, flipped, flips["treated"]),
                (-ALIKE, ALIKE),
            )
        )
    return tuple(claims)


def _flips_above_their_median(values: FloatArray, flipped: Mask) -> ValueInterval:
    if not flipped.any():
        return float("nan"), float("nan"), float("nan")
    return mean_of(flipped[values >= np.median(values[flipped])])


def _left_apart(values: FloatArray, before: Mask, after: Mask) -> ValueInterval:
    """Return how much less the treatment removes where samples are uncertain, with its interval."""
    sure = values <= np.median(values)
    value, parts = 0.0, np.zeros(len(values))
    for half, sign in ((~sure, 1.0), (sure, -1.0)):
        was = float((before & half).mean())
        if was == 0:
            return float("nan"), float("nan"), float("nan")
        ratio = float((after & half).mean()) / was
        value += sign * ratio
        parts += sign * ((after & half) - ratio * (before & half)) / was
    return around(value, parts)


def _sentence(data: UncertaintyData) -> str:
    entropy = data.measures[0]
    before = entropy.untreated
    if not before.flips:
        return "There are no negative flips, so nothing is known of their uncertainty."
    text = (
        f"A flipped sample had the higher entropy in {in_percent(before.auc, decimals=0)} of pairs "
        f"with another sample; {in_percent(before.rate_unsure)} of the uncertain half of the "
        f"samples flip, and {in_percent(before.rate_sure)} of the other half."
    )
    if entropy.treated is None:
        return text
    left = entropy.treated.flips
    return f"{text} With the treatment {left:,} samples flip, without it {before.flips:,}."
