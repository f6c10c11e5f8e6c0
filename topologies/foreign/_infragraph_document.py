"""An InfraGraph document as typed values: what is of another type than InfraGraph says is a mistake that is named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prestep.sim import files
from prestep.topologies.core.quantity import shown
from prestep.topologies.files.importers._text import Source

#: InfraGraph has a place for text beside every part: what else prestep knows of a part is in it, after this word.
OURS = "prestep: "
_KINDS = {"xpu": "gpu"}
# What a switch is, told from its name.
_SWITCHES = {
    "nvlsw": "nvswitch",
    "nvsw": "nvswitch",
    "nvlink": "nvswitch",
    "pcie": "pcieswitch",
    "pci": "pcieswitch",
}
_UNITS = {
    "gigabits_per_second": 1e9 / 8,
    "gigabytes_per_second": 1e9,
    "gigatransfers_per_second": 1e9 / 8,
}
_SECONDS = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9}
Table = dict[str, Any]


@dataclass(frozen=True)
class Link:
    """What one physical link can do: bytes/s and seconds, None where the file does not say."""

    name: str
    bandwidth: float | None
    latency: float | None
    extra: Table


@dataclass(frozen=True)
class Edge:
    """Links between the nodes at two ends, each a mapping of texts (`instance`, `device`, `component`)."""

    where: str
    ends: tuple[dict[str, str], dict[str, str]]
    scheme: str
    link: str


@dataclass(frozen=True)
class Device:
    """A device: components by name, each with its count and kind ("device" to nest), links by name, and edges."""

    name: str
    components: dict[str, tuple[int, str]]
    links: dict[str, Link]
    edges: list[Edge]
    extra: Table


@dataclass(frozen=True)
class Instance:
    """So many of a device."""

    device: str
    count: int
    extra: Table


@dataclass(frozen=True)
class Document:
    """The whole file."""

    name: str
    devices: dict[str, Device]
    instances: dict[str, Instance]
    links: dict[str, Link]
    edges: list[Edge]
    extra: Table = field(default_factory=dict)


def document(source: Source, data: Any) -> Document:
    """The parts of a file, each of its type.

    Raises
    ------
    InputError
        If something is of another type; the element is named.
    """
    expected = "an infrastructure with devices, instances, links and edges"
    table = source.mapping("", data, expected)
    if isinstance(table.get("infrastructure"), dict):
        table = source.mapping("infrastructure", table["infrastructure"], expected)
    reader = _Reader(source)
    for key in ("devices", "instances"):
        if table.get(key) is None:
            source.fail(key, "nothing", "a list")
    devices = reader.named("devices", table, reader.device)
    instances = reader.named("instances", table, reader.instance)
    for name, instance in instances.items():
        source.known(f"instance {name}.device", instance.device, devices, "a device")
    title = source.title
    if table.get("name") is not None:
        title = source.text("name", table["name"], "a text")
    return Document(
        title,
        devices,
        instances,
        reader.named("links", table, reader.link),
        [reader.edge(*one) for one in reader.tables("edges", table.get("edges"))],
        reader.extra("infrastructure", table),
    )


class _Reader:
    """Reads the parts of a file."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def tables(self, where: str, value: object) -> list[tuple[str, Table]]:
        """The mappings of a list, each with where it is; none where nothing is said."""
        if value is None:
            return []
        if not isinstance(value, list):
            self.source.fail(where, shown(value), "a list")
        places = ((f"{where}[{at}]", one) for at, one in enumerate(value))
        return [(at, self.source.mapping(at, one, "a mapping")) for at, one in places]

    def named(self, key: str, table: Table, read: Any, above: str = "") -> Table:
        """The mappings of a list by their names, each read; no two have the same."""
        parts: Table = {}
        place = f"{above}, {key}" if above else key
        for where, one in self.tables(place, table.get(key)):
            if "name" not in one:
                self.source.fail(where, 'no "name"', "a name")
            name = self.source.text(f"{where}.name", one["name"], "a text")
            what = f"{key[:-1]} {name}"
            parts[name] = read(f"{above}, {what}" if above else what, name, one)
        return parts

    def device(self, where: str, name: str, entry: Table) -> Device:
        if "connections" in entry:
            expected = '"edges": InfraGraph 0.5 or newer'
            self.source.fail(where, '"connections"', expected)
        edges = self.tables(f"{where}, edges", entry.get("edges"))
        return Device(
            name,
            self.named("components", entry, self.component, where),
            self.named("links", entry, self.link, where),
            [self.edge(*one) for one in edges],
            self.extra(where, entry),
        )

    def component(self, where: str, name: str, part: Table) -> tuple[int, str]:
        """How many, and of what kind."""
        choice = part.get("choice") or part.get("type")
        if choice is None:
            self.source.fail(where, "no choice", "name, count and choice")
        kind = self.source.text(f"{where}.choice", choice, "a text")
        if kind == "custom" and part.get("custom") is not None:
            custom = self.source.mapping(f"{where}.custom", part["custom"], "a mapping")
            place = f"{where}.custom.type"
            kind = self.source.text(place, custom.get("type", kind), "a text")
        count = self.source.whole(f"{where}.count", part.get("count", 1))
        if kind == "switch":
            words = _SWITCHES.items()
            known = (known for word, known in words if word in name.lower())
            return count, next(known, "switch")
        return count, _KINDS.get(kind, kind)

    def instance(self, where: str, name: str, entry: Table) -> Instance:
        del name
        if "device" not in entry:
            self.source.fail(where, 'no "device"', "name and device")
        device = self.source.text(f"{where}.device", entry["device"], "a device")
        count = self.source.whole(f"{where}.count", entry.get("count", 1))
        return Instance(device, count, self.extra(where, entry))

    def link(self, where: str, name: str, entry: Table) -> Link:
        physical: Table = {}
        if entry.get("physical") is not None:
            place, expected = f"{where}.physical", "a mapping"
            physical = self.source.mapping(place, entry["physical"], expected)
        rate = self.quantity(f"{where}.bandwidth", physical.get("bandwidth"), _UNITS)
        delay = self.quantity(f"{where}.latency", physical.get("latency"), _SECONDS)
        return Link(name, rate, delay, self.extra(where, entry))

    def quantity(
        self, where: str, given: object, units: Mapping[str, float]
    ) -> float | None:
        """A number with its unit, in SI; None where there is none."""
        if given is None:
            return None
        expected = f"one of {', '.join(units)} with its number"
        table = self.source.mapping(where, given, expected)
        named = next((key for key in table if key in units), "")
        unit: object = table.get("choice") or named
        if not isinstance(unit, str) or unit not in units or unit not in table:
            self.source.fail(where, shown(given), expected)
        factor = units[unit]
        if units is _SECONDS:
            expected = "a number, not negative"
            return self.source.at_least_0(where, table[unit], expected) * factor
        return self.source.positive(where, table[unit]) * factor

    def edge(self, where: str, entry: Table) -> Edge:
        for key in ("ep1", "ep2", "link"):
            if key not in entry:
                self.source.fail(where, f'no "{key}"', "ep1, ep2, link")
        one, other = (self.end(f"{where}.{key}", entry[key]) for key in ("ep1", "ep2"))
        scheme = self.source.text(
            f"{where}.scheme", entry.get("scheme", "one2one"), "one2one or many2many"
        )
        if scheme not in ("one2one", "many2many"):
            self.source.fail(f"{where}.scheme", f'"{scheme}"', "one2one or many2many")
        link = self.source.text(f"{where}.link", entry["link"], "a link of the file")
        return Edge(where, (one, other), scheme, link)

    def end(self, where: str, given: object) -> dict[str, str]:
        table = self.source.mapping(where, given, "a mapping")
        parts = ("instance", "device", "component")
        return {
            key: self.source.text(f"{where}.{key}", table[key], "a text")
            for key in parts
            if table.get(key)
        }

    def extra(self, where: str, entry: Table) -> Table:
        """What prestep wrote into a description; nothing of a description of somebody else."""
        text = entry.get("description")
        if not isinstance(text, str) or not text.startswith(OURS):
            return {}
        expected = f'"{OURS}" and JSON, as prestep writes it'
        try:
            value = files.json_of(text[len(OURS) :])
        except ValueError:
            value = None
        return self.source.mapping(f"{where}.description", value, expected)


def described(extra: Mapping[str, Any]) -> Table:
    """The description that carries what InfraGraph has no key for; nothing where there is nothing to carry."""
    return {"description": OURS + json.dumps(extra)} if extra else {}
