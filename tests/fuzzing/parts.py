"""What cases are made of: names that readers trip over, models, and a finished case."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.fuzzing.writing import Field

NATIVE_KINDS = ("parquet", "arrow")

NAMES = (
    "cat", "dog", "owl", "Cat", " cat", "cat ", "été", "猫", "\u202eabc", "a,b", "a\tb", "it's",
    'say "hi"', "two\nlines", "x|y", "a=b", "NaN", "None", "null", "nan", "N/A", "-", "007", "07",
    "1.5x", "3.0.0", "1e", "(missing)", "all", "True", "true", "TRUE", "yes", "0x10", "+1", "1_0",
    "=1+1", "<b>", "[1]", "{}", "😀", "e\u0301", "é", "#", "'", "\\", "\\n", "a" * 70,
)  # fmt: skip
GROUP_NAMES = (
    "site", "user", "site|device", "a,b", 'the "site"', "été", " site ", "0|id", "__cut_site", "n",
    "count", "key0", "site.x", "^s.*$", "*", "a\tb", "x\ny", "logits2", "ID", "Target", "old",
    "new", "kind", "é" * 30, "`site`", "__row", "0|label", "problem0", "number0", "column0",
    "literal", "len",
)  # fmt: skip


@dataclass(kw_only=True)
class Case:
    """Everything that a case needs; `twist` says what was done to it on purpose."""

    seed: int
    number: int
    files: dict[str, bytes]
    arguments: list[str]
    task: dict[str, Any]
    rules: list[dict[str, Any]] | None
    pinned: str | None
    twist: str
    # Files before they were damaged, where they were.
    sound: dict[str, bytes] = field(default_factory=dict)

    @property
    def may_crash(self) -> bool:
        """Whether a damaged file goes to native code, so that only another process is safe."""
        return any(name.endswith(NATIVE) for name in self.sound)


NATIVE = (".parquet", ".pq", ".arrow", ".feather", ".ipc")


@dataclass(kw_only=True)
class Model:
    """What one model says: labels by row of the scenario, and how its file is written."""

    name: str
    format: str
    labels: list[Any]
    rows: list[int]
    fields: list[Field] = field(default_factory=list)
    class_names: list[Any] | None = None
    quirks: set[str] = field(default_factory=set)
    label_style: str = "plain"
    target_style: str = "plain"
    with_target: bool = True
    with_label: bool = True
    score_kind: str | None = None
    score_shape: str = "wide"
    classes: list[Any] = field(default_factory=list)
    extra: dict[str, np.ndarray] = field(default_factory=dict)
