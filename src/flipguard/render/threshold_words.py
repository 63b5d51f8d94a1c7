"""What another threshold of the new model would change, in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flipguard.render.words import number

if TYPE_CHECKING:
    from flipguard.engines.thresholds import ThresholdPoint, Thresholds


def threshold_sentence(found: Thresholds) -> str:
    """Return whether a threshold of the new model breaks less and does no other harm."""
    used, best = found.in_use, found.best
    if used.negative_flips == 0:
        return "The new model has no negative flips at its threshold."
    if best is None:
        return (
            "No other threshold of the new model has fewer negative flips without a higher error "
            f"or more missed positives. At {used.threshold:g} it finds {used.positives_found:,} of "
            f"{found.positives:,} positives{_recall(found, used)}."
        )
    return (
        f"With a threshold of {best.threshold:g} instead of {used.threshold:g}, the new model "
        f"would have {best.negative_flips:,} instead of {used.negative_flips:,} negative flips, "
        f"{best.positive_flips:,} instead of {used.positive_flips:,} positive flips, and an error "
        f"of {_percent(best.wrong, found.n)} instead of {_percent(used.wrong, found.n)}. Of the "
        f"{found.positives:,} positives it would find {best.positives_found:,}"
        f"{_recall(found, best)} instead of {used.positives_found:,}{_recall(found, used)}; it "
        f"would call {best.predicted_positive:,} instead of {used.predicted_positive:,} samples "
        "positive. This threshold was chosen on these very samples, so expect less of it on others."
    )


def _recall(found: Thresholds, point: ThresholdPoint) -> str:
    if not found.positives:
        return ""
    return f" (recall {_percent(point.positives_found, found.positives)})"


def _percent(part: int, whole: int) -> str:
    return number("error_rate_new", part / whole)
