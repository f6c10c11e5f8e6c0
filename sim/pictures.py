"""What every picture by matplotlib shares: equal input makes equal bytes, and names are names, not formulas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.text import Text


@contextmanager
def reproducible(figure: Any, salt: str = "prestep") -> Iterator[None]:
    """Saves the figure within: fixed ids, text as text, and no `$...$` of a name taken for mathematics."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    with matplotlib.rc_context({"svg.hashsalt": salt, "svg.fonttype": "none"}):
        yield
