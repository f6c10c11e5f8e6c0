"""What a GPU draws: while it waits, while kernels run, for every flop and every byte of theirs; and what hosts do."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

#: Products of attention, in `Draw.flop` beside the number formats.
ATTENTION = "attention"


@dataclass(frozen=True)
class Draw:
    """Constants of a GPU at its highest clock.

    Attributes
    ----------
    idle
        Watts with clocks up and no kernel.
    active
        Watts beyond while a kernel runs, whatever it does.
    byte
        Joules of a byte of HBM traffic.
    flop
        Joules of a floating-point operation, by number format; of attention under `ATTENTION`.
    moved
        Joules of a byte that communication reads or writes in HBM; measured of a copy by 8 to 64 blocks on an H200.
    exponent
        Power of arithmetic beyond `idle` follows the clock to this power; so does `active`.
    """

    idle: float
    active: float
    byte: float
    flop: Mapping[str, float]
    moved: float = 90e-12
    exponent: float = 1.6

    def kernel(self, seconds: float, flops: float, size: float, kind: str) -> float:
        """Joules beyond `idle` of a kernel that runs for so long; `kind` of its flops: a number format, or attention.

        Flops of a format without a figure of its own (those of elementwise kernels) are in `active`.
        """
        work = self.flop.get(kind, 0.0) * flops + self.byte * size
        return self.active * seconds + work

    def at(self, clock: float) -> Draw:
        """At a lower clock of the SMs, a share of the highest; that of the HBM stays."""
        flop = {
            kind: joules * clock ** (self.exponent - 1)
            for kind, joules in self.flop.items()
        }
        return replace(self, active=self.active * clock**self.exponent, flop=flop)

    def scaled(self, limit: float, peak: Mapping[str, float], bandwidth: float) -> Draw:
        """Of a GPU that draws the same share of its power limit at the same share of its peaks.

        Parameters
        ----------
        limit, peak, bandwidth
            Power limit, flop/s by number format, and HBM bytes/s of that GPU over those of this one.
        """
        flop = {
            kind: joules * limit / peak.get("bf16" if kind == ATTENTION else kind, 1.0)
            for kind, joules in self.flop.items()
        }
        share = limit / bandwidth
        return replace(
            self,
            idle=self.idle * limit,
            active=self.active * limit,
            byte=self.byte * share,
            flop=flop,
            moved=self.moved * share,
        )

    def with_formats(self, peak: Mapping[str, float]) -> Draw:
        """With the number formats of `peak` (flop/s) that have no figure: at its peak one draws as bf16 does."""
        watts = self.flop["bf16"] * peak["bf16"]
        lacking = {kind: watts / rate for kind, rate in peak.items()}
        return replace(self, flop=lacking | dict(self.flop))


@dataclass(frozen=True)
class Wall:
    """Constants of what a cluster draws at the wall beside its GPUs: hosts, switches, losses.

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
