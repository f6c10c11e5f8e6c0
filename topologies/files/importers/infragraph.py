"""InfraGraph (Keysight, MLCommons Chakra): devices, instances and edges in YAML or JSON, both ways."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from sim import files
from sim.errors import InputError, did_you_mean
from topologies.core.quantity import LinkSpec
from topologies.fabric import Fabric
from topologies.fabric.builder import FabricBuilder
from topologies.files.importers import _infragraph_links, _infragraph_writer, _yaml
from topologies.files.importers._text import MOST, Source, text_of

_KINDS = {
    "xpu": "gpu",
    "cpu": "cpu",
    "nic": "nic",
    "memory": "memory",
    "port": "port",
    "switch": "switch",
}
# What a switch is, told from its name.
_SWITCHES = {
    "nvlsw": "nvswitch",
    "nvsw": "nvswitch",
    "nvlink": "nvswitch",
    "pcie": "pcieswitch",
    "pci": "pcieswitch",
}
_ELEMENT = re.compile(r"([\w\s()<>-]+?)\s*(?:\[([^\]]*)\])?")


def sniff(text: str) -> bool:
    """Top-level keys `devices` and `instances`."""
    return all(
        re.search(rf'^\s*(\{{\s*)?"?{key}"?\s*:', text, re.MULTILINE)
        for key in ("devices", "instances")
    ) or (
        text.lstrip().startswith("{") and '"devices"' in text and '"instances"' in text
    )


def write(fabric: Fabric, path: str | Path) -> list[str]:
    """Write YAML-compatible JSON that InfraGraph's service accepts; returns what the format cannot carry."""
    data, lost = _infragraph_writer.infrastructure(fabric)
    files.write_text(path, json.dumps(data, indent=1) + "\n")
    return lost


_Ends = Callable[[str, Mapping[str, Any]], list[str]]  # the nodes at one end of an edge


@dataclass
class _Device:
    """A device: components by name, each with its count and kind ("device" to nest), links by name, and edges."""

    name: str
    components: dict[str, tuple[int, str]] = field(default_factory=dict)
    links: dict[str, dict[str, Any]] = field(default_factory=dict)
    edges: list[Any] = field(default_factory=list)


def read(path: str | Path) -> Fabric:
    """The expanded infrastructure: every component of every instance is a node, named `host.0.xpu.1`.

    ::

        devices: server = 2 xpu, 1 nic        instances: host x 2        edges: host[0:2].nic[0] -- leaf[0].port[0:2]

        host.0.xpu.0 -- host.0.nic.0 -- leaf.0.port.0 -- leaf.0.asic.0 -- leaf.0.port.1 -- host.1.nic.0 -- ...

    An instance of a device with an `xpu` is a host; its `xpu` are GPUs. Links without a bandwidth get one by their
    kind, which is told from their name. See `notes`.

    Raises
    ------
    InputError
        For devices, components, instances and links that are not defined, and slices beyond a count.

    References
    ----------
    InfraGraph 2.4, artifacts/openapi.yaml (Device, Instance, Infrastructure.Edge; schemes one2one and many2many).
    """
    source = Source(path)
    data = _yaml.parse(source, text_of(path))
    if isinstance(data, dict) and isinstance(data.get("infrastructure"), dict):
        data = data["infrastructure"]
    if not isinstance(data, dict):
        source.fail(
            "",
            "no mapping",
            "an infrastructure with devices, instances, links and edges",
        )
    try:
        return source.finish(_Expander(source, data).fabric())
    except InputError as error:
        raise source.checked(error) from None


class _Expander:
    """The nodes and links of a file, under construction."""

    def __init__(self, source: Source, data: Mapping[str, Any]) -> None:
        self.source, self.data = source, data
        devices = self.table("devices", "name")
        self.devices = {one["name"]: self.device(one) for one in devices}
        self.instances = dict(
            map(self.instance, self.table("instances", "name", "device"))
        )
        links = self.table("links", "name", optional=True)
        self.links = {one["name"]: one for one in links}
        self.kinds: dict[str, tuple[str, str]] = {}  # node -> (kind, host)
        self.pairs: dict[tuple[str, str], list[tuple[str, LinkSpec]]] = {}

    def table(
        self, key: str, *needed: str, optional: bool = False
    ) -> list[dict[str, Any]]:
        """A list of mappings, each with the keys that it needs."""
        if self.data.get(key) is None and not optional:
            self.source.fail(key, "nothing", "a list")
        return self.tables("", self.data, key, *needed)

    def tables(
        self, where: str, entry: Mapping[str, Any], key: str, *needed: str
    ) -> list[dict[str, Any]]:
        """A list of mappings in one, each with texts under the keys that it needs; empty where nothing is said."""
        value = entry.get(key) or []
        place = f"{where}, {key}" if where else key
        if not isinstance(value, list):
            self.source.fail(place, repr(value)[:40], "a list")
        for at, one in enumerate(value):
            if not isinstance(one, dict):
                self.source.fail(f"{place}[{at}]", repr(one)[:40], "a mapping")
            for name in needed:
                if not isinstance(one.get(name), str):
                    found = repr(one[name])[:40] if name in one else f'no "{name}"'
                    self.source.fail(f"{place}[{at}]", found, " and ".join(needed))
        return value

    def known(self, where: str, name: str, table: Mapping[str, Any], what: str) -> None:
        if not isinstance(name, str) or name not in table:
            hint = did_you_mean(str(name), table)
            self.source.fail(where, f'"{name}"', f"{what} of the file", hint)

    def instance(self, entry: dict[str, Any]) -> tuple[str, tuple[str, int]]:
        """Its name; its device and how many there are."""
        name, device = entry["name"], entry["device"]
        count = self.source.whole(f"instance {name}.count", entry.get("count", 1))
        self.known(f"instance {name}.device", device, self.devices, "a device")
        return name, (device, count)

    def device(self, entry: dict[str, Any]) -> _Device:
        where = f"device {entry['name']}"
        device = _Device(entry["name"], edges=self.tables(where, entry, "edges"))
        if "connections" in entry:
            expected = '"edges": InfraGraph 0.5 or newer'
            self.source.fail(where, '"connections"', expected)
        for part in self.tables(where, entry, "components"):
            component = self.component(f"{where}, component {part.get('name')}", part)
            device.components[str(part["name"])] = component
        links = self.tables(where, entry, "links", "name")
        device.links = {one["name"]: one for one in links}
        return device

    def component(self, where: str, part: Mapping[str, Any]) -> tuple[int, str]:
        """How many, and of what kind."""
        choice = part.get("choice") or part.get("type")
        if choice == "custom":
            custom = part.get("custom")
            stated = custom.get("type") if isinstance(custom, dict) else None
            choice = str(stated or choice)
        if choice is None or "name" not in part:
            found = "no choice" if choice is None else "no name"
            self.source.fail(where, found, "name, count and choice")
        count = self.source.whole(f"{where}.count", part.get("count", 1))
        return count, _kind(str(part["name"]), str(choice))

    def fabric(self) -> Fabric:
        """The cluster of all instances and edges."""
        for name, (device, count) in self.instances.items():
            gpus = self.has_gpu(device)
            for at in range(count):
                prefix = f"{name}.{at}"
                self.expand(prefix, device, prefix if gpus else "")
        for at, edge in enumerate(self.tables("", self.data, "edges")):
            self.edge(f"edges[{at}]", edge, self.links, self.instance_ends)
        title = str(self.data.get("name") or self.source.title)
        self.source.assumed("GPU model", "InfraGraph has none; H100")
        return self.built().finish(title, "h100", "infragraph")

    def built(self) -> FabricBuilder:
        """Nodes that have a link, and the links."""
        builder = FabricBuilder()
        used = {end for pair in self.pairs for end in pair}
        for node, (kind, host) in self.kinds.items():
            if node in used:
                builder.node(node, kind, host)
            else:
                why = "nothing can reach them"
                self.source.dropped("components without a link", why)
        for (a, b), links in self.pairs.items():
            kind, spec = links[0]
            builder.link(a, b, kind, spec, len(links))
        return builder

    def has_gpu(self, device: str) -> bool:
        parts = self.devices[device].components
        return any(
            kind == "gpu" or (kind == "device" and self.has_gpu(name))
            for name, (_, kind) in parts.items()
        )

    def expand(
        self, prefix: str, device: str, host: str, above: tuple[str, ...] = ()
    ) -> None:
        """Nodes and edges of one device; components of the kind `device` are devices again."""
        where = f"device {device}"
        path = (*above, device)
        if device in above:
            expected = "devices that do not contain themselves"
            self.source.fail(where, " > ".join(path), expected)
        for name, (count, kind) in self.devices[device].components.items():
            for at in range(count):
                inner = f"{prefix}.{name}.{at}"
                if kind == "device":
                    self.known(
                        f"{where}, component {name}", name, self.devices, "a device"
                    )
                    self.expand(inner, name, host, path)
                else:
                    self.kinds[inner] = kind, host
                if len(self.kinds) > MOST:
                    found = f"more than {MOST:,} components in all"
                    self.source.fail(where, found, "a cluster that exists")
        self.inner_edges(prefix, self.devices[device])

    def inner_edges(self, prefix: str, device: _Device) -> None:
        """The edges between the components of a device, whose nodes begin with `prefix`."""

        def ends(where: str, end: Mapping[str, Any]) -> list[str]:
            keys = [key for key in ("device", "component") if end.get(key)]
            text = ".".join(str(end[key]) for key in keys)
            names = self.components(where, device.name, text)
            return [f"{prefix}.{name}" for name in names]

        for at, edge in enumerate(device.edges):
            self.edge(f"device {device.name}, edges[{at}]", edge, device.links, ends)

    def instance_ends(self, where: str, end: Mapping[str, Any]) -> list[str]:
        """`{instance: host[0:2].board, component: nic[0]}` -> the nodes of those instances."""
        if "instance" not in end:
            self.source.fail(where, "no instance", "instance and component")
        first, _, rest = str(end["instance"]).partition(".")
        counts = {key: count for key, (_, count) in self.instances.items()}
        name, indexes = self.element(where, first, counts)
        parts = (rest, str(end.get("component") or ""))
        text = ".".join(part for part in parts if part)
        below = self.components(where, self.instances[name][0], text)
        return [f"{name}.{at}.{one}" for at in indexes for one in below]

    def components(self, where: str, device: str, text: str) -> list[str]:
        """`cx5[0:2].port[0]` -> cx5.0.port.0, cx5.1.port.0."""
        names = [""]
        for part in text.split("."):
            components = self.devices[device].components
            counts = {name: count for name, (count, _) in components.items()}
            name, indexes = self.element(where, part, counts)
            names = [
                f"{head}.{name}.{at}".lstrip(".") for head in names for at in indexes
            ]
            device = name if name in self.devices else device
        return names

    def element(
        self, where: str, text: str, counts: Mapping[str, int]
    ) -> tuple[str, list[int]]:
        """`nic[0:2]` -> the name and the numbers that are meant, of so many."""
        match = _ELEMENT.fullmatch(text)
        name, part = (match[1], match[2] or "") if match else (text, "")
        self.known(where, name, counts, "a component or an instance")
        try:
            return name, _indexes(part.strip(), counts[name])
        except (ValueError, IndexError):
            expected = f"an index or a slice of {counts[name]}"
            self.source.fail(where, f'"{text}"', expected)

    def edge(
        self, where: str, edge: Mapping[str, Any], links: Mapping[str, Any], ends: _Ends
    ) -> None:
        """Links between the nodes at the two ends of an edge."""
        for key in ("ep1", "ep2", "link"):
            if not isinstance(edge, dict) or key not in edge:
                self.source.fail(where, f'no "{key}"', "ep1, ep2, link")
        for key in ("ep1", "ep2"):
            if not isinstance(edge[key], dict):
                self.source.fail(f"{where}.{key}", repr(edge[key])[:40], "a mapping")
        self.known(f"{where}.link", edge["link"], links, "a link")
        left, right = (ends(f"{where}.{key}", edge[key]) for key in ("ep1", "ep2"))
        scheme = edge.get("scheme", "one2one")
        for a, b in self.partners(where, scheme, left, right):
            if a != b and not (scheme == "many2many" and (b, a) in self.pairs):
                self.join(where, links[edge["link"]], a, b)

    def partners(
        self, where: str, scheme: str, left: list[str], right: list[str]
    ) -> Iterable[tuple[str, str]]:
        """The nodes that an edge joins, two by two."""
        if scheme not in ("one2one", "many2many"):
            self.source.fail(f"{where}.scheme", f'"{scheme}"', "one2one or many2many")
        if scheme == "one2one":
            if len(left) != len(right):
                why = "one2one between lists of different lengths"
                self.source.dropped("ends without a partner", why)
            return zip(left, right, strict=False)
        if len(left) * len(right) > MOST:
            found = f"{len(left):,} x {len(right):,} links"
            self.source.fail(where, found, f"at most {MOST:,}")
        return product(left, right)

    def join(self, where: str, link: Mapping[str, Any], a: str, b: str) -> None:
        """One link between two nodes."""
        for end in (a, b):
            if end not in self.kinds:
                expected = "a component that is no device of devices"
                self.source.fail(where, f'"{end}"', expected)
        ends = {self.kinds[a][0], self.kinds[b][0]}
        kind = _infragraph_links.kind_of(str(link["name"]), ends)
        spec = _infragraph_links.spec_of(self.source, where, link, kind)
        pair = (b, a) if (b, a) in self.pairs else (a, b)
        self.pairs.setdefault(pair, []).append((kind, spec))


def _kind(name: str, choice: str) -> str:
    """The kind of the nodes of a component."""
    if choice == "switch":
        words = _SWITCHES.items()
        return next((kind for word, kind in words if word in name.lower()), "switch")
    return _KINDS.get(choice, choice)


def _indexes(part: str, count: int) -> list[int]:
    """`2`, `0:2` or nothing, as Python counts -> the numbers; IndexError beyond `count`."""
    if not part:
        return list(range(count))
    if ":" not in part:
        return [range(count)[int(part)]]
    numbers = [int(one) if one.strip() else None for one in part.split(":")]
    if any(one is not None and abs(one) > count for one in numbers[:2]):
        raise IndexError
    return list(range(count)[slice(*numbers)])
