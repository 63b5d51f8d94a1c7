"""What a file says, without times, places and the machine, and how two files differ.

This module is the one place that says what is not compared. See `SKIPPED`, `DROPPED`,
`NORMALISED`, `COSTS`, `RENAMED` and `RETIRED`.
"""

from __future__ import annotations

import gzip
import hashlib
import html
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet

# Not compared at all: locks, times of epochs, and what a case prints that depends on speed.
SKIPPED = re.compile(r"(^|/)(\.lock|\.tmp.*|timing\.jsonl|done|.*\.log)$|/\.[^/]*\.\d+$")
# Only whether they are there: states hold objects whose layout may change.
ONLY_THERE = re.compile(r"\.pt$")
# Keys of JSON documents that hold versions, times, places or the machine.
DROPPED = frozenset(
    {"versions", "seconds", "when", "date", "machine_name", "timed_on", "hours", "made", "host"}
    | {"seconds_each", "memory_mib", "samples_a_second", "cpu", "device_name"}
)
# Settings and options that the rebuild takes away, and so their values in documents.
RETIRED = frozenset({"widen", "one_phase"})
# Keys and words that the rebuild renames; used with `--numbers` alone.
RENAMED: Mapping[str, str] = {"confidence_old": "margin_old", "confidence_new": "margin_new"}
# Patterns of texts that depend on the machine or the hour, and what stands for them.
NORMALISED = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"[\d,]+ samples/s", "# samples/s"),
        (r"[\d,.]+ MiB", "# MiB"),
        (r"\d[\d,.]* (?:s|min|h|ms) left", "# left"),
        (r"\babout \d[\d,.]* (?:s|min|h|seconds|minutes|hours)\b", "about #"),
        (r"\b\d[\d,.]* (?:s|ms|seconds|milliseconds)\b", "# s"),
        (r"\b\d[\d,.]* (?:min|h) of training", "# s of training"),
        (r"\b20\d\d-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?)?", "<date>"),
        (r"\bprocess(?:ID)? \d+", "process #"),
        # Lines that come now and then, or from several processes in any order.
        (r"(?m)^training: \d+%, about .*\n", ""),
        (r"(?m)^Initializing distributed: .*\n", ""),
        (r"(?m)^ +\d+ of \d+ epochs\b.*\n", ""),
    )
)
# The table of a report that says what runs cost, and its cells of seconds and samples per second.
COSTS = re.compile(r"(?s)samples/s</th></tr></thead>.*?</table>")
COST = re.compile(r'data-value="\d+\.\d+">[^<]*<')
TEXTS = {".txt", ".md", ".html", ".svg", ".csv", ".tsv", ".toml"}
NUMBER = re.compile(r"[-+−]?\d+(?:[,.]\d+)*(?:[eE][-+]?\d+)?")
HASH = re.compile(r"\b[0-9a-f]{16}\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How files are read: the root whose path is left out, and what may differ."""

    root: Path
    checkout: Path
    numbers: bool
    renamed_keys: bool


def files_of(folder: Path, reading: Reading) -> dict[str, Path]:
    """The files of a case that are compared, by a name that is the same on both sides."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not SKIPPED.search(name):
            found[_unkeyed(path, folder) if reading.renamed_keys else name] = path
    return found


def _unkeyed(path: Path, folder: Path) -> str:
    """A file's name in which a run that is named after its settings is named after its weights."""
    parts = []
    place = folder
    for part in path.relative_to(folder).parts:
        place /= part
        weights = place / "model.safetensors"
        if HASH.fullmatch(part) and weights.exists():
            part = f"run-{_digest(weights.read_bytes())}"
        elif HASH.search(part):
            part = HASH.sub("key", part)
        parts.append(part)
    return "/".join(parts)


def first_difference(before: Path, after: Path, readings: tuple[Reading, Reading]) -> str | None:
    """Where two files first differ, or None if they say the same."""
    one, other = (list(_lines(p, r)) for p, r in zip((before, after), readings, strict=True))
    if one == other:
        return None
    for place, (was, now) in enumerate(zip(one, other, strict=False), start=1):
        if was != now:
            return f"line {place}\n      before: {_near(was, now)}\n      after:  {_near(now, was)}"
    longer, word = (one, "before") if len(one) > len(other) else (other, "after")
    place = min(len(one), len(other))
    return f"{len(one)} lines before, {len(other)} after; only {word}: {longer[place][:200]}"


def _near(line: str, other: str) -> str:
    """The part of a line in which it differs from another."""
    equal = next((i for i, (a, b) in enumerate(zip(line, other, strict=False)) if a != b), None)
    start = max((min(len(line), len(other)) if equal is None else equal) - 60, 0)
    return ("…" if start else "") + line[start : start + 160]


def _lines(path: Path, reading: Reading) -> Iterator[str]:
    """What a file says, as lines that can be compared."""
    name, content = path.name, path.read_bytes()
    if ONLY_THERE.search(name):
        yield "there"
        return
    if name.endswith(".gz"):
        name, content = name.removesuffix(".gz"), gzip.decompress(content)
    suffix = Path(name).suffix
    try:
        if suffix == ".safetensors":
            yield from _tensors(content)
        elif suffix == ".npz":
            yield from _arrays(content, reading)
        elif suffix in (".parquet", ".arrow"):
            yield from _columns(content, suffix, reading)
        elif suffix in (".json", ".jsonl"):
            yield from _documents(content.decode(), suffix, reading)
        elif suffix in TEXTS:
            yield from _text(content.decode(errors="replace"), suffix, reading)
        else:
            yield _digest(content)
    except (ValueError, KeyError, pa.ArrowException) as problem:
        yield f"not readable as {suffix}: {type(problem).__name__}, bytes {_digest(content)}"


def _tensors(content: bytes) -> Iterator[str]:
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    body = content[8 + length :]
    yield f"metadata {json.dumps(header.pop('__metadata__', {}), sort_keys=True)}"
    for name, about in sorted(header.items()):
        start, end = about["data_offsets"]
        yield f"{name} {about['dtype']} {about['shape']} {_digest(body[start:end])}"


def _arrays(content: bytes, reading: Reading) -> Iterator[str]:
    with np.load(io.BytesIO(content)) as arrays:
        for name in sorted(arrays.files):
            array = arrays[name]
            said = f"{_digest(array.tobytes())} {array.ravel()[:4].tolist()}"
            yield f"{_renamed(name, reading)} {array.dtype} {array.shape} {said}"


def _columns(content: bytes, suffix: str, reading: Reading) -> Iterator[str]:
    stream = pa.BufferReader(content)
    read = pa.parquet.read_table if suffix == ".parquet" else pa.feather.read_table
    table = read(stream)
    for name in table.column_names:
        column = table.column(name)
        yield f"{_renamed(name, reading)} {column.type} {column.to_pylist()!r}"


def _documents(text: str, suffix: str, reading: Reading) -> Iterator[str]:
    """A line per value, in the order of the document."""
    for place, line in enumerate(text.splitlines() if suffix == ".jsonl" else [text]):
        where = str(place) if suffix == ".jsonl" else ""
        yield from _values(json.loads(line), where, reading)


def _values(value: Any, where: str, reading: Reading) -> Iterator[str]:
    if isinstance(value, dict):
        yield f"{where} {{"
        for key, inner in value.items():
            if key not in DROPPED and key not in RETIRED:
                key = _plain(_renamed(key, reading), reading)
                yield from _values(inner, f"{where}.{key}", reading)
    elif isinstance(value, list):
        yield f"{where} [{len(value)}"
        for place, inner in enumerate(value):
            yield from _values(inner, f"{where}[{place}]", reading)
    elif isinstance(value, str):
        text = _plain(value, reading)
        if reading.numbers:
            # Sentences may change their words; names may not.
            text = str(NUMBER.findall(text)) if " " in text else _renamed(text, reading)
        yield f"{where} {text!r}"
    else:
        yield f"{where} {value!r}"


def _text(text: str, suffix: str, reading: Reading) -> Iterator[str]:
    text = _plain(text, reading)
    if not reading.numbers or suffix == ".toml":
        yield from text.splitlines()
    elif suffix in (".csv", ".tsv"):
        header, *rows = text.splitlines() or [""]
        yield " ".join(_renamed(name, reading) for name in re.split("[,\t]", header))
        yield from rows
    else:
        if suffix in (".html", ".svg"):
            text = re.sub(r"(?s)<(style|script)\b.*?</\1>|<[^>]*>", " ", text)
            text = html.unescape(text)
        yield from NUMBER.findall(text)


def _plain(text: str, reading: Reading) -> str:
    """A text without paths, times and the machine."""
    for place, name in ((reading.root, "<side>"), (reading.checkout, "<checkout>")):
        text = text.replace(str(place.resolve()), name)
    for pattern, replacement in NORMALISED:
        text = pattern.sub(replacement, text)
    text = COSTS.sub(lambda found: COST.sub('data-value="#">#<', found[0]), text)
    return HASH.sub("<key>", text) if reading.renamed_keys else text


def _renamed(name: str, reading: Reading) -> str:
    return RENAMED.get(name, name) if reading.numbers else name


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
