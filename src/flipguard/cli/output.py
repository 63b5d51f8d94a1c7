"""Output to the terminal, to standard output, and to files, which are written atomically."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from flipguard import report
from flipguard.errors import FlipguardError, InputError, printable
from flipguard.files import check_writable, replacing
from flipguard.predictions.side_files import files_read

if TYPE_CHECKING:
    import polars as pl
    from rich.console import RenderableType

    from flipguard.comparison import Comparison
    from flipguard.engines.plan import Want
    from flipguard.gate import Verdict
    from flipguard.report.page import Page


# The exit code if there is no result, or if it could not be written.
NOT_DELIVERED = 2
# Of a training that a time limit stopped: neither done nor failed, like an inconclusive gate.
TIME_IS_UP = 3
MODES = {"stdin": "r", "stdout": "w", "stderr": "w"}
# Plausible sizes of a terminal; rich takes any number, and prints nothing with 0 columns.
COLUMNS, LINES = range(20, 1_001), range(1, 10_001)


# Replacements for the signs in tables if the encoding of the terminal lacks them.
PLAIN_SIGNS = str.maketrans(
    {"→": "->", "–": "-", "…": "...", "▼": "v", "▲": "^", "·": ".", "≤": "<=", "≥": ">="}
)


def make_ready() -> None:
    """Open closed standard streams, and ignore an implausible size of the terminal."""
    for number in range(len(MODES)):
        # Otherwise the next file to be opened becomes standard output or error.
        with suppress(OSError):
            os.fstat(number)
            continue
        os.open(os.devnull, os.O_RDWR)
    for name, mode in MODES.items():
        if getattr(sys, name) is None:
            nowhere = open(os.devnull, mode, encoding="utf-8", errors="replace")  # noqa: SIM115
            setattr(sys, name, nowhere)
    for name, possible in (("COLUMNS", COLUMNS), ("LINES", LINES)):
        given = os.environ.get(name, "")
        if given and not (given.isascii() and given.isdigit() and int(given[:9]) in possible):
            del os.environ[name]


def is_closed(stream: TextIO) -> bool:
    """Return whether a standard stream was closed when the program began."""
    return getattr(stream, "name", None) == os.devnull


def say(text: str) -> None:
    """Print on standard error; a failure to print does not change the exit code."""
    if not text:
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        silence(sys.stderr)


def flushed(code: int) -> int:
    """Flush the output and return the exit code, which changes if flushing fails.

    Otherwise Python would exit with 120 if its last flush failed.
    """
    try:
        sys.stdout.flush()
    except (OSError, ValueError) as problem:
        silence(sys.stdout)
        if not isinstance(problem, BrokenPipeError):
            code = NOT_DELIVERED
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        silence(sys.stderr)
    return code


def silence(stream: TextIO) -> None:
    """Discard what a stream still buffers, and all later output to it."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def check_destinations(inputs: Iterable[str], **destinations: str | None) -> None:
    """Refuse outputs that cannot or must not be written, before any work is done."""
    given = [destination for destination in destinations.values() if destination is not None]
    if given.count("-") > 1:
        raise InputError("Only one output can be - (standard output); write the others to files.")
    read = {os.path.realpath(file) for path in inputs for file in files_read(path)}
    written: set[str] = set()
    for destination in given:
        if destination == "-":
            if is_closed(sys.stdout):
                raise InputError("Standard output (-) is closed; write to a file.")
            continue
        place = os.path.realpath(destination)
        if os.path.exists(place) and place in read:
            raise InputError(
                f"{destination} is one of the input files and would be overwritten; "
                "write to another file."
            )
        if place in written and not place.startswith("/dev/"):
            raise InputError(f"{destination} is given for two outputs; write each to another file.")
        written.add(place)
        check_writable(Path(destination))
    flips = destinations.get("flips")
    if flips is not None and flips != "-":
        _table_format(flips)


def show(parts: Iterable[RenderableType], *, stdout_taken: bool) -> None:
    """Print to the terminal, except if standard output carries a document."""
    if stdout_taken:
        return
    from rich.console import Console

    # Names come from files, and must not be read as markup or emoji codes.
    page = io.StringIO()
    terminal = sys.stdout.isatty() or None
    console = Console(
        file=page, force_terminal=terminal, highlight=False, markup=False, emoji=False
    )
    for part in parts:
        console.print(part)
    _to_stdout(re.sub(r" +$", "", page.getvalue(), flags=re.MULTILINE))


def write_text(text: str, destination: str) -> None:
    """Write a document to a file, whole or not at all, or to standard output."""
    # A file name may contain bytes that are not valid text; they are written as escapes.
    content = text.encode("utf-8", "backslashreplace")
    if destination == "-":
        _to_stdout(content)
        return
    with replacing(Path(destination)) as file:
        file.write_bytes(content)


def linked(markdown: str, destination: str | None, html: str | None) -> str:
    """Return a Markdown summary with a link to the report, if both are written."""
    if destination is None or html is None or html == "-":
        return markdown
    from urllib.parse import quote

    # Relative to the summary, so that the two can be moved together.
    folder = os.path.dirname(os.path.abspath(destination)) if destination != "-" else os.getcwd()
    path = Path(os.path.relpath(os.path.abspath(html), folder)).as_posix()
    return f"{markdown}\n[The full report]({quote(path, errors='surrogateescape')})\n"


def check_samples(samples: str | None, budget: str, html: str | None) -> None:
    """Refuse options of the report that cannot work, before any work is done."""
    from flipguard.report.samples import bytes_of

    bytes_of(budget)
    if html is not None:
        from flipguard.report.write import check_extra

        check_extra()
        from flipguard.report.charts import prepare

        prepare()
    if samples is not None and html is None:
        raise InputError(
            "Expected --html with --samples, because only the report shows samples; add --html "
            "FILE."
        )


def typed() -> str:
    """Return the command line, quoted so that it can be repeated."""
    import shlex

    return shlex.join(["flipguard", *sys.argv[1:]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The results of a command, and the destination for each output flag."""

    destinations: Mapping[str, str | None]
    result: Comparison
    verdict: Verdict | None = None
    page: Page | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """An output of `compare` and `gate`: its flag, its content, and the details that it needs.

    An output with `last` is written after the terminal output, because it takes long.
    """

    flag: str
    help: str
    content: Callable[[Finished], Any]
    write: Callable[[Any, str], None]
    wants: tuple[Want, ...] = ()
    last: bool = False


def wants_of(destinations: Mapping[str, str | None]) -> tuple[Want, ...]:
    """Return the details that the wanted outputs need beyond the counts."""
    given = [output for output in OUTPUTS if destinations.get(output.flag) is not None]
    return tuple(dict.fromkeys(want for output in given for want in output.wants))


def write_outputs(
    result: Comparison,
    parts: Iterable[RenderableType],
    destinations: Mapping[str, str | None],
    *,
    verdict: Verdict | None = None,
    samples: str | None,
    budget: str,
) -> None:
    """Write all wanted outputs, and show the result on the terminal.

    The contents of a report are prepared first: if they are refused, nothing is written. If one
    output fails after that, the others are still written, and then the error is raised.
    """
    page = None
    if destinations.get("html") is not None:
        from flipguard.report.write import report_page

        page = report_page(
            result, verdict=verdict, samples=samples, samples_budget=budget, command=typed()
        )
    finished = Finished(destinations=destinations, result=result, verdict=verdict, page=page)
    given = [
        (output, place)
        for output in OUTPUTS
        if (place := destinations.get(output.flag)) is not None
    ]
    # None is the terminal.
    steps: list[tuple[Output, str] | None] = [
        *((output, place) for output, place in given if not output.last),
        None,
        *((output, place) for output, place in given if output.last),
    ]
    taken = "-" in [place for _, place in given]
    written: list[str] = []
    failed: list[Exception] = []
    for step in steps:
        try:
            if step is None:
                show(parts, stdout_taken=taken)
            else:
                output, place = step
                output.write(output.content(finished), place)
                written.append(place)
        except Exception as problem:
            failed.append(problem)
    if not failed:
        say_written(written, stdout_taken=taken)
    if len(failed) > 1 and all(isinstance(problem, FlipguardError) for problem in failed):
        raise InputError(" ".join(map(str, failed))) from failed[0]
    if failed:
        raise failed[0]


def _json(finished: Finished) -> str:
    told = finished.result if finished.verdict is None else finished.verdict
    return told.to_json()


def _markdown(finished: Finished) -> str:
    from flipguard.render.markdown import comparison_markdown, verdict_markdown

    verdict, places = finished.verdict, finished.destinations
    text = comparison_markdown(finished.result) if verdict is None else verdict_markdown(verdict)
    return linked(text, places["markdown"], places.get("html"))


def _flips(finished: Finished) -> pl.DataFrame:
    return finished.result.flips()


def _html(finished: Finished) -> str:
    from flipguard.report.html import html_of

    if finished.page is None:
        raise AssertionError("The page is wanted but was not prepared.")
    return html_of(finished.page)


def write_table(table: pl.DataFrame, destination: str) -> None:
    """Write a table in the format of the file's suffix, or as CSV to standard output."""
    if destination == "-":
        _to_stdout(table.write_csv().encode())
        return
    # Encoded in memory, because on a full disk Polars raises errors of several types.
    content = _encoded(table, *_table_format(destination))
    with replacing(Path(destination)) as file:
        file.write_bytes(content)


def _encoded(table: pl.DataFrame, kind: str, compression: str | None) -> bytes:
    """Return a table encoded in one of the formats for flips."""
    from flipguard.predictions.compression import compressed
    from flipguard.predictions.formats import SEPARATORS

    stream = io.BytesIO()
    if kind in SEPARATORS:
        text = table.write_csv(separator=SEPARATORS[kind])
        with compressed(stream, compression) as out:
            out.write(text.encode())
    elif kind == "jsonl":
        table.write_ndjson(stream)
    elif kind == "parquet":
        table.write_parquet(stream)
    else:
        table.write_ipc(stream)
    return stream.getvalue()


def _table_format(destination: str) -> tuple[str, str | None]:
    from flipguard.predictions.formats import FORMATS, SEPARATORS, suffixes_of

    suffixes = Path(destination.lower()).suffixes
    compression = suffixes.pop() if suffixes[-1:] in ([".gz"], [".zst"]) else None
    kind = FORMATS.get(suffixes[-1]) if suffixes else None
    known = {*SEPARATORS, "jsonl", "parquet", "arrow"}
    if kind not in known or (compression is not None and kind not in SEPARATORS):
        raise InputError(
            f"{destination} cannot hold the flips; use {suffixes_of(SEPARATORS.keys())} (these "
            "also .gz or .zst), .jsonl, .parquet or .arrow."
        )
    return str(kind), compression


def say_written(places: Iterable[str | None], *, stdout_taken: bool) -> None:
    """Print which files were written, except if standard output carries a document."""
    files = [place for place in places if place not in (None, "-")]
    if files and not stdout_taken:
        line(f"Written: {', '.join(map(str, files))}")


def line(text: str) -> None:
    """Print a line on standard output, with control characters made harmless."""
    _to_stdout("".join(printable(part, longest=4_000) + "\n" for part in text.split("\n")))


def _to_stdout(content: str | bytes) -> None:
    """Write to standard output, and ignore a closed pipe."""
    try:
        if isinstance(content, bytes):
            # Documents are UTF-8 wherever they go.
            sys.stdout.flush()
            sys.stdout.buffer.write(content)
        else:
            sys.stdout.write(_writable(content, sys.stdout.encoding or "utf-8"))
        sys.stdout.flush()
    except OSError as problem:
        # Python flushes again at exit, which must not fail a second time.
        silence(sys.stdout)
        # The reader of a pipe may stop early, as `| head` does. This does not change a verdict, and
        # so not the exit code.
        if not isinstance(problem, BrokenPipeError):
            raise InputError(
                f"Standard output cannot be written ({problem.strerror}); write to a file."
            ) from problem


def _writable(text: str, encoding: str) -> str:
    """Return text with plain signs for those that the terminal's encoding lacks."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(PLAIN_SIGNS).encode(encoding, "replace").decode(encoding)
    return text


OUTPUTS = (
    Output(
        flag="json",
        help="Write JSON; - is standard output.",
        content=_json,
        write=write_text,
    ),
    Output(
        flag="markdown",
        help="Write Markdown for a pull request; - is standard output.",
        content=_markdown,
        write=write_text,
    ),
    Output(
        flag="flips",
        help="Write the samples whose label changed, worst first (.csv, .jsonl, .parquet …); "
        "- is standard output, as CSV.",
        content=_flips,
        write=write_table,
        wants=("flips",),
    ),
    Output(
        flag="html",
        help="Write the report, one self-contained page; - is standard output.",
        content=_html,
        write=write_text,
        wants=report.WANTS,
        last=True,  # its charts take the most time and memory
    ),
)
