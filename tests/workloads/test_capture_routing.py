"""Which experts are assumed where nobody computes scores."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from prestep.workloads.routing import choices

ROWS, EXPERTS = st.integers(1, 200), st.integers(1, 64)


@st.composite
def routed(draw: st.DrawFn) -> tuple[int, int, int]:
    experts = draw(EXPERTS)
    return draw(ROWS), draw(st.integers(1, experts)), experts


@given(routed(), st.floats(1.0, 8.0))
def test_every_token_goes_to_different_experts(
    case: tuple[int, int, int], busiest: float
) -> None:
    """Each row has as many experts as were asked for, none of them twice, all of them there."""
    rows, count, experts = case
    chosen = choices(rows, count, experts, busiest)
    assert len(chosen) == rows
    for row in chosen:
        assert len(set(row)) == len(row) == count
        assert set(row) <= set(range(experts))


@given(routed())
def test_balanced_experts_have_equal_shares(case: tuple[int, int, int]) -> None:
    """No expert has more than one or two tokens more than another: what is left over by division."""
    rows, count, experts = case
    tokens = Counter(e for row in choices(rows, count, experts) for e in row)
    shares = [tokens[expert] for expert in range(experts)]
    assert max(shares) - min(shares) <= 2


@given(routed(), st.floats(1.0, 8.0))
def test_the_busiest_expert_has_its_share(
    case: tuple[int, int, int], busiest: float
) -> None:
    """The first expert has the factor times the mean, or every token."""
    rows, count, experts = case
    tokens = sum(0 in row for row in choices(rows, count, experts, busiest))
    asked = min(rows, busiest * rows * count / experts)
    assert abs(tokens - asked) <= 1
