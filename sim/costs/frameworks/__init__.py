"""Frameworks: one TOML each, with what the host spends on their operations and how they launch kernels."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from sim.errors import InputError, unknown

HERE = Path(__file__).parent


def framework_names() -> list[str]:
    """Names that `training.framework` can have, sorted."""
    return sorted(path.stem for path in HERE.glob("*.toml"))


@cache
def host_costs(framework: str) -> dict[str, float]:
    """Seconds of host time by operation name; 0 for what a captured graph does not do again.

    Raises
    ------
    InputError
        If there is no such framework.
    """
    table = _read(framework)
    inherited = host_costs(table["inherits"]) if "inherits" in table else {}
    if table.get("captured"):
        inherited = dict.fromkeys(inherited, 0.0)
    return inherited | {name: micros * 1e-6 for name, micros in table["host_us"].items()}


@cache
def kernel_gap(framework: str) -> float | None:
    """Seconds between two kernels of a stream where the framework decides them (a CUDA graph); None: the GPU's own."""
    micros = _read(framework).get("kernel_gap_us")
    return None if micros is None else float(micros) * 1e-6


@cache
def buckets(framework: str) -> dict[str, int]:
    """Elements of a bucket by what is sent in it (``reduce``, ``allgather``); empty where the framework says none."""
    return {name: int(elements) for name, elements in _read(framework).get("buckets", {}).items()}


def _read(framework: str) -> dict[str, Any]:
    path = HERE / f"{framework}.toml"
    if not path.exists():
        raise InputError(unknown("scenario", "training.framework", framework, framework_names()))
    return tomllib.loads(path.read_text(encoding="utf-8"))
