"""Means of scores: rows that rarely move, heavy tails, unchanged rows, corrected levels, clusters.

Rows are drawn from a mixture: a multinomial draw says how many rows come from each part, and each
row that moves is drawn from its part. The true value is the mean of the mixture, known exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv, stdtrit

from designs.row import Row
from flipguard import statistics
from flipguard.counts import MOST_DIVERGENCE

Floats = NDArray[np.float64]
Interval = tuple[Floats, Floats]
Draw = Callable[[np.random.Generator, int], Floats]

SIZES = (20, 100, 1_000, 5_000)
FLIPS = (0.005, 0.02, 0.05, 0.30)
CORRECTED = 1 - 0.05 / 1_000
# Large samples are drawn in blocks of this many rows.
MOST_ROWS = 4_000_000


@dataclass(frozen=True, kw_only=True)
class World:
    """The distribution of one row: parts with their probabilities, means and draws."""

    metric: str
    words: str
    most: float
    parts: tuple[tuple[float, float, Draw], ...]
    # Whether the lower end can make a rule pass, so that it must be monotone too.
    both: bool = False

    @property
    def truth(self) -> float:
        return sum(chance * mean for chance, mean, _ in self.parts)


def always(value: float) -> tuple[float, Draw]:
    return value, lambda _, size: np.full(size, value)


def near_one(rng: np.random.Generator, size: int) -> Floats:
    return rng.uniform(0.5, 1.5, size)


def small(rng: np.random.Generator, size: int) -> Floats:
    return 0.02 * rng.beta(0.5, 4.5, size)


def heavy(top: float) -> tuple[float, Draw]:
    """A Pareto tail of index 1.2 from 0.5 on, cut at the top; its mean and its draw."""
    start, index = 0.5, 1.2
    above = (start / top) ** index
    mean = index / (index - 1) * (start - top * above) + top * above

    def draw(rng: np.random.Generator, size: int) -> Floats:
        return np.minimum(start * (1 + rng.pareto(index, size)), top)

    return mean, draw


def lognormal(scale: float) -> tuple[float, Draw]:
    def draw(rng: np.random.Generator, size: int) -> Floats:
        return scale * np.exp(rng.normal(size=size))

    return scale * float(np.exp(0.5)), draw


def beta(a: float, b: float) -> tuple[float, Draw]:
    return a / (a + b), lambda rng, size: rng.beta(a, b, size)


def scaled(top: float, part: tuple[float, Draw]) -> tuple[float, Draw]:
    """A distribution from 0 to 1, stretched to `top`."""
    mean, draw = part
    return top * mean, lambda rng, size: top * draw(rng, size)


def gamma_values(shape: float, scale: float) -> tuple[float, Draw]:
    # So far below the largest divergence that the cut moves no mean.
    return shape * scale, lambda rng, size: np.minimum(
        rng.gamma(shape, scale, size), MOST_DIVERGENCE
    )


def worlds() -> Iterator[World]:
    for classes in (10, 1_000):
        top = classes / 2
        for flips in FLIPS:
            for words, moved, rest in (
                ("else unchanged", (1.0, near_one), always(0.0)),
                ("heavy tail", heavy(top), (0.002, small)),
            ):
                yield World(
                    metric="surrogate_churn",
                    words=f"{classes:,} classes, {100 * flips:g} % flips, {words}",
                    most=top,
                    parts=((1 - flips, *rest), (flips, *moved)),
                )
        yield World(
            metric="surrogate_churn",
            words=f"{classes:,} classes, 0.5 % of rows move as far as there is",
            most=top,
            parts=((0.995, *always(0.0)), (0.005, *always(top))),
        )
    for words, parts in (
        ("flat", ((1.0, *beta(2, 2)),)),
        ("nearly always sure", ((0.98, *beta(200, 1)), (0.02, *beta(1, 3)))),
        ("sure, 0.5 % undecided", ((0.995, *always(1.0)), (0.005, *always(0.0)))),
    ):
        yield World(metric="margin_new", words=words, most=1.0, parts=parts, both=True)
    for words, part in (("lognormal", lognormal(3.0)), ("beta", beta(2, 2))):
        yield World(metric="logit_displacement", words=words, most=np.inf, parts=((1.0, *part),))
    yield World(
        metric="logit_displacement",
        words="0.5 % of rows move",
        most=np.inf,
        parts=((0.995, *always(0.0)), (0.005, *lognormal(3.0))),
    )


def information_worlds() -> Iterator[World]:
    """Entropies and divergences, in nats."""
    for classes in (10, 1_000):
        top = float(np.log(classes))
        for words, parts in (
            ("undecided", ((1.0, *scaled(top, beta(8, 2))),)),
            (
                "nearly always sure",
                ((0.95, *scaled(top, beta(1, 200))), (0.05, *scaled(top, beta(2, 3)))),
            ),
            ("always sure, 0.5 % undecided", ((0.995, *always(0.0)), (0.005, *always(top)))),
        ):
            yield World(
                metric="entropy_new",
                words=f"{classes:,} classes, {words}",
                most=top,
                parts=parts,
                both=True,
            )
    for words, parts in (
        ("all rows move a little", ((1.0, *gamma_values(0.5, 0.04)),)),
        (
            "2 % of rows move far",
            ((0.98, *gamma_values(0.5, 0.002)), (0.02, *gamma_values(2.0, 0.5))),
        ),
        (
            "30 % of rows move far",
            ((0.7, *gamma_values(0.5, 0.02)), (0.3, *gamma_values(2.0, 0.5))),
        ),
        (
            "0.5 % of rows, as far as possible",
            ((0.995, *always(0.0)), (0.005, *always(MOST_DIVERGENCE))),
        ),
    ):
        yield World(metric="kl_divergence", words=words, most=MOST_DIVERGENCE, parts=parts)


def parts() -> dict[str, Callable[[np.random.Generator, int], Iterator[Row]]]:
    """Designs with their own seeds, so that new ones leave the rows of the others as they are."""
    return {"": rows, "entropy and divergence": information}


def information(rng: np.random.Generator, draws: int) -> Iterator[Row]:
    yield from independent(rng, draws, information_worlds())


def independent(rng: np.random.Generator, draws: int, drawn: Iterable[World]) -> Iterator[Row]:
    for world in drawn:
        for n in SIZES:
            total, squares = sampled(rng, world, n, draws)
            for confidence in (0.8, 0.95, CORRECTED) if n < 5_000 else (0.95,):
                yield coverage(world, n, confidence, total, squares)


def rows(rng: np.random.Generator, draws: int) -> Iterator[Row]:
    yield from independent(rng, draws, worlds())
    yield from unchanged()
    yield from sure_models(rng, draws)
    yield from clustered(rng, draws)


def sampled(rng: np.random.Generator, world: World, n: int, draws: int) -> tuple[Floats, Floats]:
    """Sums and sums of squares of `draws` samples of n rows."""
    total, squares = np.zeros(draws), np.zeros(draws)
    counts = rng.multinomial(n, [chance for chance, _, _ in world.parts], size=draws)
    for place, (_, mean, draw) in enumerate(world.parts):
        if mean == 0.0:
            continue
        count = counts[:, place]
        step = max(1, MOST_ROWS // n)
        for start in range(0, draws, step):
            part = count[start : start + step]
            values = draw(rng, int(part.sum()))
            sample = np.repeat(np.arange(len(part)), part)
            total[start : start + step] += np.bincount(sample, values, len(part))
            squares[start : start + step] += np.bincount(sample, values**2, len(part))
    return total, squares


def row(
    metric: str,
    design: str,
    n: int,
    confidence: float,
    interval: Interval,
    truth: float,
    rivals: dict[str, Interval],
    printed: str | None = None,
) -> Row:
    """One design, with one interval per draw."""
    above, below = missed(interval, truth)
    return {
        "metric": metric,
        "design": design,
        "n": n,
        "confidence": confidence,
        "draws": len(interval[0]),
        "promise": "coverage",
        "nominal": confidence,
        "measured": 1 - above - below,
        "above": above,
        "below": below,
        "width": width(interval),
        "undefined": 0.0,
        "rivals": {
            name: {"measured": 1 - sum(missed(rival, truth)), "width": width(rival)}
            for name, rival in rivals.items()
        },
        "printed": printed,
    }


def missed(interval: Interval, truth: float) -> tuple[float, float]:
    """Shares of the intervals that lie wholly above and wholly below the truth."""
    slack = 1e-9 * max(truth, 1e-9)
    low, high = interval
    return float((low > truth + slack).mean()), float((high < truth - slack).mean())


def width(interval: Interval) -> float | None:
    found = float(np.median(interval[1] - interval[0]))
    return found if np.isfinite(found) else None


# ---------------------------------------------------------------- independent rows


def coverage(world: World, n: int, confidence: float, total: Floats, squares: Floats) -> Row:
    interval = statistics.bounded_mean(
        total, squares, n, most=world.most, confidence=confidence, guard_low=world.both
    )
    rivals = {"Student's t": student(total, squares, n, confidence)}
    if np.isfinite(world.most):
        rivals |= {
            "Fay and Feuer's gamma": gamma(total, squares, n, world.most, confidence),
            "empirical Bernstein": bernstein(total, squares, n, world.most, confidence),
        }
    printed = None if np.isfinite(world.most) else "a lower end alone, and why"
    return row(world.metric, world.words, n, confidence, interval, world.truth, rivals, printed)


def student(total: Floats, squares: Floats, n: int, confidence: float) -> Interval:
    mean, variance = total / n, statistics.mean_variance(total, squares, n)
    half = -stdtrit(n - 1, (1 - confidence) / 2) * np.sqrt(variance)
    return mean - half, mean + half


def gamma(total: Floats, squares: Floats, n: int, most: float, confidence: float) -> Interval:
    """Fay and Feuer's limits of a weighted sum of Poisson counts."""
    tail = (1 - confidence) / 2
    with np.errstate(all="ignore"):
        shape, scale = total**2 / squares, squares / total
        low = np.where(total > 0, scale * gammaincinv(shape, tail), 0.0)
    up, up_squares = total + most, squares + most**2
    high = up_squares / up * gammaincinv(up**2 / up_squares, 1 - tail)
    return low / n, np.minimum(high / n, most)


def bernstein(total: Floats, squares: Floats, n: int, most: float, confidence: float) -> Interval:
    """Maurer and Pontil's limits, each with half of the error."""
    log = np.log(4 / (1 - confidence))
    variance = n * statistics.mean_variance(total, squares, n)
    half = np.sqrt(2 * variance * log / n) + 7 * most * log / (3 * (n - 1))
    return np.maximum(total / n - half, 0.0), np.minimum(total / n + half, most)


def unchanged() -> Iterator[Row]:
    """No row has moved: the upper end must not exclude a mean that makes this likely enough."""
    for classes in (10, 1_000):
        top = classes / 2
        for n in SIZES:
            for confidence in (0.95, CORRECTED):
                tail = (1 - confidence) / 2
                nothing = np.zeros(1)
                # The largest chance of a full move at which n unmoved rows are likely enough.
                truth = top * (1 - tail ** (1 / n))
                found = row(
                    "surrogate_churn",
                    f"{classes:,} classes, unchanged rows, mean at the exact limit",
                    n,
                    confidence,
                    statistics.bounded_mean(nothing, nothing, n, most=top, confidence=confidence),
                    truth * (1 - 1e-6),
                    {"Student's t": student(nothing, nothing, n, confidence)},
                )
                # Only one table is possible.
                found["exact"] = True
                yield found


def sure_models(rng: np.random.Generator, draws: int) -> Iterator[Row]:
    """A model that is always sure of its class, and rarely wrong."""
    stated = 0.9999
    for wrong in FLIPS[:3]:
        for n in SIZES:
            right = n - rng.binomial(n, wrong, size=(draws, 1)).astype(np.float64)
            sums = np.full_like(right, n * stated)
            squares = right * (1 - stated) ** 2 + (n - right) * stated**2
            for confidence in (0.8, 0.95, CORRECTED):
                count = np.full_like(right, n)
                found = statistics.calibration_error(
                    count, right, sums, squares, confidence=confidence
                )
                yield row(
                    "expected_calibration_error_new",
                    f"always sure, {100 * wrong:g} % wrong",
                    n,
                    confidence,
                    found,
                    abs(1 - wrong - stated),
                    {},
                )


# ---------------------------------------------------------------- clusters


def clustered(rng: np.random.Generator, draws: int) -> Iterator[Row]:
    for clusters in (10, 100):
        for sizes in ("equal", "Zipf"):
            size = np.full(clusters, 100)
            if sizes == "Zipf":
                share = 1 / np.arange(1, clusters + 1)
                size = np.maximum(1, np.round(100 * clusters * share / share.sum())).astype(int)
            for flips in (0.02, 0.05, 0.30):
                chance = rng.beta(4 * flips, 4 * (1 - flips), size=(draws, clusters))
                moved = rng.binomial(size, chance)
                values = near_one(rng, int(moved.sum()))
                place = np.repeat(np.arange(moved.size), moved.ravel())
                sums = np.bincount(place, values, moved.size).reshape(moved.shape)
                squares = np.bincount(place, values**2, moved.size).reshape(moved.shape)
                design = f"{100 * flips:g} % flips, ICC 0.2, {sizes} sizes, {clusters} clusters"
                for classes in (10, 1_000):
                    yield cluster_row(design, classes, sums, squares, size, flips)


def cluster_row(
    design: str, classes: int, sums: Floats, squares: Floats, size: Floats, truth: float
) -> Row:
    """As in flipguard: the wider of the intervals of rows and of clusters."""
    top, n, confidence = classes / 2, int(size.sum()), 0.95
    each, once = np.broadcast_to(size.astype(float), sums.shape), np.ones(sums.shape)
    total = sums.sum(axis=1)
    low, high = statistics.bounded_mean(
        total, squares.sum(axis=1), n, most=top, confidence=confidence
    )
    ends = [
        top * statistics.upper_end(part, each, each, once, confidence=confidence)
        for part in (sums / top, each - sums / top)
    ]
    clusters = sums.shape[1]
    residual = sums - total[:, np.newaxis] / n * size
    error = np.sqrt(clusters / (clusters - 1) * (residual**2).sum(axis=1)) / n
    half = -stdtrit(clusters - 1, (1 - confidence) / 2) * error
    return row(
        "surrogate_churn",
        f"{classes:,} classes, {design}",
        n,
        confidence,
        (np.minimum(low, top - ends[1]), np.maximum(high, ends[0])),
        truth,
        {"Student's t over clusters": (total / n - half, total / n + half)},
    )
