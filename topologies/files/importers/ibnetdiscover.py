"""What `ibnetdiscover` prints: the switches, adapters and cables of an InfiniBand fabric."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from sim.errors import InputError
from topologies.fabric import Fabric
from topologies.fabric.builder import FabricBuilder
from topologies.files.importers import _rates
from topologies.files.importers._hosts import add_assumed_host
from topologies.files.importers._text import Source, text_of

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


def read(path: str | Path) -> Fabric:
    """The fabric; adapters whose descriptions start with the same host name are one host.

    ::

        Switch 65 "S-a" # "leaf-1"                     leaf-1
        [1] "H-b"[1] # "node-1 mlx5_0" lid 7 4xNDR     |     |
        [2] "H-c"[1] # "node-1 mlx5_1" lid 8 4xNDR   nic0   nic1  of node-1

    A switch with adapters on it is a leaf, the next a spine, then a core. Hosts are not in the file: each is a DGX H100
    with one GPU per adapter. SHARP's aggregation nodes are left out. See `notes`.

    Raises
    ------
    InputError
        For lines that are none of ibnetdiscover's, cables to devices that are not listed, and unknown speeds.
    """
    source = Source(path)
    devices = _devices(source, text_of(path))
    try:
        return source.finish(_build(source, devices))
    except InputError as error:
        raise source.checked(error) from None


def _devices(source: Source, text: str) -> dict[str, _Device]:
    devices: dict[str, _Device] = {}
    current: _Device | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if match := _NODE.match(line):
            current = _Device(match[3], match[1], match[4], number)
            devices[match[3]] = current
        elif line.startswith(("Switch", "Ca\t", "Ca ")):
            source.fail(
                f"line {number}",
                f'"{line[:50]}"',
                'Switch or Ca, ports, "GUID" # "description"',
            )
        elif line.startswith("["):
            port = _PORT.match(line)
            if port is None or current is None:
                source.fail(
                    f"line {number}",
                    f'"{line[:50]}"',
                    '[port] "GUID"[port] # "description" ... 4xNDR',
                )
            rate = _RATE.search(port[4] or "")
            if rate is None or rate[2] not in _LANE:
                known = ", ".join(_LANE)
                source.fail(
                    f"line {number}",
                    f'"{(port[4] or "")[-20:]}"',
                    f"a width and a speed of {known}: 4xNDR",
                )
            current.ports[int(port[1])] = port[2], int(port[3]), rate[0].strip()
    for device in devices.values():
        for number, (peer, _, _) in device.ports.items():
            if peer not in devices:
                source.fail(
                    f"line {device.line}: {device.guid}[{number}]",
                    f'a cable to "{peer}"',
                    "a listed device",
                )
    return devices


def _build(source: Source, devices: dict[str, _Device]) -> Fabric:
    adapters = [
        one
        for one in devices.values()
        if one.kind == "Ca" and one.ports and not _aggregation(source, one)
    ]
    switches = [one for one in devices.values() if one.kind == "Switch"]
    for one in devices.values():
        if one.kind == "Rt":
            source.dropped("routers", "InfiniBand routers lead to other fabrics")
    if not adapters:
        source.fail(
            "", "no channel adapter", 'at least one Ca with a cable: "Ca 1 ..."'
        )
    hosts: dict[str, list[_Device]] = {}
    for one in adapters:
        hosts.setdefault(_host(source, one), []).append(one)
    builder = FabricBuilder()
    names = {}
    for host in sorted(hosts, key=_natural):
        mine = sorted(hosts[host], key=lambda one: _natural(one.title))
        for one, nic in zip(
            mine, add_assumed_host(builder, source, host, len(mine)), strict=True
        ):
            names[one.guid] = nic
    tiers = _tiers(devices, adapters)
    twice = Counter(one.title for one in switches)
    for one in switches:
        title = one.title.removeprefix("MF0;").partition(":")[0]
        names[one.guid] = builder.node(
            title if title and twice[one.title] == 1 else one.guid,
            _TIERS[min(tiers.get(one.guid, 0), 2)],
        )
    _add_cables(source, builder, devices, names)
    return builder.finish(source.title, "h100", "ibnetdiscover")


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
        (int(part), "") if part.isdigit() else (-1, part)
        for part in re.split(r"(\d+)", text)
        if part
    ]


def _tiers(devices: dict[str, _Device], adapters: list[_Device]) -> dict[str, int]:
    """Hops of every switch from the nearest adapter: 0 is a leaf."""
    tiers: dict[str, int] = {}
    edge = [
        peer
        for one in adapters
        for peer, _, _ in one.ports.values()
        if devices[peer].kind == "Switch"
    ]
    depth = 0
    while edge:
        fresh = [guid for guid in dict.fromkeys(edge) if guid not in tiers]
        tiers |= dict.fromkeys(fresh, depth)
        edge = [
            peer
            for guid in fresh
            for peer, _, _ in devices[guid].ports.values()
            if devices[peer].kind == "Switch"
        ]
        depth += 1
    return tiers


def _add_cables(
    source: Source,
    builder: FabricBuilder,
    devices: dict[str, _Device],
    names: dict[str, str],
) -> None:
    """One link for all cables between two devices; both ends list a cable, so the first end counts."""
    counts: Counter[tuple[str, str, str]] = Counter()
    seen = set()
    for one in devices.values():
        for number, (peer, there, rate) in one.ports.items():
            if one.guid in names and peer in names and (peer, there) not in seen:
                seen.add((one.guid, number))
                counts[one.guid, peer, rate] += 1
    pairs: dict[tuple[str, str], list[str]] = {}
    for (a, b, rate), count in counts.items():
        # The same two devices may be listed from either end.
        key = (b, a) if (b, a) in pairs else (a, b)
        pairs.setdefault(key, []).extend([rate] * count)
    for (a, b), rates in pairs.items():
        kind = "nic" if "Ca" in (devices[a].kind, devices[b].kind) else "spine"
        each = sum(_bytes_per_second(rate) for rate in rates) / len(rates)
        if len(set(rates)) > 1:
            source.assumed(
                "cables of different speeds",
                "two devices joined by several; the mean stands for each",
            )
        spec = _rates.port(
            each,
            "datasheet",
            f"ibnetdiscover: {rates[0]}",
            "nic" if kind == "nic" else "switch",
        )
        builder.link(names[a], names[b], kind, spec, len(rates))


def _bytes_per_second(rate: str) -> float:
    lanes, _, speed = rate.partition("x")
    return int(lanes) * _LANE[speed]
