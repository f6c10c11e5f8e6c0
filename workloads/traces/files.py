"""Bytes of trace files, compressed or not, and numbers in them, which tools write in many ways."""

from __future__ import annotations

import gc
import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from prestep.sim.errors import InputError, Mistake
from prestep.sim.files import check_ratio, unpacked

GZIP = b"\x1f\x8b"
HEAD = 65536
LARGEST = 16 * 2**30  # bytes of a trace, unpacked


@contextmanager
def uncollected() -> Iterator[None]:
    """Without garbage collection: a million objects that all stay, and no cycles; looking for them doubles the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == GZIP


def head_of(path: Path) -> bytes:
    """The first bytes of a file, decompressed.

    Raises
    ------
    InputError
        If the file is empty, not there, or damaged in its first bytes.
    """
    try:
        for piece in pieces(path, HEAD):
            return piece
    except OSError as error:
        raise InputError.of(
            str(path), "", str(error.strerror or error), "a trace that can be read"
        ) from None
    raise InputError.of(str(path), "", "an empty file", "a trace")


def content(path: Path) -> bytes:
    """All bytes of a file, decompressed.

    Raises
    ------
    InputError
        For a gzip file that is cut off or damaged.
    """
    raw = path.read_bytes()
    if raw[:2] != GZIP:
        return raw
    return unpacked(path, raw, LARGEST)


def decoded(path: Path, expected: str) -> Any:
    """The value of a JSON file; `expected` says what it should be.

    Raises
    ------
    InputError
        For a file that ends early, is no JSON or no UTF-8, or lies too deep.
    """
    try:
        return msgspec.json.decode(content(path))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError.of(str(path), "", json_damage(error), expected) from None


def json_damage(error: Exception) -> str:
    """What a decoder found wrong with JSON, in words."""
    early = "truncated" in str(error) or "end of input" in str(error)
    return "JSON that ends early" if early else f"no JSON ({error})"


def pieces(path: Path, size: int) -> Iterator[bytes]:
    """The bytes of a file, decompressed, in pieces of about `size`; see :func:`content` for errors."""
    read, size_on_disk = 0, path.stat().st_size
    with path.open("rb") as file, gzip.open(file) if is_gzip(path) else file as stream:
        while True:
            try:
                piece = stream.read(size)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise InputError(_damaged(path, error)) from None
            if not piece:
                return
            read += len(piece)
            check_ratio(path, size_on_disk, read, LARGEST)
            yield piece


def _damaged(path: Path, error: Exception) -> Mistake:
    found = (
        "a gzip file that is cut off"
        if isinstance(error, EOFError)
        else f"a damaged gzip file ({error})"
    )
    return Mistake(
        str(path), "", found, "a whole file", "copy it again, or record again"
    )


LARGEST_ID = 1 << 62  # an id that the table can hold
LONGEST = 1e18  # us: 30,000 years; nobody recorded longer, and ns of it fit in a float


def time(value: Any) -> float | None:
    """A time, or None if it is none."""
    if type(value) is float and -LONGEST < value < LONGEST:
        return value
    try:
        parsed = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return parsed if abs(parsed) < LONGEST else None


def integer(value: Any, other: Any) -> int | None:
    """An id that is one of two values; None if neither is."""
    if type(value) is int and -LARGEST_ID < value < LARGEST_ID:
        return value
    for candidate in (value, other):
        try:
            whole = int(candidate)
        except (TypeError, ValueError, OverflowError):
            continue
        if -LARGEST_ID < whole < LARGEST_ID:
            return whole
    return None


def number(value: Any, default: int = 0) -> int:
    """An id as a number; words ("stream 7", "GPU 0") by the digits they hold, else by their letters."""
    if value is None:
        return default
    whole = integer(value, None)
    if whole is not None:
        return whole
    digits = re.findall(r"\d+", str(value))
    return int(digits[0]) % LARGEST_ID if digits else sum(ord(c) for c in str(value))
