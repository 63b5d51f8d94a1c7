"""Join the tables of several files into the one table of a side: columns, types and classes.

Which files a side means belongs to `side_files`, and reading each to `read`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from flipguard.errors import InputError, listed
from flipguard.predictions.names import class_names as names_of
from flipguard.predictions.names import exactly, float_text
from flipguard.predictions.side_files import FileRows, SideFiles
from flipguard.predictions.table import PREFIXES, SCORE_KINDS, Predictions, Scores

TEXT = (pl.String, pl.Categorical, pl.Enum)
# Next to other integers, 64 bits do not hold them.
WIDE = frozenset({pl.UInt64, pl.Int128, pl.UInt128})


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTable:
    """One file: its rows, the columns that it has itself, and the class names stored in it."""

    path: Path
    frame: pl.LazyFrame
    columns: tuple[str, ...]
    class_names: Sequence[str] | None = None


def joined_tables(files: Sequence[FileTable]) -> tuple[pl.LazyFrame, list[str] | None]:
    """Return the rows of all files, in order, and the class names of their lists of scores."""
    frames = [file.frame for file in files]
    class_names = None
    listed_scores = bool({*SCORE_KINDS} & {*files[0].columns})
    if listed_scores and any(file.class_names is not None for file in files):
        orders = _class_orders([(file.path, file.class_names) for file in files])
        class_names = list(files[0].class_names or ())
        frames = [_in_order(frame, order) for frame, order in zip(frames, orders, strict=True)]
    schemas = [frame.collect_schema() for frame in frames]
    paths = [file.path for file in files]
    names = schemas[0].names()
    common = {
        name: _common_type(name, paths, [schema[name] for schema in schemas]) for name in names
    }
    typed = [
        frame.select(_cast(name, schema[name], common[name]) for name in names)
        for frame, schema in zip(frames, schemas, strict=True)
    ]
    return pl.concat(typed), class_names


def refuse_other_columns(files: Sequence[FileTable], needed: Collection[str] | None = None) -> None:
    """Refuse files that differ in their columns, or in those of some columns that are needed."""
    wanted = [
        frozenset(file.columns if needed is None else {*file.columns} & {*needed}) for file in files
    ]
    usual = Counter(wanted).most_common(1)[0][0]
    model = files[wanted.index(usual)]
    for file, found in zip(files, wanted, strict=True):
        if found == usual:
            continue
        lacks = [name for name in model.columns if name in usual - found]
        more = [name for name in file.columns if name in found - usual]
        text = f"lacks column {listed(lacks)}" if lacks else f"has another column, {listed(more)}"
        raise InputError(
            f"{file.path} {text}, unlike {model.path}; all files of one side must have the same "
            "columns."
        )


def joined_arrays(parts: Sequence[Predictions], files: SideFiles) -> Predictions:
    """Return the predictions of several NPZ files as those of one."""
    tables = [
        FileTable(
            path=path,
            frame=part.frame,
            columns=(
                *part.frame.collect_schema().names(),
                *([part.scores.kind] if part.scores is not None else []),
            ),
        )
        for path, part in zip(files.paths, parts, strict=True)
    ]
    refuse_other_columns(tables)
    frame, _ = joined_tables(tables)
    first = parts[0]
    return replace(
        first,
        name=files.name,
        frame=frame,
        scores=_joined_scores([(t.path, p.scores) for t, p in zip(tables, parts, strict=True)]),
        path=None,
        files=tuple(FileRows(table.path, table.frame) for table in tables),
        recognised=tuple(dict.fromkeys(one for part in parts for one in part.recognised)),
    )


def _joined_scores(parts: Sequence[tuple[Path, Scores | None]]) -> Scores | None:
    first = parts[0][1]
    if first is None:
        return None
    scores = [(path, one) for path, one in parts if one is not None and one.array is not None]
    orders = _class_orders([(path, one.class_names) for path, one in scores])
    widths = {one.array.shape[1]: path for path, one in scores if one.array is not None}
    if len(widths) > 1:
        (few, one), (many, other), *_ = sorted(widths.items())
        raise InputError(
            f"{one} has scores of {few:,} classes and {other} of {many:,}; all files of one side "
            "must score the same classes."
        )
    arrays = [
        one.array if order is None else one.array[:, order]
        for (_, one), order in zip(scores, orders, strict=True)
        if one.array is not None
    ]
    return replace(first, array=np.concatenate(arrays))


def _class_orders(named: Sequence[tuple[Path, Sequence[str] | None]]) -> list[list[int] | None]:
    """Return for each file the indices of the first one's classes; None if in the same order."""
    spelled = [
        (path, None if names is None else names_of(names, str(path))) for path, names in named
    ]
    first_path, first = spelled[0]
    orders: list[list[int] | None] = []
    for path, names in spelled:
        if names == first:
            orders.append(None)
            continue
        if names is None or first is None or set(names) != set(first):
            raise InputError(
                f"{first_path} has scores of the classes {_told(first)}, and {path} of "
                f"{_told(names)}; all files of one side must score the same classes."
            )
        orders.append([names.index(name) for name in first])
    return orders


def _told(names: Sequence[str] | None) -> str:
    return "0, 1, 2, … (it names none)" if names is None else listed(names)


def _in_order(frame: pl.LazyFrame, order: list[int] | None) -> pl.LazyFrame:
    """Reorder the lists of scores; a row with another number of scores stays, to be refused."""
    if order is None:
        return frame
    schema = frame.collect_schema()
    columns = []
    for kind in SCORE_KINDS:
        dtype = schema.get(kind)
        if not isinstance(dtype, pl.List | pl.Array):
            continue
        values = exactly(kind).cast(pl.List(dtype.inner))
        same = values.list.len() == len(order)
        ordered = values.list.gather(order, null_on_oob=True)
        columns.append(pl.when(same).then(ordered).otherwise(values).alias(kind))
    return frame.with_columns(columns)


# -- one type per column -----------------------------------------------------------------------


def _common_type(column: str, paths: Sequence[Path], types: Sequence[pl.DataType]) -> pl.DataType:
    """Return the type that holds the values of a column of all files."""
    found = {dtype: path for dtype, path in zip(types, paths, strict=True) if dtype != pl.Null}
    if len(found) <= 1:
        return next(iter(found), types[0])
    kinds = list(found)
    if all(dtype in TEXT for dtype in kinds):
        return pl.String()
    numeric = all(dtype.is_integer() or dtype.is_float() for dtype in kinds)
    if numeric and column.startswith(PREFIXES):
        return pl.Float64()
    if all(dtype.is_integer() for dtype in kinds) and not WIDE & {type(one) for one in kinds}:
        return pl.Int64()
    if numeric:
        # Libraries write integers as floats where one is missing. As text both are the same.
        return pl.String()
    if column in SCORE_KINDS and all(map(_is_list_of_numbers, kinds)):
        return pl.List(pl.Float64())
    (one, first), (other, second), *_ = found.items()
    raise InputError(
        f"{first} has column '{column}' of type {one}, and {second} of type {other}; all files of "
        "one side must have one type per column."
    )


def _is_list_of_numbers(dtype: pl.DataType) -> bool:
    if not isinstance(dtype, pl.List | pl.Array):
        return False
    return pl.Series(dtype=dtype.inner).dtype.is_numeric()


def _cast(column: str, dtype: pl.DataType, common: pl.DataType) -> pl.Expr:
    values = exactly(column)
    if dtype == common:
        return values
    if dtype.is_float() and common == pl.String:
        return float_text(values).alias(column)
    return values.cast(common)
