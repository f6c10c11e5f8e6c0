"""ASTRA-sim's analytical network files (YAML and both JSON spellings) and its ns-3 topology files."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import networkx as nx

from prestep.sim.errors import InputError, did_you_mean
from prestep.topologies.core.quantity import LinkSpec, Quantity
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.compile import compile_graph
from prestep.topologies.fabric.wiring import add_node, join, new_graph
from prestep.topologies.files.importers._text import Source, text_of
from prestep.topologies.foreign import _ns3, _yaml

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
MOST_LINKS = 1 << 21


def sniff(text: str) -> bool:
    """Keys `npus_count` or `units-count`; or three counts and links with Gbps (ns-3)."""
    return bool(
        re.search(
            r'(^|[{,])\s*"?(npus_count|units-count|npus-count)"?\s*:',
            text,
            re.MULTILINE,
        )
        or _ns3.FORM.match(text)
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
            _ns3.read(source, text)
            if _ns3.FORM.match(text)
            else _analytical(source, text)
        )
    except InputError as error:
        raise source.checked(error) from None


def _analytical(source: Source, text: str) -> Fabric:
    """The network of one file of dimensions."""
    lists = _dimensions(source, _yaml.parse(source, text))
    shapes = [_shape(source, at, value) for at, value in enumerate(lists["topology"])]
    counts = [
        source.whole(f"npus_count[{at}]", value)
        for at, value in enumerate(lists["npus_count"])
    ]
    _check_size(source, shapes, counts)
    rates = enumerate(zip(lists["bandwidth"], lists["latency"], strict=True))
    specs = [_spec(source, at, bandwidth, delay) for at, (bandwidth, delay) in rates]
    return _built(source, shapes, counts, specs)


def _dimensions(source: Source, document: object) -> dict[str, list[Any]]:
    """The four lists by their key of today, with one entry for each dimension."""
    if not isinstance(document, dict):
        source.fail("", "no mapping", f"the keys {', '.join(_KEYS)}")
    table: dict[str, Any] = {}
    for written, value in document.items():
        key = _NAMES.get(str(written), str(written).replace("-", "_"))
        table[key] = value
        if key not in _KEYS:
            source.dropped(written, "no link of the network")
    lists = {key: _list(source, table, key) for key in _KEYS}
    dimensions = len(lists["topology"])
    for key, values in lists.items():
        if len(values) != dimensions:
            expected = f"{dimensions}, one for each dimension of topology"
            source.fail(key, f"{len(values)} entries", expected)
    return lists


def _check_size(source: Source, shapes: list[str], counts: list[int]) -> None:
    """A network of more links than any machine has is a mistake."""
    sizes = zip(shapes, counts, strict=True)
    meshes = [count for shape, count in sizes if shape == "FullyConnected"]
    if math.prod(counts) * max([4, *meshes]) > MOST_LINKS:
        found = " x ".join(map(str, counts))[:60]
        source.fail("npus_count", found, f"no more than {MOST_LINKS:,} links in all")


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
    shape = str(value).replace("_", "").lower()
    if shape not in _SHAPES:
        shapes = sorted(set(_SHAPES.values()))
        source.fail(
            f"topology[{at}]",
            repr(value),
            f"one of {', '.join(shapes)}",
            did_you_mean(str(value), shapes),
        )
    return _SHAPES[shape]


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
    """GPUs, a router beside each where NPUs forward, and the links of every dimension."""
    graph = new_graph(source.title, "h100", "astra_sim")
    hosts = _hosts(counts)
    ends = [add_node(graph, f"gpu{at}", "gpu", host) for at, host in enumerate(hosts)]
    source.assumed("GPU model", "not in the file; H100")
    if len(shapes) > 1 or shapes[0] != "Switch":
        most = sum(spec.bandwidth.value * 2 for spec in specs) * max(counts)
        ends = _add_routers(graph, ends, hosts, most)
        source.assumed(
            "routers",
            "NPUs forward in ASTRA-sim; here a router beside each GPU does, at no cost",
        )
    for at, shape in enumerate(shapes):
        for group, members in enumerate(_groups(ends, counts, at)):
            _add(graph, shape, members, specs[at], at, group)
    return compile_graph(graph)


def _hosts(counts: list[int]) -> list[str]:
    """The host of each GPU: the first of several dimensions, else the whole network."""
    total = math.prod(counts)
    per_host = counts[0] if len(counts) > 1 else total
    return [f"host{number // per_host}" for number in range(total)]


def _add_routers(
    graph: nx.MultiDiGraph[str], gpus: list[str], hosts: list[str], bandwidth: float
) -> list[str]:
    """A router beside each GPU, joined to it by as much as all its dimensions."""
    routers = [
        add_node(graph, f"router{at}", "router", host) for at, host in enumerate(hosts)
    ]
    rate = Quantity(bandwidth, "guess", "as much as all its dimensions")
    inner = LinkSpec(rate, Quantity(0.0, "guess", "no hop"))
    for router, gpu in zip(routers, gpus, strict=True):
        join(graph, router, gpu, "router", inner)
    return routers


def _groups(ends: list[str], counts: list[int], dimension: int) -> Iterator[list[str]]:
    """The nodes that each ring, switch or mesh of a dimension joins."""
    stride, count = math.prod(counts[:dimension]), counts[dimension]
    for start in range(len(ends)):
        if start // stride % count == 0:
            yield [ends[start + step * stride] for step in range(count)]


def _add(
    graph: nx.MultiDiGraph[str],
    shape: str,
    members: list[str],
    spec: LinkSpec,
    dim: int,
    group: int,
) -> None:
    """One ring, switch or mesh; its links are of the kind `dim0`, `dim1`, ..."""
    kind = f"dim{dim}"
    if shape == "Switch":
        switch = add_node(graph, f"switch{dim}.{group}", "switch")
        for member in members:
            join(graph, member, switch, kind, spec)
    elif shape == "FullyConnected":
        for a, b in itertools.combinations(members, 2):
            join(graph, a, b, kind, spec)
    else:
        around = zip(members, members[1:] + members[:1], strict=True)
        # A ring of two is one cable, of one none.
        for a, b in list(around)[
            : len(members) if len(members) > 2 else len(members) - 1
        ]:
            join(graph, a, b, kind, spec)
