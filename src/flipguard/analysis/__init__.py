"""Analyses that explain flips: why samples flip, and what ensembles and treatments change.

Names are loaded when they are first used: studies compute with these functions on machines without
Polars, which only the reading of files needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flipguard.analysis.claims import Analysis, CheckedClaim
    from flipguard.analysis.members import MemberScores
    from flipguard.analysis.reading import read_members
    from flipguard.analysis.registry import ANALYSES, analyze, plot_analysis

_HOMES = {
    "ANALYSES": "flipguard.analysis.registry",
    "Analysis": "flipguard.analysis.claims",
    "CheckedClaim": "flipguard.analysis.claims",
    "MemberScores": "flipguard.analysis.members",
    "analyze": "flipguard.analysis.registry",
    "plot_analysis": "flipguard.analysis.registry",
    "read_members": "flipguard.analysis.reading",
}

__all__ = [
    "ANALYSES",
    "Analysis",
    "CheckedClaim",
    "MemberScores",
    "analyze",
    "plot_analysis",
    "read_members",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'flipguard.analysis' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
