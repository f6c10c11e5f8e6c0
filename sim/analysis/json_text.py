"""JSON text of plain values, indented: msgspec writes it, fast for a hundred thousand ranks."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from prestep.sim.extras import lazily

with lazily():
    from msgspec import json as encoder

#: Letters that are written as escapes, so that a terminal or a file of any encoding can hold them.
_BEYOND_ASCII = re.compile("[^\x00-\x7e]")


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
    """JSON text of a value, indented by two; what JSON does not have is written as its `str`.

    Examples
    --------
    >>> print(text_of({"step": 0.5, "mfu": float("nan"), "ranks": []}))
    {
      "step": 0.5,
      "mfu": null,
      "ranks": []
    }
    """
    dense = encoder.encode(value, enc_hook=_plain)
    text = encoder.format(dense, indent=2).decode()
    return _BEYOND_ASCII.sub(lambda letter: json.dumps(letter[0])[1:-1], text)


def _plain(value: Any) -> Any:
    """Mappings that are no `dict`, and numpy's scalars, as msgspec knows them."""
    if isinstance(value, Mapping):
        return dict(value)
    return value.item() if hasattr(value, "item") else str(value)
