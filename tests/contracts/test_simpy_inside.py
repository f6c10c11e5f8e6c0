"""What the clock relies on of SimPy's inside: a release of SimPy that changes what they rely on fails here."""

from __future__ import annotations

import ast
from collections.abc import Generator
from heapq import heappop
from pathlib import Path
from typing import Any

import simpy

import prestep.sim.engine
from prestep.sim.engine.clock import LAST, URGENT, Clock

ENGINE = Path(prestep.sim.engine.__file__).parent
CLOCK = ENGINE / "clock.py"
#: Attributes of SimPy's environments and events that it does not document.
INSIDE = {"_queue", "_now", "_ok", "_value"}


def private(path: Path) -> set[str]:
    """Private attributes of something else than `self` that a module reads or sets; of `self` too in the clock."""
    return {
        node.attr
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.endswith("__")
        and (path == CLOCK or ast.unparse(node.value) not in ("self", "cls"))
    }


def test_only_the_clock_reaches_inside() -> None:
    """Every private attribute of SimPy that is used is used by the clock, and checked below."""
    assert private(CLOCK) - {"_alone"} == INSIDE
    for path in ENGINE.rglob("*.py"):
        if path != CLOCK:
            assert not private(path) & {*INSIDE, "_defused", "_eid", "_target"}, path


def test_the_queue_is_a_heap_of_time_priority_number_and_event() -> None:
    """Events come by time, then urgent before normal before last, then in the order in which they were scheduled."""
    env = simpy.Environment()
    events = {name: simpy.Event(env) for name in ("last", "normal", "urgent", "later")}
    env.schedule(events["last"], LAST)
    events["normal"].succeed()
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


def test_events_of_a_moment_come_in_the_order_of_their_priorities() -> None:
    """What is urgent comes first and what is last comes last; else by the order in which events were triggered."""
    clock, came = Clock(), []

    def named(name: str, event: simpy.Event) -> simpy.Event:
        event.callbacks.append(lambda _: came.append((clock.now, name)))
        return event

    def at_once(_: simpy.Event) -> None:
        named("last", clock.after(0.0, LAST))
        named("first", clock.event()).succeed()
        named("second", clock.event()).succeed()
        named("urgent", clock.after(0.0, URGENT))

    clock.timeout(1.0).callbacks.append(at_once)
    named("before", clock.timeout(1.0))
    named("later", clock.after(2.0, LAST))
    clock.run()
    order = ["urgent", "before", "first", "second", "last"]
    assert came == [*((1.0, name) for name in order), (2.0, "later")]
    assert clock.events == 7


def test_a_process_skips_time_in_which_nothing_happens() -> None:
    """The time is the same as with timeouts; where something happens before the end, or now, it has to wait."""

    def run(shortcut: bool) -> tuple[list[tuple[str, float]], int]:
        clock, came = Clock(), []

        def process(name: str, pause: float) -> Generator[Any, Any, None]:
            for _ in range(4):
                if not (shortcut and clock.skip(pause)):
                    yield clock.timeout(pause)
                came.append((name, clock.now))

        clock.process(process("slow", 2.0))
        clock.process(process("fast", 0.5))
        clock.run()
        return came, clock.events

    (skipped, fewer), (waited, events) = run(True), run(False)
    assert skipped == waited and fewer < events


def test_a_clock_moved_on_is_later() -> None:
    """`now` is `_now`: who sets one sets the other."""
    env = simpy.Environment()
    env._now = 2.5
    assert env.now == 2.5


def test_an_event_that_is_triggered_by_hand_has_happened() -> None:
    """With `_ok`, `_value` and a place in the queue an event is what `succeed` makes of it."""
    clock, values = Clock(), []

    def wait(event: simpy.Event) -> Generator[Any, Any, None]:
        values.append((yield event))

    event = clock.after(1.0, URGENT)
    clock.process(wait(event))
    clock.run()
    assert values == [None] and event.ok and event.processed and clock.now == 1.0
