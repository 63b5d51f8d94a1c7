"""Methods that train: a row that describes each, and the objective that it builds."""

from __future__ import annotations

from flipguard.methods.base import Method, Objective, Old, Option, Setting, Step
from flipguard.methods.registry import METHODS, method_of

__all__ = ["METHODS", "Method", "Objective", "Old", "Option", "Setting", "Step", "method_of"]
