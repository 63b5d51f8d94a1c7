"""The key numbers of a comparison as data for a page, and text that a page can show safely."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from flipguard.comparison import Comparison
from flipguard.errors import UNPRINTABLE
from flipguard.estimates import Estimate, GroupCounts
from flipguard.metrics import METRICS
from flipguard.render.words import (
    KEY_RATIOS,
    compared_with_retrains,
    estimate_interval,
    headline,
    interval,
    key_metrics,
    known_metrics,
    left_out,
    number,
    what_controls_show,
    what_ratios_say,
)

if TYPE_CHECKING:
    from markupsafe import Markup


LONGEST_NAME = 160
LONGEST_LABEL = 26
# Joiners make up emoji and the words of several scripts, and move nothing.
JOINERS = frozenset("\u200c\u200d")
LINES = frozenset("\n\t")
_SCRIPT_ESCAPES = {
    ord(sign): f"\\u{ord(sign):04x}" for sign in ("<", ">", "&", "\u2028", "\u2029", "\x7f")
}

Tone = Literal["harm", "plain"]


def visible(text: object, *, longest: int = LONGEST_NAME, lines: bool = False) -> str:
    """Return text with its control and direction characters made visible, shortened if long.

    >>> visible("a\\x1b[31m"), visible("\\u202eexe"), visible("x" * 500, longest=4)
    ('a␛[31m', '‹U+202E›exe', 'xxxx… (500 characters)')
    """
    whole = text if isinstance(text, str) else str(text)
    part = whole[:longest]
    if not part.isprintable():
        kept = JOINERS | LINES if lines else JOINERS
        part = "".join(c if c in kept else _sign(c) for c in part)
    return part if len(whole) <= longest else f"{part}… ({len(whole):,} characters)"


def _sign(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    if unicodedata.category(character) in UNPRINTABLE:
        return f"‹U+{code:04X}›"
    return character


def short_labels(names: list[str], *, longest: int = LONGEST_LABEL) -> list[str]:
    """Return short names for the axis of a chart, all different if the names are.

    >>> short_labels(["stop", "a" * 40, "a" * 41], longest=6)
    ['stop', 'aaaaa…', 'aaaaa… (2)']
    """
    labels: dict[str, None] = {}
    for name in names:
        text = visible(name[: longest + 1], longest=longest + 1)
        first = label = text if len(text) <= longest else text[: longest - 1] + "…"
        again = 1
        while label in labels:
            again += 1
            label = f"{first} ({again})"
        labels[label] = None
    return list(labels)


def script_json(value: Any) -> Markup:
    """Return JSON that is safe inside a script element, for any strings in it."""
    from markupsafe import Markup

    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # A lone surrogate, as in a file name that is not valid text, has no UTF-8.
    text = re.sub("[\ud800-\udfff]", "\ufffd", text)
    return Markup(text.translate(_SCRIPT_ESCAPES))  # noqa: S704 (no character is left that ends a script)


def shown(text: object, *, longest: int = LONGEST_NAME) -> Markup:
    """Return a name from a file, isolated so that its direction does not affect its sentence."""
    return isolated(visible(text, longest=longest))


def isolated(text: str) -> Markup:
    """Return text from `visible`, isolated; shortening it again would show a wrong length."""
    from markupsafe import Markup

    return Markup("<bdi>{}</bdi>").format(text)


def web_address(text: str) -> str | None:
    """Return the text if it is an address that a browser may open, else None.

    >>> web_address("https://example.org/a.png"), web_address("javascript:alert(1)")
    ('https://example.org/a.png', None)
    """
    if len(text) > 2_000 or not text.isprintable() or " " in text:
        return None
    return text if re.match(r"https?://[^/\\@]+(/|$|\?|#)", text, flags=re.IGNORECASE) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A metric as it is shown, with its exact values."""

    metric: str
    value: float | None
    low: float | None
    high: float | None
    n: int
    text: str
    interval: str

    @classmethod
    def of(cls, metric: str, estimate: Estimate) -> Number:
        """Return an estimate with its metric's name and texts."""
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
    """An interval and its value as positions from 0 to 100."""

    low: float
    high: float
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One key metric, and the same metric of the control."""

    title: str
    sentence: str
    tone: Tone
    number: Number
    control_text: str
    bar: Bar | None
    control_bar: Bar | None
    control: Number | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeCell:
    """Number and share of the samples with one of the four outcomes of old and new."""

    samples: int
    share: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeTable:
    """The samples by right and wrong of the old and the new model."""

    n: int
    both_right: OutcomeCell
    negative: OutcomeCell
    positive: OutcomeCell
    both_wrong: OutcomeCell
    # None if there are no labels to compare.
    wrong_different: int | None
    answer: Literal["class", "answer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """A rate, and the range expected of one more retrain."""

    metric: str
    value: float | None
    text: str
    low: float | None
    retrain: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyNumbers:
    """Everything that a page shows about all samples together."""

    headline: str
    notes: tuple[str, ...]
    cards: tuple[Card, ...]
    metrics: tuple[Number, ...]
    controls: tuple[str, ...]
    ratios: str  # what the intervals of ratios to a control allow for
    noise: tuple[Noise, ...]
    shows: str  # how large a change these controls can show
    square: OutcomeTable | None


def key_numbers(result: Comparison) -> KeyNumbers:
    """Return the numbers of a comparison, the key metrics first."""
    return KeyNumbers(
        headline=headline(result),
        notes=(*left_out(result), *result.notes),
        cards=tuple(_card(result, name) for name in key_metrics(result) if name not in KEY_RATIOS),
        metrics=tuple(Number.of(name, result[name]) for name in known_metrics(result)),
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
    """Return the metric of each control against old; without an interval if rows are clustered."""
    row = METRICS[metric]
    found = []
    for i in range(len(result.controls)):
        sample = GroupCounts(counts=result.counts.control(i))
        estimate = sample.estimate(row, result.confidence)
        if result.cluster is not None:
            # The clusters of controls are not kept; an interval of rows alone is too narrow.
            value, n = estimate.value, estimate.n
            estimate = Estimate(value=value, low=math.nan, high=math.nan, n=n)
        found.append(estimate)
    return found


def _card(result: Comparison, metric: str) -> Card:
    estimate = result[metric]
    controls = [e for e in control_estimates(result, metric) if e.is_defined]
    control = Number.of(metric, controls[0]) if len(controls) == 1 else None
    spread = [estimate, *controls]
    bars = [_bar(e, spread, signed=metric == "accuracy_gain") for e in spread[:2]]
    return Card(
        title=metric.replace("_", " ").capitalize(),
        sentence=METRICS[metric].sentence,
        tone="harm" if metric == "negative_flip_rate" else "plain",
        number=Number.of(metric, estimate),
        control_text=_control_text(metric, controls),
        bar=bars[0],
        control_bar=bars[1] if control is not None else None,
        control=control,
    )


def _control_text(metric: str, controls: Sequence[Estimate]) -> str:
    """Return the same metric of the controls, in words."""
    if len(controls) > 1:
        values = [c.value for c in controls]
        return f"{len(controls)} controls {interval(metric, min(values), max(values))}"
    return f"control {_with_interval(metric, controls[0])}" if controls else ""


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


def _square(result: Comparison) -> OutcomeTable | None:
    counts = result.counts
    if not result.layout.has_target or counts.labelled == 0:
        return None
    labelled = int(counts.labelled)

    def cell(*names: str) -> OutcomeCell:
        samples = sum(int(counts[name]) for name in names)
        return OutcomeCell(samples=samples, share=f"{100 * samples / labelled:.2f} %")

    return OutcomeTable(
        n=labelled,
        both_right=cell("both_right"),
        negative=cell("negative_flip"),
        positive=cell("positive_flip"),
        both_wrong=cell("wrong_same", "wrong_different"),
        wrong_different=int(counts["wrong_different"]) if counts.layout.has_labels else None,
        answer="answer" if counts.layout.graded else "class",
    )
