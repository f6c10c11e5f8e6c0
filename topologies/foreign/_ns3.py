"""ns-3 topology files, as ASTRA-sim's packet-level network reads them."""

from __future__ import annotations

import re

import networkx as nx

from prestep.topologies.core.quantity import LinkSpec, Quantity
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.compile import compile_graph
from prestep.topologies.fabric.wiring import add_node, join, new_graph
from prestep.topologies.files.importers._text import Source

#: Three counts, and after them links with Gbps.
FORM = re.compile(
    r"^\s*\d+\s+\d+\s+\d+\s*\n[\d\s]*\n?\s*\d+\s+\d+\s+[\d.]+\s*[GMK]bps", re.MULTILINE
)
MOST_NODES = 1 << 19  # GPUs and switches: more than any machine has
_BITS = {"Gbps": 1e9, "Mbps": 1e6, "Kbps": 1e3}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_Line = tuple[int, list[str]]  # its number, from 1, and its words


def read(source: Source, text: str) -> Fabric:
    """`nodes switches links`, the switches' numbers, then `a b 400Gbps 0.0005ms error-rate` per link."""
    numbered = enumerate(text.splitlines(), 1)
    head, *rest = [(at, line.split()) for at, line in numbered if line.strip()]
    nodes, switches, links = _counts(source, head)
    numbers = _switches(source, rest, switches)
    lines = _cable_lines(source, rest, links)
    graph = new_graph(source.title, "h100", "astra_sim")
    names = _add_nodes(graph, nodes, numbers)
    for (a, b), specs in _cables(source, lines, names, nodes).items():
        join(graph, names[a], names[b], "cable", specs[0], len(specs))
    source.assumed(
        "GPU model and hosts", "not in the file; H100, each node a host of its own"
    )
    return compile_graph(graph)


def _add_nodes(
    graph: nx.MultiDiGraph[str], nodes: int, switches: list[str]
) -> dict[str, str]:
    """GPUs, each in a host of its own, and after them switches; their names by number."""
    names = {}
    for number in range(nodes):
        if str(number) not in switches:
            gpu, host = f"gpu{number}", f"host{number}"
            names[str(number)] = add_node(graph, gpu, "gpu", host)
    for word in switches:
        names[word] = add_node(graph, f"switch{word}", "switch")
    return names


def _counts(source: Source, head: _Line) -> tuple[int, int, int]:
    """Numbers of nodes, switches and links."""
    number, words = head
    counts = [int(word) for word in words if word.isdecimal() and len(word) < 8]
    if len(counts) != 3 or len(words) != 3 or counts[0] > MOST_NODES:
        expected = f"numbers of nodes (up to {MOST_NODES:,}), switches and links"
        source.fail(f"line {number}", " ".join(words)[:40], expected)
    nodes, switches, links = counts
    return nodes, switches, links


def _switches(source: Source, lines: list[_Line], count: int) -> list[str]:
    """The numbers of the nodes that are switches."""
    if not count:
        return []
    words = [word for _, words in lines for word in words][:count]
    if not all(word.isdecimal() for word in words):
        number, first = lines[0]
        expected = f"the numbers of {count} switches"
        source.fail(f"line {number}", " ".join(first)[:40], expected)
    return words


def _cable_lines(source: Source, lines: list[_Line], count: int) -> list[_Line]:
    """The lines that are links."""
    cables = [
        (number, words)
        for number, words in lines
        if len(words) >= 4 and words[2].endswith("bps")
    ]
    if len(cables) != count:
        found = f"{count} links, but {len(cables)} lines of them"
        source.fail("line 1", found, "as many lines as it says")
    return cables


def _cables(
    source: Source, lines: list[_Line], names: dict[str, str], nodes: int
) -> dict[tuple[str, str], list[LinkSpec]]:
    """The cables between every two nodes, whichever end a line begins with."""
    cables: dict[tuple[str, str], list[LinkSpec]] = {}
    for number, words in lines:
        a, b = words[:2]
        for word in (a, b):
            if word not in names:
                found = f'node "{word}"'
                source.fail(f"line {number}", found, f"a number below {nodes}")
        ends = (b, a) if (b, a) in cables else (a, b)
        cables.setdefault(ends, []).append(_cable(source, number, words))
    return cables


def _cable(source: Source, number: int, words: list[str]) -> LinkSpec:
    rate = re.fullmatch(r"(-?\d+(?:\.\d*)?)([GMK]bps)", words[2])
    delay = re.fullmatch(r"(\d+(?:\.\d*)?)(s|ms|us|ns)", words[3])
    if rate is None or delay is None:
        source.fail(f"line {number}", " ".join(words), "a b 400Gbps 0.0005ms 0")
    bits = source.positive(f"line {number}", rate[1], "a rate above 0") * _BITS[rate[2]]
    seconds = float(delay[1]) * _SECONDS[delay[2]]
    why = f"line {number} of an ns-3 topology"
    return LinkSpec(Quantity(bits / 8, "guess", why), Quantity(seconds, "guess", why))
