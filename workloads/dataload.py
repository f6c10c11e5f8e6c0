"""Reading data: workers that make microbatches, a queue of prefetched ones, and the copy to the GPU.

A worker takes `batch_time` for a microbatch; `workers` of them make `workers / batch_time` a second. Without them the
training process makes each batch itself, and nothing overlaps. With them a step takes as long as the slower of the two:
the queue evens out what varies, never the rate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sim.errors import InputError, Mistake
from sim.layout import microbatches_of
from sim.units import format_duration

if TYPE_CHECKING:
    from sim.sections import Dataload, Scenario


def fed(asked: Dataload, scenario: Scenario, step: float) -> dict[str, Any]:
    """How long a step takes with its data, in s.

    `read_time`: what the readers need for the microbatches of one step; `exposed`: what of it the step waits for.

    Raises
    ------
    InputError
        If [dataload] does not say how long a batch takes.
    """
    if asked.batch_time is None:
        hint = "time of one worker to make one microbatch"
        raise InputError(Mistake(scenario.where, "dataload.batch_time", "nothing", 'a duration such as "20 ms"', hint))
    batches = microbatches_of(scenario)
    read = batches * asked.batch_time / max(1, asked.workers)
    total = step + read if asked.workers == 0 else max(step, read)
    queue = asked.workers * asked.prefetch
    return {
        "batches": batches, "read_time": read, "prefetched": queue, "exposed": total - step,
        "step_time_with": total, "input_bound": asked.workers > 0 and read > step,
        "first_batch": asked.batch_time,
    }  # fmt: skip


def words(table: dict[str, Any]) -> list[tuple[str, str]]:
    """Rows (what, how much) for people."""
    state = (
        "input-bound" if table["input_bound"] else "data waits for the GPU" if not table["exposed"] else "no overlap"
    )
    return [
        ("reading a step's data", format_duration(table["read_time"])),
        ("step with its data", f"{format_duration(table['step_time_with'])}: {state}"),
    ]
