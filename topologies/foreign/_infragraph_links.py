"""What a link of an InfraGraph is: its kind, told from its name, and its numbers in each direction."""

from __future__ import annotations

from typing import Any

from prestep.topologies.core.quantity import LinkSpec, Quantity
from prestep.topologies.files.importers._text import Source
from prestep.topologies.foreign import _rates
from prestep.topologies.foreign._infragraph_document import Link

# InfraGraph has no kinds of links: parts of names, and what they say.
_WORDS = {
    "nvl": "nvlink",
    "xgmi": "nvlink",
    "c2c": "c2c",
    "pcie": "pcie",
    "mem": "memory",
    "fabric": "socket",
}
_TEXTS = ("evidence", "latency_evidence", "source")


def kind_of(name: str, ends: set[str]) -> str:
    """The kind of a link of this name between nodes of some kinds; prestep itself writes kind, two dashes, number."""
    lower = name.lower()
    if "--" in lower:
        return name.rpartition("--")[0]
    if ends == {"gpu", "nvswitch"}:
        return "nvlink"
    kind = next((kind for word, kind in _WORDS.items() if word in lower), name)
    return name if kind == "socket" and ends != {"cpu"} else kind


def directions(
    source: Source, link: Link, kind: str, count: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The columns of `count` such links, there and back; what the file does not say is of the order of its kind."""
    where, own = f"link {link.name}", _numbers(source, link, kind)
    there = own | _stated(source, where, link.extra)
    back = there
    if "back" in link.extra:
        inside = source.mapping(f"{where}.back", link.extra["back"], "a mapping")
        back = there | _stated(source, f"{where}.back", inside)
    if count == 1:
        return there, back
    return _times(there, count), _times(back, count)


def _times(columns: dict[str, Any], count: int) -> dict[str, Any]:
    """Several such links as one."""
    return {
        key: value * count if key in ("count", "bandwidth", "raw") else value
        for key, value in columns.items()
    }


def _numbers(source: Source, link: Link, kind: str) -> dict[str, Any]:
    """The numbers of a link; those that the file does not have are of the order of its kind, which is noted."""
    default = _default(kind)
    why, raw = f"InfraGraph, link {link.name}", default.wire
    rate, delay = link.bandwidth, link.latency
    if rate is None:
        rate, why = default.bandwidth.value, default.bandwidth.source
        why_so = f"not in the file; {rate / 1e9:g} GB/s"
        source.assumed(f"bandwidth of {link.name}", why_so)
    else:
        raw = rate
    if delay is None:
        delay = default.latency.value
        why_so = "not in the file; of the order of a hop of its kind"
        source.assumed(f"latency of {link.name}", why_so)
    grades = {"evidence": "guess", "latency_evidence": "guess", "source": why}
    numbers = {"count": 1, "bandwidth": rate, "raw": raw, "latency": delay}
    return {"kind": kind, **numbers, **grades}


def _stated(source: Source, where: str, extra: dict[str, Any]) -> dict[str, Any]:
    """The columns that prestep wrote beside a link."""
    columns: dict[str, Any] = {}
    for key in ("bandwidth", "raw"):
        if key in extra:
            columns[key] = source.positive(f"{where}.{key}", extra[key])
    if "latency" in extra:
        place, expected = f"{where}.latency", "seconds, not negative"
        columns["latency"] = source.at_least_0(place, extra["latency"], expected)
    if "count" in extra:
        columns["count"] = source.whole(f"{where}.count", extra["count"])
    for key in _TEXTS:
        if extra.get(key):
            columns[key] = source.text(f"{where}.{key}", extra[key], "a text")
    return columns


def _default(kind: str) -> LinkSpec:
    if kind == "nvlink":
        one = _rates.nvlink(90)
        every = one.bandwidth.value * 18
        return LinkSpec(Quantity(every, "guess", "all NVLinks of an H100"), one.latency)
    if kind in ("pcie", "socket", "memory"):
        return _rates.pcie(32.0, 16, "guess")
    return _rates.port(48e9, "guess", "a 400 Gbit/s port")
