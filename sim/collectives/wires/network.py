"""What NCCL gets out of a network, as the cluster file says it: facts of a fabric, not of a kind of GPU.

Every step over the network is a chunk that a CTA writes, a CPU thread (the proxy) posts, the NIC sends, and the proxy
of the other side sees (NCCL src/transport/net.cc, src/proxy.cc). None of that is in a link's latency.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from prestep.sim.collectives.constants import Constants
from prestep.sim.collectives.plan import Plan

# Kinds of links inside a host; all others are the network's.
INSIDE = frozenset({"nvlink", "pcie", "c2c", "socket", "memory", "nvme"})

# Bytes that libfabric's CXI provider puts into the command itself, which the CPU writes (CXIP_INJECT_SIZE).
INJECTED = 192.0


@dataclass(frozen=True)
class Network:
    """Facts of a cluster's network; what its file does not say is None or empty.

    Attributes
    ----------
    share : float or None
        Share of the ports' payload bandwidth that NCCL's traffic reaches.
    pairs : float or None
        The same for messages between pairs; None: no different.
    hops : Mapping
        Seconds of one step between hosts over the links' latency, by protocol.
    message : float or None
        Seconds of the proxy for each part of a message to a rank of another host; None: as measured elsewhere.
    post, post_ll : float
        Seconds of the proxy for each message of a ring, and the same with LL.
    inject : float
        Seconds more for a part of at most `INJECTED` bytes of a message between pairs.
    channel : float or None
        Bytes/s that one channel carries of messages between hosts.
    eager, rendezvous : float
        Bytes from which the two sides agree on a message before it is sent, and the seconds that this costs the proxy
        for each channel of a step. Only LL and LL128 send less; `hops` of Simple has it in it.
    amd : bool
        Whether the hosts' CPUs are AMD's, to which NCCL's cost model gives other numbers.
    memory : bool
        Whether GPUs of a host reach each other through its memory (NCCL's transport SHM).
    duplex : float or None
        Share of a PCIe link that each direction gets when both are busy; None: as measured elsewhere.
    """

    share: float | None = None
    pairs: float | None = None
    hops: Mapping[str, float] = field(default_factory=dict)
    message: float | None = None
    post: float = 0.0
    post_ll: float = 0.0
    inject: float = 0.0
    channel: float | None = None
    eager: float = float("inf")
    rendezvous: float = 0.0
    amd: bool = False
    memory: bool = False
    duplex: float | None = None

    def wire(
        self, table: Constants, kind: str, pairs: bool = False, one_way: bool = False
    ) -> float:
        """Share of a link's payload bandwidth that NCCL's traffic, or its messages between pairs, can use."""
        if self.memory and kind == "pcie":
            return self._to_memory(table.tables["host_memory"]["shm"], one_way)
        share = self.pairs if pairs and self.pairs is not None else self.share
        return table.wire(kind) if share is None or kind in INSIDE else share

    def _to_memory(self, shm: Mapping[str, float], one_way: bool) -> float:
        """Share of PCIe: a GPU's kernels write to the host's memory while they read what others wrote there."""
        if one_way:
            return float(shm["one_way"])
        duplex = shm["duplex"] if self.duplex is None else self.duplex
        return float(shm["both_ways"] * duplex)

    def channel_rate(self, table: Constants, rate: float, way: str) -> float:
        """Bytes/s of a channel that carries `rate` over NVLink: reads of the host's memory wait for every answer.

        `way`: "send" one way, "sendrecv" both, half of the threads each; "ring": all threads both.
        """
        if not self.memory:
            return rate
        return min(rate, float(table.tables["host_memory"]["shm"][way]))

    def posting(self, proto: str) -> float:
        """Seconds of the proxy for a message of a ring or a tree."""
        return self.post_ll if proto == "LL" else self.post

    def each(self, usual: float, part: float) -> float:
        """Seconds of the proxy for a part of a message between pairs: `usual`, and more for the smallest."""
        return usual + (self.inject if part <= INJECTED else 0.0)

    def agreed(self, proto: str, amount: float, channels: int) -> float:
        """Seconds that a step between hosts takes longer when each of its channels sends `amount` bytes on the wire."""
        return (
            self.rendezvous * channels
            if proto != "Simple" and amount >= self.eager
            else 0.0
        )


def network_of(fabric: Any) -> Network:
    """The facts that the cluster file of `fabric` states."""
    facts = fabric.cluster_facts
    steps = {"LL": facts.net_ll, "LL128": facts.net_ll128, "Simple": facts.net_simple}
    return Network(
        share=facts.net_share,
        pairs=facts.net_pairs_share,
        hops={
            proto: seconds for proto, seconds in steps.items() if seconds is not None
        },
        message=facts.net_message,
        post=facts.net_post or 0.0,
        post_ll=facts.net_post_ll or 0.0,
        inject=facts.net_inject or 0.0,
        channel=facts.net_channel,
        eager=float("inf") if facts.net_eager is None else facts.net_eager,
        rendezvous=facts.net_rendezvous or 0.0,
        amd=bool(facts.amd_cpu),
        duplex=facts.pcie_duplex,
    )


def has_token_bucket(fabric: Any) -> bool:
    """Whether the network's ports are shaped by token buckets."""
    return bool(fabric.cluster_facts.token_bucket)


def shaped(plan: Plan, fabric: Any) -> Plan:
    """The plan where the network's ports are shaped by token buckets: less of its latency remains.

    While a port waits for the next step its bucket fills, and the step's bytes then pass at once: over the whole
    collective it carries its rate without pauses, unless the pauses alone take longer.
    """
    if not has_token_bucket(fabric) or plan.size <= 0:
        return plan
    moving = plan.duration(fabric.links.bandwidth) - plan.latency
    return replace(plan, latency=max(0.0, plan.latency - moving))


def refill_time(plan: Plan, fabric: Any) -> float:
    """Seconds of a pause after which a port's bucket is full: until then nothing is lost."""
    if not has_token_bucket(fabric) or not len(plan.links):
        return 0.0
    slot = int(np.argmin(fabric.links.bandwidth[plan.links] / plan.usage))
    return float(
        fabric.cluster_facts.token_bucket / fabric.links.bandwidth[plan.links[slot]]
    )
