"""On which socket of its host a GPU's process runs: that of its GPU, or another one (`Fabric.numa`).

NCCL binds its threads to those cores beside the GPU that the process may use. Where it may use none of them, bound to
another socket by a launcher or a container, the threads stay there (src/graph/topo.cc, ncclTopoGetCpuAffinity). Their
buffers in the host's memory are where they run.
"""

from __future__ import annotations

from typing import Any

from prestep.sim.errors import InputError

LOCAL, WRONG = "local", "wrong"
#: Times that a step between hosts crosses sockets where proxies are on the wrong one: the GPU's flag to the sender's
#: proxy, its doorbell to the NIC, the NIC's completion to the receiver's, and that one's flag to its GPU. A count, not
#: a measurement. Grade: guess; the steps are those of sendProxyProgress and recvProxyProgress in NCCL's net.cc.
CROSSINGS = 4


def memory_of(fabric: Any, gpu: str) -> str:
    """The memory in which the process of a GPU has its buffers.

    Raises
    ------
    InputError
        If it should be another socket's and its host has none.

    Examples
    --------
    >>> from prestep.topologies import load_cluster
    >>> memory_of(load_cluster("aws-p5"), "gpu0")
    'memory0'
    >>> memory_of(load_cluster("aws-p5").with_processes("wrong"), "gpu0")
    'memory1'
    """
    near: str = fabric.nearest(gpu, "memory")
    if fabric.numa == LOCAL:
        return near
    host = fabric.host_of(gpu)
    others = [
        name
        for name in fabric.nodes.of_kind("memory")
        if fabric.host_of(name) == host and name != near
    ]
    if not others:
        expected = "a host of several sockets"
        hint = "sockets = 2 in the cluster file, if it has two"
        raise InputError.of(fabric.name, "cluster.numa", fabric.numa, expected, hint)
    farthest: str = max(others, key=lambda memory: len(fabric.route(memory, gpu)))
    return farthest


def crossing(fabric: Any, gpu: str) -> float:
    """Seconds that a step between hosts takes longer by the place of the proxies: 0 on the right socket.

    Examples
    --------
    >>> from prestep.topologies import load_cluster
    >>> round(1e9 * crossing(load_cluster("aws-p5").with_processes("wrong"), "gpu0"))
    880
    """
    if fabric.numa == LOCAL:
        return 0.0
    links = fabric.links
    between = [
        row
        for row in fabric.route(memory_of(fabric, gpu), gpu).tolist()
        if links.kind[row] == "socket"
    ]
    return CROSSINGS * float(links.latency[between].sum())
