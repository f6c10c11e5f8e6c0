"""What the engine uses of SimPy's inside: a release of SimPy that changes it fails here, not in a prediction."""

from __future__ import annotations

import ast
from heapq import heappop
from pathlib import Path

import pytest
import simpy
from simpy.events import NORMAL, URGENT

import prestep.sim.engine
from prestep.sim.engine.fluid import LAST

ENGINE = Path(prestep.sim.engine.__file__).parent
#: Attributes of SimPy's environments and events that it does not document.
INSIDE = {"_queue", "_now", "_ok", "_value"}


def attributes(source: str) -> set[str]:
    """Private attributes of environments and events that a module reads or sets."""
    return {
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and ast.unparse(node.value).rpartition(".")[2] in ("env", "event", "end")
    }


def test_the_engine_uses_no_more_of_its_inside() -> None:
    """Every private attribute that the engine touches is checked below."""
    sources = (path.read_text(encoding="utf-8") for path in ENGINE.glob("*.py"))
    assert set().union(*map(attributes, sources)) == INSIDE


def test_the_queue_is_a_heap_of_time_priority_number_and_event() -> None:
    """Events come by time, then urgent before normal before last, then in the order in which they were scheduled."""
    env = simpy.Environment()
    events = {name: simpy.Event(env) for name in ("last", "normal", "urgent", "later")}
    env.schedule(events["last"], LAST)
    env.schedule(events["normal"], NORMAL)
    env.schedule(events["urgent"], URGENT)
    env.schedule(events["later"], URGENT, delay=1.0)
    popped = []
    while env._queue:
        time, _, _, event = heappop(env._queue)
        popped.append((time, event))
    assert popped == [
        (0.0, events["urgent"]),
        (0.0, events["normal"]),
        (0.0, events["last"]),
        (1.0, events["later"]),
    ]


def test_a_set_event_wakes_who_waits_with_its_value() -> None:
    """An event is triggered by its `_ok` and `_value`, and its callbacks are called once it comes out of the queue."""
    env, values = simpy.Environment(), []

    def wait(event: simpy.Event) -> object:
        values.append((yield event))

    event = simpy.Event(env)
    env.process(wait(event))
    event._ok, event._value = True, 3
    env.schedule(event, URGENT)
    env.run()
    assert values == [3] and event.callbacks is None and event.processed


def test_the_clock_is_the_environments() -> None:
    """`now` is `_now`: who sets one sets the other."""
    env = simpy.Environment()
    env._now = 2.5
    assert env.now == 2.5


def test_a_failed_event_that_nobody_defused_ends_the_run() -> None:
    """The engine raises the value of a failed event as `Environment.run` does, unless it is marked as `_defused`."""
    env = simpy.Environment()
    event = env.event().fail(ValueError("wrong"))
    assert not event._ok and not hasattr(event, "_defused")
    with pytest.raises(ValueError, match="wrong"):
        env.run()
    env = simpy.Environment()
    event = env.event().fail(ValueError("wrong"))
    event.defused = True
    assert hasattr(event, "_defused")
    env.run()
