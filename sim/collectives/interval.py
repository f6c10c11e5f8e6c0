"""Prediction interval of a single collective, from the errors on calibration rows.

Constants of NCCL on a GPU that was fitted, on one that stands on another's, and of networks are off by different
shares, and so are those of kinds of fabric: they were fitted to GPUs that meet in NVSwitches, and say less of NVLinks
from GPU to GPU, of PCIe and of a rack that is one NVLink domain. Each kind has three widths
(sim/costs/uncertainty.toml, `[alone.*]`): of what no bandwidth shortens (launch, hops), of bytes over links, and of
sizes where both count (pipelines that fill, NCCL's change of protocol).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.wires import network
from prestep.sim.collectives.wires.network import INSIDE
from prestep.sim.costs.spreads import NOMINAL, quantile, tables

NETWORK, SHAPED = "network", "shaped"
#: Fabrics inside an NVLink domain that are not one host of NVSwitches.
DIRECT, PCIE, RACK = "direct", "pcie", "rack"
PARTS = ("latency", "between", "bandwidth")


@dataclass(frozen=True)
class Interval:
    """Seconds between which `NOMINAL` of measured times lie, their relative spread, and whose widths these are."""

    low: float
    high: float
    spread: float
    place: str

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "nominal": NOMINAL}


def widths() -> Mapping[str, Mapping[str, float]]:
    """Relative standard deviations by place and part."""
    return tables()["alone"]


def place_of(plan: Plan, fabric: Any) -> str:
    """Whose widths a plan has: those of the kind of fabric that it crosses, or of its GPU's constants by grade.

    Examples
    --------
    >>> from prestep.sim.collectives.planner import plan_collective
    >>> from prestep.topologies import load_cluster
    >>> fabric = load_cluster("l40s-host")
    >>> place_of(plan_collective("all_reduce", 2.0**30, fabric.gpus[:3], fabric, None), fabric)
    'pcie'
    """
    kinds = set(fabric.links.kinds_on(plan.links))
    if kinds - INSIDE:
        return SHAPED if network.has_token_bucket(fabric) else NETWORK
    # Any other link than NVLink: what passes PCIe shares it, and the CPUs' way between sockets is anybody's guess.
    if kinds - {"nvlink"}:
        return PCIE
    if len({fabric.host_of(gpu) for gpu in plan.ranks}) > 1:
        return RACK
    if _joins_gpus(plan, fabric):
        return DIRECT
    return plan.evidence if plan.evidence in widths() else "guess"


def _joins_gpus(plan: Plan, fabric: Any) -> bool:
    """Whether a link of the plan leads from one GPU to another, with no switch between them."""
    kinds = np.array(fabric.nodes.kinds)
    source, target = (kinds[ends[plan.links]] for ends in fabric.ends)
    return bool(np.any((source == "gpu") & (target == "gpu")))


def spread(place: str, latency: float) -> float:
    """Standard deviation of the logarithm of a time of which the share `latency` is not shortened by bandwidth.

    Examples
    --------
    >>> spread("fitted", 1.0) == widths()["fitted"]["latency"]
    True
    """
    parts = widths()[place]
    shares = latency, 4.0 * latency * (1.0 - latency), 1.0 - latency
    return math.hypot(
        *(share * parts[part] for share, part in zip(shares, PARTS, strict=True))
    )


def latency_share(plan: Plan, fabric: Any) -> float:
    """How much of its time on an idle network no bandwidth shortens, 0 to 1."""
    time = plan.duration(fabric.links.bandwidth)
    return min(1.0, plan.latency / time) if time > 0 else 1.0


def interval_of(plan: Plan, fabric: Any, time: float | None = None) -> Interval:
    """The interval of a plan's time on an idle network, or of `time` seconds that it is predicted to take."""
    place = place_of(plan, fabric)
    middle = plan.duration(fabric.links.bandwidth) if time is None else time
    deviation = spread(place, latency_share(plan, fabric))
    factor = math.exp(quantile() * deviation)
    return Interval(middle / factor, middle * factor, deviation, place)
