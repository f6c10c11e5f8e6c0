"""The InfraGraph form of a cluster: hosts that look alike share one device, and descriptions carry what has no key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.attributes import attributes_of
from prestep.topologies.foreign._infragraph_document import described

_CHOICES = {"gpu": "xpu", "cpu": "cpu", "nic": "nic", "memory": "memory"}
_COLUMNS = (
    "bandwidth", "latency", "raw", "count", "evidence", "latency_evidence", "source",
)  # fmt: skip
_Key = tuple[Any, ...]  # what tells links apart: kind, and the columns there and back
_Edges = tuple[tuple[str, str, _Key], ...]  # links between two components of a device


def infrastructure(fabric: Fabric) -> dict[str, Any]:
    """The `Infrastructure` object.

    Every host is an instance of a device with its nodes as components; hosts with the same components and links share a
    device. Nodes outside hosts (switches) are instances of a device with one component.
    """
    return _Writer(fabric).data()


class _Writer:
    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.links: dict[_Key, dict[str, Any]] = {}
        self.local: dict[str, str] = {}  # node -> component[number]
        self.of: dict[str, str] = {}  # node -> instance[number]
        self.devices: dict[Any, dict[str, Any]] = {}
        self.instances: dict[
            str, list[tuple[str, list[str]]]
        ] = {}  # of a device: host, nodes
        self.keys = self.all_keys()
        self.rows: list[int] = []  # of the fabric, in the order of the edges

    def data(self) -> dict[str, Any]:
        """The whole object."""
        units = _units(self.fabric)
        for _, names in units:
            self.number(names)
        inner, outer = self.split()
        for host, names in units:
            self.unit(host, names, inner.get(host, []) if host else [])
        instances = [self.instance(*one) for one in self.instances.items()]
        edges = [self.edge(row) for row in outer]
        return {
            "name": self.fabric.name.replace("/", "-") or "cluster",
            **described(self.extra(inner, outer)),
            "devices": list(self.devices.values()),
            "links": self.definitions(self.keys[row] for row in outer),
            "instances": instances,
            "edges": edges,
        }

    def extra(self, inner: dict[str, list[int]], outer: list[int]) -> dict[str, Any]:
        """What the cluster is besides its parts, and the order of its parts where it is not that of the file."""
        order = [
            name
            for units in self.instances.values()
            for _, names in units
            for name in self.by_kind(names)
        ]
        hosts = [host for of in self.instances.values() for host, _ in of]
        first = [row for host in hosts for row in inner.get(host, [])] + outer
        back = self.fabric.links.index
        ends = zip(*(end.tolist() for end in self.ends()), strict=True)
        pairs = list(ends)
        rows = [at for row in first for at in (row, back[pairs[row][::-1]])]
        index = self.fabric.nodes.index
        orders = {
            "nodes": _order([index[name] for name in order]),
            "links": _order(rows),
        }
        return {"name": self.fabric.name, **attributes_of(self.fabric)} | {
            key: value for key, value in orders.items() if value is not None
        }

    def ends(self) -> tuple[Any, Any]:
        return self.fabric.links.src, self.fabric.links.dst

    def kind(self, name: str) -> str:
        return self.fabric.nodes.kinds[self.fabric.nodes.index[name]]

    def by_kind(self, names: list[str]) -> list[str]:
        """The nodes of a unit as a device has them: component by component."""
        kinds = list(dict.fromkeys(map(self.kind, names)))
        return sorted(names, key=lambda name: kinds.index(self.kind(name)))

    def number(self, names: list[str]) -> None:
        """Count the components of a host by kind."""
        counts: Counter[str] = Counter()
        for name in names:
            kind = self.kind(name)
            self.local[name] = f"{kind}[{counts[kind]}]"
            counts[kind] += 1

    def definitions(self, keys: Iterable[_Key]) -> list[dict[str, Any]]:
        """The links of some numbers, each once."""
        unique = list(dict.fromkeys(keys))
        for key in unique:
            self.link_of(key)
        return [self.links[key] for key in unique]

    def edge(self, row: int) -> dict[str, Any]:
        """A link between instances."""
        ends = self.end(row, "src"), self.end(row, "dst")
        return _edge(*ends, self.link_of(self.keys[row]))

    def split(self) -> tuple[dict[str, list[int]], list[int]]:
        """Rows inside each host and between them, one direction of each link."""
        links, nodes = self.fabric.links, self.fabric.nodes
        host = dict(zip(nodes.names, nodes.hosts, strict=True))
        inner: dict[str, list[int]] = {}
        outer = []
        for row, (src, dst) in enumerate(
            zip(links.src.tolist(), links.dst.tolist(), strict=True)
        ):
            if links.index[dst, src] < row:
                continue
            if host[src] and host[src] == host[dst]:
                inner.setdefault(host[src], []).append(row)
            else:
                outer.append(row)
        return inner, outer

    def unit(self, host: str, names: list[str], rows: list[int]) -> None:
        """Adds an instance of the device that units like this one share."""
        device = self.device_of(host, names, rows)
        for name in names:
            at = len(self.instances.get(device, []))
            self.of[name] = f"{_instance_of(device)}[{at}]"
        self.instances.setdefault(device, []).append((host, names))

    def device_of(self, host: str, names: list[str], rows: list[int]) -> str:
        """Returns the name of a unit's device, which is defined when the first unit like it comes."""
        links, local = self.fabric.links, self.local
        edges = tuple(
            (local[links.src[row]], local[links.dst[row]], self.keys[row])
            for row in rows
        )
        # A node outside hosts is all of its unit: its whole name is the instance's.
        prefix = _prefix(names)
        parts = tuple(
            (self.kind(name), name.removeprefix(prefix) if host else "")
            for name in names
        )
        signature = bool(host), parts, edges
        if signature not in self.devices:
            number = sum(inside for inside, _, _ in self.devices)
            title = f"host-{number}" if host else f"{parts[0][0]}-device"
            self.devices[signature] = self.device(title, parts, edges)
        return str(self.devices[signature]["name"])

    def device(
        self, name: str, parts: Sequence[tuple[str, str]], edges: _Edges
    ) -> dict[str, Any]:
        """A device of components (kind and name) and the links between them."""
        names: dict[str, list[str]] = {}
        for kind, own in parts:
            names.setdefault(kind, []).append(own)
        return {
            "name": name,
            **described(names),
            "components": [_component(kind, len(own)) for kind, own in names.items()],
            "links": self.definitions(key for _, _, key in edges),
            "edges": [
                _edge({"component": a}, {"component": b}, self.link_of(key))
                for a, b, key in edges
            ],
        }

    def instance(
        self, device: str, units: list[tuple[str, list[str]]]
    ) -> dict[str, Any]:
        """All units of a device, with the host and the beginning of the names of each."""
        places = [(host, _prefix(names) if host else names[0]) for host, names in units]
        extra = described({"places": places})
        name = _instance_of(device)
        return {"name": name, **extra, "device": device, "count": len(units)}

    def all_keys(self) -> list[_Key]:
        """What tells the link of every row from others, in this direction and back."""
        links = self.fabric.links
        columns = [getattr(links, key).tolist() for key in _COLUMNS]
        values = list(zip(*columns, strict=True))
        ends = zip(links.src.tolist(), links.dst.tolist(), strict=True)
        back = [links.index[dst, src] for src, dst in ends]
        kinds = links.kind.tolist()
        return [
            (kinds[row], values[row], values[back[row]]) for row in range(len(links))
        ]

    def link_of(self, key: _Key) -> str:
        """The name of the link with these numbers, defined when it is first asked for: kind, two dashes, number."""
        kind, there, back = key
        if key not in self.links:
            own = dict(zip(_COLUMNS, there, strict=True))
            other = dict(zip(_COLUMNS, back, strict=True))
            gigabytes, ns = own.pop("bandwidth") / 1e9, own.pop("latency") * 1e9
            speed = {
                "choice": "gigabytes_per_second",
                "gigabytes_per_second": gigabytes,
            }
            changed = {name: other[name] for name in _COLUMNS if there != back}
            extra = own | ({"back": changed} if changed else {})
            physical = {"bandwidth": speed, "latency": {"choice": "ns", "ns": ns}}
            name = f"{kind}--{len(self.links)}"
            self.links[key] = {"name": name, **described(extra), "physical": physical}
        return str(self.links[key]["name"])

    def end(self, row: int, which: str) -> dict[str, str]:
        name = str(getattr(self.fabric.links, which)[row])
        return {"instance": self.of[name], "component": self.local[name]}


def _units(fabric: Fabric) -> list[tuple[str, list[str]]]:
    """Hosts with their nodes, and nodes outside hosts one by one, in the order of their first nodes."""
    units: dict[str, tuple[str, list[str]]] = {}
    for name, host in zip(fabric.nodes.names, fabric.nodes.hosts, strict=True):
        # No host has the name of a node outside: the two are told apart by a letter in front.
        units.setdefault(f"h{host}" if host else f"n{name}", (host, []))[1].append(name)
    return list(units.values())


def _prefix(names: list[str]) -> str:
    """What the names of a host have in common before their own: "host3/"."""
    first, last = min(names), max(names)
    same = 0
    while same < len(first) and first[same] == last[same]:
        same += 1
    return first[: first.rfind("/", 0, same) + 1]


def _order(rows: list[int]) -> list[int] | None:
    """Where the parts of the file belong; None if they are in order."""
    if rows == list(range(len(rows))):
        return None
    place = {row: at for at, row in enumerate(rows)}
    return [place[row] for row in range(len(rows))]


def _edge(one: dict[str, str], other: dict[str, str], link: str) -> dict[str, Any]:
    return {"ep1": one, "ep2": other, "scheme": "one2one", "link": link}


def _instance_of(device: str) -> str:
    return device.removesuffix("-device")


def _component(kind: str, count: int) -> dict[str, Any]:
    if kind in _CHOICES:
        return {"name": kind, "count": count, "choice": _CHOICES[kind]}
    return {"name": kind, "count": count, "choice": "custom", "custom": {"type": kind}}
