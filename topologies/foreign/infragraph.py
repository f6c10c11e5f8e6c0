"""InfraGraph (Keysight, MLCommons Chakra): devices, instances and edges in YAML or JSON, both ways."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from pathlib import Path

from prestep.sim import files
from prestep.sim.errors import InputError
from prestep.topologies.fabric import Fabric
from prestep.topologies.files.importers._text import MOST, Source, text_of
from prestep.topologies.foreign import _infragraph_restore, _infragraph_writer, _yaml
from prestep.topologies.foreign._infragraph_document import Device, Edge, Link, document
from prestep.topologies.foreign._infragraph_links import kind_of

_ELEMENT = re.compile(r"([\w\s()<>-]+?)\s*(?:\[([^\]]*)\])?")
#: Devices within devices: more than any machine has.
_DEEPEST = 32


def sniff(text: str) -> bool:
    """Top-level keys `devices` and `instances`."""
    return all(
        re.search(rf'^\s*(\{{\s*)?"?{key}"?\s*:', text, re.MULTILINE)
        for key in ("devices", "instances")
    ) or (
        text.lstrip().startswith("{") and '"devices"' in text and '"instances"' in text
    )


def write(fabric: Fabric, path: str | Path) -> list[str]:
    """Write YAML-compatible JSON that InfraGraph's service accepts.

    What InfraGraph has no key for is in the descriptions of its parts, so nothing is lost: the list of losses is empty.
    """
    files.write_text(
        path, json.dumps(_infragraph_writer.infrastructure(fabric), indent=1) + "\n"
    )
    return []


_Ends = Callable[[str, Mapping[str, str]], list[str]]  # the nodes at one end of an edge


def read(path: str | Path) -> Fabric:
    """The expanded infrastructure: every component of every instance is a node, named `host.0.xpu.1`.

    ::

        devices: server = 2 xpu, 1 nic        instances: host x 2        edges: host[0:2].nic[0] -- leaf[0].port[0:2]

        host.0.xpu.0 -- host.0.nic.0 -- leaf.0.port.0 -- leaf.0.asic.0 -- leaf.0.port.1 -- host.1.nic.0 -- ...

    An instance of a device with an `xpu` is a host; its `xpu` are GPUs. Links without a bandwidth get one by their
    kind, which is told from their name. A file that prestep wrote has names, facts and grades in its descriptions: they
    are taken from there. See `notes`.

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
    try:
        expander = _Expander(source, data)
        return _infragraph_restore.fabric(
            source, expander.document, expander.kinds, expander.pairs
        )
    except InputError as error:
        raise source.checked(error) from None


class _Expander:
    """The nodes of a file (kind and host by name) and the links between every two of them."""

    def __init__(self, source: Source, data: object) -> None:
        self.source, self.document = source, document(source, data)
        self.kinds: dict[str, tuple[str, str]] = {}
        self.pairs: dict[tuple[str, str], list[tuple[str, Link]]] = {}
        for name, instance in self.document.instances.items():
            gpus = self.has_gpu(instance.device, {})
            for at in range(instance.count):
                prefix = f"{name}.{at}"
                self.expand(prefix, instance.device, prefix if gpus else "")
        for edge in self.document.edges:
            self.edge(edge, self.document.links, self.instance_ends)

    def has_gpu(self, device: str, seen: dict[str, bool]) -> bool:
        """Whether a device or one inside it has a GPU; `seen` has the answers so far."""
        if device not in seen and device in self.document.devices:
            seen[device] = False
            if len(seen) > _DEEPEST * _DEEPEST:
                return False
            parts = self.document.devices[device].components
            seen[device] = any(
                kind == "gpu" or (kind == "device" and self.has_gpu(name, seen))
                for name, (_, kind) in parts.items()
            )
        return seen.get(device, False)

    def expand(
        self, prefix: str, device: str, host: str, above: tuple[str, ...] = ()
    ) -> None:
        """Nodes and edges of one device; components of the kind `device` are devices again."""
        where, path = f"device {device}", (*above, device)
        if device in above:
            expected = "devices that do not contain themselves"
            self.source.fail(where, " > ".join(path), expected)
        if len(path) > _DEEPEST:
            self.source.fail(
                where, f"{len(path)} devices within one another", f"at most {_DEEPEST}"
            )
        for name, (count, kind) in self.document.devices[device].components.items():
            for at in range(count):
                inner = f"{prefix}.{name}.{at}"
                if kind == "device":
                    element = f"{where}, component {name}"
                    self.source.known(element, name, self.document.devices, "a device")
                    self.expand(inner, name, host, path)
                else:
                    self.kinds[inner] = kind, host
                if len(self.kinds) > MOST:
                    found = f"more than {MOST:,} components in all"
                    self.source.fail(where, found, "a cluster that exists")
        self.inner_edges(prefix, self.document.devices[device])

    def inner_edges(self, prefix: str, device: Device) -> None:
        """The edges between the components of a device, whose nodes begin with `prefix`."""

        def ends(where: str, end: Mapping[str, str]) -> list[str]:
            text = ".".join(end[key] for key in ("device", "component") if key in end)
            names = self.components(where, device.name, text)
            return [f"{prefix}.{name}" for name in names]

        for edge in device.edges:
            self.edge(edge, device.links, ends)

    def instance_ends(self, where: str, end: Mapping[str, str]) -> list[str]:
        """`{instance: host[0:2].board, component: nic[0]}` -> the nodes of those instances."""
        if "instance" not in end:
            self.source.fail(where, "no instance", "instance and component")
        instances = self.document.instances
        first, _, rest = end["instance"].partition(".")
        counts = {key: one.count for key, one in instances.items()}
        name, indexes = self.element(where, first, counts)
        parts = (rest, end.get("component", ""))
        text = ".".join(part for part in parts if part)
        below = self.components(where, instances[name].device, text)
        return [f"{name}.{at}.{one}" for at in indexes for one in below]

    def components(self, where: str, device: str, text: str) -> list[str]:
        """`cx5[0:2].port[0]` -> cx5.0.port.0, cx5.1.port.0."""
        names = [""]
        for part in text.split("."):
            components = self.document.devices[device].components
            counts = {name: count for name, (count, _) in components.items()}
            name, indexes = self.element(where, part, counts)
            if len(names) * len(indexes) > MOST:
                self.source.fail(where, f'"{text[:60]}"', f"at most {MOST:,} nodes")
            names = [
                f"{head}.{name}.{at}".lstrip(".") for head in names for at in indexes
            ]
            device = name if name in self.document.devices else device
        return names

    def element(
        self, where: str, text: str, counts: Mapping[str, int]
    ) -> tuple[str, list[int]]:
        """`nic[0:2]` -> the name and the numbers that are meant, of so many."""
        match = _ELEMENT.fullmatch(text)
        name, part = (match[1], match[2] or "") if match else (text, "")
        self.source.known(where, name, counts, "a component or an instance")
        try:
            return name, _indexes(part.strip(), counts[name])
        except (ValueError, IndexError):
            expected = f"an index or a slice of {counts[name]}"
            self.source.fail(where, f'"{text}"', expected)

    def edge(self, edge: Edge, links: Mapping[str, Link], ends: _Ends) -> None:
        """Links between the nodes at the two ends of an edge."""
        where = edge.where
        self.source.known(f"{where}.link", edge.link, links, "a link")
        places = (f"{where}.ep1", f"{where}.ep2")
        left, right = (ends(*end) for end in zip(places, edge.ends, strict=True))
        for a, b in self.partners(edge, left, right):
            if a != b and not (edge.scheme == "many2many" and (b, a) in self.pairs):
                self.join(where, links[edge.link], a, b)

    def partners(
        self, edge: Edge, left: list[str], right: list[str]
    ) -> Iterable[tuple[str, str]]:
        """The nodes that an edge joins, two by two."""
        if edge.scheme == "one2one":
            if len(left) != len(right):
                why = "one2one between lists of different lengths"
                self.source.dropped("ends without a partner", why)
            return zip(left, right, strict=False)
        if len(left) * len(right) > MOST:
            found = f"{len(left):,} x {len(right):,} links"
            self.source.fail(edge.where, found, f"at most {MOST:,}")
        return product(left, right)

    def join(self, where: str, link: Link, a: str, b: str) -> None:
        """One link between two nodes."""
        for end in (a, b):
            if end not in self.kinds:
                expected = "a component that is no device of devices"
                self.source.fail(where, f'"{end}"', expected)
        kind = kind_of(link.name, {self.kinds[a][0], self.kinds[b][0]})
        pair = (b, a) if (b, a) in self.pairs else (a, b)
        self.pairs.setdefault(pair, []).append((kind, link))
        if len(self.pairs) > 4 * MOST:
            found = f"more than {4 * MOST:,} links in all"
            self.source.fail(where, found, "a cluster that exists")


def _indexes(part: str, count: int) -> list[int]:
    """`2`, `0:2` or nothing, as Python counts -> the numbers; IndexError beyond `count`."""
    if not part:
        return list(range(count))
    if ":" not in part:
        return [range(count)[int(part)]]
    numbers = [int(one) if one.strip() else None for one in part.split(":")]
    if len(numbers) > 3 or any(
        one is not None and abs(one) > count for one in numbers[:2]
    ):
        raise IndexError
    return list(range(count)[slice(*numbers)])
