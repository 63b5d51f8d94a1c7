"""Starter policies: commented TOML for common kinds of update, with default or measured limits.

Reading and checking a policy belongs to `flipguard.policy`.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["retrain", "quantization", "classes"]
# Limits are written with this many decimals, rounded so that the measured value stays inside.
DECIMALS = 3
# Smaller classes are not judged.
LEAST_SAMPLES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class StarterRule:
    """One rule with its default limit and the comment above it; `by_class` judges each class."""

    metric: str
    key: Literal["min", "max"]
    limit: float
    comment: str
    by_class: bool = False

    def text(self, measured: float | None) -> str:
        """The rule as TOML, with the default limit or a measured one."""
        limit, source = self.limit, ""
        if measured is not None:
            limit, source = rounded_outwards(measured, self.key), "  # measured on the controls"
        lines = [
            *textwrap.wrap(self.comment, 90, initial_indent="# ", subsequent_indent="# "),
            "[[rule]]",
            f'metric = "{self.metric}"',
            f"{self.key} = {limit:g}{source}",
        ]
        if self.by_class:
            lines += ['by = "target"', f"min_n = {LEAST_SAMPLES}", 'correction = "holm"']
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class StarterPolicy:
    """The rules for one kind of update; `sentence` says what it is for, `ideas` what to add."""

    sentence: str
    rules: Sequence[StarterRule]
    ideas: str

    def text(
        self, measured: Mapping[StarterRule, float], *, classes: bool = True, graded: bool = False
    ) -> str:
        """The policy as commented TOML; `measured` are limits from controls.

        Without `classes`, no rule judges each class. For graded files, ideas for them are added.
        """
        head = [
            f"# {self.sentence}",
            "# Judge an update by it:  flipguard gate OLD NEW --policy THIS_FILE",
        ]
        if not measured:
            head += [
                "# The limits are examples: set each to what your users can accept, or measure",
                "# what retraining does:  flipguard init --old OLD --control RETRAINED",
            ]
        kept = [rule for rule in self.rules if classes or not rule.by_class]
        rules = [rule.text(measured.get(rule)) for rule in kept]
        ideas = [GRADED.strip()] if graded else []
        parts = ["\n".join(head), "confidence = 0.95", *rules, *ideas, self.ideas.strip()]
        return "\n\n".join(parts) + "\n"


def rounded_outwards(limit: float, key: Literal["min", "max"]) -> float:
    """Round a limit so that it allows at least what was measured.

    >>> rounded_outwards(0.01234, "max"), rounded_outwards(-0.0011, "min")
    (0.013, -0.002)
    """
    scale = 10.0**DECIMALS
    return (math.ceil(limit * scale) if key == "max" else math.floor(limit * scale)) / scale


BY_CLASS = StarterRule(
    metric="negative_flip_rate",
    key="max",
    limit=0.1,
    comment="No class may break much more than the others. Classes with few samples are listed, "
    "but not judged.",
    by_class=True,
)
GAIN = StarterRule(
    metric="accuracy_gain",
    key="min",
    limit=-0.005,
    comment="Accuracy may fall by at most this much (0.005 is half a point).",
)
GRADED = """
# At most this share of the new model's samples may be refused, or end in an error (needs grades
# that say so: error, refused).
# [[rule]]
# metric = "refused_share_new"
# max = 0.02

# [[rule]]
# metric = "error_share_new"
# max = 0.01
"""
PINNED = """
# Samples that may never break: a table with a column `id`, next to this file.
# [pinned]
# ids = "must_stay_right.csv"
"""

STARTERS: Mapping[Kind, StarterPolicy] = {
    "retrain": StarterPolicy(
        sentence="For a retrained model: more or newer data, another seed, another recipe.",
        rules=(
            StarterRule(
                metric="negative_flip_rate",
                key="max",
                limit=0.02,
                comment="At most this share of all samples may break: old right, new wrong.",
            ),
            GAIN,
            BY_CLASS,
        ),
        ideas="""
# Reported only: the verdict does not depend on an advisory rule.
# [[rule]]
# metric = "churn"
# max = 0.05
# level = "advisory"

# Fewer negative flips than an untreated retrain (needs: flipguard gate … --control FILE).
# [[rule]]
# metric = "negative_flip_ratio"
# max = 1.0
"""
        + PINNED,
    ),
    "quantization": StarterPolicy(
        sentence="For a model that should answer as before: quantized, pruned, another runtime.",
        rules=(
            StarterRule(
                metric="flip_rate",
                key="max",
                limit=0.01,
                comment="At most this share of all samples may become wrong or become right.",
            ),
            StarterRule(
                metric="churn",
                key="max",
                limit=0.02,
                comment="At most this share of all predictions may change, right or wrong.",
            ),
            GAIN,
        ),
        ideas="""
# How far the probabilities move (needs class scores in both files). The interval of this metric
# is wide, so the value alone is judged.
# [[rule]]
# metric = "kl_divergence"
# max = 0.01
# judge = "point"
"""
        + PINNED,
    ),
    "classes": StarterPolicy(
        sentence="For a model that knows more classes than the old one.",
        rules=(
            StarterRule(
                metric="backward_trust_compatibility",
                key="min",
                limit=0.97,
                comment="At least this share of the old model's right answers must stay right. "
                "Samples of the new classes do not count here: old is never right on them.",
            ),
            BY_CLASS,
        ),
        ideas="""
# Classes that must be in the test set, with enough samples to be judged.
# [[rule]]
# metric = "negative_flip_rate"
# by = "target"
# require = ["a", "b"]
# min_n = 50
# max = 0.1
"""
        + PINNED,
    ),
}
