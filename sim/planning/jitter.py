"""How much the parts of a run differ from step to step: what [faults] says, and defaults (`sim/costs/jitter.toml`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sim import schema
from sim.errors import InputError, Mistake
from workloads.job.faults import Faults

NAMES = ("kernel", "gpu", "step", "launch", "host", "latency", "link")
MOST = 10.0  # relative standard deviation: beyond, a few draws in a million decide the mean


@dataclass(frozen=True)
class Jitter:
    """Relative standard deviations (1: as much as the mean), with the evidence grade of each."""

    kernel: float
    gpu: float
    step: float
    launch: float
    host: float
    latency: float
    link: float
    grades: Mapping[str, str]

    @property
    def silent(self) -> bool:
        """Nothing differs."""
        return not any(getattr(self, name) for name in NAMES)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        return {
            name: {"value": getattr(self, name), "evidence": self.grades[name]}
            for name in NAMES
        }


FILE = Path(__file__).parents[1] / "costs" / "jitter.toml"
SCHEMA = schema.all_of(NAMES, schema.sourced(schema.Number()))


@cache
def _table() -> dict[str, Any]:
    return schema.read(FILE, SCHEMA)


def jitter_of(faults: Faults, where: str = "scenario") -> Jitter:
    """What [faults] says, and the defaults of `sim/costs/jitter.toml`; `jitter` scales all of them.

    Raises
    ------
    InputError
        If noise is wider than log-normal factors can be drawn for.
    """
    values, grades = dict[str, float](), dict[str, str]()
    for name in NAMES:
        said, known = getattr(faults, f"jitter_{name}"), _table()[name]
        values[name] = faults.jitter * (known["value"] if said is None else said)
        grades[name] = known["evidence"] if said is None else "said"
    wide = [name for name in NAMES if not values[name] <= MOST]
    if wide:
        found = ", ".join(f"jitter_{name} {values[name]:g}" for name in wide)
        hint = "0.05 is five percent; jitter is a factor on all of them"
        raise InputError(
            Mistake(
                where,
                "faults",
                found,
                f"relative standard deviations up to {MOST:g}",
                hint,
            )
        )
    return Jitter(**values, grades=grades)
