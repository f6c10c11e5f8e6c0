"""What a GPU draws: while it waits, while kernels run, for every flop and every byte of theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

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
    """

    idle: float
    active: float
    byte: float
    flop: Mapping[str, float]

    def kernel(self, seconds: float, flops: float, size: float, kind: str) -> float:
        """Joules beyond `idle` of a kernel that runs for so long; `kind` of its flops: a number format, or attention.

        Flops of a format without a figure of its own (those of elementwise kernels) are in `active`.
        """
        work = self.flop.get(kind, 0.0) * flops + self.byte * size
        return self.active * seconds + work

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
        byte = self.byte * limit / bandwidth
        return Draw(self.idle * limit, self.active * limit, byte, flop)

    def with_formats(self, peak: Mapping[str, float]) -> Draw:
        """With the number formats of `peak` (flop/s) that have no figure: at its peak one draws as bf16 does."""
        watts = self.flop["bf16"] * peak["bf16"]
        lacking = {kind: watts / rate for kind, rate in peak.items()}
        return replace(self, flop=lacking | dict(self.flop))
