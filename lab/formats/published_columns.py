"""What the cells of a published row say: numbers, formats and settings, as people print them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from prestep.sim.errors import InputError, Mistake

# The first that is in the text counts.
RECOMPUTE = (
    ("full", "full"),
    ("select", "selective"),
    ("none", "none"),
    (r"^(no|off|false|0)$", "none"),
    (r"^(yes|on|true|1|all)$", "full"),
)
PRECISIONS = (
    ("mx ?fp4|nv ?fp4|fp4", "nvfp4"),
    ("fp8|float8|e4m3", "fp8"),
    ("bf16|bfloat16", "bf16"),
    ("fp16|float16|half|16-mixed", "fp16"),
    ("tf32", "tf32"),
    ("fp32|float32|single", "fp32"),
)
MOST = 10**15  # of anything in a cell: beyond it a slip of the pen
SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def number(text: str) -> float:
    """A number as printed: digits, commas between thousands, "1.2k".

    Raises
    ------
    ValueError
        If the text is no number.
    """
    match = re.fullmatch(
        r"(-?[\d,]*\.?\d+(?:e[+-]?\d+)?)\s*([KMBT]?)", text.strip(), re.IGNORECASE
    )
    if not match:
        raise ValueError(text)
    return float(match[1].replace(",", "")) * SUFFIXES[match[2].upper()]


def natural(text: str) -> int:
    """The whole number that digits with or without thousands' commas are; 0 for all else, and for a slip of the pen."""
    digits = text.strip().replace(",", "")
    if not (digits.isdecimal() and len(digits) <= len(str(MOST))):
        return 0
    return int(digits) if int(digits) <= MOST else 0


def positive(row: Mapping[str, str], name: str, where: str, what: str) -> float:
    """A finite number above 0; `what`: that it is, with its unit.

    Raises
    ------
    InputError
        If the cell has something else.
    """
    try:
        value = number(row[name])
    except ValueError:
        value = 0.0
    if not 0 < value <= MOST:
        raise InputError(Mistake(where, name, f'"{row[name]}"', f"{what} above 0"))
    return value


def whole(row: Mapping[str, str], name: str, default: int) -> int:
    """A whole number, or the default where the cell is empty.

    Raises
    ------
    InputError
        If the cell has something else.
    """
    text = (row.get(name) or "").strip()
    if not text:
        return default
    try:
        value = number(text)
        if value != int(value) or abs(value) > MOST:
            raise ValueError
        return int(value)
    except (ValueError, OverflowError):
        raise InputError(
            Mistake(row["id"], name, f'"{text}"', f"a whole number, at most {MOST:g}")
        ) from None


def count(row: Mapping[str, str], name: str, default: int) -> int:
    """A whole number above 0.

    Raises
    ------
    InputError
        If the cell has something else.
    """
    found = whole(row, name, default)
    if found < 1:
        raise InputError(
            Mistake(row["id"], name, f'"{row.get(name, "")}"', "a whole number above 0")
        )
    return found


def chosen(
    row: Mapping[str, str], key: str, known: Sequence[tuple[str, str]]
) -> dict[str, str]:
    """{key: what the text means}; empty where the cell is.

    Raises
    ------
    InputError
        If the cell says something that is not known: a default would be another run than the one measured.
    """
    text = (row.get(key) or "").strip()
    if not text or text.lower() in ("n/a", "-", "?", "unknown"):
        return {}
    for part, value in known:
        if re.search(part, text, re.IGNORECASE):
            return {key: value}
    words = sorted({value for _, value in known})
    raise InputError(Mistake(row["id"], key, f'"{text}"', f"one of {', '.join(words)}"))
