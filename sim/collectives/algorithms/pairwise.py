"""Messages between pairs: send, receive, ring shifts, all-to-all, gather and scatter.

NCCL cuts a message in parts, one per channel, and gives each round of partners its own channels;
a CTA that carries parts of several messages shares its threads among them (src/enqueue.cc, device/sendrecv.h).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from prestep.sim.collectives import constants as files
from prestep.sim.collectives.assemble import Bytes, Call, on_bus, wires
from prestep.sim.collectives.group import Group
from prestep.sim.collectives.nccl import protocols
from prestep.sim.collectives.nccl.orders import neighbours
from prestep.sim.collectives.nccl.search import NET_PER_CHANNEL, Graph, search
from prestep.sim.collectives.plan import PAIR_OPS, Plan
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires import paths, transport

OPS = PAIR_OPS
# Above so many ranks an all-to-all is counted by classes of pairs.
MANY_RANKS = 64
# Slots of a channel's buffer (NCCL_STEPS), and bytes of a message in each of those before the network: by default, and
# where the buffer is no larger (NCCL_P2P_NET_CHUNKSIZE, NCCL_BUFFSIZE; src/init.cc).
SLOTS, NET_CHUNK, BUFFER = 8, 1 << 17, 1 << 22
MANY = ("all_to_all", "gather", "scatter")


def plan(call: Call) -> Plan:
    """Messages of the call's size, or of a part each; `send` goes from the first rank to the second.

    Further ranks of a send belong to its communicator: they are idle, but NCCL gives fewer channels to each pair.
    """
    messages = messages_of(call)
    return planned(messages, call, _used(messages, call))


@dataclass(frozen=True, eq=False)
class Messages:
    """An operation as messages between pairs of ranks, each cut in parts, one per channel.

    Attributes
    ----------
    size : float
        Bytes as nccl-tests counts them.
    graph : Graph
        Channels that NCCL's search gives the group.
    """

    op: str
    size: float
    group: Group
    graph: Graph
    table: files.Constants
    settings: Nccl

    @property
    def message(self) -> float:
        """Bytes of one message."""
        return self.size / self.group.n if self.op in MANY else self.size

    @cached_property
    def parts(self) -> int:
        """Parts of a message, hence channels that carry it."""
        group, buffer = self.group, self.settings.buffer_size
        return protocols.message_channels(
            self.message, group.n, self.graph, group.nodes, buffer
        )

    def wire(self, kind: str) -> float:
        """Share of a link's payload bandwidth that messages can use, by its kind."""
        one_way = self.way == "send"
        return self.group.network.wire(self.table, kind, pairs=True, one_way=one_way)

    @property
    def way(self) -> str:
        """Whether a GPU sends only, or sends and receives at once."""
        return "sendrecv" if self.op in ("sendrecv", "all_to_all") else "send"

    @property
    def proto(self) -> str:
        """LL for small messages inside a host."""
        small = self.message <= self.parts * protocols.P2P_LL_BYTES
        return "LL" if small and self.group.nodes == 1 else "Simple"

    @property
    def buffered(self) -> float:
        """Last bytes of a message to another host that its channels' buffers hold."""
        chunk = self.settings.p2p_net_chunksize or NET_CHUNK
        channel = min(SLOTS * chunk, self.settings.buffer_size or BUFFER)
        return min(self.size, float(self.parts * channel))

    def load(self, self_copy: float, begin: int = 0) -> np.ndarray:
        """Bytes each CTA of one GPU moves from round `begin` on."""
        load, ctas = np.zeros(self.graph.p2p), self.graph.p2p
        if self.op not in MANY:
            rounds = [(1, 1.0)]
        elif self.group.n == 1:
            return load
        else:
            rounds = [(r, 1.0 if r else self_copy) for r in range(begin, self.group.n)]
        # Beyond the channels' number rounds share CTAs evenly: no need to walk through thousands of them.
        for round_, weight in rounds[: 4 * ctas]:
            first = protocols.first_channel(round_, ctas)
            for part in range(self.parts):
                load[(first + part) % ctas] += weight * self.message / self.parts
        if len(rounds) > 4 * ctas:
            load *= len(rounds) / (4 * ctas)
        return load

    def transfer(self, load: np.ndarray, link: float) -> float:
        """Seconds of moving the bytes through the fullest CTA and the fullest link, which is busy for `link` s."""
        pairs, size, way = self.table.pairs, self.size, self.way
        link /= pairs.link[way]
        if self.group.nodes == 1:
            link *= 1 + (pairs.ramp[way] / size) ** pairs.power
        part = self.message / self.parts
        beyond = part / (part + pairs.grain)
        sharp = protocols.sharpness(pairs.sharp, pairs.settle, size)
        return beyond * protocols.joined(self._channel(load), link, sharp)

    def _channel(self, load: np.ndarray) -> float:
        """Seconds of the fullest CTA."""
        pairs, network = self.table.pairs, self.group.network
        rate = network.channel_rate(self.table, pairs.rate[self.way], self.way)
        channel = float(load.max()) / rate
        if self.op in MANY and not protocols.aligned(self.size, self.group.n):
            channel *= pairs.unaligned
        remote = self._remote_channel()
        # Where the file says what a channel carries over the network, a single message goes by that and not by NVLink.
        single = network.cluster_facts.net_channel and self.op not in MANY and remote
        return remote if single else max(channel, remote)

    def _remote_channel(self) -> float:
        """Seconds of the fullest channel over the network, where one carries less than inside a host.

        What it carries is the cluster file's to say; since 2.29 NCCL itself counts on 14 GB/s, as is found there.
        """
        group = self.group
        nccls_own = NET_PER_CHANNEL * 1e9 if self.settings.release >= (2, 29) else 0.0
        rate = group.network.cluster_facts.net_channel or nccls_own
        if group.nodes < 2 or not rate:
            return 0.0
        # Rounds begin with the ranks of the own host (src/enqueue.cc): what remains goes over the network.
        near = group.smallest if self.op in MANY else 1
        return float(self.load(0.0, near).max()) / rate

    def latency(self, channels: int) -> float:
        """Seconds of launch, of the hop, and of the proxy, which posts every part to another host."""
        pairs, group = self.table.pairs, self.group
        launch = pairs.start + pairs.channel * max(0, channels - 1)
        if group.nodes > 1:
            step = float(self.table.tables["proxy"]["rdma"]["step"])
            delay = launch + step + group.remote_latency
        else:
            nominal = float(self.table.tables["nominal"]["latency"])
            delay = launch + max(0.0, group.local_latency - nominal)
        return delay + self._posting()

    def _posting(self) -> float:
        """Seconds for which the busiest rank's proxy, one thread, posts all parts; a ring's step has this in it."""
        stated = self.group.network.cluster_facts.net_message
        usual = (
            self.table.tables["proxy"]["rdma"]["message"] if stated is None else stated
        )
        part = self.message / self.parts
        return self.group.network.each(float(usual), part) * self.parts * self._posted()

    def _posted(self) -> int:
        """Messages to other hosts that the busiest rank's proxy posts."""
        if self.group.nodes < 2:
            return 0
        near = self.group.smallest
        return self.group.n - near if self.op in MANY else 1


def messages_of(call: Call) -> Messages:
    """A call as messages over the channels that NCCL's search gives its communicator."""
    group, settings = call.group, call.settings
    graph = search(group, call.fabric.gpu_model, settings, call.fabric)
    return Messages(call.op, call.size, group, graph, call.constants, settings)


def planned(messages: Messages, call: Call, used: Bytes) -> Plan:
    """The plan of messages that put so many bytes on links, for each byte of their size."""
    op, size, group, fabric = call.op, call.size, call.group, call.fabric
    links, data = used
    wire = wires(links, fabric, messages.wire)
    load = messages.load(messages.table.pairs.self_copy)
    moving = 0.0
    if size > 0 and len(links):
        link_times = size * data / (fabric.links.bandwidth[links] * wire)
        moving = messages.transfer(load, float(np.max(link_times)))
    count = int(np.count_nonzero(load))
    return Plan(
        op,
        size,
        call.ranks,
        "pairwise",
        messages.proto,
        count,
        messages.latency(count),
        links,
        on_bus(links, data / wire, group, fabric),
        size / moving if moving > 0 else float("inf"),
        messages.table.evidence if group.nodes == 1 else "guess",
        buffered=messages.buffered if _leaves_host(call) else 0.0,
        data=data,
    )


def _used(messages: Messages, call: Call) -> Bytes:
    """`_bytes`, counted once for all fabrics with the same routes, in whatever order an all-to-all has its ranks."""
    relay = not messages.settings.pxn_disable and transport.relays(call.group)
    ends = () if call.op == "all_to_all" else call.ranks
    key = ("pairwise", call.op, call.group.shape, ends, relay)
    return paths.once_routed(call.fabric, key, lambda: _bytes(call, relay))


def _bytes(call: Call, relay: bool) -> Bytes:
    """Links, and bytes on each per payload byte; `relay` by PXN where NCCL does."""
    fabric, group, op = call.fabric, call.group, call.op
    if op == "all_to_all" and group.n > MANY_RANKS and group.inside == group.outside:
        return paths.used(_exchanged(fabric, group, relay))
    messages = flows(op, group.ranks if op == "all_to_all" else call.ranks)
    if relay:
        messages = transport.relayed(messages, group)
    return paths.gather(fabric, group.expand(fabric, messages))


def _exchanged(fabric: Any, group: Group, relay: bool) -> np.ndarray:
    """Bytes of an all-to-all on every link: the sum of `flows`, relayed or not."""
    gpus = fabric.positions(group.ranks)
    if not relay:
        return np.asarray(fabric.exchange(gpus, gpus, 1 / group.n))
    place = gpus.reshape(group.nodes, -1)
    # Inside a host each GPU hands every other its message and those for that one's rail in all other hosts.
    near = [(a, b) for a in place.T for b in place.T if a[0] != b[0]]
    total = sum(
        fabric.loads(a, b, np.full(len(a), group.nodes / group.n)) for a, b in near
    )
    return np.asarray(
        total
        + sum(fabric.exchange(rail, rail, group.per_node / group.n) for rail in place.T)
    )


def _leaves_host(call: Call) -> bool:
    """Whether it is a single message to another host."""
    hosts = [call.fabric.host_of(gpu) for gpu in call.ranks[:2]]
    return call.op == "send" and hosts[0] != hosts[1]


def flows(op: str, ranks: Sequence[str]) -> list[transport.Flow]:
    """Sender, receiver, and bytes per payload byte of every message; the first rank is the root, or the sender."""
    if op == "send":
        return [(ranks[0], ranks[1], 1.0)]
    if op == "recv":
        return [(ranks[1], ranks[0], 1.0)]
    if op == "sendrecv":
        return [(a, b, 1.0) for a, b in neighbours(tuple(ranks))]
    if op == "gather":
        return [(rank, ranks[0], 1 / len(ranks)) for rank in ranks[1:]]
    if op == "scatter":
        return [(ranks[0], rank, 1 / len(ranks)) for rank in ranks[1:]]
    return [(a, b, 1 / len(ranks)) for a in ranks for b in ranks if a != b]
