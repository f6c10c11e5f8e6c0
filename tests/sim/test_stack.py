"""Room on Python's stack: no depth at which a function begins makes its calls dear."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from prestep.sim.tools.process import with_room

resource = pytest.importorskip("resource")
CALLS = 3000


def nothing() -> None:
    """A call."""


def calls() -> int:
    """Page faults of many calls in a row: one that begins a piece of the stack anew has one."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(CALLS):
        nothing()
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)


def at_depth(depth: int, function: Callable[[], int]) -> int:
    return at_depth(depth - 1, function) if depth else function()


def test_no_depth_makes_calls_dear() -> None:
    """At each of many depths calls in a row leave the stack's pieces alone."""
    begun = with_room(calls)
    assert max(at_depth(depth, begun) for depth in range(250)) < CALLS / 2


def test_arguments_values_and_mistakes_pass() -> None:
    """A function with room is the function."""

    @with_room
    def divided(one: float, by: float = 1.0) -> float:
        """One by another."""
        return one / by

    assert divided(6.0, by=2.0) == 3.0 and divided.__doc__ == "One by another."
    with pytest.raises(ZeroDivisionError):
        divided(1.0, by=0.0)
