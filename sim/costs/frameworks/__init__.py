"""Host time of framework operations: one TOML per framework, seconds by operation name."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from sim.errors import InputError, unknown


@cache
def host_costs(framework: str) -> dict[str, float]:
    """Seconds of host time by operation name.

    Raises
    ------
    InputError
        If there is no such framework.
    """
    here = Path(__file__).parent
    path = here / f"{framework}.toml"
    if not path.exists():
        raise InputError(
            unknown("scenario", "training.framework", framework, sorted(p.stem for p in here.glob("*.toml")))
        )
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    inherited = host_costs(table["inherits"]) if "inherits" in table else {}
    return inherited | {name: micros * 1e-6 for name, micros in table["host_us"].items()}
