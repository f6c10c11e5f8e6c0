"""How much the parts of a run differ from step to step: what [faults] says, and defaults (`sim/costs/jitter.toml`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from prestep.sim import schema
from prestep.sim.errors import InputError, Mistake
from prestep.workloads.job.faults import Faults

NAMES = ("kernel", "gpu", "step", "launch", "host", "latency", "link")
PAUSE = "pause"
CONSTANTS = ("rate", "tail", "least", "most")
MOST_PAUSES = 1e3  # per GPU and second: beyond, nothing else happens
MOST = 10.0  # relative standard deviation: beyond, a few draws in a million decide the mean


@dataclass(frozen=True)
class Pauses:
    """Now and then a GPU or its host stands still: how often for longer than d seconds is rate (least / d)^tail.

    Attributes
    ----------
    rate
        Per GPU and second, of those longer than `least`.
    tail
        Exponent of their lengths.
    least, most
        The shortest and the longest, s.
    """

    rate: float
    tail: float
    least: float
    most: float

    def drawn(self, draw: np.random.Generator, gpus: int, seconds: float) -> np.ndarray:
        """Lengths of those that befall so many GPUs in that time, s."""
        count = draw.poisson(self.rate * gpus * seconds)
        shares = 1.0 - draw.random(count)
        lengths: np.ndarray = self.least * shares ** (-1.0 / self.tail)
        kept: np.ndarray = np.minimum(lengths, self.most)
        return kept


@dataclass(frozen=True)
class Jitter:
    """Relative standard deviations (1: as much as the mean) and pauses, with the evidence grade of each."""

    kernel: float
    gpu: float
    step: float
    launch: float
    host: float
    latency: float
    link: float
    pauses: Pauses
    grades: Mapping[str, str]

    @property
    def silent(self) -> bool:
        """Nothing differs."""
        return not any(getattr(self, name) for name in NAMES) and not self.pauses.rate

    def to_dict(self) -> dict[str, dict[str, Any]]:
        values = {name: getattr(self, name) for name in NAMES}
        values[PAUSE] = self.pauses.rate
        return {
            name: {"value": value, "evidence": self.grades[name]}
            for name, value in values.items()
        }


FILE = Path(__file__).parents[1] / "costs" / "jitter.toml"
NUMBER = schema.sourced(schema.Number())
SCHEMA = schema.Table(
    {**dict.fromkeys(NAMES, NUMBER), PAUSE: schema.all_of(CONSTANTS, NUMBER)},
    (*NAMES, PAUSE),
)


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
    pauses, grades[PAUSE] = _pauses(faults)
    InputError.check(_too_much(values, pauses, where))
    return Jitter(**values, pauses=pauses, grades=grades)


def _too_much(values: Mapping[str, float], pauses: Pauses, where: str) -> list[Mistake]:
    """Noise that cannot be drawn, or in which nothing else happens."""
    mistakes = []
    wide = [name for name in NAMES if not values[name] <= MOST]
    if wide:
        found = ", ".join(f"jitter_{name} {values[name]:g}" for name in wide)
        expected = f"relative standard deviations up to {MOST:g}"
        hint = "0.05 is five percent; jitter is a factor on all of them"
        mistakes.append(Mistake(where, "faults", found, expected, hint))
    if not pauses.rate <= MOST_PAUSES:
        expected = f"at most {MOST_PAUSES:g} a GPU and second"
        found = f"{pauses.rate:g}"
        mistakes.append(Mistake(where, "faults.jitter_pause", found, expected))
    return mistakes


def _pauses(faults: Faults) -> tuple[Pauses, str]:
    """How often there are pauses, what they last, and what the first rests on."""
    known, said = _table()[PAUSE], faults.jitter_pause
    constants = {name: known[name]["value"] for name in CONSTANTS}
    rate = faults.jitter * (constants["rate"] if said is None else said)
    grade = known["rate"]["evidence"] if said is None else "said"
    return Pauses(**{**constants, "rate": rate}), grade
