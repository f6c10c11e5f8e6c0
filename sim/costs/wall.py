"""What a cluster draws at the wall beside its GPUs: hosts, switches, losses."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Wall:
    """Constants of hosts and switches.

    Attributes
    ----------
    host_per_gpu
        Watts of a host's other parts, by its GPUs.
    overhead
        Watts at the wall for every watt of the GPUs: power supplies and, where air cools them, fans.
    switch
        Watts of a switch of the network.
    """

    host_per_gpu: float
    overhead: float
    switch: float


@cache
def wall(liquid: bool = False) -> Wall:
    """The constants of wall.toml, of hosts that air cools, or liquid."""
    table = tomllib.loads(Path(__file__).with_name("wall.toml").read_text("utf-8"))
    overhead = table.pop("liquid_overhead")
    return Wall(**(table | {"overhead": overhead} if liquid else table))
