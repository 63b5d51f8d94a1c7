"""Compare the demo's updates with the old model, and judge them by its policy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flipguard.comparison import Comparison
from flipguard.demo.plan import CONTROL, UPDATES
from flipguard.gate import Verdict, check
from flipguard.measuring import compare
from flipguard.policy import Policy
from flipguard.predictions.read import read_predictions

POLICY = """\
# What an update of this classifier may do.
confidence = 0.95

[[rule]]                      # of all samples, at most 6 % may break
metric = "negative_flip_rate"
max = 0.06

[[rule]]                      # and it must be worth the work: three points of accuracy
metric = "accuracy_gain"
min = 0.03
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """An update, its comparison with the old model, and its verdict."""

    name: str
    comparison: Comparison
    verdict: Verdict


def judged(runs: Path, policy: Path) -> list[Update]:
    """Return every update, the control first."""
    rules = Policy.read(policy)
    return [_judged(runs, name, rules) for name in UPDATES]


def _judged(runs: Path, name: str, policy: Policy) -> Update:
    def predictions(run: str) -> Path:
        return runs / run / "predictions" / "test.npz"

    controls = [] if name == CONTROL else [read_predictions(predictions(CONTROL))]
    result = compare(
        old=read_predictions(predictions("old")),
        new=read_predictions(predictions(name)),
        control=controls,
        confidence=policy.confidence,
    )
    return Update(name=name, comparison=result, verdict=check(result, policy))
