"""Numbers of a study as people read them."""

from __future__ import annotations

import math

from flipguard.metrics import METRICS
from flipguard.studies.papers import Cell

SHORT = {
    "error_rate_old": "old error",
    "error_rate_new": "new error",
    "accuracy": "accuracy",
    "negative_flip_rate": "NFR",
    "relative_negative_flip_rate": "rel. NFR",
    "churn": "churn",
    "surrogate_churn": "SChurn",
    "churn_correct": "C. right",
    "churn_incorrect": "C. wrong",
    "expected_calibration_error_new": "ECE",
    "margin_new": "margin",
    "entropy_new": "entropy",
    "logit_displacement": "move",
    "flip_rate_sure": "NFR, sure",
    "flip_rate_unsure": "unsure",
    "uncertainty_flipped": "σ flipped",
    "uncertainty_others": "σ others",
    "flips_told_apart": "told apart",
    "flips_left_sure": "left, sure",
    "flips_left_unsure": "left, unsure",
    "flips_left_apart": "difference",
    "flip_rank": "rank",
    "flip_rank_by_chance": "(chance)",
    "flip_second": "second",
}
# Of studies alone, and no shares of anything.
NO_SHARES = frozenset(
    {
        *("entropy_new", "uncertainty_flipped", "uncertainty_others", "flips_told_apart"),
        *("flip_rank", "flip_rank_by_chance"),
    }
)
LONG = {
    "NFR": "negative flips, of all samples",
    "rel. NFR": "negative flips, of what chance would flip",
    "SChurn": "churn of the probabilities",
    "C. right": "churn of what old gets right",
    "C. wrong": "churn of what old gets wrong",
    "ECE": "expected calibration error of new",
    "margin": "new's first probability above its second",
    "entropy": "mean entropy of new's predictions in nats, no percentage",
    "NFR, sure": "negative flips of the less uncertain half of the samples",
    "unsure": "and of the other half",
    "σ flipped": "mean uncertainty of flipped samples, no percentage",
    "σ others": "and of others",
    "told apart": "chance that a flipped sample is more uncertain than another, 0.5 if alike, 1 if "
    "clearly separated",
    "left, sure": "NFR of the less uncertain half over that of the untreated update",
    "left, unsure": "and of the other half",
    "difference": "of the other half less the less uncertain one",
    "rank": "mean rank of new's wrong class in old, where the right one is first, no percentage",
    "(chance)": "the same of any wrong class",
    "second": "share of flips whose wrong class came second in old",
    "move": "mean distance of the logits, no percentage",
}
NOTHING = "–"


def is_percent(metric: str) -> bool:
    """Whether a metric is shown in percent."""
    return metric not in NO_SHARES and (metric not in METRICS or METRICS[metric].percent)


def short(metric: str) -> str:
    """The head of a column."""
    return SHORT.get(metric, metric)


def legend(metrics: tuple[str, ...], headline: str | None) -> str:
    """What the heads mean that do not say it themselves."""
    named = [(short(metric), LONG.get(short(metric))) for metric in metrics]
    if headline is not None:
        named.append(("ratio", f"{short(headline)} over that of the untreated update"))
    told = "; ".join(f"{name}: {text}" for name, text in named if text is not None)
    return f"{told}." if told else ""


def printed(cell: Cell | None) -> str:
    """A cell of the paper, as it prints it; a doubtful one with a question mark."""
    if cell is None or cell.value is None:
        return NOTHING
    doubt = "?" if cell.unsure else ""
    spread = "" if cell.deviation is None else f"±{cell.deviation:.2f}"
    digits = 3 if cell.value < 1 and cell.deviation is None else 2
    return f"{cell.value:.{digits}f}{spread}{doubt}"


def ours(mean: float, error: float, metric: str) -> str:
    """A mean of ours and its standard error."""
    if math.isnan(mean):
        return NOTHING
    factor = 100 if is_percent(metric) else 1
    spread = "" if math.isnan(error) else f"±{factor * error:.2f}"
    return f"{factor * mean:.2f}{spread}"


def ratio(value: float) -> str:
    """A ratio to the control."""
    return NOTHING if math.isnan(value) else f"{value:.2f}"
