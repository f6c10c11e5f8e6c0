"""What CPU threads bound of rings over a network of RDMA: each message takes the proxy a while, whatever its size.

A GPU's proxy thread posts what its channels send, and what they are to receive, one message after the other
(NCCL src/proxy.cc). Where a ring leaves a host by another NIC than it enters, the GPU beside a NIC sends for one ring
and receives for another, so its thread is busy for all channels of a step. The last chunk of a ring over n ranks comes
after n - 1 of them: with 2,160 ranks that counts, and not the hops. Fact `net_post` of a cluster file.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from prestep.sim.collectives import machine
from prestep.sim.collectives.group import Group
from prestep.sim.collectives.nccl.protocols import net_hop, ring_step
from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires.socket_traffic import traffic_of


def bounded(plan: Plan, group: Group, fabric: Any, wanted: Nccl) -> Plan:
    """The plan, no faster than the busiest proxy posts its messages."""
    each = group.network.posting(plan.proto)
    if plan.algo != "ring" or group.nodes < 2 or not each:
        return plan
    traffic = traffic_of(plan, group, fabric, wanted)
    if traffic is None:
        return plan
    # With one channel a GPU sends or receives; of several it has its share of those that enter and of those that leave.
    messages = traffic.data * (2 if plan.channels > 1 else 1)
    hop = net_hop(ring_step(plan.proto), plan.proto, group) + group.remote_latency
    start = machine.of(fabric).pace("ring", plan.proto).start
    least = start + min(2.0, traffic.remote) * hop + traffic.rounds * messages * each
    # As a bound on the rate and not as latency: messages are posted while others' bytes move, so a collective that
    # shares its links, and takes longer for that, waits no longer for its proxies.
    if not plan.size or least <= plan.duration(fabric.links.bandwidth):
        return plan
    posting = least - plan.latency
    return replace(plan, rate_cap=min(plan.rate_cap, plan.size / posting))
