"""Data frames of other libraries as lazy tables."""

from __future__ import annotations

from collections import Counter
from typing import Any

import polars as pl

from flipguard.errors import InputError, listed
from flipguard.predictions.arrays import as_column


def lazy_frame(frame: object, name: str) -> pl.LazyFrame:
    """A Polars frame (eager or lazy), a pandas frame or an Arrow table as a lazy table."""
    if isinstance(frame, pl.LazyFrame):
        return frame
    if isinstance(frame, pl.DataFrame):
        return frame.lazy()
    if type(frame).__module__.split(".")[0] == "pandas" and hasattr(frame, "columns"):
        return _from_pandas(frame, name).lazy()
    if hasattr(frame, "__arrow_c_stream__"):
        return _from_arrow(frame, name).lazy()
    raise InputError(
        f"Expected a Polars or pandas frame or an Arrow table, but got "
        f"{type(frame).__name__}; for arrays use Predictions.from_arrays."
    )


def _refuse_twice(names: list[str], table: str) -> None:
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise InputError(
            f"{table} has more than one column called {listed(twice)}; give each column another "
            "name."
        )


def _from_pandas(frame: Any, name: str) -> pl.DataFrame:
    names = [str(column) for column in frame.columns]
    _refuse_twice(names, name)
    columns = []
    for i, column in enumerate(names):
        values = frame.iloc[:, i]
        if values.dtype == object:
            columns.append(_from_objects(column, values, name))
        else:
            columns.append(_series(column, values))
    return pl.DataFrame(columns)


def _series(column: str, values: Any) -> pl.Series:
    return pl.from_pandas(values.to_frame("0")).to_series().alias(column)


def _from_objects(column: str, values: Any, name: str) -> pl.Series:
    try:
        return _series(column, values)
    except (TypeError, ValueError, OverflowError):
        pass  # Values of several types: names and numbers mixed are names.
    try:
        return as_column(column, values.to_numpy(), name)
    except InputError:
        # It can be no id, class or group, and is refused only if it is asked for as one.
        return pl.Series(column, values.tolist(), dtype=pl.Object)


def _from_arrow(frame: Any, name: str) -> pl.DataFrame:
    _refuse_twice(list(getattr(frame, "column_names", [])), name)
    try:
        return pl.DataFrame(frame)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as problem:
        told = " ".join(str(problem).split())[:120].rstrip(".")
        raise InputError(
            f"{name} has columns of a type that cannot be read ({told}); keep the columns of ids, "
            "classes, scores and groups only."
        ) from problem
