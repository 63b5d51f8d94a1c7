"""Reading prediction tables: a format a suffix, one lazy table out of each."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np
import polars as pl

from flipguard.archives import first_sentence
from flipguard.errors import InputError, listed
from flipguard.predictions.npz import read_arrays
from flipguard.predictions.table import SCORE_KINDS, WIDE_PREFIX, Predictions, with_roles
from flipguard.predictions.text import RaggedError, check_fields, check_scalars

COMPRESSIONS = (".gz", ".zst")
FORMATS: dict[str, str] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".npz": "npz",
}
TEXT_FORMATS = frozenset({"csv", "tsv", "jsonl"})
CLASS_NAMES_KEY = "flipguard.class_names"
NPZ_NAMES = ("ids", "targets", "labels", "id", "target", "label", "class_names", *SCORE_KINDS)

# Enough rows to see a column's type in a JSON Lines file, few enough to be instant.
JSON_ROWS_FOR_SCHEMA = 1_000


def read_predictions(
    path: str | os.PathLike[str],
    *,
    id: str | None = None,
    target: str | None = None,
    label: str | None = None,
) -> Predictions:
    """A prediction table from a file, by its suffix; rows are read when a comparison needs them.

    CSV, TSV and JSON Lines (also ``.gz`` and ``.zst``), Parquet, Arrow/Feather, and NPZ.
    `id`, `target` and `label` name the columns where they are not called so.
    """
    file = Path(path)
    _must_be_a_file(file)
    kind, _ = format_of(file)
    try:
        if kind == "npz":
            return _read_npz(file, id=id, target=target, label=label)
        roles = frozenset({id or "id", target or "target", label or "label"})
        frame, class_names = _LAZY[kind](file, roles)
        return with_roles(
            frame,
            name=str(path),
            id=id,
            target=target,
            label=label,
            class_names=class_names,
            path=file,
        )
    except pl.exceptions.NoDataError as problem:
        raise InputError(
            f"{path} is empty; expected a header and at least one row of predictions."
        ) from problem
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError, RaggedError) as problem:
        raise unreadable(str(path), problem) from problem


def format_of(path: Path) -> tuple[str, str | None]:
    """The format and the compression that a file's name tells.

    >>> format_of(Path("old.csv.gz"))
    ('csv', '.gz')
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSIONS else None
    kind = FORMATS.get(suffixes[-1]) if suffixes else None
    if kind is None or (compression is not None and kind not in TEXT_FORMATS):
        raise InputError(
            f"{path} is of no format known by its name; expected .csv, .tsv or .jsonl (these also "
            ".gz or .zst), .parquet, .arrow, .feather or .npz."
        )
    return kind, compression


def unreadable(name: str, problem: BaseException) -> InputError:
    """The sentence for a file that its format's reader gives up on."""
    text = first_sentence(problem)
    text = text if len(text) <= 160 else text[:159] + "…"
    return InputError(
        f"{name} cannot be read ({text}); it may be truncated, or not of the format "
        "that its name says."
    )


def _must_be_a_file(path: Path) -> None:
    # Not the methods of `Path`, which raise where a name is longer than any file's could be.
    if not os.path.exists(path):
        raise InputError(f"{path} does not exist; check the path.")
    if os.path.isdir(path):
        raise InputError(f"{path} is a folder, not a file of predictions; name the file in it.")
    if not os.path.isfile(path):
        raise InputError(
            f"{path} is no regular file but a pipe or a device, and flipguard reads a file more "
            "than once; save it to a file first."
        )
    if re.search("[\ud800-\udfff]", str(path)):
        raise InputError(f"{str(path)!a} has a name that is no valid text; rename the file.")
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty; expected a header and at least one row of predictions.")


# A reader takes the file, and the columns that hold ids and classes.
Reader = Callable[[Path, frozenset[str]], tuple[pl.LazyFrame, list[str] | None]]


def _separated(separator: str) -> Reader:
    def read(path: Path, _roles: frozenset[str]) -> tuple[pl.LazyFrame, None]:
        check_fields(path, separator)
        return scan_separated(path, separator), None

    return read


def scan_separated(source: Path | IO[bytes], separator: str) -> pl.LazyFrame:
    """A table of separated text; scores are numbers in it, and all else is text."""
    # Everything as text: "007" is an id of its own and must not become 7.
    frame = pl.scan_csv(source, separator=separator, infer_schema=False, glob=False)
    # A quote inside a quoted name is written twice; the reader undoes that in rows, not in headers.
    frame = frame.rename(lambda name: name.replace('""', '"'))
    names = frame.collect_schema().names()
    wide = [c for c in names if c.startswith(tuple(WIDE_PREFIX.values()))]
    lists = [c for c in names if c in SCORE_KINDS]
    numbers = [pl.col(c).cast(pl.Float64) for c in wide]
    numbers += [pl.col(c).str.json_decode(pl.List(pl.Float64)) for c in lists]
    return frame.with_columns(numbers)


def _json_lines(path: Path, roles: frozenset[str]) -> tuple[pl.LazyFrame, None]:
    check_scalars(path, sorted(roles))
    # The one scan that cannot be told to take a name as it is: each sign of a pattern is wrapped.
    source = re.sub(r"([*?\[])", r"[\1]", str(path))
    first = pl.scan_ndjson(source, infer_schema_length=JSON_ROWS_FOR_SCHEMA).collect_schema()
    # The first rows do not tell the types of all: scores may be whole numbers at first, and a slice
    # missing. As floats all scores fit; and all else as text, as in a CSV.
    types = {column: _json_type(column, dtype, roles) for column, dtype in first.items()}
    frame = pl.scan_ndjson(source, infer_schema_length=JSON_ROWS_FOR_SCHEMA, schema_overrides=types)
    return frame.with_columns(_no_list(column) for column in first if column in roles), None


def _json_type(column: str, dtype: pl.DataType, roles: frozenset[str]) -> pl.DataType:
    if column in roles:
        return pl.String()
    if column.startswith(tuple(WIDE_PREFIX.values())):
        return pl.Float64() if dtype.is_numeric() or dtype == pl.Null else dtype
    if isinstance(dtype, pl.List):
        inner = pl.Series(dtype=dtype.inner).dtype
        known = column in SCORE_KINDS and (inner.is_numeric() or inner == pl.Null)
        return pl.List(pl.Float64()) if known else dtype
    return dtype if dtype.is_nested() or column in SCORE_KINDS else pl.String()


def _no_list(column: str) -> pl.Expr:
    """A column of ids or classes; a list or an object, which is text by now, breaks the reading."""
    value = pl.col(column)
    odd = value.str.contains(r'^(\[["\[{]|\{")')
    # No number, so that the strict conversion fails, and says which value it was.
    broken = pl.when(odd).then(value).cast(pl.Int64).cast(pl.String)
    return pl.when(odd).then(broken).otherwise(value).alias(column)


def _parquet(path: Path, _roles: frozenset[str]) -> tuple[pl.LazyFrame, list[str] | None]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(path).metadata
    except pa.ArrowException as problem:
        raise unreadable(str(path), problem) from problem
    return pl.scan_parquet(path, glob=False), _stored_class_names(path, metadata)


def _arrow(path: Path, _roles: frozenset[str]) -> tuple[pl.LazyFrame, list[str] | None]:
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as source:
            metadata = pa.ipc.open_file(source).schema.metadata
    except pa.ArrowException as problem:
        raise unreadable(str(path), problem) from problem
    return pl.scan_ipc(path, glob=False), _stored_class_names(path, metadata)


_LAZY: dict[str, Reader] = {
    "csv": _separated(","),
    "tsv": _separated("\t"),
    "jsonl": _json_lines,
    "parquet": _parquet,
    "arrow": _arrow,
}


def _stored_class_names(path: Path, metadata: dict[bytes, bytes] | None) -> list[str] | None:
    stored = (metadata or {}).get(CLASS_NAMES_KEY.encode())
    if stored is None:
        return None
    try:
        names = json.loads(stored)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(n, str | int | float) for n in names):
        raise InputError(
            f"{path} has {listed([stored.decode('utf-8', 'replace')])} as '{CLASS_NAMES_KEY}' in "
            "its metadata, where a JSON list of class names is expected; mend it, or leave it out."
        )
    return [str(name) for name in names]


def _read_npz(path: Path, *, id: str | None, target: str | None, label: str | None) -> Predictions:
    asked = {name for name in (id, target, label) if name is not None}
    arrays = read_arrays(path, always={*NPZ_NAMES, *asked})
    known = list(arrays)
    roles = {"ids": id, "targets": target, "labels": label}
    taken: dict[str, np.ndarray | None] = {}
    for usual, name in roles.items():
        if name is not None and name not in arrays:
            raise InputError(
                f"{path} has no array '{name}', which --{usual.removesuffix('s')} asks for; "
                f"its arrays are {listed(known, most=12)}."
            )
        # The tables' names, without the s, are understood too: an id that is overlooked would leave
        # rows to be matched by their position.
        found = name or (usual if usual in arrays else usual.removesuffix("s"))
        taken[usual] = arrays.pop(found, None)
    logits = arrays.pop("logits", None)
    probabilities = arrays.pop("probabilities", None)
    class_names = arrays.pop("class_names", None)
    main = next((a for a in (taken["labels"], logits, probabilities) if a is not None), None)
    if main is None:
        raise InputError(
            f"{path} has neither labels nor logits nor probabilities (arrays: "
            f"{listed(known, most=8)}); name the array of predicted classes with --label."
        )
    if main.ndim == 0 or len(main) == 0:
        raise InputError(f"{path} is empty; expected at least one row of predictions.")
    slices = {k: a for k, a in arrays.items() if a.ndim == 1 and len(a) == len(main)}
    predictions = Predictions.from_arrays(
        ids=taken["ids"],
        targets=taken["targets"],
        labels=taken["labels"],
        logits=logits,
        probabilities=probabilities,
        class_names=None if class_names is None else class_names.tolist(),
        slices=slices,
        name=str(path),
    )
    return Predictions(
        name=predictions.name,
        frame=predictions.frame,
        id=predictions.id,
        target=predictions.target,
        label=predictions.label,
        scores=predictions.scores,
        path=path,
    )
