"""On which socket of its host a rank's process and its memory lie: that of its GPU, or another one.

A copy between host and GPU then crosses the link between the sockets, both ways, and shares it with the other ranks of
the socket. The host's code waits longer for whatever is not in its caches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.errors import InputError, Mistake

if TYPE_CHECKING:  # as annotations alone
    from sim.spec.sections import Scenario
    from topologies.fabric import Fabric

LOCAL = "local"
#: Latency of the other socket's memory over one's own. Datasheet: the distances 10 and 32 that firmware of an AWS p5
#: states (numactl --hardware, AMD EPYC 7R13; Hugging Face, The Smol Training Playbook). Measured ones are often less.
LATENCY = 3.2
#: Share of the host's time for framework code that waits for memory. Guess: such code runs out of its caches nearly
#: throughout. It makes 11 %; a log of BigScience says 1 to 5 % of steps that were badly bound.
WAITING = 0.05


def host_ratio(scenario: Scenario) -> float:
    """Time of the host's code over that of a process on the right socket."""
    if scenario.cluster.numa == LOCAL:
        return 1.0
    return 1.0 + WAITING * (LATENCY - 1.0)


def caveat(scenario: Scenario) -> str:
    """What a wrong socket slows and what not: a step that waits for neither is as long as on the right one.

    Returns "" for processes on the right socket.
    """
    if scenario.cluster.numa == LOCAL:
        return ""
    return (
        f"cluster.numa = {scenario.cluster.numa}: the host's code takes {host_ratio(scenario):.2f} times as long, and "
        "copies between host and GPU cross the sockets; kernels, NVLink and NICs beside their GPU feel nothing of it, "
        "so a step that waits for neither is as long as before"
    )


def memory_of(scenario: Scenario, fabric: Fabric, gpu: str) -> str:
    """The memory that the process of a GPU has its buffers in.

    Raises
    ------
    InputError
        If it should be another socket's and its host has none.
    """
    near: str = fabric.nearest(gpu, "memory")
    if scenario.cluster.numa == LOCAL:
        return near
    host = fabric.host_of(gpu)
    others = [
        name
        for name, kind, at in zip(
            fabric.nodes.names, fabric.nodes.kinds, fabric.nodes.hosts, strict=True
        )
        if kind == "memory" and at == host and name != near
    ]
    if not others:
        expected = "a host of several sockets"
        hint = "sockets = 2 in the cluster file, if it has two"
        raise InputError(
            Mistake(scenario.where, "cluster.numa", fabric.name, expected, hint)
        )
    return max(others, key=lambda memory: len(fabric.route(memory, gpu)))
