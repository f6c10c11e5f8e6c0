"""What a link of an InfraGraph is: its kind, told from its name, and its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topologies.core.quantity import LinkSpec, Quantity
from topologies.files.importers import _rates
from topologies.files.importers._text import Source

_UNITS = {
    "gigabits_per_second": 1e9 / 8,
    "gigabytes_per_second": 1e9,
    "gigatransfers_per_second": 1e9 / 8,
}
_SECONDS = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9}
# InfraGraph has no kinds of links: parts of names, and what they say.
_WORDS = {
    "nvl": "nvlink",
    "xgmi": "nvlink",
    "c2c": "c2c",
    "pcie": "pcie",
    "mem": "memory",
    "fabric": "socket",
}


def kind_of(name: str, ends: set[str]) -> str:
    """The kind of a link of this name between nodes of some kinds; prestep itself writes kind, two dashes, number."""
    lower = name.lower()
    if "--" in lower:
        return lower.partition("--")[0]
    if ends == {"gpu", "nvswitch"}:
        return "nvlink"
    kind = next((kind for word, kind in _WORDS.items() if word in lower), name)
    return name if kind == "socket" and ends != {"cpu"} else kind


def spec_of(source: Source, where: str, link: Mapping[str, Any], kind: str) -> LinkSpec:
    """The numbers of a link; those that the file does not have are of the order of its kind, which is noted."""
    name = link["name"]
    given = link.get("physical") or {}
    where = f"{where}, link {name}"
    rate = _quantity(source, f"{where}.bandwidth", given.get("bandwidth"), _UNITS)
    delay = _quantity(source, f"{where}.latency", given.get("latency"), _SECONDS)
    default = _default(kind)
    bandwidth, latency, raw = default.bandwidth, default.latency, default.raw
    why = f"InfraGraph, link {name}"
    if rate is None:
        known = f"not in the file; {bandwidth.value / 1e9:g} GB/s"
        source.assumed(f"bandwidth of {name}", known)
    else:
        bandwidth, raw = Quantity(rate, "guess", why), None
    if delay is None:
        known = "not in the file; of the order of a hop of its kind"
        source.assumed(f"latency of {name}", known)
    else:
        latency = Quantity(delay, "guess", why)
    return LinkSpec(bandwidth, latency, raw=raw)


def _quantity(
    source: Source, where: str, given: object, units: Mapping[str, float]
) -> float | None:
    """A number with its unit, in SI; None where there is none."""
    if not isinstance(given, dict):
        return None
    named = next((key for key in given if key in units), None)
    unit: Any = given.get("choice") or named
    if unit not in units or unit not in given:
        expected = f"one of {', '.join(units)} with its number"
        source.fail(where, repr(given)[:60], expected)
    if units is _SECONDS and given[unit] == 0:
        return 0.0
    return source.positive(where, given[unit]) * units[unit]


def _default(kind: str) -> LinkSpec:
    if kind == "nvlink":
        one = _rates.nvlink(90)
        every = one.bandwidth.value * 18
        return LinkSpec(Quantity(every, "guess", "all NVLinks of an H100"), one.latency)
    if kind in ("pcie", "socket", "memory"):
        return _rates.pcie(32.0, 16, "guess")
    return _rates.port(48e9, "guess", "a 400 Gbit/s port")
