"""Training methods: the row that describes each method, and the objective that it builds."""

from __future__ import annotations

from flipguard.methods.base import Method, Option
from flipguard.methods.objective import BuildContext, Objective, OldModelInfo, Step
from flipguard.methods.registry import METHODS, method_of

__all__ = [
    "METHODS",
    "BuildContext",
    "Method",
    "Objective",
    "OldModelInfo",
    "Option",
    "Step",
    "method_of",
]
