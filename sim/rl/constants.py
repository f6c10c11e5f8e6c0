"""Constants of an RL step that no kernel table and no link has: `constants.toml`, SI units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from prestep.sim import files
from prestep.sim.units import parse_bandwidth, parse_duration

FILE = Path(__file__).with_suffix(".toml")
#: Kernels of a decoded layer beside products, attention and exchanges: norms, rotation, the cache's update, activation;
#: of experts: routing, its top-k, sorting tokens and adding them up. Evidence: guess, counted from vLLM's layers.
SMALL = 6
SMALL_OF_EXPERTS = 6
#: With weights in fp8 activations are quantized before products: of a layer's four, and of its experts'.
QUANTIZED = 4
QUANTIZED_OF_EXPERTS = 2


@dataclass(frozen=True)
class Constants:
    """Seconds; bytes/s of bandwidths."""

    step_host: float
    sequence_host: float
    ray_host: float
    small_kernel: float
    eager_launch: float
    tensor_host: float
    copy_bandwidth: float
    coherent_bandwidth: float
    step_overhead: float
    reduce_start: float
    reduce_gpu: float
    grades: Mapping[str, str]

    def at(self, **values: float) -> Constants:
        """The same with other values."""
        made: dict[str, Any] = dict(values)
        return replace(self, **made)


@cache
def constants() -> Constants:
    """The constants of the file, with their evidence grades."""
    table = files.toml(FILE.read_text(encoding="utf-8"))
    values = {}
    for name, entry in table.items():
        values[name] = _value(name, entry["value"])
    grades = {name: entry["evidence"] for name, entry in table.items()}
    return Constants(**values, grades=grades)


def _value(name: str, value: object) -> float:
    if name.endswith("bandwidth"):
        return parse_bandwidth(value, str(FILE), name)
    return parse_duration(value, str(FILE), name)
