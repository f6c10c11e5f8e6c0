"""What the time of a save rests on: the constant that binds each of its legs, with value, grade and source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from prestep.sim.analysis.metrics import evidence_shares
from prestep.sim.engine.storage import Leg
from prestep.sim.storage.systems import REQUEST, THREADS, System, host_table
from prestep.topologies.fabric import Fabric

# Constants of sim/costs/checkpoint.toml behind each leg; where a leg has links, the slower of both binds it.
OF_LEG = {
    "plan": ("plan_tensor", "plan_writer"),
    "context": ("context",),
    "serialise": ("serialise",),
    "finish": ("result_tensor", "result_writer"),
}


def rests_on(
    legs: Sequence[Leg],
    ends: Mapping[str, float],
    system: System,
    fabric: Fabric,
    bandwidth: np.ndarray,
    copied: tuple[str, ...],
) -> list[dict[str, Any]]:
    """A row for every leg of the slowest writer: leg, seconds, what binds it, evidence, source.

    Parameters
    ----------
    legs, ends
        Of that writer, and when each leg ended (s).
    bandwidth
        Bytes/s of the cluster's links and of those in front of the storage.
    copied
        The constants behind copies to the host's memory.
    """
    of_leg = {**OF_LEG, "copy": copied}
    rows, begun = list[dict[str, Any]](), 0.0
    for leg in legs:
        end = ends[leg.name]
        what, grade, source = _binding(
            leg, end - begun, of_leg.get(leg.name, ()), system, fabric, bandwidth
        )
        row = {"leg": leg.name, "seconds": end - begun, "what": what}
        rows.append(row | {"evidence": grade, "source": source})
        begun = end
    return rows


def _binding(
    leg: Leg,
    seconds: float,
    constants: tuple[str, ...],
    system: System,
    fabric: Fabric,
    bandwidth: np.ndarray,
) -> tuple[str, str, str]:
    """What holds a leg to its time: its own cap if it ran at it, else the tightest of its links."""
    if not leg.size or (
        leg.size / leg.cap >= 0.98 * (seconds - leg.latency) and constants
    ):
        return _worst(constants)
    if leg.cap < float("inf") and leg.size / leg.cap >= 0.98 * (seconds - leg.latency):
        return _of_system(system)
    if not len(leg.links):
        return _of_system(system)
    row = int(leg.links[int(np.argmin(bandwidth[leg.links] / leg.usage))])
    if row >= len(fabric.links):
        return _of_system(system)
    source = f"the cluster file of {fabric.name}"
    return f"link {fabric.links.name(row)}", str(fabric.links.evidence[row]), source


def _worst(names: Sequence[str]) -> tuple[str, str, str]:
    """The least known of constants that work together."""
    order = ("measured", "fitted", "datasheet", "guess")
    rows = [(name, *host_table()[name][1:]) for name in names]
    none = ("nothing", "measured", "")
    return max(rows, key=lambda row: order.index(row[1]), default=none)


def _of_system(system: System) -> tuple[str, str, str]:
    """The constant of the storage that limits writing in large requests most; `latency` goes with `thread`."""
    many = THREADS * REQUEST / (system.latency + REQUEST / system.thread)
    iops = None if system.merges or system.iops is None else system.iops * REQUEST
    limits = (("write", system.write), ("client", system.client), ("iops", iops))
    rates = {name: rate for name, rate in limits if rate is not None} | {"thread": many}
    name = min(rates, key=rates.__getitem__)
    grade, source = system.evidence.get(name, "guess"), system.source.get(name, "")
    return f"{system.name}: {name}", str(grade), str(source)


def shares(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Share of a save's time by evidence grade."""
    return evidence_shares(
        [row["evidence"] for row in rows], np.array([row["seconds"] for row in rows])
    )
