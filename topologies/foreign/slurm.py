"""Slurm's topology.conf and topology.yaml: which switches join which nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import networkx as nx

from prestep.sim.errors import InputError, did_you_mean
from prestep.topologies.core.quantity import LinkSpec
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.compile import compile_graph
from prestep.topologies.fabric.wiring import add_node, join, new_graph
from prestep.topologies.files.host_models import HostModel
from prestep.topologies.files.importers._text import Source, text_of
from prestep.topologies.foreign import _rates, _yaml
from prestep.topologies.foreign._hosts import add_assumed_host, model_of

_LINE = re.compile(r"^\s*(SwitchName|BlockName)\s*=", re.IGNORECASE | re.MULTILINE)
_YAML = re.compile(r"^\s*-\s*topology\s*:", re.MULTILINE)
_KEYS = (
    *("switchname", "switches", "nodes", "linkspeed", "blockname", "blocksizes"),
    "comment",
)


MOST_NAMES = 100_000  # of one host list: more than any cluster has


@dataclass
class _Switch:
    name: str
    line: str
    switches: list[str] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)


def sniff(text: str) -> bool:
    """Lines `SwitchName=` or `BlockName=`, or YAML whose items start with `topology:`."""
    return _LINE.search(text) is not None or _YAML.search(text) is not None


def read(path: str | Path, gpus: int = 8, host: str = "") -> Fabric:
    """The tree of switches over the nodes, each of them a `host` with `gpus` GPUs.

    ::

        SwitchName=top Switches=s[1-2]               top
        SwitchName=s1 Nodes=n[01-02]              s1      s2
        SwitchName=s2 Nodes=n[03-04]           n01 n02  n03 n04

    The file has no rates and no hosts: hosts are DGX H100 unless `host` names another, and a switch has as much
    bandwidth up as down. A block is a switch over its nodes, and all blocks stand under one. See `notes`.

    Raises
    ------
    InputError
        For switches that are not defined or contain themselves, nodes under no switch, and malformed host lists.

    References
    ----------
    Slurm, topology.conf(5), topology.yaml(5).
    """
    source, text = Source(path), text_of(path)
    switches = (
        _from_yaml(source, text) if _YAML.search(text) else _from_conf(source, text)
    )
    if not switches:
        source.fail("", "no switch", "at least one switch or block")
    try:
        model = model_of(source, host)
        return source.finish(_build(source, switches, model, gpus))
    except InputError as error:
        raise source.checked(error) from None


def _from_conf(source: Source, text: str) -> dict[str, _Switch]:
    """The switches of a topology.conf."""
    switches: dict[str, _Switch] = {}
    blocks = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"line {number}"
        values = _values(source, where, words)
        if "blocksizes" in values:
            continue
        name = values.get("switchname") or values.get("blockname") or ""
        if "blockname" in values:
            blocks.append(name)
        below, nodes = values.get("switches", ""), values.get("nodes", "")
        _add(source, switches, where, name, below, nodes)
    return _under_one(source, switches, blocks)


def _values(source: Source, where: str, words: list[str]) -> dict[str, str]:
    """The words `Key=value` of a line, by key."""
    values = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key.lower() not in _KEYS:
            expected = f"one of {', '.join(_KEYS)} with ="
            hint = did_you_mean(key.lower(), _KEYS)
            source.fail(where, f'"{word}"', expected, hint)
        values[key.lower()] = value
    if "linkspeed" in values:
        why = "a number without a unit, which Slurm does not use either"
        source.dropped("LinkSpeed", why)
    if "blocksizes" in values:
        source.dropped("BlockSizes", "how Slurm places jobs, not a link")
    return values


def _from_yaml(source: Source, text: str) -> dict[str, _Switch]:
    """The switches of a topology.yaml: those of its default topology, or of its first."""
    topology = _default_topology(source, _yaml.parse(source, text))
    if "tree" in topology:
        part, key, kind = "tree", "switches", "switch"
    else:
        part, key, kind = "block", "blocks", "block"
    inside = topology[part]
    entries = inside.get(key) if isinstance(inside, dict) else None
    if not isinstance(entries, list):
        expected = f"a list with {kind}, nodes, children"
        source.fail(f"{part}.{key}", repr(entries), expected)
    switches: dict[str, _Switch] = {}
    for at, entry in enumerate(entries):
        _add_entry(source, switches, f"{part}.{key}[{at}]", entry, kind)
    return _under_one(source, switches, list(switches) if part == "block" else [])


def _add_entry(
    source: Source, switches: dict[str, _Switch], where: str, entry: Any, kind: str
) -> None:
    """One switch or block of a YAML file."""
    if not isinstance(entry, dict) or kind not in entry:
        source.fail(where, f'no "{kind}"', f"a {kind} with its name")
    texts = [str(entry.get(name) or "") for name in (kind, "children", "nodes")]
    _add(source, switches, where, *texts)


def _default_topology(source: Source, topologies: Any) -> dict[str, Any]:
    """The topology of a tree or of blocks that jobs get unless they choose another."""
    usable = [
        one
        for one in topologies
        if isinstance(one, dict) and ("tree" in one or "block" in one)
    ]
    if not usable:
        source.fail("topology", "no tree and no block", "a topology with one of them")
    defaults = [one for one in usable if one.get("cluster_default")]
    chosen: dict[str, Any] = [*defaults, *usable][0]
    if len(topologies) > 1:
        why = f"the file has {len(topologies)}; this is {chosen.get('topology')}"
        source.dropped("other topologies", why)
    return chosen


def _add(
    source: Source,
    switches: dict[str, _Switch],
    where: str,
    name: str,
    below: str,
    nodes: str,
) -> None:
    if not name:
        source.fail(where, "no name", "SwitchName=... or BlockName=...")
    if name in switches:
        source.fail(where, f'a second "{name}"', "switches of different names")
    if not below and not nodes:
        source.fail(
            f"{where}: {name}", "neither switches nor nodes", "what the switch joins"
        )
    switches[name] = _Switch(
        name, where, expand(source, where, below), expand(source, where, nodes)
    )


def _under_one(
    source: Source, switches: dict[str, _Switch], blocks: list[str]
) -> dict[str, _Switch]:
    if len(blocks) > 1:
        source.assumed(
            "a switch over the blocks", "the file only says which nodes are close"
        )
        switches["blocks"] = _Switch("blocks", "blocks", blocks)
    return switches


def expand(source: Source, where: str, text: str) -> list[str]:
    """Names of a host list: "tux[0-2,12]x" is tux0x, tux1x, tux2x, tux12x; leading zeros are kept."""
    names: list[str] = []
    if re.search(r"[\[\]]", re.sub(r"\[[^\[\]]*\]", "", text)):
        source.fail(where, f'"{text}"', "a host list such as tux[0-3,12]")
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        found = [""]
        for piece in re.split(r"(\[[^\]]*\])", part.strip()):
            ends = (
                _numbers(source, where, piece)
                if piece.startswith("[") and piece.endswith("]")
                else [piece]
            )
            if len(names) + len(found) * len(ends) > MOST_NAMES:
                source.fail(where, f'"{text[:60]}"', f"at most {MOST_NAMES} names")
            found = [head + end for head in found for end in ends]
        names += found
    return names


def _numbers(source: Source, where: str, piece: str) -> list[str]:
    numbers = []
    for item in piece[1:-1].split(","):
        # of nine digits at most: longer ones name more than there can be
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", item)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            expected = "numbers and rising ranges such as [0-3,12]"
            source.fail(where, f'"{piece[:60]}"', expected)
        low, high = match[1], match[2] or match[1]
        if int(high) - int(low) >= MOST_NAMES:
            source.fail(where, f'"{piece[:60]}"', f"at most {MOST_NAMES} names")
        numbers += [str(at).zfill(len(low)) for at in range(int(low), int(high) + 1)]
    return numbers


def _build(
    source: Source, switches: dict[str, _Switch], model: HostModel, gpus: int
) -> Fabric:
    """Hosts under their leaves, and the tree of switches above."""
    _check_defined(source, switches)
    heights = {name: _height(source, switches, name, ()) for name in switches}
    graph = new_graph(source.title, model.params.gpu, "slurm")
    cables = _add_hosts(graph, source, switches, model, gpus)
    kinds = {0: "leaf", 1: "spine"}
    for name in switches:
        add_node(graph, name, kinds.get(heights[name], "core"))
    ports = dict.fromkeys(switches, 0)
    for nic, leaf in cables:
        join(graph, nic, leaf, "nic", model.params.nic)
        ports[leaf] += 1
    _add_uplinks(source, graph, switches, heights, ports, model.params.nic)
    return compile_graph(graph)


def _check_defined(source: Source, switches: dict[str, _Switch]) -> None:
    """Switches over switches that the file does not define are a mistake."""
    for switch in switches.values():
        for name in switch.switches:
            if name not in switches:
                hint = did_you_mean(name, switches)
                where, found = f"{switch.line}: {switch.name}", f'the switch "{name}"'
                source.fail(where, found, "a switch of the file", hint)


def _add_hosts(
    graph: nx.MultiDiGraph[str],
    source: Source,
    switches: dict[str, _Switch],
    model: HostModel,
    gpus: int,
) -> list[tuple[str, str]]:
    """A host for each node; returns its NICs with the leaf of each, dealt out where a node is under several."""
    leaves: dict[str, list[str]] = {}
    for switch in switches.values():
        for node in switch.nodes:
            leaves.setdefault(node, []).append(switch.name)
    cables = []
    for node, above in leaves.items():
        nics = add_assumed_host(graph, source, node, model, gpus)
        cables += [(nic, above[at % len(above)]) for at, nic in enumerate(nics)]
    return cables


def _height(
    source: Source, switches: dict[str, _Switch], name: str, above: tuple[str, ...]
) -> int:
    if name in above:
        source.fail(
            switches[name].line,
            f"{' > '.join([*above, name])}",
            "switches that do not contain themselves",
        )
    below = switches[name].switches
    return (
        1 + max(_height(source, switches, one, (*above, name)) for one in below)
        if below
        else 0
    )


def _add_uplinks(
    source: Source,
    graph: nx.MultiDiGraph[str],
    switches: dict[str, _Switch],
    heights: dict[str, int],
    ports: dict[str, int],
    nic: LinkSpec,
) -> None:
    """From the leaves up: as many ports up, over all switches above together, as there are down."""
    above: dict[str, list[str]] = {name: [] for name in switches}
    for switch in switches.values():
        for name in switch.switches:
            above[name].append(switch.name)
    port = _rates.port(
        nic.bandwidth.value, "guess", "as fast as the hosts' ports", "switch"
    )
    for name in sorted(switches, key=heights.__getitem__):
        for parent in above[name]:
            source.assumed(
                "cables between switches",
                "not in the file; as much bandwidth up as down",
            )
            share = LinkSpec(port.bandwidth, port.latency, raw=nic.raw)
            count = max(1, ports[name] // len(above[name]))
            join(graph, name, parent, "spine", share, count)
            ports[parent] += count
