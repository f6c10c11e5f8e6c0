"""The values made last."""

from hypothesis import given
from hypothesis import strategies as st

from prestep.sim.studies.whatif import Recent


@given(st.lists(st.integers(0, 6)), st.integers(1, 4))
def test_the_last_keys_are_kept(asked: list[int], most: int) -> None:
    """A value is made again only if as many other keys were asked for since; no more than the limit are kept."""
    recent: Recent[list[int]] = Recent(most)
    made: list[int] = []
    for at, key in enumerate(asked):
        before = len(made)
        assert recent.of([key], lambda key=key: made.append(key) or [key]) == [key]
        since = asked[:at][::-1]
        others = set(since[: since.index(key)]) if key in since else None
        assert (len(made) == before) == (others is not None and len(others) < most)
    kept = [key for key in range(7) if recent.get([key]) is not None]
    assert len(kept) == min(most, len(set(asked)))
