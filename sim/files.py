"""Writing files whole or not at all: a file that is interrupted half way leaves what was there before."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import tempfile
import tomllib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prestep.sim.errors import InputError


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A path beside `path` to write to; it takes the place of `path` when the block ends well, and is removed if not.

    The suffix is that of `path`, since writers look at it. A link is followed: what it points to is replaced.

    Raises
    ------
    InputError
        If the folder is not there or cannot be written to, or `path` is a folder.
    """
    target = Path(path)
    if target.is_dir():
        raise InputError.of(str(path), "", "a folder", "a file to write")
    if target.exists() and not target.is_file():
        yield target  # /dev/stdout, a pipe: nothing to keep whole
        return
    real = Path(os.path.realpath(target))
    try:
        beside = _empty_file(real.parent, target)
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        yield beside
        os.chmod(beside, _mode(real))
        os.replace(beside, real)
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        beside.unlink(missing_ok=True)


def _empty_file(folder: Path, target: Path) -> Path:
    """A new hidden file in a folder, with the beginning of a file's name and its suffix."""
    prefix, suffix = f".{target.name[:40]}.", "".join(target.suffixes[-2:])
    handle, name = tempfile.mkstemp(dir=folder, prefix=prefix, suffix=suffix)
    os.close(handle)
    return Path(name)


def _mode(file: Path) -> int:
    """Permissions of a file, or those of a new one."""
    return file.stat().st_mode & 0o777 if file.exists() else 0o666 & ~_umask()


def _unwritable(path: str | Path, error: OSError) -> InputError:
    found = error.strerror or str(error)
    return InputError.of(str(path), "", found, "a file that can be written")


def write_text(path: str | Path, text: str) -> None:
    """The text as UTF-8, whole or not at all; halves of pairs as JSON says them (`\\ud83d`).

    Raises
    ------
    InputError
        If it cannot be written.
    """
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_bytes(path: str | Path, data: bytes) -> None:
    """The bytes, whole or not at all.

    Raises
    ------
    InputError
        If they cannot be written.
    """
    with replacing(path) as beside:
        beside.write_bytes(data)


def _umask() -> int:
    current = os.umask(0)  # the only way to read it
    os.umask(current)
    return current


# What is read whole: larger files are refused before they fill the memory. Traces are read with limits of their own.
LARGEST = 256 * 2**20
# gzip packs recorded JSON 10 to 40 times, and nothing but repetition more than this.
PACKED = 200
SMALL = 64 * 2**20  # unpacked sizes below which the ratio does not matter


def read_bytes(
    path: str | Path,
    expected: str = "a file that can be read",
    largest: float = LARGEST,
) -> bytes:
    """The bytes of a file; `largest` is what it may have at most.

    Raises
    ------
    InputError
        If it is no file, cannot be read, or is too large.
    """
    place = Path(path)
    try:
        if place.is_dir():
            raise InputError.of(str(path), "", "a folder", expected)
        with place.open("rb") as file:
            data = file.read(int(min(largest, 2**62)) + 1)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise InputError.of(
            str(path), "", getattr(error, "strerror", None) or str(error), expected
        ) from None
    if len(data) > largest:
        raise InputError.of(str(path), "", f"more than {largest:.0f} bytes", expected)
    return data


def unpacked(path: str | Path, data: bytes, largest: float = LARGEST) -> bytes:
    """gzip's content, a piece at a time so that a file which unpacks to far more than any real one is refused early.

    Raises
    ------
    InputError
        If it is damaged, or unpacks to more than `largest` or to over `PACKED` times itself.
    """
    pieces: list[bytes] = []
    size = 0
    with gzip.open(io.BytesIO(data)) as stream:
        while True:
            try:
                piece = stream.read(2**20)
            except (EOFError, OSError, zlib.error) as error:
                found = (
                    "a gzip file that is cut off"
                    if isinstance(error, EOFError)
                    else f"a damaged gzip file ({error})"
                )
                hint = "copy it again, or record again"
                raise InputError.of(
                    str(path), "", found, "a whole file", hint
                ) from None
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)
            size += len(piece)
            check_ratio(path, len(data), size, largest)


def check_ratio(
    path: str | Path, packed: int, size: int, largest: float = LARGEST
) -> None:
    """Raises InputError if a file unpacks to more than a real one would."""
    if size > largest or size > max(SMALL, PACKED * packed):
        found = f"{packed} bytes that unpack to more than {size}"
        raise InputError.of(
            str(path),
            "",
            found,
            f"at most {PACKED} times as much",
            "unpack it first",
        )


def read_text(
    path: str | Path, expected: str = "a text file in UTF-8", largest: float = LARGEST
) -> str:
    """The text of a file.

    Raises
    ------
    InputError
        If it cannot be read, is too large, or is no text.
    """
    try:
        return read_bytes(path, expected, largest).decode("utf-8")
    except UnicodeDecodeError:
        raise InputError.of(str(path), "", "bytes that are no text", expected) from None


#: Bytes of a file that somebody writes by hand: a thousand times those of the largest here.
WRITTEN = 2**24


def written_text(path: Path, largest: int = WRITTEN) -> str:
    """The text of a file that somebody wrote, as `Path.read_text` has it; a device without end is no such file.

    Raises
    ------
    OSError
        If it cannot be read.
    ValueError
        If it has more than `largest` bytes, or is not in UTF-8.
    """
    with path.open("rb") as file:
        data = file.read(largest + 1)
    if len(data) > largest:
        raise ValueError(f"more than {largest >> 20} MiB")
    return data.decode("utf-8")


# A key with more parts is no table of ours, and costs the parser the square of them.
# Begins only where a part does: from every letter of a long word it would take the square of its length.
DOTTED = re.compile(r"(?<![\w\"'-])(?:[\w\"'-]+\s*\.\s*){32}")


#: What tomllib says of the most frequent mistakes, and what it means.
_MEANT = {
    "Illegal character '\\n'": "a text without its closing quote",
    "Expected newline or end of document after a statement": "more after a value (a text, such as 3 GB, needs quotes)",
    "Invalid value": "no value (a text needs quotes)",
    "Expected '=' after a key in a key/value pair": "a key without = and a value",
}


def _plainly(text: str) -> str:
    """A mistake of TOML in words; its place stays.

    Examples
    --------
    >>> _plainly("Invalid value (at line 1, column 9)")
    'no value (a text needs quotes) (at line 1, column 9)'
    """
    said, place, rest = text.partition(" (at ")
    return _MEANT.get(said, said) + place + rest


def toml(text: str) -> dict[str, Any]:
    """`tomllib.loads` that refuses what would take it too long or too deep.

    Raises
    ------
    ValueError
        As tomllib does (`TOMLDecodeError`), for values nested too deeply, and for endless numbers.
    """
    if DOTTED.search(text):
        raise ValueError("a key of more than 32 parts")
    try:
        tree = tomllib.loads(text)
    except RecursionError:
        raise ValueError(DEEP) from None
    except tomllib.TOMLDecodeError as error:
        raise tomllib.TOMLDecodeError(_plainly(str(error))) from None
    check_numbers(tree)
    return tree


DEEP = "values nested too deeply"
#: Bits of a whole number: beyond what a float holds (1024), and few enough that it is soon written in decimals.
MOST_BITS = 1400


def beside(module: str) -> dict[str, Any]:
    """The tables of the TOML file that lies beside a module (its `__file__`), and has its name."""
    return toml(written_text(Path(module).with_suffix(".toml")))


def check_numbers(tree: Any) -> None:
    """Refuses endless whole numbers: Python reads them in hexadecimal, and then refuses to write them.

    Raises
    ------
    ValueError
        If one has more than `MOST_BITS` bits.
    """
    left = [tree]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)
        elif isinstance(value, int) and value.bit_length() > MOST_BITS:
            raise ValueError(f"a whole number of more than {MOST_BITS} bits")


def json_of(text: str | bytes) -> Any:
    """`json.loads`; values nested too deeply are a ValueError like any other mistake."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(DEEP) from None
