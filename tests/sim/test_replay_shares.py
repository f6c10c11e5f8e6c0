"""What a GPU did in a step, of any spans: no share is below nothing, and together they are the whole."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from prestep.sim.replay.answers import GpuWork

TIMES = st.floats(0.0, 10.0, allow_subnormal=False)

# A collective of no length cuts a pause in two, whose sum has another last bit.
CUT = [(0.0, 0.2, 0.0, False), (0.8, 0.0, 0.0, True), (0.9, 1.1, 0.0, False)]


@example(CUT)
@given(st.lists(st.tuples(TIMES, TIMES, TIMES, st.booleans()), min_size=1, max_size=30))
def test_shares_are_parts_of_the_whole(
    rows: list[tuple[float, float, float, bool]],
) -> None:
    """Compute, exposed communication and pauses fill the time from the first start to the last end."""
    spans = [(start, start + length, launch) for start, length, launch, _ in rows]
    axes = ["dp" if communicates else "" for *_, communicates in rows]
    work = GpuWork.of(spans, axes)
    shares, overlap = work.shares(), work.overlap("dp")
    assert overlap["exposed"] == pytest.approx(shares["exposed communication"])
    whole = max(end for _, end, _ in spans) - min(start for start, _, _ in spans)
    assert min(shares.values()) >= 0
    assert sum(shares.values()) == pytest.approx(whole, abs=1e-12)
