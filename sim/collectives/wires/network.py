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
from prestep.topologies.core.facts import ClusterFacts

# Kinds of links inside a host; all others are the network's.
INSIDE = frozenset({"nvlink", "pcie", "c2c", "socket", "memory", "nvme"})

# Bytes that libfabric's CXI provider puts into the command itself, which the CPU writes (CXIP_INJECT_SIZE).
INJECTED = 192.0


@dataclass(frozen=True)
class Network:
    """What NCCL gets out of a network.

    Attributes
    ----------
    cluster_facts : ClusterFacts
        `net_*` of the cluster file, None where it says nothing; a step `net_simple` has a message's agreement in it.
    memory : bool
        Whether GPUs of a host reach each other through its memory (NCCL's transport SHM).
    """

    cluster_facts: ClusterFacts = field(default_factory=ClusterFacts)
    memory: bool = False

    @property
    def eager(self) -> float:
        """Bytes from which the two sides agree on a message of LL or LL128 before it is sent."""
        stated = self.cluster_facts.net_eager
        return float("inf") if stated is None else stated

    def hop(self, proto: str) -> float | None:
        """Seconds of one step between hosts over the links' latency, where the file says it."""
        facts = self.cluster_facts
        steps = {"LL": facts.net_ll, "LL128": facts.net_ll128}
        return steps.get(proto, facts.net_simple)

    def wire(
        self, table: Constants, kind: str, pairs: bool = False, one_way: bool = False
    ) -> float:
        """Share of a link's payload bandwidth that NCCL's traffic, or its messages between pairs, can use."""
        if self.memory and kind == "pcie":
            return self._to_memory(table.tables["host_memory"]["shm"], one_way)
        facts = self.cluster_facts
        share = facts.net_pairs_share if pairs else None
        share = facts.net_share if share is None else share
        return table.wire(kind) if share is None or kind in INSIDE else share

    def _to_memory(self, shm: Mapping[str, float], one_way: bool) -> float:
        """Share of PCIe: a GPU's kernels write to the host's memory while they read what others wrote there."""
        if one_way:
            return float(shm["one_way"])
        stated = self.cluster_facts.pcie_duplex
        duplex = shm["duplex"] if stated is None else stated
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
        facts = self.cluster_facts
        return (facts.net_post_ll if proto == "LL" else facts.net_post) or 0.0

    def each(self, usual: float, part: float) -> float:
        """Seconds of the proxy for a part of a message between pairs: `usual`, and more for the smallest."""
        return usual + (self.cluster_facts.net_inject or 0.0) * (part <= INJECTED)

    def copied(self, proto: str, amount: float) -> float:
        """Seconds for which the CPU that matches messages copies one into GPU memory; Simple's are written by the NIC.

        libfabric's CXI provider copies what comes before agreement: small messages through a mapping of the memory
        (gdrcopy), larger ones by the CUDA driver.
        """
        facts = self.cluster_facts
        size = min(amount, self.eager)
        if proto == "Simple":
            return 0.0
        if facts.net_copy_mapped is None or size <= facts.net_copy_mapped:
            return size / (facts.net_copy or float("inf"))
        driver = size / (facts.net_copy_driver or float("inf"))
        return driver + (facts.net_copy_call or 0.0)

    def agreed(self, proto: str, amount: float, channels: int) -> float:
        """Seconds that a step between hosts takes longer when each of its channels sends `amount` bytes on the wire."""
        if proto == "Simple" or amount < self.eager:
            return 0.0
        return (self.cluster_facts.net_rendezvous or 0.0) * channels


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
