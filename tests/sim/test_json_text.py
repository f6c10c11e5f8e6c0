"""JSON of results is what the standard library writes, but for how many digits an exponent has."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from prestep.sim.analysis.json_text import finite, text_of

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(
        [0, 0.0, -0.0, 1, 1.0, True, Path("a"), np.float64(2), np.int64(3)]
    )
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=4)
        | st.dictionaries(st.text(max_size=3), inner).map(MappingProxyType)
    ),
    max_leaves=30,
)


def _lines(text: str) -> list[tuple[int, str]]:
    """Indentation of every line, and what it says, numbers as numbers."""
    lines = []
    for line in text.splitlines():
        key, mark, value = line.strip().rstrip(",").rpartition(": ")
        with suppress(ValueError):
            value = repr(json.loads(value))
        lines.append((len(line) - len(line.lstrip()), key + mark + value))
    return lines


@given(VALUES)
def test_as_the_standard_library(value: Any) -> None:
    """Whatever is in it: numbers that are not finite, paths, numpy's scalars, empty tables, zeros with a sign."""
    expected = json.dumps(finite(value), indent=2, allow_nan=False, default=str)
    text = text_of(value)
    assert text.isascii()
    assert _lines(text) == _lines(expected)


@given(st.lists(st.sampled_from([0, 0.0, -0.0, 1, 1.0, True, False]), min_size=1))
def test_tables_that_are_equal_have_their_own_text(values: list[float]) -> None:
    """1, 1.0 and True are equal, and are not written the same."""
    table = {str(at): {"a": value} for at, value in enumerate(values)}
    assert text_of(table) == json.dumps(table, indent=2)
