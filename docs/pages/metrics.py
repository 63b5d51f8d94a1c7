"""The cards of the metrics."""

from __future__ import annotations

import math

import numpy as np

from flipguard import METRICS, Predictions, compare

NEEDS = {
    "target": "targets",
    "old scores": "scores of the old model",
    "new scores": "scores of the new model",
    "logits": "logits on both sides",
    "control": "a control",
    "grades": "graded rows (`--correct`)",
    "class": "groups by `target`",
    "classes": "groups by `target`",
}
# The example of all cards.
TARGETS = [0, 1, 2, 0, 1]
OLD = [[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6], [0.3, 0.6, 0.1], [0.1, 0.2, 0.7]]
NEW = [[0.8, 0.1, 0.1], [0.5, 0.4, 0.1], [0.1, 0.1, 0.8], [0.6, 0.3, 0.1], [0.5, 0.2, 0.3]]
CONTROL = [1, 1, 1, 0, 2]


def metrics_page() -> str:
    """Return one card per metric: its sentence, its formula, and an example computed now."""
    example = _example()
    lines = [
        "# Metrics",
        "",
        "Rates are between 0 and 1 in code and files. Terminal and report show them in percent, and differences of rates in",
        "points. Undefined is `nan` in Python and `null` in JSON, never 0. Every metric is a function of counts that can be",
        "added, so parts of the data can be counted separately.",
        "",
        "All examples on this page use the same five samples. The old model gets the first three right.",
        "",
        "| sample | target | probabilities of old | probabilities of new | label of control |",
        "|---|---|---|---|---|",
    ]
    for i, target in enumerate(TARGETS):
        lines.append(f"| {i + 1} | {target} | {OLD[i]} | {NEW[i]} | {CONTROL[i]} |")
    for name, metric in METRICS.items():
        needs = (
            ", ".join(NEEDS[n] for n in sorted(metric.needs - {"label"})) or "predicted labels only"
        )
        estimate = (example.by["target"]["2"] if "class" in metric.needs else example)[name]
        better = {"lower": "lower is better", "higher": "higher is better", "neither": ""}
        end = "or more" if math.isinf(estimate.high) else f"to {estimate.high:.3f}"
        interval = "" if math.isnan(estimate.low) else f", interval {estimate.low:.3f} {end}"
        value = "undefined here" if not estimate.is_defined else f"{estimate.value:.4g}{interval}"
        value += ", of class 2" if "class" in metric.needs else ""
        lines += [
            "",
            f"## `{name}`",
            "",
            metric.sentence + (f" ({better[metric.better]})" if better[metric.better] else ""),
            "",
            f"- **When to use it.** {metric.use}",
            f"- **Formula.** `{metric.formula}`",
            f"- **Needs.** {needs}",
            f"- **Example.** {value}",
            f"- **Paper.** {metric.paper}",
            f"- **Pitfalls.** {metric.pitfalls}",
        ]
    return "\n".join(lines) + "\n"


def _example():
    return compare(
        old=Predictions.from_arrays(logits=np.log(OLD), targets=TARGETS),
        new=Predictions.from_arrays(logits=np.log(NEW)),
        control=Predictions.from_arrays(labels=CONTROL),
        by="target",
    )
