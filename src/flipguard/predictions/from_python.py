"""Arrays and data frames from Python as columns, scores and lazy tables.

Files belong to `flipguard.predictions.read`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from flipguard.errors import InputError, listed
from flipguard.formatting import is_integer

Array = npt.NDArray[Any]

# Missing values of pandas, told by name because pandas is not always installed.
MISSING_TYPES = ("NAType", "NaTType")


def as_array(values: object, what: str, name: str) -> Array:
    """Values as a numpy array; of a tensor its values alone, without gradients.

    >>> as_array([1, 2], "label", "m")
    array([1, 2])
    """
    try:
        if library_of(values) == "torch":
            return _from_torch(values)
        return np.ma.asanyarray(values) if np.ma.isMaskedArray(values) else np.asarray(values)
    except (TypeError, ValueError, RuntimeError, OverflowError) as problem:
        text = " ".join(str(problem).split())[:120].rstrip(".")
        raise InputError(
            f"{name} has '{what}' that cannot be read as an array ({text}); give a list or a numpy "
            "array of plain numbers or text."
        ) from problem


def _as_objects(values: Sequence[object]) -> Array:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _as_name(item: object) -> str:
    return str(item).lower() if isinstance(item, bool) else str(item)


def _from_torch(values: Any) -> Array:
    plain = values.detach().cpu()
    if plain.is_floating_point() and plain.element_size() < 4:
        # numpy has no bfloat16, and half precision would be widened later anyway.
        plain = plain.float()
    array: Array = plain.resolve_conj().numpy()
    return array


def as_scores(values: object, kind: str, name: str) -> Array:
    """Class scores as floating point numbers of shape (samples, classes)."""
    array = as_array(values, kind, name)
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise InputError(
            f"{name} has {kind} of shape {array.shape} and type {array.dtype}; "
            "expected numbers of shape (samples, classes)."
        )
    if array.dtype.kind in "iu" or array.dtype == np.float16:
        array = array.astype(np.float32 if array.dtype == np.float16 else np.float64)
    if isinstance(array, np.ma.MaskedArray):
        # A masked score is missing, and a row with a missing score is refused, by its id.
        array = array.filled(np.nan)
    return array


def as_column(column: str, values: object, name: str) -> pl.Series:
    """One value per sample as a column; what is masked, None or NaN in a list is null."""
    series = _as_series(column, values, name)
    if series is not None:
        return series
    array = as_array(values, column, name)
    if isinstance(values, list | tuple) and array.ndim == 1 and len(set(map(type, values))) > 1:
        # numpy would make one type of them: True a 1, and a nan among names the name "nan".
        array = _as_objects(values)
    if array.ndim != 1:
        raise InputError(
            f"{name} has '{column}' of shape {array.shape}; expected one value per sample."
        )
    if array.dtype.kind in "iufb" and not isinstance(array, np.ma.MaskedArray):
        return pl.Series(column, array)
    items = [_missing_as_none(item, column, name) for item in array.tolist()]
    kinds = {type(item) for item in items if item is not None}
    if not kinds <= {str, int, float, bool}:
        odd = next(iter(kinds - {str, int, float, bool}))
        raise InputError(
            f"{name} has '{column}' of {odd.__name__} values; expected numbers or text."
        )
    if kinds == {int, float}:
        items = [item if item is None else float(item) for item in items]
    elif len(kinds) > 1:
        # Names and numbers mixed are names, as a CSV file would have them: 1.0 is "1.0".
        items = [item if item is None else _as_name(item) for item in items]
    try:
        return pl.Series(column, items)
    except UnicodeEncodeError as problem:
        raise InputError(
            f"{name} has '{column}' with half of a surrogate pair ({problem.object!a}), which is "
            "no valid text; correct the value."
        ) from problem
    except (TypeError, OverflowError) as problem:
        raise InputError(
            f"{name} has '{column}' with a number of more than 128 bits; write such numbers as "
            "text."
        ) from problem


def is_series(values: object) -> bool:
    """Whether values are a Series of Polars or pandas, an index of pandas, or an Arrow array."""
    if isinstance(values, pl.Series) or has_index(values):
        return True
    return _has_arrow(values) and not _has_columns(values)


def has_index(values: object) -> bool:
    """Whether values are a Series or an index of pandas, so that each has a label."""
    return library_of(values) == "pandas" and hasattr(values, "to_frame")


def pandas_index(values: Any) -> Any:
    """The index of a Series or a frame of pandas; None of anything else."""
    return getattr(values, "index", None) if library_of(values) == "pandas" else None


def library_of(value: object) -> str:
    """The name of the library that defines a value's type; nothing is imported to find it.

    >>> library_of(np.zeros(2)), library_of([0, 0])
    ('numpy', 'builtins')
    """
    return type(value).__module__.split(".")[0]


def _as_series(column: str, values: Any, name: str) -> pl.Series | None:
    """The values of a Series or an Arrow array with their own type and missing values."""
    if not is_series(values):
        return None
    if has_index(values):
        values = values.to_series() if not hasattr(values, "index") else values
        series = _series(column, values, name)
    else:
        try:
            series = pl.Series(column, values)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, TypeError, ValueError):
            return None
    plain = not series.dtype.is_nested() and series.dtype not in (pl.Object, pl.Binary)
    return series if plain else None


def _missing_as_none(item: Any, column: str, name: str) -> Any:
    value = item.item() if isinstance(item, np.generic) else item
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as problem:
            raise InputError(
                f"{name} has '{column}' with bytes that are no UTF-8 text ({value[:40]!r}); "
                "decode them, and give text."
            ) from problem
    if type(value).__name__ in MISSING_TYPES:
        return None
    return None if isinstance(value, float) and value != value else value


def by_name(columns: dict[str, pl.Series], names: tuple[str, ...], table: str) -> None:
    """Replaces targets and labels that are indices into `names` by the names.

    Unless the names are integers themselves: then 2 is the class called 2. Whole-number floats are
    indices where floats count as integers: if a value is missing, or if all of them are floats.
    """
    roles = [role for role in ("target", "label") if role in columns]
    if all(is_integer(name) for name in names):
        return
    all_float = all(columns[role].dtype.is_float() for role in roles)
    for role in roles:
        column = columns[role]
        if column.dtype.is_float():
            column = column.fill_nan(None)
            if not (all_float or column.null_count()) or (column != column.round()).any():
                continue
            column = column.cast(pl.Int64, strict=False)
        if column.dtype.is_integer():
            columns[role] = _gathered(column, names, table)


def _gathered(column: pl.Series, names: tuple[str, ...], table: str) -> pl.Series:
    outside = ((column < 0) | (column >= len(names))).fill_null(False)
    if outside.any():
        row = outside.arg_max() or 0
        raise InputError(
            f"{table} has {column.name} {column[row]} in row {row + 1:,}, which is no index into "
            f"its {len(names):,} class names; indices count from 0."
        )
    return pl.Series(column.name, names).gather(column.cast(pl.UInt32))


def is_frame(value: object) -> bool:
    """Whether a value is a table that `lazy_frame` takes."""
    if isinstance(value, pl.DataFrame | pl.LazyFrame):
        return True
    return _has_columns(value) and (library_of(value) == "pandas" or _has_arrow(value))


def _has_arrow(value: object) -> bool:
    return hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__")


def _has_columns(value: object) -> bool:
    return any(hasattr(value, name) for name in ("columns", "column_names", "schema"))


def lazy_frame(frame: object, name: str, *, id: str | None = None) -> pl.LazyFrame:
    """A Polars frame (eager or lazy), a pandas frame or an Arrow table as a lazy table.

    The named levels of a pandas index are columns. With `id="index"` one without a name is too.
    """
    if isinstance(frame, pl.LazyFrame):
        return frame
    if isinstance(frame, pl.DataFrame):
        return frame.lazy()
    if library_of(frame) == "pandas" and hasattr(frame, "columns"):
        return _from_pandas(frame, name, id).lazy()
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


def _from_pandas(frame: Any, name: str, id: str | None) -> pl.DataFrame:
    names = [str(column) for column in frame.columns]
    _refuse_twice(names, name)
    given = [(column, frame.iloc[:, i]) for i, column in enumerate(names)]
    for i, level in enumerate(frame.index.names):
        column = "index" if level is None and frame.index.nlevels == 1 else str(level)
        wanted = level is not None or id == "index"
        if wanted and column not in names:
            given.append((column, frame.index.get_level_values(i).to_series()))
    columns = []
    for column, values in given:
        columns.append(_series(column, values, name))
    return pl.DataFrame(columns)


def _series(column: str, values: Any, name: str) -> pl.Series:
    """A column of pandas; pyarrow, which not everyone has, is needed only for its own types."""
    dtype = values.dtype
    if hasattr(dtype, "pyarrow_dtype") or getattr(dtype, "storage", None) == "pyarrow":
        return pl.from_pandas(values.to_frame("0")).to_series().alias(column)
    if getattr(dtype, "tz", None) is not None:
        return _times_in_zone(column, values)
    if isinstance(dtype, np.dtype) and dtype.kind in "iufb":
        return pl.Series(column, values.to_numpy(), nan_to_null=True)
    if isinstance(dtype, np.dtype) and dtype.kind in "mM":
        return pl.Series(column, values.dt.as_unit(_unit(values)).to_numpy())
    items = values.to_numpy(dtype=object, na_value=None).tolist()
    items = [pl.Series(item) if isinstance(item, np.ndarray) else item for item in items]
    if len({type(item) for item in items if item is not None}) <= 1:
        try:
            found = pl.Series(column, items)
            return found.cast(pl.String) if found.dtype == pl.Null else found
        except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
            pass
    try:
        # Values of several types: names and numbers mixed are names.
        return as_column(column, _as_objects(items), name)
    except InputError:
        # It can be no id, class or group, and is refused only if it is asked for as one.
        return pl.Series(column, items, dtype=pl.Object)


def _times_in_zone(column: str, values: Any) -> pl.Series:
    plain = values.dt.tz_convert("UTC").dt.tz_localize(None).dt.as_unit(_unit(values))
    times = pl.Series(column, plain.to_numpy()).dt.replace_time_zone("UTC")
    try:
        return times.dt.convert_time_zone(str(values.dtype.tz))
    except pl.exceptions.PolarsError:
        return times  # Polars knows no zone without a name; the same times in UTC are as good.


def _unit(values: Any) -> str:
    """The unit of times in pandas, or milliseconds if it is one that Polars does not know."""
    unit: str = values.dt.unit
    return "ms" if unit == "s" else unit


def _from_arrow(frame: Any, name: str) -> pl.DataFrame:
    _refuse_twice(list(getattr(frame, "column_names", [])), name)
    try:
        return pl.DataFrame(frame)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as problem:
        text = " ".join(str(problem).split())[:120].rstrip(".")
        raise InputError(
            f"{name} has columns of a type that cannot be read ({text}); keep the columns of ids, "
            "classes, scores and groups only."
        ) from problem
