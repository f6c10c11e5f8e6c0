"""On which socket of its host a rank's process and its memory lie: that of its GPU, or another one.

A copy between host and GPU then crosses the link between the sockets, both ways, and shares it with the other ranks of
the socket. The host's code waits longer for whatever is not in its caches. Where memory and NCCL's threads are is
`prestep.sim.collectives.wires.processes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prestep.sim.collectives.wires.processes import CROSSINGS, LOCAL

if TYPE_CHECKING:  # as annotations alone
    from prestep.sim.spec.sections import Scenario

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
        "copies between host and GPU cross the sockets; so does what GPUs hand each other through memory, and NCCL's "
        f"proxies cross them {CROSSINGS} times in each step between hosts; kernels, NVLink and the bytes of NICs "
        "beside their GPU feel nothing of it, so a step that waits for none of these is as long as before"
    )
