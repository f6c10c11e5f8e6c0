"""EC2's instance topology: what `aws ec2 describe-instance-topology` prints, the switches over every instance."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from topologies import aws_p5
from topologies.core.quantity import Quantity
from topologies.fabric import Fabric
from topologies.fabric.builder import FabricBuilder
from topologies.files.importers._text import Source, text_of

# What is known of an instance type: its GPUs. Others have other hosts and networks.
TYPES = {"p5.48xlarge": "h100", "p5e.48xlarge": "h200"}
LAYERS = 3
_FACTS = {
    "nvlink_sharp": "Hugging Face Smol Training Playbook: all-reduces on a p5 host faster than its links",
    "amd_cpu": "AWS EC2 p5.48xlarge: AMD EPYC 7R13",
}


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
    as much bandwidth up as down, and hosts are those of `aws-p5`. Instances under one switch become neighbours in the
    order of ranks. See `notes`.

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
    params = aws_p5.Params(gpu=TYPES[kinds.pop()], hosts=len(instances))
    ordered = sorted(instances, key=lambda one: tuple(one["NetworkNodes"]))
    builder = FabricBuilder()
    nics = [
        aws_p5.add_host(builder, params, one["InstanceId"], f"{one['InstanceId']}/")
        for one in ordered
    ]
    above = [tuple(one["NetworkNodes"]) for one in ordered]
    aws_p5.add_switches(builder, nics, above, params)
    fabric = builder.finish(source.title, params.gpu, "aws_p5")
    return source.finish(_stated(source, fabric))


def _stated(source: Source, fabric: Fabric) -> Fabric:
    """The fabric with what is known of such hosts, and what had to be assumed."""
    source.assumed("hosts", "only named in the file; inside each is a p5.48xlarge")
    source.assumed("rates", "not in the file; as much bandwidth up as down, and 0.5 us")
    facts = {key: Quantity(1.0, "measured", why) for key, why in _FACTS.items()}
    return fabric.with_facts(fabric.name, facts)


def _instances(source: Source, text: str) -> list[Mapping[str, Any]]:
    """The checked instances of the file."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
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
