"""InfraGraph (Keysight, MLCommons Chakra): devices, instances and edges in YAML or JSON, both ways."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from sim import files
from sim.errors import InputError, did_you_mean
from topologies.core.quantity import LinkSpec, Quantity
from topologies.fabric import Fabric
from topologies.fabric.builder import FabricBuilder
from topologies.files.importers import _infragraph_writer, _rates, _yaml
from topologies.files.importers._text import MOST, Source, text_of

_UNITS = {
    "gigabits_per_second": 1e9 / 8,
    "gigabytes_per_second": 1e9,
    "gigatransfers_per_second": 1e9 / 8,
}
_SECONDS = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_KINDS = {
    "xpu": "gpu",
    "cpu": "cpu",
    "nic": "nic",
    "memory": "memory",
    "port": "port",
    "switch": "switch",
}
# What a link or a switch is, told from its name: InfraGraph has no kinds of links.
_WORDS = {
    "nvl": "nvlink",
    "xgmi": "nvlink",
    "c2c": "c2c",
    "pcie": "pcie",
    "mem": "memory",
    "fabric": "socket",
}
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


@dataclass
class _Device:
    name: str
    components: dict[str, tuple[int, str]] = field(
        default_factory=dict
    )  # name -> (count, kind; "device" to nest)
    links: dict[str, dict[str, Any]] = field(default_factory=dict)
    edges: list[Any] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)


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
    def __init__(self, source: Source, data: Mapping[str, Any]) -> None:
        self.source, self.data = source, data
        self.devices = {
            one["name"]: self.device(one) for one in self.table("devices", "name")
        }
        self.instances: dict[str, tuple[str, int]] = {}
        for one in self.table("instances", "name", "device"):
            count = source.whole(f"instance {one['name']}.count", one.get("count", 1))
            self.known(
                f"instance {one['name']}.device",
                one["device"],
                self.devices,
                "a device",
            )
            self.instances[one["name"]] = one["device"], count
        self.links = {
            one["name"]: one for one in self.table("links", "name", optional=True)
        }
        self.kinds: dict[str, tuple[str, str]] = {}  # node -> (kind, host)
        self.pairs: dict[tuple[str, str], list[tuple[str, LinkSpec]]] = {}

    def table(
        self, key: str, *needed: str, optional: bool = False
    ) -> list[dict[str, Any]]:
        value = self.data.get(key)
        if value is None and optional:
            return []
        if not isinstance(value, list):
            self.source.fail(
                key, "nothing" if value is None else repr(value)[:40], "a list"
            )
        for at, one in enumerate(value):
            for name in needed:
                if not isinstance(one, dict) or name not in one:
                    self.source.fail(
                        f"{key}[{at}]", f'no "{name}"', f"{' and '.join(needed)}"
                    )
        return value

    def known(self, where: str, name: str, table: Mapping[str, Any], what: str) -> None:
        if name not in table:
            self.source.fail(
                where,
                f'"{name}"',
                f"{what} of the file",
                did_you_mean(str(name), table),
            )

    def device(self, entry: dict[str, Any]) -> _Device:
        device = _Device(entry["name"], edges=entry.get("edges") or [])
        if "connections" in entry:
            self.source.fail(
                f"device {device.name}",
                '"connections"',
                '"edges": InfraGraph 0.5 or newer',
            )
        for part in entry.get("components") or []:
            where = f"device {device.name}, component {part.get('name')}"
            choice = part.get("choice") or part.get("type")
            kind = (
                str((part.get("custom") or {}).get("type") or choice)
                if choice == "custom"
                else choice
            )
            if kind is None or "name" not in part:
                self.source.fail(
                    where,
                    "no choice" if kind is None else "no name",
                    "name, count and choice",
                )
            count = self.source.whole(f"{where}.count", part.get("count", 1))
            device.components[part["name"]] = count, self.kind(part["name"], str(kind))
        device.links = {one["name"]: one for one in entry.get("links") or []}
        return device

    def kind(self, name: str, choice: str) -> str:
        if choice == "switch":
            return next(
                (kind for word, kind in _SWITCHES.items() if word in name.lower()),
                "switch",
            )
        return _KINDS.get(choice, choice)

    def fabric(self) -> Fabric:
        for name, (device, count) in self.instances.items():
            gpus = self.has_gpu(device)
            for at in range(count):
                self.expand(f"{name}.{at}", device, f"{name}.{at}" if gpus else "")
        for at, edge in enumerate(self.data.get("edges") or []):
            self.edge(f"edges[{at}]", edge, self.links, self.instance_ends)
        builder = FabricBuilder()
        used = {end for pair in self.pairs for end in pair}
        for node, (kind, host) in self.kinds.items():
            if node in used:
                builder.node(node, kind, host)
            else:
                self.source.dropped(
                    "components without a link", "nothing can reach them"
                )
        for (a, b), specs in self.pairs.items():
            builder.link(a, b, specs[0][0], specs[0][1], len(specs))
        self.source.assumed("GPU model", "InfraGraph has none; H100")
        return builder.finish(
            str(self.data.get("name") or self.source.title), "h100", "infragraph"
        )

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
        if device in above:
            self.source.fail(
                f"device {device}",
                " > ".join([*above, device]),
                "devices that do not contain themselves",
            )
        this = self.devices[device]
        for name, (count, kind) in this.components.items():
            for at in range(count):
                if kind == "device":
                    self.known(
                        f"device {device}, component {name}",
                        name,
                        self.devices,
                        "a device",
                    )
                    self.expand(f"{prefix}.{name}.{at}", name, host, (*above, device))
                else:
                    self.kinds[f"{prefix}.{name}.{at}"] = kind, host
                if len(self.kinds) > MOST:
                    self.source.fail(
                        f"device {device}",
                        f"more than {MOST:,} components in all",
                        "a cluster that exists",
                    )

        def ends(where: str, end: Mapping[str, Any]) -> list[str]:
            text = ".".join(
                str(end[key]) for key in ("device", "component") if end.get(key)
            )
            return [f"{prefix}.{one}" for one in self.components(where, device, text)]

        for at, edge in enumerate(this.edges):
            self.edge(f"device {device}, edges[{at}]", edge, this.links, ends)

    def instance_ends(self, where: str, end: Mapping[str, Any]) -> list[str]:
        if "instance" not in end:
            self.source.fail(where, "no instance", "instance and component")
        first, _, rest = str(end["instance"]).partition(".")
        name, indexes = self.element(
            where, first, {key: count for key, (_, count) in self.instances.items()}
        )
        text = ".".join(
            part for part in (rest, str(end.get("component") or "")) if part
        )
        below = self.components(where, self.instances[name][0], text)
        return [f"{name}.{at}.{one}" for at in indexes for one in below]

    def components(self, where: str, device: str, text: str) -> list[str]:
        """`cx5[0:2].port[0]` -> cx5.0.port.0, cx5.1.port.0."""
        found = [""]
        for part in text.split("."):
            counts = {
                name: count
                for name, (count, _) in self.devices[device].components.items()
            }
            name, indexes = self.element(where, part, counts)
            found = [
                f"{head}.{name}.{at}".lstrip(".") for head in found for at in indexes
            ]
            device = name if name in self.devices else device
        return found

    def element(
        self, where: str, text: str, counts: Mapping[str, int]
    ) -> tuple[str, list[int]]:
        match = _ELEMENT.fullmatch(text)
        name = match[1] if match else text
        self.known(where, name, counts, "a component or an instance")
        count, part = counts[name], (match[2] or "" if match else "").strip()
        try:
            if not part:
                return name, list(range(count))
            if ":" not in part:
                return name, [range(count)[int(part)]]
            numbers = [int(one) if one.strip() else None for one in part.split(":")]
            if any(one is not None and abs(one) > count for one in numbers[:2]):
                raise IndexError
            return name, list(range(count)[slice(*numbers)])
        except (ValueError, IndexError):
            self.source.fail(where, f'"{text}"', f"an index or a slice of {count}")

    def edge(
        self, where: str, edge: Mapping[str, Any], links: Mapping[str, Any], ends: Any
    ) -> None:
        for key in ("ep1", "ep2", "link"):
            if not isinstance(edge, dict) or key not in edge:
                self.source.fail(where, f'no "{key}"', "ep1, ep2, link")
        self.known(f"{where}.link", edge["link"], links, "a link")
        left, right = (ends(f"{where}.{key}", edge[key]) for key in ("ep1", "ep2"))
        scheme = edge.get("scheme", "one2one")
        if scheme not in ("one2one", "many2many"):
            self.source.fail(f"{where}.scheme", f'"{scheme}"', "one2one or many2many")
        if scheme == "one2one" and len(left) != len(right):
            self.source.dropped(
                "ends without a partner", "one2one between lists of different lengths"
            )
        if scheme == "many2many" and len(left) * len(right) > MOST:
            self.source.fail(
                where, f"{len(left):,} x {len(right):,} links", f"at most {MOST:,}"
            )
        for a, b in (
            zip(left, right, strict=False)
            if scheme == "one2one"
            else product(left, right)
        ):
            if a == b or ((b, a) in self.pairs and scheme == "many2many"):
                continue
            for end in (a, b):
                if end not in self.kinds:
                    self.source.fail(
                        where, f'"{end}"', "a component that is no device of devices"
                    )
            pair = (b, a) if (b, a) in self.pairs else (a, b)
            self.pairs.setdefault(pair, []).append(
                self.link(where, links[edge["link"]], a, b)
            )

    def link(
        self, where: str, link: Mapping[str, Any], a: str, b: str
    ) -> tuple[str, LinkSpec]:
        name = str(link["name"])
        kinds = {self.kinds[a][0], self.kinds[b][0]}
        lower = name.lower()
        kind = (
            lower.partition("--")[0]
            if "--" in lower
            else next((k for w, k in _WORDS.items() if w in lower), name)
        )
        if "--" not in lower and kinds == {"gpu", "nvswitch"}:
            kind = "nvlink"
        if "--" not in lower and kind == "socket" and kinds != {"cpu"}:
            kind = name
        given = link.get("physical") or {}
        default = _default(kind)
        rate = self.quantity(
            f"{where}, link {name}.bandwidth", given.get("bandwidth"), _UNITS
        )
        delay = self.quantity(
            f"{where}, link {name}.latency", given.get("latency"), _SECONDS
        )
        if rate is None:
            self.source.assumed(
                f"bandwidth of {name}",
                f"not in the file; {default.bandwidth.value / 1e9:g} GB/s",
            )
        if delay is None:
            self.source.assumed(
                f"latency of {name}",
                "not in the file; of the order of a hop of its kind",
            )
        why = f"InfraGraph, link {name}"
        return kind, LinkSpec(
            Quantity(rate, "guess", why) if rate else default.bandwidth,
            Quantity(delay, "guess", why) if delay is not None else default.latency,
            raw=None if rate else default.raw,
        )

    def quantity(
        self, where: str, given: object, units: Mapping[str, float]
    ) -> float | None:
        if not isinstance(given, dict):
            return None
        unit: Any = given.get("choice") or next(
            (key for key in given if key in units), None
        )
        if unit not in units or unit not in given:
            self.source.fail(
                where, repr(given)[:60], f"one of {', '.join(units)} with its number"
            )
        if units is _SECONDS and given[unit] == 0:
            return 0.0
        return self.source.positive(where, given[unit]) * units[unit]


def _default(kind: str) -> LinkSpec:
    if kind == "nvlink":
        one = _rates.nvlink(90)
        return LinkSpec(
            Quantity(one.bandwidth.value * 18, "guess", "all NVLinks of an H100"),
            one.latency,
        )
    if kind in ("pcie", "socket", "memory"):
        return _rates.pcie(32.0, 16, "guess")
    return _rates.port(48e9, "guess", "a 400 Gbit/s port")
