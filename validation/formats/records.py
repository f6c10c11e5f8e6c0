"""Files of measured rows and the values of a row, read strictly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sim.errors import InputError, Mistake


def text_of(path: Path) -> str:
    """The text of a file; what keeps it from being read is an InputError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            Mistake(str(path), "", str(error), "rows of measured collectives")
        ) from None


def whole(record: Mapping[str, Any], key: str, where: str, low: int) -> int:
    """A whole number of a record, at least `low`."""
    value = record.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        found = "nothing" if value is None else repr(value)
        raise InputError(
            Mistake(where, key, found[:60], f"a whole number, at least {low}")
        )
    return value


def seconds(record: Mapping[str, Any], key: str, where: str) -> float:
    """A duration of a record, s."""
    value = record.get(key)
    good = (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value > 0
    )
    if not good:
        found = "nothing" if value is None else repr(value)
        raise InputError(Mistake(where, key, found[:60], "seconds, more than 0"))
    return float(value)  # type: ignore[arg-type]
