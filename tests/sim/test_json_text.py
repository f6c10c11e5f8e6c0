"""JSON of results is what the standard library writes, letter by letter."""

from __future__ import annotations

import json
from pathlib import Path
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
    ),
    max_leaves=30,
)


@given(VALUES)
def test_as_the_standard_library(value: Any) -> None:
    """Whatever is in it: numbers that are not finite, paths, numpy's scalars, empty tables, zeros with a sign."""
    expected = json.dumps(finite(value), indent=2, allow_nan=False, default=str)
    assert text_of(value) == expected


@given(st.lists(st.sampled_from([0, 0.0, -0.0, 1, 1.0, True, False]), min_size=1))
def test_tables_that_are_equal_have_their_own_text(values: list[float]) -> None:
    """1, 1.0 and True are equal, and are not written the same."""
    table = {str(at): {"a": value} for at, value in enumerate(values)}
    assert text_of(table) == json.dumps(table, indent=2)
