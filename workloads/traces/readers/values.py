"""Numbers in a trace, which tools write as numbers, as text, or with words around them."""

from __future__ import annotations

import re
from typing import Any

LARGEST = 1 << 62  # an id that the table can hold
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
    if type(value) is int and -LARGEST < value < LARGEST:
        return value
    for candidate in (value, other):
        try:
            whole = int(candidate)
        except (TypeError, ValueError, OverflowError):
            continue
        if -LARGEST < whole < LARGEST:
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
    return int(digits[0]) % LARGEST if digits else sum(ord(c) for c in str(value))
