"""How long kernels of few rows run: what decoding launches, measured where tables of training's shapes end.

A kernel starts, then reads its bytes at a share of HBM's bandwidth. Whoever computes one output walks along `depth`
elements one after the other (the inner dimension of a product, the tokens of a context), which bounds a kernel with
little to read; arithmetic bounds one with many rows. The three go on beside each other:

    start + sqrt((bytes / (share x bandwidth))^2 + (depth x step)^2 + (flops / peak)^2)

`laws.toml` has the constants; `python -m lab.fit.decode` fits them to rows of an H100. Another GPU reads at the
same share of its bandwidth and computes at its own peak; that it starts and steps as an H100 does is a guess.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from prestep.sim import files
from prestep.sim.costs import Gpu
from prestep.sim.units import parse_duration

FILE = Path(__file__).with_suffix(".toml")
MEASURED_ON = "h100"


@dataclass(frozen=True)
class Law:
    """Times of one kind of kernel: seconds of `start`, seconds of a `step`, share of HBM's bandwidth."""

    start: float
    step: float
    share: float
    evidence: str

    def seconds(
        self, gpu: Gpu, moved: float, depth: float = 0.0, busy: float = 0.0
    ) -> float:
        """Seconds in which `moved` bytes are read and written; `busy` seconds of arithmetic are beside it."""
        reading = moved / (self.share * gpu.bandwidth)
        return self.start + math.hypot(reading, depth * self.step, busy)


@cache
def laws() -> Mapping[str, Law]:
    """The laws of the file, by the kind of kernel."""
    return {
        name: _law(name, entry)
        for name, entry in files.toml(FILE.read_text(encoding="utf-8")).items()
    }


def _law(name: str, entry: Mapping[str, object]) -> Law:
    where = str(FILE)
    start = parse_duration(entry["start"], where, f"{name}.start")
    step = parse_duration(entry.get("step", "0 s"), where, f"{name}.step")
    return Law(start, step, float(str(entry["share"])), str(entry["evidence"]))
