"""How far constants are off: relative standard deviations by family and evidence grade (`costs/uncertainty.toml`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from statistics import NormalDist

from prestep.sim import schema

WIDTHS = Path(__file__).parent / "uncertainty.toml"
NOMINAL = 0.9


_SPREAD = schema.Table(dict.fromkeys(schema.GRADES, schema.Number()))
_ALONE = schema.all_of(("latency", "bandwidth", "between"), schema.Number())
_FAMILIES = (
    "run",
    "gemm",
    "attention",
    "memory",
    "other",
    "lent",
    "latency",
    "bandwidth",
    "host",
    "pause",
)
_PLACES = ("fitted", "guess", "direct", "pcie", "rack", "network", "shaped")
_KEYS = {
    "spread": schema.all_of(_FAMILIES, _SPREAD),
    "alone": schema.all_of(_PLACES, _ALONE),
}
SCHEMA = schema.Table(_KEYS, _KEYS)


@cache
def tables() -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    """Of whole steps by family and grade, and of a collective alone by place and part."""
    return schema.read(WIDTHS, SCHEMA)


def widths() -> Mapping[str, Mapping[str, float]]:
    """Relative standard deviations by family and grade."""
    return tables()["spread"]


def quantile(nominal: float = NOMINAL) -> float:
    """Standard deviations on either side of a normal interval."""
    return NormalDist().inv_cdf((1 + nominal) / 2)


def slowest_of(gpus: int, spread: float) -> float:
    """Expected time of the slowest of several GPUs that wait for each other, relative to the average one.

    GPUs of one model differ by ``spread`` (relative standard deviation, taken as normal); the expected maximum is
    Blom's approximation (Statistical Estimates and Transformed Beta-Variables, 1958).
    """
    if gpus <= 1:
        return 1.0
    return 1.0 + spread * NormalDist().inv_cdf((gpus - 0.375) / (gpus + 0.25))
