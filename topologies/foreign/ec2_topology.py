"""EC2's instance topology: what `aws ec2 describe-instance-topology` prints, the switches over every instance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx

from prestep.sim import files
from prestep.topologies import aws_p5, host
from prestep.topologies.core.facts import KINDS
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.compile import compile_graph
from prestep.topologies.fabric.wiring import add_hosts, new_graph
from prestep.topologies.files import host_models
from prestep.topologies.files.host_models import HostModel
from prestep.topologies.files.importers._text import Source, text_of

# The bundled cluster of an instance type, and its GPU where that is another. Other types have other hosts and networks.
TYPES = {
    "p4d.24xlarge": ("aws-p4de", "a100-40gb"),
    "p4de.24xlarge": ("aws-p4de", ""),
    "p5.48xlarge": ("aws-p5", ""),
    "p5e.48xlarge": ("aws-p5", "h200"),
    "p5en.48xlarge": ("aws-p5en", ""),
}
LAYERS = 3


def sniff(text: str) -> bool:
    """JSON with instances that name their network nodes."""
    return text.lstrip().startswith("{") and '"NetworkNodes"' in text


def read(path: str | Path) -> Fabric:
    """The instances under their switches.

    ::

        {"Instances": [{"InstanceId": "i-1",               nn-1            core
                        "InstanceType": "p5.48xlarge",       |
                        "NetworkNodes": ["nn-1",            nn-2            spine
                                         "nn-2",           /    \\
                                         "nn-3"]},       nn-3   nn-4        leaf
                       ...]}                             i-1    i-2

    Network nodes go from the top to the one that the instance is attached to. The file has no rates: every switch has
    as much bandwidth up as down, and hosts are those of the bundled cluster of their type (`TYPES`). Instances under
    one switch become neighbours in the order of ranks. See `notes`.

    Raises
    ------
    InputError
        For text that is no JSON, instances without an id or three network nodes, the same one twice, a switch under
        two others, and types of instances that are not known.
    """
    source = Source(path)
    instances = _instances(source, text_of(path))
    kinds = {str(one["InstanceType"]) for one in instances}
    if len(kinds) > 1:
        source.fail("Instances", f"types {', '.join(sorted(kinds))}", "one type")
    kind = kinds.pop()
    cluster, gpu = TYPES[kind]
    model = host_models.named(cluster)
    fabric = compile_graph(_graph(source.title, instances, model, gpu))
    # The network is the same too, so all that the cluster's file says holds.
    facts = {key: fact for key, fact in model.facts.items() if key in KINDS}
    source.stands_on(model)
    other = f", with {gpu}" if gpu else ""
    source.assumed("hosts", f"only named in the file; {kind} is {cluster}{other}")
    source.assumed("rates", "not in the file; as much bandwidth up as down, and 0.5 us")
    return source.finish(fabric.with_facts(fabric.name, facts))


def _graph(
    title: str, instances: Sequence[Mapping[str, Any]], model: HostModel, gpu: str
) -> nx.MultiDiGraph[str]:
    """Hosts like those of a bundled cluster, in the order of their switches, and the switches over them."""
    params = replace(model.params, gpu=gpu) if gpu else model.params
    graph = new_graph(title, params.gpu, model.family.__name__.rpartition(".")[2])
    pattern = getattr(model.family, "pattern", host.pattern)(params)
    ordered = sorted(instances, key=lambda one: tuple(one["NetworkNodes"]))
    hosts = [str(one["InstanceId"]) for one in ordered]
    for name in hosts:
        add_hosts(graph, name, pattern)
    above = [tuple(one["NetworkNodes"]) for one in ordered]
    tier = params.tier if hasattr(params, "tier") else params.spine
    aws_p5.add_switches(graph, hosts, above, params.nic, tier)
    return graph


def _instances(source: Source, text: str) -> list[Mapping[str, Any]]:
    """The checked instances of the file."""
    try:
        data = files.json_of(text)
    except ValueError:
        source.fail("", "text that is no JSON", "describe-instance-topology's JSON")
    instances = data.get("Instances") if isinstance(data, dict) else None
    if not isinstance(instances, list) or not instances:
        source.fail("Instances", "nothing", "a list of instances")
    for at, one in enumerate(instances):
        _check(source, f"Instances[{at}]", one)
    _check_unique(source, instances)
    _check_tree(source, instances)
    return instances


def _check(source: Source, where: str, one: Any) -> None:
    """An instance has an id, a type that is known, and a name for each layer."""
    if not isinstance(one, dict) or not _name(one.get("InstanceId")):
        source.fail(where, "no InstanceId", "an id")
    kind = one.get("InstanceType")
    if not isinstance(kind, str) or kind not in TYPES:
        source.fail(f"{where}.InstanceType", repr(kind), f"one of {', '.join(TYPES)}")
    nodes = one.get("NetworkNodes")
    expected = f"{LAYERS} different names, from the top"
    if not isinstance(nodes, list) or not all(map(_name, nodes)):
        source.fail(f"{where}.NetworkNodes", repr(nodes)[:60], expected)
    if len(set(nodes)) != LAYERS or len(nodes) != LAYERS:
        source.fail(f"{where}.NetworkNodes", ", ".join(nodes), expected)


def _name(value: object) -> bool:
    return isinstance(value, str) and bool(value) and "/" not in value


def _check_unique(source: Source, instances: Sequence[Mapping[str, Any]]) -> None:
    """No instance is named twice."""
    seen: set[str] = set()
    for one in instances:
        if one["InstanceId"] in seen:
            source.fail("Instances", f"{one['InstanceId']} twice", "every one once")
        seen.add(one["InstanceId"])


def _check_tree(source: Source, instances: Sequence[Mapping[str, Any]]) -> None:
    """Every switch is in one layer, under one other."""
    places: dict[str, tuple[int, str]] = {}
    for one in instances:
        upper = ""
        for layer, name in enumerate(one["NetworkNodes"]):
            if places.setdefault(name, (layer, upper)) != (layer, upper):
                source.fail(
                    name, f"under {upper or 'nothing'} and elsewhere", "one place"
                )
            upper = name
