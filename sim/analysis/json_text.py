"""JSON text of plain values, as `json.dumps(finite(value), indent=2)` writes it, but fast for a hundred thousand ranks.

The standard library indents in Python, a call for every number. Here a table is written in one go, and tables that are
equal (the memory of ranks that do the same) once.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii
from typing import Any

STEP = "  "
_PLAIN = {True: "true", False: "false", None: "null"}


def finite(value: Any) -> Any:
    """A value as JSON can carry it: numpy's scalars plain, numbers that are not finite None."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if hasattr(value, "item"):  # numpy's scalars
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def text_of(value: Any) -> str:
    """JSON text of a value; what JSON does not have is written as its `str`."""
    return _Writer().text(value, "\n")


class _Writer:
    """Writes values; `new_line` is a line break with the indentation of the place."""

    def __init__(self) -> None:
        self._tables: dict[tuple[Any, ...], str] = {}
        self._floats: dict[float, str] = {}

    def text(self, value: Any, new_line: str) -> str:
        if isinstance(value, str):
            return encode_basestring_ascii(value)
        if type(value) is float:
            return self._float(value)
        if isinstance(value, dict | Mapping):  # dict is found quickly
            return self._table(value, new_line)
        if isinstance(value, list | tuple):
            deeper = new_line + STEP
            items = [self.text(item, deeper) for item in value]
            return _enclosed("[", items, "]", new_line)
        return _scalar(value)

    def _float(self, value: float) -> str:
        """A float's shortest digits, found once: many ranks take as long, or hold as much."""
        text = self._floats.get(value)
        if text is None:
            text = float.__repr__(value) if math.isfinite(value) else "null"
            if value:  # 0.0 and -0.0 are equal, and their texts are not
                self._floats[value] = text
        return text

    def _table(self, table: Mapping[Any, Any], new_line: str) -> str:
        # Long tables are not among many that are equal. 1 and True are equal, and their texts are not.
        values = table.values()
        if len(table) > 64 or set(map(type, values)) != {float}:
            return self._written(table, new_line)
        # Bytes tell 0.0 from -0.0.
        key = (new_line, tuple(table), array("d", values).tobytes())
        if key not in self._tables:
            self._tables[key] = self._written(table, new_line)
        return self._tables[key]

    def _written(self, table: Mapping[Any, Any], new_line: str) -> str:
        deeper = new_line + STEP
        items = [
            f"{encode_basestring_ascii(str(key))}: {self.text(item, deeper)}"
            for key, item in table.items()
        ]
        return _enclosed("{", items, "}", new_line)


def _enclosed(first: str, items: list[str], last: str, new_line: str) -> str:
    if not items:
        return first + last
    deeper = new_line + STEP
    return f"{first}{deeper}{f',{deeper}'.join(items)}{new_line}{last}"


def _scalar(value: Any) -> str:
    plain = finite(value)
    if plain is None or plain is True or plain is False:
        return _PLAIN[plain]
    if isinstance(plain, float):
        return float.__repr__(plain)
    if isinstance(plain, int):
        return int.__repr__(plain)
    return encode_basestring_ascii(str(plain))
