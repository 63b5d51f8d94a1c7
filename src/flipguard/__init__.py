"""flipguard: measure what a model update breaks, and judge whether it may ship.

Names are loaded when they are first used, so that importing the package takes little time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flipguard._version import __version__
from flipguard.errors import FlipguardError, InputError, MissingExtraError, PolicyError

if TYPE_CHECKING:
    from flipguard.comparison import Comparison, compare
    from flipguard.counts import FlipCounts
    from flipguard.ensembles import ensemble
    from flipguard.estimates import Estimate
    from flipguard.gate import Verdict, check
    from flipguard.inference import compare_models
    from flipguard.matrices import matrix
    from flipguard.metrics import METRICS
    from flipguard.policy import Policy
    from flipguard.predictions.read import read_predictions
    from flipguard.predictions.table import Predictions
    from flipguard.predictions.write import write_predictions
    from flipguard.report.write import write_report

_HOMES = {
    "Comparison": "flipguard.comparison",
    "Estimate": "flipguard.estimates",
    "FlipCounts": "flipguard.counts",
    "METRICS": "flipguard.metrics",
    "Policy": "flipguard.policy",
    "Predictions": "flipguard.predictions.table",
    "Verdict": "flipguard.gate",
    "check": "flipguard.gate",
    "compare": "flipguard.comparison",
    "compare_models": "flipguard.inference",
    "ensemble": "flipguard.ensembles",
    "matrix": "flipguard.matrices",
    "read_predictions": "flipguard.predictions.read",
    "write_predictions": "flipguard.predictions.write",
    "write_report": "flipguard.report.write",
}

__all__ = [
    "METRICS",
    "Comparison",
    "Estimate",
    "FlipCounts",
    "FlipguardError",
    "InputError",
    "MissingExtraError",
    "Policy",
    "PolicyError",
    "Predictions",
    "Verdict",
    "__version__",
    "check",
    "compare",
    "compare_models",
    "ensemble",
    "matrix",
    "read_predictions",
    "write_predictions",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'flipguard' has no attribute '{name}'")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
