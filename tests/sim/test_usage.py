"""The sum of what transfers put on links."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prestep.sim.graph.opgraph import Usage, by_link

AMOUNTS = st.lists(st.tuples(st.integers(0, 9), st.floats(0.0, 1e9)), max_size=8)


def usage(pairs: list[tuple[int, float]]) -> Usage:
    links = np.array([link for link, _ in pairs], dtype=np.int64)
    return links, np.array([amount for _, amount in pairs], dtype=np.float64)


@given(st.lists(AMOUNTS, max_size=5))
def test_a_sum_by_link_keeps_every_byte(parts: list[list[tuple[int, float]]]) -> None:
    """Every link once, ascending; on each the sum of its amounts, and none is lost."""
    links, amounts = by_link([usage(part) for part in parts])
    given_pairs = [pair for part in parts for pair in part]
    assert links.tolist() == sorted({link for link, _ in given_pairs})
    for link, amount in zip(links.tolist(), amounts.tolist(), strict=True):
        assert amount == pytest.approx(sum(a for at, a in given_pairs if at == link))
