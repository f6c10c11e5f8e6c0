"""ASTRA-sim's analytical network files (YAML and both JSON spellings) and its ns-3 topology files."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any

from sim.errors import InputError, did_you_mean
from topologies.core.quantity import LinkSpec, Quantity
from topologies.fabric import Fabric
from topologies.fabric.builder import FabricBuilder
from topologies.files.importers import _yaml
from topologies.files.importers._text import Source, text_of

_NAMES = {  # the old JSON's spelling -> today's
    "topologies-per-dim": "topology", "units-count": "npus_count", "link-bandwidth": "bandwidth",
    "link-latency": "latency",
}  # fmt: skip
_KEYS = ("topology", "npus_count", "bandwidth", "latency")
_SHAPES = {
    "ring": "Ring",
    "switch": "Switch",
    "fullyconnected": "FullyConnected",
    "alltoall": "FullyConnected",
}
# ASTRA-sim's analytical network takes a GB for 2^30 bytes.
_GB = float(1 << 30)
MOST_NODES = 1 << 19  # GPUs and switches: more than any machine has
MOST_LINKS = 1 << 21
_NS3 = re.compile(
    r"^\s*\d+\s+\d+\s+\d+\s*\n[\d\s]*\n?\s*\d+\s+\d+\s+[\d.]+\s*[GMK]bps", re.MULTILINE
)
_BITS = {"Gbps": 1e9, "Mbps": 1e6, "Kbps": 1e3}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def sniff(text: str) -> bool:
    """Keys `npus_count` or `units-count`; or three counts and links with Gbps (ns-3)."""
    return bool(
        re.search(
            r'(^|[{,])\s*"?(npus_count|units-count|npus-count)"?\s*:',
            text,
            re.MULTILINE,
        )
        or _NS3.match(text)
    )


def read(path: str | Path) -> Fabric:
    """The network; every NPU is a GPU.

    ::

        topology: [ FullyConnected, Switch ]       gpu0 -- router0 ===== router1 -- gpu1     host0
        npus_count: [ 2, 2 ]                                  |             |
                                                           switch1.0     switch1.1
                                                              |             |
                                                   gpu2 -- router2 ===== router3 -- gpu3     host1

    In ASTRA-sim NPUs forward; here GPUs do not, so each has a router with the links of all dimensions, unless the
    network is a single switch. The first of several dimensions is the host. GB/s are 2^30 bytes/s, as in its analytical
    network.

    Raises
    ------
    InputError
        For unknown shapes, lists of different lengths, and numbers that are not positive; the key is named.

    References
    ----------
    ASTRA-sim, astra-network-analytical (NetworkParser, NetworkFunction).
    """
    source, text = Source(path), text_of(path)
    try:
        return source.finish(
            _ns3(source, text) if _NS3.match(text) else _analytical(source, text)
        )
    except InputError as error:
        raise source.checked(error) from None


def _analytical(source: Source, text: str) -> Fabric:
    given = _yaml.parse(source, text)
    if not isinstance(given, dict):
        source.fail("", "no mapping", f"the keys {', '.join(_KEYS)}")
    table = {
        _NAMES.get(str(key), str(key).replace("-", "_")): value
        for key, value in given.items()
    }
    for key in given:
        if _NAMES.get(str(key), str(key).replace("-", "_")) not in _KEYS:
            source.dropped(key, "no link of the network")
    lists = {key: _list(source, table, key) for key in _KEYS}
    for key, values in lists.items():
        if len(values) != len(lists["topology"]):
            source.fail(
                key,
                f"{len(values)} entries",
                f"{len(lists['topology'])}, one for each dimension of topology",
            )
    shapes = [_shape(source, at, value) for at, value in enumerate(lists["topology"])]
    counts = [
        source.whole(f"npus_count[{at}]", value)
        for at, value in enumerate(lists["npus_count"])
    ]
    meshes = [
        count
        for shape, count in zip(shapes, counts, strict=True)
        if shape == "FullyConnected"
    ]
    if math.prod(counts) * max([4, *meshes]) > MOST_LINKS:
        source.fail(
            "npus_count",
            " x ".join(map(str, counts))[:60],
            f"no more than {MOST_LINKS:,} links in all",
        )
    specs = [
        _spec(source, at, bandwidth, delay)
        for at, (bandwidth, delay) in enumerate(
            zip(lists["bandwidth"], lists["latency"], strict=True)
        )
    ]
    return _built(source, shapes, counts, specs)


def _list(source: Source, table: dict[str, Any], key: str) -> list[Any]:
    if key not in table:
        source.fail(
            key,
            "nothing",
            "a list with one entry per dimension",
            did_you_mean(key, table),
        )
    value = table[key]
    return value if isinstance(value, list) else [value]


def _shape(source: Source, at: int, value: object) -> str:
    known = str(value).replace("_", "").lower()
    if known not in _SHAPES:
        shapes = sorted(set(_SHAPES.values()))
        source.fail(
            f"topology[{at}]",
            repr(value),
            f"one of {', '.join(shapes)}",
            did_you_mean(str(value), shapes),
        )
    return _SHAPES[known]


def _spec(source: Source, at: int, bandwidth: object, delay: object) -> LinkSpec:
    rate = source.positive(f"bandwidth[{at}]", bandwidth, "GB/s above 0") * _GB
    latency = 0.0
    if delay != 0:
        expected = "nanoseconds, not negative"
        latency = source.positive(f"latency[{at}]", delay, expected) * 1e-9
    why = f"dimension {at} of an ASTRA-sim network file"
    return LinkSpec(Quantity(rate, "guess", why), Quantity(latency, "guess", why))


def _built(
    source: Source, shapes: list[str], counts: list[int], specs: list[LinkSpec]
) -> Fabric:
    builder, total = FabricBuilder(), math.prod(counts)
    per_host = counts[0] if len(counts) > 1 else total
    gpus = [
        builder.node(f"gpu{at}", "gpu", f"host{at // per_host}") for at in range(total)
    ]
    source.assumed("GPU model", "not in the file; H100")
    ends = gpus
    if len(shapes) > 1 or shapes[0] != "Switch":
        ends = [
            builder.node(f"router{at}", "router", f"host{at // per_host}")
            for at in range(total)
        ]
        every = sum(spec.bandwidth.value * 2 for spec in specs) * max(counts)
        inner = LinkSpec(
            Quantity(every, "guess", "as much as all its dimensions"),
            Quantity(0.0, "guess", "no hop"),
        )
        builder.cables(ends, gpus, "router", inner)
        source.assumed(
            "routers",
            "NPUs forward in ASTRA-sim; here a router beside each GPU does, at no cost",
        )
    for at, (shape, count, spec) in enumerate(zip(shapes, counts, specs, strict=True)):
        stride = math.prod(counts[:at])
        starts = [one for one in range(total) if one // stride % count == 0]
        for group, start in enumerate(starts):
            members = [ends[start + step * stride] for step in range(count)]
            _add(builder, shape, members, spec, at, group)
    return builder.finish(source.title, "h100", "astra_sim")


def _add(
    builder: FabricBuilder,
    shape: str,
    members: list[str],
    spec: LinkSpec,
    dim: int,
    group: int,
) -> None:
    """One ring, switch or mesh; its links are of the kind `dim0`, `dim1`, ..."""
    kind = f"dim{dim}"
    if shape == "Switch":
        switch = builder.node(f"switch{dim}.{group}", "switch")
        builder.cables(members, [switch] * len(members), kind, spec)
    elif shape == "FullyConnected":
        for a, b in itertools.combinations(members, 2):
            builder.link(a, b, kind, spec)
    else:
        around = zip(members, members[1:] + members[:1], strict=True)
        # A ring of two is one cable, of one none.
        for a, b in list(around)[
            : len(members) if len(members) > 2 else len(members) - 1
        ]:
            builder.link(a, b, kind, spec)


def _ns3(source: Source, text: str) -> Fabric:
    """`nodes switches links`, the switches' numbers, then `a b 400Gbps 0.0005ms error-rate` per link."""
    lines = [
        (number, line.split())
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip()
    ]
    head = [int(word) for word in lines[0][1] if word.isdecimal() and len(word) < 8]
    if len(head) != 3 or len(lines[0][1]) != 3 or head[0] > MOST_NODES:
        expected = f"numbers of nodes (up to {MOST_NODES:,}), switches and links"
        source.fail(f"line {lines[0][0]}", " ".join(lines[0][1])[:40], expected)
    nodes, switches, links = head
    named = (
        [word for _, words in lines[1:] for word in words][:switches]
        if switches
        else []
    )
    if not all(word.isdigit() for word in named):
        source.fail(
            f"line {lines[1][0]}",
            " ".join(lines[1][1])[:40],
            f"the numbers of {switches} switches",
        )
    body = [
        (number, words)
        for number, words in lines[1:]
        if len(words) >= 4 and words[2].endswith("bps")
    ]
    if len(body) != links:
        source.fail(
            "line 1",
            f"{links} links, but {len(body)} lines of them",
            "as many lines as it says",
        )
    builder = FabricBuilder()
    names = {str(at): f"gpu{at}" for at in range(nodes) if str(at) not in named}
    for name in names.values():
        builder.node(name, "gpu", name.replace("gpu", "host"))
    names |= {word: builder.node(f"switch{word}", "switch") for word in named}
    counts: dict[tuple[str, str], list[LinkSpec]] = {}
    for number, words in body:
        for word in words[:2]:
            if word not in names:
                source.fail(
                    f"line {number}", f'node "{word}"', f"a number below {nodes}"
                )
        key = (
            (words[1], words[0])
            if (words[1], words[0]) in counts
            else (words[0], words[1])
        )
        counts.setdefault(key, []).append(_cable(source, number, words))
    for (a, b), specs in counts.items():
        builder.link(names[a], names[b], "cable", specs[0], len(specs))
    source.assumed(
        "GPU model and hosts", "not in the file; H100, each node a host of its own"
    )
    return builder.finish(source.title, "h100", "astra_sim")


def _cable(source: Source, number: int, words: list[str]) -> LinkSpec:
    rate = re.fullmatch(r"(-?\d+(?:\.\d*)?)([GMK]bps)", words[2])
    delay = re.fullmatch(r"(\d+(?:\.\d*)?)(s|ms|us|ns)", words[3])
    if rate is None or delay is None:
        source.fail(f"line {number}", " ".join(words), "a b 400Gbps 0.0005ms 0")
    bits = source.positive(f"line {number}", rate[1], "a rate above 0") * _BITS[rate[2]]
    why = f"line {number} of an ns-3 topology"
    return LinkSpec(
        Quantity(bits / 8, "guess", why),
        Quantity(float(delay[1]) * _SECONDS[delay[2]], "guess", why),
    )
