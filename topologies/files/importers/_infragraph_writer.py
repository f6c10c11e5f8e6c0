"""The InfraGraph form of a cluster: hosts that look alike share one device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from topologies.fabric import Fabric

_CHOICES = {"gpu": "xpu", "cpu": "cpu", "nic": "nic", "memory": "memory"}
_Key = tuple[str, float, float]  # what tells links apart: kind, bandwidth, latency
_Edges = tuple[tuple[str, str, _Key], ...]  # links between two components of a device
_LOST = (
    "grades and sources of numbers",
    "wire rates apart from payload: bandwidth is the payload",
    "directions apart: bandwidth is that of the first direction",
    "names of nodes: they become instance.number.component.number",
    "the GPU model",
)


def infrastructure(fabric: Fabric) -> tuple[dict[str, Any], list[str]]:
    """The `Infrastructure` object, and what it cannot hold.

    Every host is an instance of a device with its nodes as components; hosts with the same components and links share a
    device. Nodes outside hosts (switches) are instances of a device with one component.
    """
    return _Writer(fabric).data(), list(_LOST)


class _Writer:
    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.links: dict[tuple[str, float, float], dict[str, Any]] = {}
        self.local: dict[str, str] = {}  # node -> component[number]
        self.of: dict[str, str] = {}  # node -> instance[number]
        self.devices: dict[Any, dict[str, Any]] = {}
        self.instances: Counter[str] = Counter()

    def data(self) -> dict[str, Any]:
        """The whole object."""
        hosts = _by_host(self.fabric)
        self.number(hosts)
        for name in hosts.get("", []):
            kind = self.kind(name)
            self.local[name] = f"{kind}[0]"
            self.place([name], f"{kind}-device", kind)
        inner, outer = self.rows()
        for host, names in hosts.items():
            if host:
                self.host(names, inner.get(host, []))
        return {
            "name": self.fabric.name.replace("/", "-") or "cluster",
            "devices": list(self.devices.values()),
            "links": self.definitions(self.key(row) for row in outer),
            "instances": [
                _instance(name, count) for name, count in self.instances.items()
            ],
            "edges": [self.edge(row) for row in outer],
        }

    def kind(self, name: str) -> str:
        return self.fabric.nodes.kinds[self.fabric.nodes.index[name]]

    def number(self, hosts: dict[str, list[str]]) -> None:
        """Count the components of each host by kind."""
        for names in hosts.values():
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
        return _edge(*ends, self.link_of(self.key(row)))

    def rows(self) -> tuple[dict[str, list[int]], list[int]]:
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

    def host(self, names: list[str], rows: list[int]) -> None:
        """An instance of the device that hosts like this one share, defined when the first of them comes."""
        links, local = self.fabric.links, self.local
        edges = tuple(
            (local[links.src[row]], local[links.dst[row]], self.key(row))
            for row in rows
        )
        parts = tuple(Counter(self.kind(name) for name in names).items())
        signature = parts, edges
        if signature not in self.devices:
            number = sum(isinstance(one, tuple) for one in self.devices)
            self.devices[signature] = self.device(f"host-{number}", parts, edges)
        self.place(names, self.devices[signature]["name"], "")

    def device(
        self, name: str, parts: Iterable[tuple[str, int]], edges: _Edges
    ) -> dict[str, Any]:
        """A device of components (kind and count) and the links between them."""
        return {
            "name": name,
            "components": [_component(kind, count) for kind, count in parts],
            "links": self.definitions(key for _, _, key in edges),
            "edges": [
                _edge({"component": a}, {"component": b}, self.link_of(key))
                for a, b, key in edges
            ],
        }

    def place(self, names: list[str], device: str, kind: str) -> None:
        """Give nodes their instance; a node outside hosts makes a device of one component."""
        instance = kind or device
        for name in names:
            self.of[name] = f"{instance}[{self.instances[instance]}]"
        self.instances[instance] += 1
        if kind and kind not in self.devices:
            self.devices[kind] = self.device(device, [(kind, 1)], ())

    def key(self, row: int) -> _Key:
        links = self.fabric.links
        return (
            str(links.kind[row]),
            float(links.bandwidth[row]),
            float(links.latency[row]),
        )

    def link_of(self, key: _Key) -> str:
        """The name of the link with these numbers, defined when it is first asked for: kind, two dashes, number."""
        kind, bandwidth, latency = key
        if key not in self.links:
            speed = {
                "choice": "gigabytes_per_second",
                "gigabytes_per_second": float(np.round(bandwidth / 1e9, 9)),
            }
            delay = {"choice": "ns", "ns": float(np.round(latency * 1e9, 6))}
            physical = {"bandwidth": speed, "latency": delay}
            self.links[key] = {
                "name": f"{kind}--{len(self.links)}",
                "physical": physical,
            }
        return str(self.links[key]["name"])

    def end(self, row: int, which: str) -> dict[str, str]:
        name = str(getattr(self.fabric.links, which)[row])
        return {"instance": self.of[name], "component": self.local[name]}


def _by_host(fabric: Fabric) -> dict[str, list[str]]:
    hosts: dict[str, list[str]] = {}
    for name, host in zip(fabric.nodes.names, fabric.nodes.hosts, strict=True):
        hosts.setdefault(host, []).append(name)
    return hosts


def _edge(one: dict[str, str], other: dict[str, str], link: str) -> dict[str, Any]:
    return {"ep1": one, "ep2": other, "scheme": "one2one", "link": link}


def _instance(name: str, count: int) -> dict[str, Any]:
    device = name if name.startswith("host") else f"{name}-device"
    return {"name": name, "device": device, "count": count}


def _component(kind: str, count: int) -> dict[str, Any]:
    if kind in _CHOICES:
        return {"name": kind, "count": count, "choice": _CHOICES[kind]}
    return {"name": kind, "count": count, "choice": "custom", "custom": {"type": kind}}
