"""Settings and fixtures that every test shares."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "flipguard",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("flipguard")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how many cases the fuzzing tests ran, in whatever process they ran."""
    counts: dict[str, Counter[str]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) != "call":
                continue
            for name, seen in report.user_properties:
                if name.startswith("fuzzing "):
                    counts.setdefault(name, Counter()).update(seen)
    for name, seen in counts.items():
        told = ", ".join(f"{n:,} {what}" for what, n in sorted(seen.items()))
        terminalreporter.write_line(f"{name}: {sum(seen.values()):,} cases ({told})")


Columns = Mapping[str, Sequence[object]]
Saver = Callable[[str, Columns], Path]


@pytest.fixture
def save(tmp_path: Path) -> Saver:
    """Writes columns to a file of the format that its name tells, by the libraries' own writers."""

    def write(name: str, columns: Columns) -> Path:
        path = tmp_path / name
        if path.suffix == ".npz":
            np.savez(path, **{k: np.asarray(v) for k, v in columns.items()})
        elif path.suffix == ".parquet":
            pl.DataFrame(dict(columns), strict=False).write_parquet(path)
        else:
            pl.DataFrame(dict(columns), strict=False).write_csv(path)
        return path

    return write
