"""What another threshold of the new model would change, in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flipguard.render.words import number

if TYPE_CHECKING:
    from flipguard.engines.thresholds import ThresholdPoint, Thresholds


def threshold_sentence(found: Thresholds) -> str:
    """Return whether a threshold of the new model has fewer negative flips at no higher error."""
    used, best = found.in_use, found.best
    if used.negative_flips == 0:
        return "The new model has no negative flips at its threshold."
    if best is None:
        return (
            "No other threshold of the new model has fewer negative flips without a higher error."
        )
    return (
        f"With a threshold of {best.threshold:g} instead of {used.threshold:g}, the new model "
        f"would have {best.negative_flips:,} instead of {used.negative_flips:,} negative flips, "
        f"{best.positive_flips:,} instead of {used.positive_flips:,} positive flips, and an error "
        f"of {_error(best, found.n)} instead of {_error(used, found.n)}; it would call "
        f"{best.predicted_positive:,} instead of {used.predicted_positive:,} samples positive. "
        "This threshold was chosen on these samples, so expect less of it on others."
    )


def _error(point: ThresholdPoint, n: int) -> str:
    return number("error_rate_new", point.wrong / n)
