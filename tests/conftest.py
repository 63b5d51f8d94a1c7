"""Settings and fixtures that every test shares."""

from __future__ import annotations

import os
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
