"""Whose tables say how long a step's kernels take, in words."""

from __future__ import annotations

from collections.abc import Mapping

from prestep.sim.units import percent

OWN = "own"
LEAST = 0.005  # smaller shares are not said


def of_others(tables: Mapping[str, float]) -> str:
    """As "library trtllm/1.3.0rc20 41 %, borrowed from h200 12 %, own 47 %"; "" where nearly all are the GPU's own."""
    said = {name: share for name, share in tables.items() if share >= LEAST}
    if {*said} <= {OWN}:
        return ""
    return ", ".join(f"{name} {percent(share)}" for name, share in said.items())
