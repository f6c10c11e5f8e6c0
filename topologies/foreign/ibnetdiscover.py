"""What `ibnetdiscover` prints: the switches, adapters and cables of an InfiniBand fabric."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import networkx as nx

from prestep.sim.errors import InputError
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.compile import compile_graph
from prestep.topologies.fabric.wiring import add_node, join, new_graph
from prestep.topologies.files.host_models import HostModel
from prestep.topologies.files.importers._text import Source, text_of
from prestep.topologies.foreign import _rates
from prestep.topologies.foreign._hosts import add_assumed_host, model_of

_NODE = re.compile(r'^(Switch|Ca|Rt)\s+(\d+)\s+"([^"]+)"\s*#\s*"([^"]*)"')
_PORT = re.compile(
    r'^\[(\d+)\](?:\[[^\]]*\])?(?:\([^)]*\))?\s+"([^"]+)"\[(\d+)\](?:\([^)]*\))?\s*(?:#\s*(.*))?$'
)
_RATE = re.compile(r"(\d+)x([A-Z]+\d*)\s*$")
# Bytes/s that one lane carries, after encoding.
_LANE = {
    "SDR": 0.25e9, "DDR": 0.5e9, "QDR": 1e9, "FDR10": 1.25e9, "FDR": 1.704e9, "EDR": 3.125e9, "HDR": 6.25e9,
    "NDR": 12.5e9, "XDR": 25e9,
}  # fmt: skip
_TIERS = ("leaf", "spine", "core")


@dataclass
class _Device:
    guid: str
    kind: str
    title: str
    line: int
    ports: dict[int, tuple[str, int, str]] = field(
        default_factory=dict
    )  # port -> (peer, its port, width and speed)


def sniff(text: str) -> bool:
    """A line `Switch 65 "S-..." # "..."` or `Ca ...`."""
    return re.search(r'^(Switch|Ca)\s+\d+\s+"[SH]-', text, re.MULTILINE) is not None


def read(path: str | Path, host: str = "") -> Fabric:
    """The fabric; adapters whose descriptions start with the same host name are one host.

    ::

        Switch 65 "S-a" # "leaf-1"                     leaf-1
        [1] "H-b"[1] # "node-1 mlx5_0" lid 7 4xNDR     |     |
        [2] "H-c"[1] # "node-1 mlx5_1" lid 8 4xNDR   nic0   nic1  of node-1

    A switch with adapters on it is a leaf, the next a spine, then a core. Hosts are not in the file: each is the
    bundled `host`, a DGX H100 unless said, with one GPU per adapter. Aggregation nodes of SHARP are left out.

    Raises
    ------
    InputError
        For lines that are none of ibnetdiscover's, cables to devices that are not listed, and unknown speeds.
    """
    source = Source(path)
    devices = _devices(source, text_of(path))
    try:
        return source.finish(_build(source, devices, model_of(source, host)))
    except InputError as error:
        raise source.checked(error) from None


def _devices(source: Source, text: str) -> dict[str, _Device]:
    """The switches and adapters with their cables, by GUID."""
    devices: dict[str, _Device] = {}
    current: _Device | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if match := _NODE.match(line):
            current = _Device(match[3], match[1], match[4], number)
            devices[match[3]] = current
        elif line.startswith(("Switch", "Ca\t", "Ca ")):
            expected = 'Switch or Ca, ports, "GUID" # "description"'
            source.fail(f"line {number}", f'"{line[:50]}"', expected)
        elif line.startswith("["):
            _add_port(source, current, number, line)
    for device in devices.values():
        for port, (peer, _, _) in device.ports.items():
            if peer not in devices:
                where = f"line {device.line}: {device.guid}[{port}]"
                source.fail(where, f'a cable to "{peer}"', "a listed device")
    return devices


def _add_port(source: Source, device: _Device | None, number: int, line: str) -> None:
    """One line of a device: its port, and what it leads to."""
    where, port = f"line {number}", _PORT.match(line)
    if port is None or device is None:
        expected = '[port] "GUID"[port] # "description" ... 4xNDR'
        source.fail(where, f'"{line[:50]}"', expected)
    description = port[4] or ""
    rate = _RATE.search(description)
    if rate is None or rate[2] not in _LANE:
        expected = f"a width and a speed of {', '.join(_LANE)}: 4xNDR"
        source.fail(where, f'"{description[-20:]}"', expected)
    device.ports[int(port[1])] = port[2], int(port[3]), rate[0].strip()


def _build(source: Source, devices: dict[str, _Device], model: HostModel) -> Fabric:
    """Hosts, switches by their tier, and cables."""
    adapters = _adapters(source, devices)
    graph = new_graph(source.title, model.params.gpu, "ibnetdiscover")
    names = _add_hosts(source, graph, adapters, model)
    names |= _add_switches(graph, devices, _tiers(devices, adapters))
    _add_cables(source, graph, devices, names)
    return compile_graph(graph)


def _adapters(source: Source, devices: dict[str, _Device]) -> list[_Device]:
    """The channel adapters of hosts."""
    adapters = [
        one
        for one in devices.values()
        if one.kind == "Ca" and one.ports and not _aggregation(source, one)
    ]
    for one in devices.values():
        if one.kind == "Rt":
            source.dropped("routers", "InfiniBand routers lead to other fabrics")
    if not adapters:
        expected = 'at least one Ca with a cable: "Ca 1 ..."'
        source.fail("", "no channel adapter", expected)
    return adapters


def _add_hosts(
    source: Source,
    graph: nx.MultiDiGraph[str],
    adapters: list[_Device],
    model: HostModel,
) -> dict[str, str]:
    """Hosts in the order of their names; the names of their NICs, by the adapters' GUIDs."""
    hosts: dict[str, list[_Device]] = {}
    for one in adapters:
        hosts.setdefault(_host(source, one), []).append(one)
    names: dict[str, str] = {}
    for host in sorted(hosts, key=_natural):
        own = sorted(hosts[host], key=lambda one: _natural(one.title))
        nics = add_assumed_host(graph, source, host, model, len(own))
        names |= {one.guid: nic for one, nic in zip(own, nics, strict=True)}
    return names


def _add_switches(
    graph: nx.MultiDiGraph[str], devices: dict[str, _Device], tiers: dict[str, int]
) -> dict[str, str]:
    """Switches by their descriptions, or by their GUIDs where two have the same; their names by GUID."""
    switches = [one for one in devices.values() if one.kind == "Switch"]
    count = Counter(one.title for one in switches)
    names = {}
    for one in switches:
        title = one.title.removeprefix("MF0;").partition(":")[0]
        name = title if title and count[one.title] == 1 else one.guid
        kind = _TIERS[min(tiers.get(one.guid, 0), 2)]
        names[one.guid] = add_node(graph, name, kind)
    return names


def _aggregation(source: Source, adapter: _Device) -> bool:
    found = "Aggregation Node" in adapter.title
    if found:
        source.dropped(
            "aggregation nodes", "SHARP's reduction inside the switches is not a host"
        )
    return found


def _host(source: Source, adapter: _Device) -> str:
    """The part of a description before the adapter's own name; the GUID where it is the maker's default."""
    words = adapter.title.replace("'", "").split()
    if (
        len(words) < 2
        or words[0].startswith(("MT", "Mellanox"))
        or not re.search(r"\d$", words[-1])
    ):
        source.assumed(
            "host of an adapter",
            "its description names none: a host of its own, named by its GUID",
        )
        return adapter.guid
    return words[0]


def _natural(text: str) -> list[tuple[int, str]]:
    """A key that sorts node-2 before node-10."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part)
        for part in re.split(r"(\d+)", text)
        if part
    ]


def _tiers(devices: dict[str, _Device], adapters: list[_Device]) -> dict[str, int]:
    """Hops of every switch from the nearest adapter: 0 is a leaf."""
    switches = {guid for guid, one in devices.items() if one.kind == "Switch"}
    cables = nx.DiGraph(
        (one.guid, peer)
        for one in devices.values()
        for peer, _, _ in one.ports.values()
        if peer in switches
    )
    layers = nx.bfs_layers(cables, [one.guid for one in adapters if one.guid in cables])
    return {guid: hops - 1 for hops, layer in enumerate(layers) for guid in layer}


def _add_cables(
    source: Source,
    graph: nx.MultiDiGraph[str],
    devices: dict[str, _Device],
    names: dict[str, str],
) -> None:
    """One link for all cables between two devices."""
    for (a, b), rates in _cables(devices, names).items():
        kind = "nic" if "Ca" in (devices[a].kind, devices[b].kind) else "spine"
        mean = sum(_bytes_per_second(rate) for rate in rates) / len(rates)
        if len(set(rates)) > 1:
            why = "two devices joined by several; the mean stands for each"
            source.assumed("cables of different speeds", why)
        end = "nic" if kind == "nic" else "switch"
        spec = _rates.port(mean, "datasheet", f"ibnetdiscover: {rates[0]}", end)
        join(graph, names[a], names[b], kind, spec, len(rates))


def _cables(
    devices: dict[str, _Device], names: dict[str, str]
) -> dict[tuple[str, str], list[str]]:
    """Rates of all cables between two devices, whichever of them is listed first."""
    pairs: dict[tuple[str, str], list[str]] = {}
    for (a, b, rate), count in _counted(devices, names).items():
        ends = (b, a) if (b, a) in pairs else (a, b)
        pairs.setdefault(ends, []).extend([rate] * count)
    return pairs


def _counted(
    devices: dict[str, _Device], names: dict[str, str]
) -> Counter[tuple[str, str, str]]:
    """Cables by their ends and rate; both ends list a cable, so the first end counts."""
    counts: Counter[tuple[str, str, str]] = Counter()
    counted = set()
    for one in devices.values():
        for port, (peer, there, rate) in one.ports.items():
            named = one.guid in names and peer in names
            if named and (peer, there) not in counted:
                counted.add((one.guid, port))
                counts[one.guid, peer, rate] += 1
    return counts


def _bytes_per_second(rate: str) -> float:
    lanes, _, speed = rate.partition("x")
    return int(lanes) * _LANE[speed]
