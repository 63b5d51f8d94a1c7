"""A study as data: which table of a paper, and what is trained for each of its rows.

A study is one TOML file in `catalog`, named by its id. It never repeats a number of a paper: rows
are found in the paper's table by what they say, and take method and options from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from flipguard.studies.paper_tables import PaperRow, PaperTable

Scalar: TypeAlias = bool | int | float | str | None

OLD = "old"
"""In `follows`: the model that the row's new one replaces."""

# Measured for every study, whether its table prints them or not: they cost nothing once trained.
DEFAULT_METRICS = (
    "error_rate_old",
    "error_rate_new",
    "accuracy",
    "negative_flip_rate",
    "relative_negative_flip_rate",
    "churn",
    "surrogate_churn",
    "churn_correct",
    "churn_incorrect",
    "expected_calibration_error_new",
    "margin_new",
    "entropy_new",
    "logit_displacement",
)

# What is counted in histograms, and how it is called.
HISTOGRAMS = {
    "uncertainty": "uncertainty: deviation of the members' probabilities",
    "rank": "rank: rank of the new model's wrong class in the old model's logits",
    "displacement": "distance: of the logits of one sample, old to new",
    "margin": "margin: first probability less the second",
}

# What some of them tell apart.
FLIPPED, OTHERS = "negative flips", "other samples"
COUNTS: Mapping[str, tuple[str, ...]] = MappingProxyType({"uncertainty": (FLIPPED, OTHERS)})

# The metrics that come with some of them.
HISTOGRAM_METRICS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "uncertainty": (
            *("flip_rate_sure", "flip_rate_unsure", "uncertainty_flipped", "uncertainty_others"),
            *("flips_told_apart", "flips_left_sure", "flips_left_unsure", "flips_left_apart"),
        ),
        "rank": ("flip_rank", "flip_rank_by_chance", "flip_second"),
    }
)

# Of which the paper printed a share: the size of the test sets, for its standard errors.
TEST_SAMPLES: Mapping[str, int] = MappingProxyType(
    {
        "ILSVRC12": 50_000,
        "ImageNet": 50_000,
        "iNaturalist": 95_986,
        "iNaturalist 2017": 95_986,
        "iNaturalist 2018": 24_426,
        "AG News": 7_600,
        "CIFAR-10": 10_000,
        "CIFAR-100": 10_000,
        "SVHN": 26_032,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuideSpec:
    """Members of one role in an ensemble that is given to a student.

    A `generation` gives them other seeds than the student's: two students that see the same
    samples have the same ensemble if the generation of their guides is the same.
    """

    role: str
    count: int
    generation: int | None = None
    stands_for: str | None = None  # the paper's architecture
    trained: bool = False  # even at scales where members of this role have published weights


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model to train, without its seed and scale.

    `role=None` means the role of the model that follows this one. `printed` are the options that
    the paper's row states, `options` those of the study, which a scale does not change.
    """

    method: str = "none"
    role: str | None = None
    printed: Mapping[str, Scalar] = field(default_factory=dict)
    options: Mapping[str, Scalar] = field(default_factory=dict)
    follows: tuple[str, ...] = ()
    guides: tuple[GuideSpec, ...] = ()
    fine_tune: bool = False
    watch: bool = False  # measured against old in every epoch, although it does not follow it
    fix: tuple[str, ...] = ()  # sources of randomness that no seed changes
    recipe: Mapping[str, Scalar] = field(default_factory=dict)
    trained: bool = False  # even at scales where models of this role have published weights
    generation: int | None = None  # other generations have other seeds; None: the follower's
    # The share of the training samples that it sees, and of the classes that it knows; None: all,
    # or that of the follower.
    samples: float | None = None
    classes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRow:
    """One line of the study's table: two models, and the paper's row if it has one.

    Lines of one `block` make the same update, and are compared with each other.
    """

    label: str
    group: str | None
    block: tuple[str, ...]
    old: ModelSpec
    new: ModelSpec
    paper: PaperRow | None = None
    x: float | None = None
    pair: tuple[str, str] | None = None  # its cell of a matrix: the roles of old and new
    why_not: str | None = None  # it is not trained, for this reason
    # Metrics that are shown, but are no part of the agreement: here they differ for other reasons.
    unjudged: tuple[str, ...] = ()

    @property
    def data(self) -> str | None:
        """The paper's data set."""
        return None if self.paper is None else self.paper.data


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSide:
    """One side of a claim: a metric of lines, by their indices in the study, or a number.

    With a `curve` it is the metric on that split after the last epoch, or with `first` its mean
    over that number of first epochs.
    """

    places: tuple[int, ...] = ()
    metric: str = ""
    number: float | None = None
    curve: str | None = None
    first: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What the paper says in words, as an order of two sides."""

    says: str
    lower: ClaimSide
    higher: ClaimSide
    of_spread: bool = False  # of the variance over seeds, and not of the values


@dataclass(frozen=True, slots=True, kw_only=True)
class FromScratch:
    """Title and note of a study of fine-tuned models at a scale without pretrained weights."""

    title: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """What is counted over the samples of some lines, or over draws, in addition to metrics."""

    of: str  # one of `HISTOGRAMS`
    places: tuple[int, ...]
    judge: str | None = None  # the one of `models` that gives the uncertainty of samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A table or figure of a paper, and all that has to be trained for it."""

    id: str
    table: PaperTable
    title: str
    metrics: tuple[str, ...]
    lines: tuple[StudyRow, ...]
    models: Mapping[str, ModelSpec]
    claims: tuple[Claim, ...] = ()
    notes: tuple[str, ...] = ()
    curves: tuple[str, ...] = ()  # splits of which the rates after every epoch are shown
    histogram: Histogram | None = None
    matrix: tuple[str, ...] = ()  # roles, every two of which are compared
    axis: str | None = None  # what `x` of the lines is
    test_samples: int | None = None  # of the paper, where not its whole test set
    device: str | None = None  # of the paper, where the table is about what a device does
    # Where the paper fine-tunes: what is true of a scale without pretrained weights.
    from_scratch: FromScratch | None = None

    def title_at(self, *, pretrained: bool) -> str:
        """What the study shows at a scale whose models start from pretrained weights, or not."""
        return self.title if pretrained or self.from_scratch is None else self.from_scratch.title

    @property
    def paper(self) -> str:
        """pct, elodi or churn."""
        return self.table.paper

    def chosen(self, stands_for: tuple[str, ...], *, exact: bool = False) -> tuple[int, ...]:
        """The lines that belong to one data set: the first of these that the table has.

        A table of one data set is shown whole, whatever a scale stands for. With `exact`, only
        lines of these data sets are shown.
        """
        own = [line.data or self.table.data for line in self.lines]
        if exact:
            return tuple(i for i, name in enumerate(own) if name in stands_for)
        data = {line.data for line in self.lines if line.data is not None}
        if len(data) <= 1:
            return tuple(range(len(self.lines)))
        wanted = next((name for name in stands_for if name in data), None)
        return tuple(i for i, line in enumerate(self.lines) if line.data in (None, wanted))

    def name_of(self, line: StudyRow) -> str:
        """A line's label, with the update that it makes where the table has several."""
        blocks = {(one.paper.old, one.paper.new) for one in self.lines if one.paper is not None}
        parts = [line.label]
        if line.paper is not None:
            update = f"{line.paper.old} to {line.paper.new}"
            named = line.group or update == line.label
            if len(blocks) > 1 and not named and line.paper.old != line.paper.new:
                parts.append(update)
            parts += [_condition(name, value) for name, value in line.paper.where.items()]
        return ", ".join(part for part in parts if part)

    def samples_of(self, data: str | None) -> int | None:
        """How many test samples the paper's rates rest on."""
        return self.test_samples or TEST_SAMPLES.get(data or "")

    def control_of(self, place: int) -> int | None:
        """Return the index of the control of the same update, or of the same series."""
        own = self.lines[place]
        plain = [i for i, line in enumerate(self.lines) if line.new.method == "none"]
        same = [i for i in plain if self.lines[i].block == own.block]
        of_group = [i for i in plain if own.group and self.lines[i].group == own.group]
        return next(iter([*same, *of_group]), None)


def _condition(name: str, value: object) -> str:
    words = name.replace("_", " ")
    if isinstance(value, bool):
        return words if value else ""
    return f"{words} {value}" if not isinstance(value, str) else ""
