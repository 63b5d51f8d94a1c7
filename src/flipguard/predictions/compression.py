"""Compressed text, gzip and zstd: read by its first bytes, written by its suffix."""

from __future__ import annotations

import gzip
import sys
import zlib
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Any, cast

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

GZIP_MAGIC, ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
# What the two readers raise for content that is truncated or altered.
DAMAGE: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error, zstd.ZstdError)


def open_text(path: Path) -> IO[bytes]:
    """The file's text as bytes; compression is detected from the first bytes."""
    with path.open("rb") as file:
        start = file.read(4)
    if start.startswith(GZIP_MAGIC):
        return cast("IO[bytes]", gzip.open(path))
    if start.startswith(ZSTD_MAGIC):
        return cast("IO[bytes]", zstd.open(path))
    return path.open("rb")


def compressed(stream: IO[bytes], suffix: str | None) -> AbstractContextManager[Any]:
    """A stream that writes to `stream`, compressed for the suffix .gz or .zst."""
    if suffix is None:
        return nullcontext(stream)
    if suffix == ".zst":
        return zstd.ZstdFile(stream, "w")
    # Neither a name nor a time is stored: equal content gives equal files.
    return gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0)
