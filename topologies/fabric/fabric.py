"""A checked cluster: nodes, directed links, and the routes between them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from prestep.sim.errors import InputError, did_you_mean, unknown
from prestep.sim.extras import lazily
from prestep.sim.plugins import load_function
from prestep.topologies.core.checks import check
from prestep.topologies.core.facts import ClusterFacts, cluster_facts
from prestep.topologies.core.kinds import PREFERENCE
from prestep.topologies.core.links import Floats, Ints, Links, Nodes
from prestep.topologies.core.quantity import Quantity
from prestep.topologies.core.routing import ADAPTIVE, Routing
from prestep.topologies.routes.batch import Batch
from prestep.topologies.routes.router import Paths, Router, summed
from prestep.topologies.routes.symmetry import Symmetry

with lazily():
    from prestep.topologies.routes import exchange as exchanges

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True)
class GpuChange:
    """GPUs that differ from their model: by a factor, or by a value (flop/s at bf16, bytes/s, W)."""

    gpus: tuple[str, ...]
    attribute: str
    factor: float | None
    value: float | None


@dataclass(frozen=True, eq=False)
class Fabric:
    """A cluster as a directed multigraph, kept in columns; made by a family's `build`, or `from_graph`.

    Attributes
    ----------
    name : str
    nodes : Nodes
    links : Links
        Every direction is its own row, and `links.src[i]` etc. are its attributes; routes are rows of it.
    gpu_model : str
        Which GPU all of them are ("h200"), a name of `sim/costs/hardware`.
    family : str
        The module of `topologies` that built it.
    facts : mapping of str to Quantity
        Numbers of the cluster file, by key, with evidence and source; `cluster_facts` has those of any family, typed.
    gpu_changes : tuple of GpuChange
        What-ifs: GPUs that are not as their model, in the order given.
    kernels : str
        File of kernel times on this machine's GPUs (`prestep.sim.costs.measured`); "": those of the model.
    constants : str
        File of NCCL's constants on this machine (`prestep.sim.collectives.machine`); "": those of the GPU.
    routing : Routing
        How `spread` chooses among equally good paths; see `prestep.topologies.policies`.
    numa : str
        "wrong": the processes of GPUs run on another socket than theirs; else "local".

    Raises
    ------
    InputError
        With everything that is wrong: see `prestep.topologies.core.checks`.
    """

    name: str
    nodes: Nodes
    links: Links
    gpu_model: str
    family: str = ""
    facts: Mapping[str, Quantity] = field(default_factory=dict)
    gpu_changes: tuple[GpuChange, ...] = ()
    constants: str = ""
    kernels: str = ""
    routing: Routing = ADAPTIVE
    numa: str = "local"

    def __post_init__(self) -> None:
        mistakes = check(self.name, self.nodes, self.links)
        InputError.check(mistakes)

    def __getstate__(self) -> dict[str, Any]:
        # Caches (graph, router) are cheaper to make again than to send to a worker process.
        return {key: self.__dict__[key] for key in self.__dataclass_fields__}

    @cached_property
    def cluster_facts(self) -> ClusterFacts:
        """What the cluster file says of the hosts and the network, typed."""
        return cluster_facts(self.facts)

    @cached_property
    def memory(self) -> dict[str, Any]:
        """What others derive from this fabric's network, under their names; a copy with another network begins anew."""
        return {}

    @cached_property
    def wiring(self) -> dict[str, Any]:
        """`memory` of what no speed changes: fabrics that share routes share it too."""
        return {}

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        """Names of the GPUs; rank r runs on `gpus[r]` unless it is placed elsewhere."""
        return self.nodes.gpus

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts (servers), in order."""
        return tuple(dict.fromkeys(host for host in self.nodes.hosts if host))

    @cached_property
    def gpus_by_host(self) -> dict[str, tuple[str, ...]]:
        """Hosts in order, each with its GPUs in order; those without a GPU (storage servers) are left out."""
        members: dict[str, list[str]] = {}
        for gpu, host in zip(self.gpus, self.hosts_of(self.gpus), strict=True):
            members.setdefault(host, []).append(gpu)
        return {host: tuple(gpus) for host, gpus in members.items()}

    @cached_property
    def ports(self) -> list[tuple[str, str]]:
        """Every link out of a host in link order: its NIC, and the switch that it leads to."""
        names, kinds, hosts = self.nodes.names, self.nodes.kinds, self.nodes.hosts
        src, dst = (ends.tolist() for ends in self.ends)
        return [
            (names[a], names[b])
            for a, b in zip(src, dst, strict=True)
            if kinds[a] == "nic" and not hosts[b]
        ]

    @cached_property
    def nic_numbers(self) -> dict[str, int]:
        """Every NIC's place among all of them, counted leaf by leaf."""
        under: dict[str, list[str]] = {}
        for nic, leaf in self.ports:
            under.setdefault(leaf, []).append(nic)
        leaves = sorted(under, key=self.nodes.index.__getitem__)
        nics = [nic for leaf in leaves for nic in under[leaf]]
        # A NIC with several ports has the place of the first.
        return {nic: at for at, nic in reversed(list(enumerate(nics)))}

    def host_of(self, node: str) -> str:
        """The host a node is in, "" for what stands outside every host (a leaf switch)."""
        return self.nodes.hosts[self.node_index(node)]

    def hosts_of(self, nodes: Iterable[str]) -> list[str]:
        """`host_of` many nodes, all of which are there."""
        hosts, index = self.nodes.hosts, self.nodes.index
        return [hosts[at] for at in map(index.__getitem__, nodes)]

    def node_index(self, node: str) -> int:
        """Position of a node in `nodes`; raises InputError with a close name when there is none."""
        try:
            return self.nodes.index[node]
        except KeyError:
            raise InputError(
                unknown(self.name, "node", node, self.nodes.names)
            ) from None

    @cached_property
    def _router(self) -> Router:
        return Router(self.nodes, self.links)

    @cached_property
    def _batch(self) -> Batch:
        return Batch(self.nodes, self.links, self._router)

    @cached_property
    def symmetry(self) -> Symmetry | None:
        """Which groups of nodes lie alike; None where routes do not follow from the wiring alone."""
        return (
            Symmetry(self.nodes, self.links, self._batch) if self._in_columns else None
        )

    @property
    def ends(self) -> tuple[Ints, Ints]:
        """Positions of the nodes that every row of `links` leaves and enters."""
        return self.links.ends(self.nodes)

    def positions(self, names: Sequence[str]) -> Ints:
        """`node_index` of many names."""
        index = self.nodes.index
        try:
            at = map(index.__getitem__, names)
            return np.fromiter(at, dtype=np.int64, count=len(names))
        except KeyError as error:
            raise InputError(
                unknown(self.name, "node", error.args[0], self.nodes.names)
            ) from None

    def hops(self, node: str) -> Ints:
        """Hops from a node to every node, by position; very many to one that it cannot reach."""
        return self._router.hops(self.node_index(node))

    def loads(self, src: Ints, dst: Ints, amount: Floats) -> Floats:
        """Bytes on every row of `links` when `amount[i]` bytes go from node `src[i]` to `dst[i]` (positions).

        The sum of `amount[i] * spread(src[i], dst[i])`, without making each.
        """
        if self._in_columns:
            return self._batch.loads(src, dst, amount)
        pair, rows, share = self.spreads(src, dst)
        return np.bincount(
            rows, weights=share * amount[pair], minlength=len(self.links)
        ).astype(np.float64)

    def carried(self, src: Ints, dst: Ints, amount: Floats) -> tuple[Ints, Floats]:
        """Returns the rows that carry anything of `loads`, and the bytes on each."""
        if self._in_columns:
            return self._batch.carried(src, dst, amount)
        loads = self.loads(src, dst, amount)
        rows = np.flatnonzero(loads)
        return rows, loads[rows]

    @property
    def _in_columns(self) -> bool:
        """Whether `spread` follows from hop counts alone: not under a routing policy other than the adaptive one."""
        return self.routing.policy == "adaptive"

    def exchange(self, senders: Ints, receivers: Ints, amount: float) -> Floats:
        """`loads` when every sender (positions of nodes) sends `amount` bytes to every receiver but itself."""
        if self._in_columns:
            return exchanges.exchange(self._batch, senders, receivers, amount)
        src, dst = np.repeat(senders, len(receivers)), np.tile(receivers, len(senders))
        return self.loads(
            src[src != dst], dst[src != dst], np.full(int((src != dst).sum()), amount)
        )

    def spreads(self, src: Ints, dst: Ints) -> tuple[Ints, Ints, Floats]:
        """`spread` of many pairs of nodes (positions) at once: pair, row and share, sorted by pair and row."""
        if self._in_columns:
            return self._batch.spreads(src, dst)
        names = self.nodes.names
        parts = [
            self.spread(names[a], names[b])
            for a, b in zip(src.tolist(), dst.tolist(), strict=True)
        ]
        pair = np.repeat(np.arange(len(parts)), [len(rows) for rows, _ in parts])
        return (
            pair,
            np.concatenate([rows for rows, _ in parts]),
            np.concatenate([share for _, share in parts]),
        )

    def prefetch(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Find the routes of many pairs of nodes at once, for `spread`."""
        if self._in_columns and pairs:
            src, dst = zip(*pairs, strict=True)
            self._batch.prefetch(self.positions(src), self.positions(dst))

    def route(self, src: str, dst: str) -> Ints:
        """Rows of `links` on the best single path from `src` to `dst`, in order; empty from a node to itself.

        Fewest hops; then NVLink before PCIe before the network; then lowest latency, most physical links, link order.
        """
        return self.routes(src, dst)[0][0]

    def routes(self, src: str, dst: str) -> list[tuple[Ints, float]]:
        """All equally good paths with the share of the bytes each carries, such as those over four NVSwitches.

        Hardware spreads addresses over physical links without looking at their speed, so shares go by the number of
        physical links: 5/18, 4/18, 4/18, 5/18 on a DGX H100, also when one of them is slow.
        """
        return self._batch.routes(self.node_index(src), self.node_index(dst))

    def spread(self, src: str, dst: str) -> tuple[Ints, Floats]:
        """`routes` added up by link: (rows of `links`, bytes on that link per byte sent), both of the same length.

        All of them, or those that the fabric's routing policy takes.
        """
        if self.routing.policy == "adaptive":
            return self._batch.spread(self.node_index(src), self.node_index(dst))
        key = self.node_index(src), self.node_index(dst)
        if key not in self._spreads:
            self._spreads[key] = self._by_policy(src, dst)
        return self._spreads[key]

    def _by_policy(self, src: str, dst: str) -> tuple[Ints, Floats]:
        routes = self.routes(src, dst)
        if not self.leaves_host(routes):
            return summed(routes)
        rows, share = load_function(
            "prestep.topologies.policies", self.routing.policy, "spread"
        )(self, src, dst, self.routing)
        return rows, share

    def leaves_host(self, paths: Paths) -> bool:
        """Whether any of some paths goes over the network."""
        return any(
            kind not in PREFERENCE
            for rows, _ in paths
            for kind in self.links.kind[rows].tolist()
        )

    @cached_property
    def _spreads(self) -> dict[tuple[int, int], tuple[Ints, Floats]]:
        return {}

    def nearest(self, node: str, kind: str) -> str:
        """The node of a kind with the fewest hops from `node` (its socket's memory, its NIC); the first on a tie."""
        return self.all_nearest(node, kind)[0]

    def all_nearest(self, node: str, kind: str) -> tuple[str, ...]:
        """The nodes of a kind with the fewest hops from `node`, in the fabric's order: at least one.

        Raises
        ------
        InputError
            If there is none of that kind in reach.
        """
        nearest = self._router.nearest(self.node_index(node), kind)
        if not len(nearest):
            found = f"no node of kind {kind} in reach of {node}"
            hint = did_you_mean(kind, set(self.nodes.kinds) - {kind})
            expected = f'a node of kind "{kind}", joined to its host'
            raise InputError.of(self.name, node, found, expected, hint)
        return tuple(self.nodes.names[at] for at in nearest.tolist())

    def latency(self, route: Ints) -> float:
        """Seconds along a route, without software."""
        return float(self.links.latency[route].sum())

    @cached_property
    def graph(self) -> nx.MultiDiGraph[str]:
        """`to_graph`, made once and frozen: to look at."""
        return _graphs().nx.freeze(self.to_graph())

    def to_graph(self) -> nx.MultiDiGraph[str]:
        """As `prestep.topologies.fabric.graph.to_graph`."""
        return _graphs().to_graph(self)

    @classmethod
    def from_graph(
        cls, graph: nx.Graph[Any], name: str = "", gpu_model: str = ""
    ) -> Fabric:
        """As `prestep.topologies.fabric.graph.from_graph`."""
        return _graphs().from_graph(graph, name, gpu_model)  # type: ignore[no-any-return]

    def with_columns(self, **fields: Any) -> Fabric:
        """A copy with other fields, not checked again: for changes that keep it sound
        (`prestep.topologies.edit.overrides`)."""
        # A copy leaves the caches behind (`__getstate__`), and what was checked once is not checked again.
        same = copy.copy(self)
        same.__dict__.update(fields)
        return same

    def with_routes_of(self, other: Fabric) -> Fabric:
        """Shares routes with another fabric, those found and those yet to be found: with one of other bandwidths alone.

        Routes go by hops, kinds, counts and latencies, not by speed (see `routes`).
        """
        self.__dict__["_router"] = other._router
        self.__dict__["_batch"] = other._batch
        self.__dict__["wiring"] = other.wiring
        return self

    def with_network_of(self, other: Fabric) -> Fabric:
        """Shares all that was derived from the network with another fabric: with one of other GPUs alone."""
        self.__dict__["memory"] = other.memory
        self.__dict__["symmetry"] = other.symmetry
        return self.with_routes_of(other)

    def with_routing(self, routing: Routing) -> Fabric:
        """The same cluster under another routing policy."""
        return self.with_columns(routing=routing)

    def with_processes(self, numa: str) -> Fabric:
        """The same cluster, whose processes are on the socket of their GPU ("local") or on another ("wrong")."""
        return self.with_columns(numa=numa)

    def with_facts(self, name: str, facts: Mapping[str, Quantity]) -> Fabric:
        """The same cluster under a file's name, with the sources of its numbers."""
        return self.with_columns(name=name, facts=dict(facts))


def _graphs() -> Any:
    """What makes graphs; NetworkX takes longer to import than a prediction should."""
    from prestep.topologies.fabric import graph

    return graph
