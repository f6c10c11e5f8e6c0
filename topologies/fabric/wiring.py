"""What families of clusters share: checked parameters, links to begin with, rows of nodes, and how they are cabled.

A graph numbers its cables and hosts in the order in which they are added (attribute `link`): NetworkX lists edges by
node, and routes of equal length are chosen by the order of links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import networkx as nx

from prestep.sim import files
from prestep.sim.errors import InputError, Mistake, unknown
from prestep.sim.units import parse_bandwidth, parse_duration
from prestep.topologies.core.quantity import LinkSpec, Quantity

Items = TypeVar("Items", list[str], range)
Pairs = Sequence[tuple[int, int]]


def count(default: int, least: int = 1) -> Any:
    """A parameter that counts something, of which there are so many at least."""
    return field(default=default, metadata={"least": least})


def counts(default: tuple[int, ...], each: str, least: int = 0) -> Any:
    """A parameter of several counts, each at least 1, such as one "host in every dimension"."""
    return field(default=default, metadata={"each": each, "least": least})


class Checked:
    """A base of `Params`: counts are not below their least, and the parts fit together."""

    def __post_init__(self) -> None:
        family = type(self).__module__.rpartition(".")[2]
        mistakes = list(self._too_small()) or list(self.misfits())
        if mistakes:
            raise InputError([Mistake(family, *mistake) for mistake in mistakes])

    def _too_small(self) -> Iterator[tuple[str, str, str]]:
        for entry in fields(self):  # type: ignore[arg-type]
            value, limits = getattr(self, entry.name), entry.metadata
            if "each" in limits:
                if any(one < 1 for one in value) or len(value) < limits["least"]:
                    yield entry.name, str(list(value)), f"at least 1 {limits['each']}"
            elif "least" in limits and value < limits["least"]:
                yield entry.name, str(value), f"at least {limits['least']}"

    def misfits(self) -> Iterator[tuple[str, str, str]]:
        """What does not fit, when no count is too small: key, value, and what was expected."""
        yield from ()


@cache
def _link_tables() -> dict[str, dict[str, Any]]:
    path = Path(__file__).parents[1] / "links.toml"
    return files.toml(path.read_text(encoding="utf-8"))


def default_links(family: str) -> dict[str, LinkSpec]:
    """Links that a family begins with, by their keys in a cluster file: those of topologies/links.toml.

    Examples
    --------
    >>> default_links("host")["nic"].raw.source
    'NVIDIA ConnectX-7: 400 Gbit/s'
    """
    return {
        key: LinkSpec(
            **{part: _quantity(part, stated) for part, stated in link.items()}
        )
        for key, link in _link_tables()[family].items()
    }


def _quantity(part: str, stated: Mapping[str, str]) -> Quantity:
    parse = parse_duration if part == "latency" else parse_bandwidth
    value = parse(stated["value"], "links.toml", part)
    return Quantity(value, stated["evidence"], stated["source"])


#: One cable between switches of InfiniBand.
CABLE = default_links("switches")["cable"]


def new_graph(name: str, gpu_model: str, family: str = "") -> nx.MultiDiGraph[str]:
    """A cluster without a node as yet."""
    return nx.MultiDiGraph(name=name, gpu_model=gpu_model, family=family, links=0)


def _next_link(graph: nx.MultiDiGraph[str]) -> int:
    number: int = graph.graph.get("links", 0)
    graph.graph["links"] = number + 1
    return number


def join(
    graph: nx.MultiDiGraph[str],
    a: str,
    b: str,
    kind: str,
    spec: LinkSpec,
    count: int = 1,
    **copies: Any,
) -> None:
    """Adds a cable of `count` physical links from `a`, the end nearer the CPU, to `b`.

    An end may be a node of a host: ``host0/nic3``.

    Parameters
    ----------
    tail_ports, head_ports
        Of an end that is a host: its nodes at which cables begin, or end.
    pairs
        Of ends with copies: numbers of those that are joined; without it every one and every one.

    Raises
    ------
    InputError
        If the graph has no such node.

    Examples
    --------
    >>> from prestep.topologies.host import Params
    >>> graph = new_graph("two", "h100")
    >>> leaves = add_row(graph, "leaf", 2)
    >>> join(graph, *leaves, "spine", Params().nic, count=2)
    >>> graph.edges["leaf0", "leaf1", 0]["count"]
    2
    """
    ends = [a, b]
    for at, (end, key) in enumerate(
        zip(ends, ("tail_ports", "head_ports"), strict=True)
    ):
        if end not in graph:
            ends[at], _, port = end.rpartition("/")
            copies[key] = [port]
        if ends[at] not in graph:
            names = [str(node) for node in graph]
            raise InputError(unknown(str(graph.graph["name"]), "node", end, names))
    cable = {"kind": kind, "spec": spec, "count": count, "link": _next_link(graph)}
    graph.add_edge(*ends, **cable, **copies)


def add_node(graph: nx.MultiDiGraph[str], name: str, kind: str, host: str = "") -> str:
    """Adds a node and returns its name.

    Raises
    ------
    InputError
        If there is one of that name: two of a file's.
    """
    if name in graph:
        found, expected = "two nodes of this name", "names that differ"
        raise InputError.of(str(graph.graph["name"]), name, found, expected)
    graph.add_node(name, kind=kind, host=host)
    return name


def add_hosts(
    graph: nx.MultiDiGraph[str],
    name: str,
    pattern: nx.MultiDiGraph[str],
    **attributes: int | str,
) -> list[str]:
    """Adds a host, or `copies` of it, that are like a graph; returns the names of its NICs, which are ports."""
    graph.add_node(name, pattern=pattern, link=_next_link(graph), **attributes)
    return of_kind(pattern, "nic")


def of_kind(graph: nx.MultiDiGraph[str], kind: str) -> list[str]:
    """Names of a graph's nodes of one kind, in order."""
    return [node for node, data in graph.nodes.items() if data.get("kind") == kind]


def add_row(
    graph: nx.MultiDiGraph[str], kind: str, count: int, host: str = ""
) -> list[str]:
    """Adds nodes of one kind, numbered from 0: ``gpu0``, ``gpu1``, ..."""
    names = [f"{kind}{number}" for number in range(count)]
    graph.add_nodes_from(names, kind=kind, host=host)
    return names


def add_cpus(
    graph: nx.MultiDiGraph[str],
    count: int,
    memory: LinkSpec,
    socket: LinkSpec,
    host: str = "",
) -> list[str]:
    """Adds a host's CPUs, each with its own memory, and a link between every two of them."""
    cpus = add_row(graph, "cpu", count, host)
    memories = add_row(graph, "memory", count, host)
    for cpu, own in zip(cpus, memories, strict=True):
        join(graph, cpu, own, "memory", memory)
    join_all(graph, cpus, "socket", socket)
    return cpus


def slot(slots: Sequence[str], at: int, count: int) -> str:
    """The slot of device `at` of `count`, dealt out in blocks: 8 devices over 2 slots are 4 and 4."""
    return slots[at * len(slots) // count]


def plug(
    graph: nx.MultiDiGraph[str],
    slots: Sequence[str],
    devices: Sequence[str],
    kind: str,
    spec: LinkSpec,
) -> None:
    """Deals devices out over slots in equal blocks, in order."""
    for at, device in enumerate(devices):
        join(graph, slot(slots, at, len(devices)), device, kind, spec)


def join_all(
    graph: nx.MultiDiGraph[str],
    nodes: Sequence[str],
    kind: str,
    spec: LinkSpec,
    count: int = 1,
) -> None:
    """Joins every two of some nodes by `count` links."""
    for at, node in enumerate(nodes):
        for other in nodes[:at]:
            join(graph, other, node, kind, spec, count)


def add_nvlinks(
    graph: nx.MultiDiGraph[str],
    gpu: str,
    nvswitches: Sequence[str],
    counts: Sequence[int],
    nvlink: LinkSpec,
) -> None:
    """Joins a GPU to every NVSwitch, by `counts` links each."""
    for nvswitch, count in zip(nvswitches, counts, strict=True):
        join(graph, gpu, nvswitch, "nvlink", nvlink, count)


def star(
    name: str,
    pattern: Callable[[Any, str], nx.MultiDiGraph[str]],
    params: Any,
    hosts: int = 1,
) -> nx.MultiDiGraph[str]:
    """Returns hosts under one network that blocks nothing; the nodes of a single host have no prefix.

    Parameters
    ----------
    name
        Of the cluster and, with underscores, of its family.
    pattern
        Makes the graph of a host from `params`, and the name of the host or "".
    """
    family = name.replace("-", "_")
    if hosts > 1:
        graph = new_graph(name, params.gpu, family)
        nics = add_hosts(graph, "host", pattern(params, ""), copies=hosts)
        graph.add_node("network", kind="network")
        join(graph, "host", "network", "nic", params.nic, tail_ports=nics)
        return graph
    graph = pattern(params, "host0")
    graph.graph |= {"name": name, "family": family}
    nics = of_kind(graph, "nic")
    if nics:
        graph.add_node("network", kind="network")
    for nic in nics:
        join(graph, nic, "network", "nic", params.nic)
    return graph


def by_units(items: Items, each: int) -> list[Items]:
    """Units of `each` items, filled one after the other; the last one may be smaller."""
    return [items[first : first + each] for first in range(0, len(items), each)]


def add_below(
    graph: nx.MultiDiGraph[str],
    pattern: nx.MultiDiGraph[str],
    hosts: int,
    each: int,
    port: LinkSpec,
    switch: str = "leaf",
) -> None:
    """Adds hosts, copies of ``host``, and switches above: all NICs of `each` hosts under one, in order."""
    nics = add_hosts(graph, "host", pattern, copies=hosts)
    graph.add_node(switch, kind=switch, copies=-(-hosts // each))
    pairs = [(host, host // each) for host in range(hosts)]
    join(graph, "host", switch, "nic", port, tail_ports=nics, pairs=pairs)


def add_rails(
    graph: nx.MultiDiGraph[str],
    leaf: str,
    hosts: range,
    nics: Sequence[str],
    port: LinkSpec,
) -> None:
    """Adds one leaf per rail, with that NIC of each of some hosts (numbers of copies of ``host``) under it."""
    graph.add_node(leaf, kind="leaf", copies=len(nics))
    for rail, nic in enumerate(nics):
        pairs = [(host, rail) for host in hosts]
        join(graph, "host", leaf, "nic", port, tail_ports=[nic], pairs=pairs)


def every(low: Sequence[int], high: Sequence[int]) -> Pairs:
    """Pairs that join every copy of `low` to every copy of `high`."""
    return [(one, other) for one in low for other in high]
