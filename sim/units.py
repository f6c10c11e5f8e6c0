"""Quantities with units, at the edge only: inside everything is bytes, bytes/s and seconds.

Decimal prefixes are powers of 1000 and binary ones (KiB, MiB) of 1024; `bit` is an eighth of a byte.

>>> parse_bytes("25 MiB"), parse_bandwidth("400 Gbit/s"), parse_duration("2 us")
(26214400.0, 50000000000.0, 2e-06)
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence

from prestep.sim.errors import InputError, did_you_mean

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_PREFIXES = {**_DECIMAL, **_BINARY}

BYTES = {f"{prefix}B": factor for prefix, factor in _PREFIXES.items()}
BANDWIDTHS = {
    **{f"{unit}/s": factor for unit, factor in BYTES.items()},
    **{f"{prefix}bit/s": factor / 8 for prefix, factor in _PREFIXES.items()},
    **{f"{prefix}bps": factor / 8 for prefix, factor in _DECIMAL.items() if prefix},
}
RATES = {
    f"{prefix}{unit}": factor
    for unit in ("FLOP/s", "FLOPS", "flop/s")
    for prefix, factor in _DECIMAL.items()
}
WATTS = {"W": 1.0, "kW": 1e3, "MW": 1e6}
# Divisors where the unit is below one second: 1 / 1e6 is the float closest to a microsecond, 1 * 1e-6 not always.
_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "µs": 1e6, "ns": 1e9, "ps": 1e12}
_SECONDS = {"min": 60.0, "h": 3600.0, "d": 86400.0}
DURATIONS = {**{unit: 1 / per for unit, per in _PER_SECOND.items()}, **_SECONDS}

_QUANTITY = re.compile(
    r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*"
)

# Sums of squares of larger numbers leave what a float can hold.
LARGEST = 1e30


def _parse(
    text: object, units: dict[str, float], example: str, where: str, key: str
) -> tuple[float, str]:
    expected = f'a quantity with a unit such as "{example}"'
    if not isinstance(text, str):
        names = ["Gbit/s", "GB/s"] if units is BANDWIDTHS else [example.split()[-1]]
        hint = _write(str(text), names)
        raise InputError.of(where, key, repr(text), expected, hint)
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise InputError.of(where, key, f'"{text}"', expected)
    number, unit = float(match[1].replace("_", "")), match[2]
    if unit not in units:
        hint = _hint(match[1], unit, units)
        raise InputError.of(where, key, f'"{text}"', expected, hint)
    if limit := _limit(number):
        raise InputError.of(where, key, f'"{text}"', limit)
    return number, unit


def _hint(number: str, unit: str, units: dict[str, float]) -> str:
    """What to write instead of a unit that is unknown, cut short or missing."""
    if not unit:
        return f"the unit is missing; units: {', '.join(list(units)[:8])}, ..."
    endings = ("bit/s", "it/s", "B/s", "B", "FLOP/s")
    # "800G": the reader knows of what; "400 Gb": in which time.
    whole = [unit + end for end in endings if unit + end in units]
    return _write(number, whole) if whole else did_you_mean(unit, units)


def _write(number: str, units: Iterable[str]) -> str:
    return "write " + " or ".join(f'"{number} {name}"' for name in units)


def _limit(number: float) -> str:
    """What a number should be that no quantity can be; empty for all others."""
    if not math.isfinite(number) or number < 0:
        return "a finite quantity that is not negative"
    if number > LARGEST:
        return f"a quantity of at most {LARGEST:g} of its unit"
    return ""


def parse_bytes(text: object, where: str = "quantity", key: str = "") -> float:
    """Bytes in a text such as "25 MiB", "4 GB" or "0 B".

    Raises
    ------
    InputError
        If `text` is not a text, has no unit or an unknown one, or is negative.
    """
    number, unit = _parse(text, BYTES, "25 MiB", where, key)
    return number * BYTES[unit]


def parse_bandwidth(text: object, where: str = "quantity", key: str = "") -> float:
    """Bytes per second in a text such as "100 GB/s" or "400 Gbit/s" (an eighth); raises like `parse_bytes`."""
    number, unit = _parse(text, BANDWIDTHS, "100 GB/s", where, key)
    return number * BANDWIDTHS[unit]


def parse_rate(text: object, where: str = "quantity", key: str = "") -> float:
    """Operations per second in a text such as "900 TFLOP/s" or "1 PFLOPS"; raises like `parse_bytes`."""
    number, unit = _parse(text, RATES, "900 TFLOP/s", where, key)
    return number * RATES[unit]


def parse_power(text: object, where: str = "quantity", key: str = "") -> float:
    """Watts in a text such as "500 W" or "0.7 kW"; raises like `parse_bytes`."""
    number, unit = _parse(text, WATTS, "500 W", where, key)
    return number * WATTS[unit]


def parse_duration(text: object, where: str = "quantity", key: str = "") -> float:
    """Seconds in a text such as "1 us", "20 ms" or "2 h"; raises like `parse_bytes`."""
    number, unit = _parse(text, DURATIONS, "1 us", where, key)
    return (
        number / _PER_SECOND[unit] if unit in _PER_SECOND else number * _SECONDS[unit]
    )


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"


def _scaled(value: float, units: list[tuple[str, float]]) -> str:
    """`value` in the largest unit that leaves a number of at least one (units in rising order)."""
    unit, factor = units[0]
    for name, size in units:
        # 0.99995 of a unit prints as 1 of it: "1 MiB", not "1024 KiB".
        if abs(value) >= size * 0.99995:
            unit, factor = name, size
    return f"{_number(value / factor)} {unit}"


def format_bytes(size: float) -> str:
    """`26214400.0` -> "25 MiB"."""
    return _scaled(
        size,
        [("B", 1.0), *((f"{prefix}B", factor) for prefix, factor in _BINARY.items())],
    )


def format_bandwidth(bandwidth: float) -> str:
    """`5e10` -> "50 GB/s"; decimal, as vendors and nccl-tests print it."""
    return _scaled(
        bandwidth, [(f"{p}B/s", _DECIMAL[p]) for p in ("", "k", "M", "G", "T", "P")]
    )


def format_duration(duration: float) -> str:
    """`0.0831` -> "83.1 ms"."""
    if duration == 0:
        return "0 s"
    return _scaled(duration, [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)])


#: Seconds below which a difference is nothing: less is rounding.
LEAST_DIFFERENCE = 5e-10


def format_difference(seconds: float) -> str:
    """A difference of durations with its sign.

    Examples
    --------
    >>> format_difference(-0.0012), format_difference(2.0), format_difference(0.0)
    ('-1.2 ms', '+2 s', '0 s')
    """
    if abs(seconds) < LEAST_DIFFERENCE:
        return "0 s"
    return f"{'-' if seconds < 0 else '+'}{format_duration(abs(seconds))}"


def parse_nccl_size(text: str, key: str = "") -> float:
    """Whole bytes as nccl-tests takes them: "8", "128M", "1.5g" are powers of 1024; a full unit ("4 GB") works too."""
    match = re.fullmatch(r"\s*(\d+|\d*\.\d+)\s*([KMGTkmgt]?)\s*", text)
    if match is None:
        return parse_bytes(text, "command line", key)
    return float(
        int(float(match[1]) * (_BINARY[f"{match[2].upper()}i"] if match[2] else 1.0))
    )


def percent(share: float, signed: bool = False) -> str:
    """`0.0123` -> `1.2 %`; `-` for what is not known."""
    if not math.isfinite(share):
        return "-"
    return f"{100 * share:+.1f} %" if signed else f"{100 * share:.1f} %"


def count(number: float) -> str:
    """`97412.3` -> `97 412`."""
    return f"{number:,.0f}".replace(",", " ") if abs(number) >= 100 else f"{number:.3g}"


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] = ()) -> list[str]:
    """Lines of a table: columns as wide as their widest cell, to the right but for those in `left`.

    Examples
    --------
    >>> aligned([["", "name", "time"], ["1", "ring", "12 ms"]], left=(1,))
    ['   name   time', '1  ring  12 ms']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if at in left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
