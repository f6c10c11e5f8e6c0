"""Files of measured rows and the values of a row, read strictly."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prestep.sim import files
from prestep.sim.errors import InputError, Mistake

#: Bytes of a log.
LARGEST = 2**28


def text_of(path: Path, expected: str = "rows of measured collectives") -> str:
    """The text of a file; what keeps it from being read is an InputError."""
    try:
        return files.written_text(path, LARGEST)
    except (OSError, ValueError) as error:
        raise InputError.of(str(path), "", str(error), expected) from None


def read_lines(text: str, name: str, take: Callable[[Any, str], None]) -> None:
    """Hands every line of a file in JSON to `take`, with its place; blank ones are left out.

    Raises
    ------
    InputError
        With the mistakes of all lines: no JSON, or what `take` raises.
    """
    mistakes: list[Mistake] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{name}:{number}"
        try:
            take(files.json_of(line), where)
        except InputError as error:
            mistakes.extend(error.mistakes)
        except ValueError as error:
            mistakes.append(not_json(error, where))
    InputError.check(mistakes)


def whole(record: Mapping[str, Any], key: str, where: str, low: int) -> int:
    """A whole number of a record, at least `low`."""
    value = record.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        found = "nothing" if value is None else repr(value)
        raise InputError.of(where, key, found[:60], f"a whole number, at least {low}")
    return value


def seconds(record: Mapping[str, Any], key: str, where: str) -> float:
    """A duration of a record, s."""
    value = record.get(key)
    if not is_positive(value):
        found = "nothing" if value is None else repr(value)
        raise InputError.of(where, key, found[:60], "seconds, more than 0")
    return float(value)  # type: ignore[arg-type]


def is_positive(value: object) -> bool:
    """Whether a value is a finite number above 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value <= sys.float_info.max  # type: ignore[operator]


def not_json(error: ValueError, where: str) -> Mistake:
    """The mistake of a line that is no JSON, is nested too deeply, or has a number of thousands of digits."""
    found = getattr(error, "msg", str(error))
    return Mistake(where, "", found, "one JSON object a line")
