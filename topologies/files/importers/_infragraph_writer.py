"""The InfraGraph form of a cluster: hosts that look alike share one device."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from topologies.fabric import Fabric

_CHOICES = {"gpu": "xpu", "cpu": "cpu", "nic": "nic", "memory": "memory"}
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
        nodes = self.fabric.nodes
        for host, names in _by_host(self.fabric).items():
            counts: Counter[str] = Counter()
            for name in names:
                kind = nodes.kinds[nodes.index[name]]
                self.local[name] = f"{kind}[{counts[kind]}]"
                counts[kind] += 1
            if not host:
                for name in names:
                    kind = nodes.kinds[nodes.index[name]]
                    self.local[name] = f"{kind}[0]"
                    self.place([name], f"{kind}-device", kind)
        inner, outer = self.rows()
        for host, names in _by_host(self.fabric).items():
            if host:
                self.host(names, inner.get(host, []))
        return {
            "name": self.fabric.name.replace("/", "-") or "cluster",
            "devices": list(self.devices.values()),
            "links": [
                self.links[key]
                for key in dict.fromkeys(self.key(row) for row in outer)
                if self.link_of(key)
            ],
            "instances": [
                {
                    "name": name,
                    "device": name if name.startswith("host") else f"{name}-device",
                    "count": count,
                }
                for name, count in self.instances.items()
            ],
            "edges": [
                {
                    "ep1": self.end(row, "src"),
                    "ep2": self.end(row, "dst"),
                    "scheme": "one2one",
                    "link": self.link(row),
                }
                for row in outer
            ],
        }

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
        links = self.fabric.links
        edges = tuple(
            (self.local[links.src[row]], self.local[links.dst[row]], self.key(row))
            for row in rows
        )
        parts = Counter(self.local[name].partition("[")[0] for name in names)
        signature = tuple(parts.items()), edges
        if signature not in self.devices:
            device = (
                f"host-{len([one for one in self.devices if isinstance(one, tuple)])}"
            )
            used = {
                key: self.links[key]
                for key in dict.fromkeys(key for _, _, key in edges)
                if self.link_of(key)
            }
            self.devices[signature] = {
                "name": device,
                "components": [
                    _component(kind, count) for kind, count in parts.items()
                ],
                "links": list(used.values()),
                "edges": [
                    {
                        "ep1": {"component": a},
                        "ep2": {"component": b},
                        "scheme": "one2one",
                        "link": self.link_of(key),
                    }
                    for a, b, key in edges
                ],
            }
        self.place(names, self.devices[signature]["name"], "")

    def place(self, names: list[str], device: str, kind: str) -> None:
        """Give nodes their instance; a node outside hosts makes a device of one component."""
        instance = kind or device
        for name in names:
            self.of[name] = f"{instance}[{self.instances[instance]}]"
        self.instances[instance] += 1
        if kind and kind not in self.devices:
            self.devices[kind] = {
                "name": device,
                "components": [_component(kind, 1)],
                "links": [],
                "edges": [],
            }

    def key(self, row: int) -> tuple[str, float, float]:
        links = self.fabric.links
        return (
            str(links.kind[row]),
            float(links.bandwidth[row]),
            float(links.latency[row]),
        )

    def link(self, row: int) -> str:
        return self.link_of(self.key(row))

    def link_of(self, key: tuple[str, float, float]) -> str:
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


def _component(kind: str, count: int) -> dict[str, Any]:
    if kind in _CHOICES:
        return {"name": kind, "count": count, "choice": _CHOICES[kind]}
    return {"name": kind, "count": count, "choice": "custom", "custom": {"type": kind}}
