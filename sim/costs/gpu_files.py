"""The files of a GPU in `sim/costs/hardware`: facts, what was fitted, what others published, measured rows."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from sim.costs.tables import Row, read_rows
from sim.errors import InputError, unknown

HARDWARE = Path(__file__).parent / "hardware"


def names(folder: Path = HARDWARE) -> list[str]:
    """GPUs that have a file of facts, sorted."""
    parts = ("-fitted", "-nccl", "-published")
    return sorted(path.stem for path in folder.glob("*.toml") if not path.stem.endswith(parts))


def facts_of(name: str, folder: Path = HARDWARE) -> dict[str, Any]:
    """Facts of a GPU, with those that were fitted and those that were published over them.

    Raises
    ------
    InputError
        If there is no such GPU.
    """
    path = folder / f"{name.lower()}.toml"
    if not path.is_file():
        raise InputError(unknown(str(folder), "gpu", name, names(folder)))
    facts = tomllib.loads(path.read_text())
    fitted = folder / f"{name.lower()}-fitted.toml"
    if fitted.is_file():
        facts.update(tomllib.loads(fitted.read_text()))
    facts["guessed_load"] = list(facts.get("sustained", ()))
    published = folder / f"{name.lower()}-published.toml"
    if published.is_file():
        for key, value in tomllib.loads(published.read_text()).items():
            facts[key] = {**facts.get(key, {}), **value}
    return facts


def rows_of(name: str, folder: Path = HARDWARE) -> list[Row]:
    """Measured rows of a GPU, its own and published ones; none where there are none."""
    tables = [folder / f"{name.lower()}-{part}.csv" for part in ("kernels", "published")]
    return [row for path in tables if path.is_file() for row in read_rows(path)]
