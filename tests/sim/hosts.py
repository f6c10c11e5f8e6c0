"""Small clusters made by hand: hosts of a few GPUs under one leaf switch per rail."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from prestep.topologies import host, load_cluster
from prestep.topologies.core.quantity import LinkSpec, Quantity
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.compile import compile_graph
from prestep.topologies.fabric.wiring import add_hosts, add_node, join, new_graph

LEAF = LinkSpec(
    Quantity(48e9, "guess", "test"),
    Quantity(0.5e-6, "guess", "test"),
    raw=Quantity(50e9, "guess", "test"),
)
# A NIC whose driver does not say how fast it is.
UNKNOWN = LinkSpec(
    Quantity(1.984e9, "guess", "test"),
    Quantity(0.7e-6, "guess", "test"),
    raw=Quantity(1.25e9, "guess", "test"),
)


@lru_cache
def cluster(
    hosts: int,
    gpus: int = 8,
    nics: int = 8,
    gpu: str = "h100",
    nic: LinkSpec = LEAF,
    facts: tuple[str, ...] = (),
    switches: tuple[int, ...] = (5, 4, 4, 5),
    on_cpu: bool = False,
    nvlink: tuple[float, float] | None = None,
) -> Fabric:
    """`hosts` hosts, rail k of all of them on leaf k, every leaf on one spine; `facts` are true of the switches.

    `nvlink` is the wire's and the payload's speed of one link.
    """
    params = replace(
        host.Params(),
        gpu=gpu,
        gpus=gpus,
        nics=nics,
        nvmes=0,
        nvlinks=switches,
        sockets=1,
        gpus_per_pcie_switch=0 if on_cpu else 1,
    )
    if nvlink:
        raw, speed = (Quantity(value, "guess", "test") for value in nvlink)
        params = replace(params, nvlink=LinkSpec(speed, params.nvlink.latency, raw=raw))
    graph = new_graph(f"{hosts}x{gpus}", gpu, "test")
    pattern, names = host.pattern(params), [f"host{h}" for h in range(hosts)]
    for number, name in enumerate(names):
        rails = add_hosts(graph, name, pattern, prefix=f"h{number}")
    if nics > 1:
        add_node(graph, "spine0", "spine")
    for k in range(nics):
        leaf = add_node(graph, f"leaf{k}", "leaf")
        if nics > 1:
            join(graph, leaf, "spine0", "spine", LEAF, hosts)
        for name in names:
            join(graph, name, leaf, "nic", nic, tail_ports=[rails[k]])
    made = compile_graph(graph)
    return made.with_facts(
        made.name, {fact: Quantity(1.0, "datasheet", "test") for fact in facts}
    )


def logged(case: str) -> Fabric:
    """The machine of an NCCL log: 2 or 4 GPUs of a host, or hosts x GPUs of it."""
    if "x" not in case:
        return load_cluster(f"h200-host-{case}")
    hosts, gpus = map(int, case.split("x"))
    return cluster(hosts, gpus=gpus, nics=1, gpu="h200", nic=UNKNOWN, on_cpu=True)
