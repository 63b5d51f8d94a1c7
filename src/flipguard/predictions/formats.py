"""The known file formats, and the format of a path by its suffix.

Reading and writing them belongs to `read` and `write`.
"""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

from flipguard.errors import InputError, any_of

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
# Errors name the other suffixes only.
OTHER_SPELLINGS = frozenset({".ndjson", ".pq", ".ipc"})
SEPARATORS = {"csv": ",", "tsv": "\t"}
TEXT_FORMATS = frozenset({*SEPARATORS, "jsonl"})
CLASS_NAMES_KEY = "flipguard.class_names"


def format_of(path: Path) -> tuple[str, str | None]:
    """The format and the compression of a file by its name.

    >>> format_of(Path("old.csv.gz"))
    ('csv', '.gz')
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSIONS else None
    kind = FORMATS.get(suffixes[-1]) if suffixes else None
    if kind is None or (compression is not None and kind not in TEXT_FORMATS):
        raise InputError(
            f"{path} is of no format known by its name; expected {suffixes_of(TEXT_FORMATS)} "
            f"(these also .gz or .zst), {suffixes_of({*FORMATS.values()} - TEXT_FORMATS)}."
        )
    return kind, compression


def suffixes_of(kinds: Set[str]) -> str:
    """Return the suffixes of formats as a choice.

    >>> suffixes_of(TEXT_FORMATS)
    '.csv, .tsv or .jsonl'
    """
    return any_of(
        [name for name, kind in FORMATS.items() if kind in kinds and name not in OTHER_SPELLINGS]
    )
