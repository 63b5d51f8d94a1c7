"""What the page says, as plain data: numbers that equal the JSON's, and the words beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flipguard.comparison import Comparison
from flipguard.estimates import Estimate, Sample
from flipguard.metrics import METRICS
from flipguard.render.text import (
    compared_with_retrains,
    estimate_interval,
    headline,
    interval,
    left_out,
    number,
    what_controls_show,
    what_ratios_say,
)

Tone = Literal["harm", "gain", "plain"]

# The few numbers that tell the story, in the order in which it is told.
CARDS: tuple[tuple[str, str, str, Tone], ...] = (
    ("negative_flip_rate", "Negative flips", "worked before, fail now", "harm"),
    ("positive_flip_rate", "Positive flips", "failed before, work now", "gain"),
    ("accuracy_gain", "Accuracy gain", "the two together", "plain"),
    ("error_rate_new", "Error of the new model", "all its mistakes, new and old", "plain"),
    ("churn", "Churn", "other answers, right or wrong", "plain"),
    (
        "relative_negative_flip_rate",
        "Relative negative flips",
        "of those that unrelated models as good would have",
        "plain",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A metric as it is shown, with the values that are behind it."""

    metric: str
    value: float | None
    low: float | None
    high: float | None
    n: int
    text: str
    interval: str

    @classmethod
    def of(cls, metric: str, estimate: Estimate) -> Number:
        """An estimate under its name."""
        found = estimate.as_json()
        return cls(
            metric=metric,
            value=found["value"],
            low=found["low"],
            high=found["high"],
            n=estimate.n,
            text=number(metric, estimate.value),
            interval=estimate_interval(metric, estimate),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """An interval as a strip from 0 to 100, with the value in it."""

    low: float
    high: float
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One of the numbers that decide, beside the control's."""

    title: str
    sentence: str
    tone: Tone
    number: Number
    beside: str
    bar: Bar | None
    control_bar: Bar | None
    control: Number | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One of the four outcomes of old and new together."""

    samples: int
    share: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Square:
    """Right and wrong, old and new."""

    n: int
    both_right: Cell
    negative: Cell
    positive: Cell
    both_wrong: Cell
    wrong_different: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """A rate and the range in which one more retrain would be expected."""

    metric: str
    value: float | None
    text: str
    low: float | None
    retrain: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """All that is said of the whole."""

    headline: str
    notes: tuple[str, ...]
    cards: tuple[Card, ...]
    metrics: tuple[Number, ...]
    controls: tuple[str, ...]
    ratios: str  # what the intervals of ratios to a control allow for
    noise: tuple[Noise, ...]
    shows: str  # how large a change these controls can show
    square: Square | None


def numbers_of(result: Comparison) -> Numbers:
    """The numbers of a comparison, the decisive ones first."""
    known = [name for name in METRICS if METRICS[name].needs <= result.layout.available]
    return Numbers(
        headline=headline(result),
        notes=(*left_out(result), *result.notes),
        cards=tuple(_card(result, *row) for row in CARDS if row[0] in known),
        metrics=tuple(Number.of(name, result[name]) for name in known),
        controls=result.controls,
        ratios=what_ratios_say(result),
        noise=tuple(
            Noise(
                metric=floor.metric,
                value=_known(floor.value),
                text=number(floor.metric, floor.value),
                low=_known(floor.low),
                retrain=interval(floor.metric, floor.low, floor.high),
                words=compared_with_retrains(floor),
            )
            for floor in result.noise_floor
        ),
        shows=what_controls_show(result),
        square=_square(result),
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def control_estimates(result: Comparison, metric: str) -> list[Estimate]:
    """The metric of each control against old; without an interval where rows are clustered."""
    row = METRICS[metric]
    found = []
    for i in range(len(result.controls)):
        sample = Sample(counts=result.counts.control(i))
        estimate = sample.estimate(row, result.confidence)
        if result.cluster is not None:
            # The clusters of controls were not kept, and rows alone would promise too much.
            value, n = estimate.value, estimate.n
            estimate = Estimate(value=value, low=math.nan, high=math.nan, n=n)
        found.append(estimate)
    return found


def _card(result: Comparison, metric: str, title: str, sentence: str, tone: Tone) -> Card:
    estimate = result[metric]
    controls = [e for e in control_estimates(result, metric) if e.is_defined]
    control = Number.of(metric, controls[0]) if len(controls) == 1 else None
    spread = [estimate, *controls]
    bars = [_bar(e, spread, signed=metric == "accuracy_gain") for e in spread[:2]]
    return Card(
        title=title,
        sentence=sentence,
        tone=tone,
        number=Number.of(metric, estimate),
        beside=_beside(result, metric, controls),
        bar=bars[0],
        control_bar=bars[1] if control is not None else None,
        control=control,
    )


def _beside(result: Comparison, metric: str, controls: Sequence[Estimate]) -> str:
    """What a reader compares the number with."""
    told = []
    if len(controls) > 1:
        values = [c.value for c in controls]
        told.append(f"{len(controls)} controls {interval(metric, min(values), max(values))}")
    elif controls:
        told.append(f"control {_with_interval(metric, controls[0])}")
    if metric == "error_rate_new":
        told.append(f"old {_with_interval(metric, result['error_rate_old'])}")
    return "; ".join(told)


def _with_interval(metric: str, estimate: Estimate) -> str:
    ends = estimate_interval(metric, estimate)
    return number(metric, estimate.value) + (f" ({ends})" if ends else "")


def _bar(estimate: Estimate, spread: Sequence[Estimate], *, signed: bool) -> Bar | None:
    ends = [v for e in spread for v in (e.low, e.high, e.value) if not math.isnan(v)]
    if math.isnan(estimate.low) or not ends:
        return None
    highest = max([*ends, 0.0]) if not signed else max(abs(v) for v in ends)
    if highest <= 0:
        return None
    lowest = -highest if signed else 0.0

    def place(value: float) -> float:
        return round(100 * (value - lowest) / (1.08 * highest - lowest), 2)

    return Bar(
        low=place(estimate.low),
        high=max(place(estimate.high), place(estimate.low) + 0.6),
        value=place(estimate.value),
    )


def _square(result: Comparison) -> Square | None:
    counts = result.counts
    if not result.layout.has_target or counts.labelled == 0:
        return None
    labelled = int(counts.labelled)

    def cell(*names: str) -> Cell:
        samples = sum(int(counts[name]) for name in names)
        return Cell(samples=samples, share=f"{100 * samples / labelled:.2f} %")

    return Square(
        n=labelled,
        both_right=cell("both_right"),
        negative=cell("negative_flip"),
        positive=cell("positive_flip"),
        both_wrong=cell("wrong_same", "wrong_different"),
        wrong_different=int(counts["wrong_different"]),
    )
