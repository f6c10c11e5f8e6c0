"""Keys that `prestep goodput` adds to the section [faults] of a scenario: failures over weeks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from prestep.sim.strict import key, table
from prestep.workloads.job.faults import Faults as OfStep

#: No step has a part for them.
GOODPUT = "`prestep goodput`"
weeks = partial(key, wants=GOODPUT)


@dataclass(frozen=True)
class Faults(OfStep):
    """What is wrong with the machine, or goes wrong; degraded links are changes in [cluster] set."""

    rates: dict[str, str] = table(  # noqa: RUF009
        "goodput: failures per million GPU-hours: { gpu = 9 }", wants=GOODPUT
    )
    takes: dict[str, str] = table(  # noqa: RUF009
        "goodput: hosts that a failure takes out: { rack = 8 }", wants=GOODPUT
    )
    spares: int | None = weeks(None, "goodput: spare hosts; default 32", low=0)
    degraded: bool = weeks(False, "goodput: go on with fewer replicas without spares")
    detect: float | None = weeks(
        None, "goodput: until a failure is noticed", unit="duration"
    )
    repair: float | None = weeks(
        None, "goodput: time to repair a host", unit="duration"
    )
