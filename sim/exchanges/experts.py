"""Exchanges of experts' tokens by library, shape and group: what `prestep collective --op dispatch` predicts.

Libraries differ in what they send. DeepEP's low-latency kernels, pplx and UCCL's send a copy for each choice, straight
to its expert's rank (`Direct`); DeepEP's normal kernels and UCCL's send a token once to each host, where it is handed
on over NVLink (`Relayed`). Constants are in `experts.toml`, by library and way; what a network adds to each write is
a fact of the cluster (`net_write*`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from math import comb
from pathlib import Path
from typing import Any

import numpy as np

from prestep.sim import schema
from prestep.sim.collectives import backends, deepep, hybridep
from prestep.sim.collectives.algorithms import pairwise
from prestep.sim.collectives.group import Group, group_of
from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires import paths
from prestep.sim.collectives.wires.network import INSIDE
from prestep.sim.costs.gpu_files import generation_of
from prestep.sim.errors import InputError, Mistake, unknown
from prestep.sim.graph.opgraph import Tokens

FILE = Path(__file__).with_suffix(".toml")
OPS = backends.EXCHANGES
#: Libraries that other modules plan.
OTHERS = ("deepep", "hybridep", "nccl")
WHERE = "command line"
#: Bytes of an element: fp8 has a scale of 4 bytes for 128 elements.
ELEMENTS = {"fp8": 1.0 + 4.0 / 128.0, "bf16": 2.0}


@dataclass(frozen=True)
class Direct:
    """One way of a library that sends a copy for each choice, straight to the rank that holds the expert.

    Attributes
    ----------
    start, far : float
        Seconds of one token's exchange within a host, and over several hosts without the route.
    trips : float
        Times that it waits for the route between hosts.
    target : float
        Seconds for each expert or rank of another host (`by`), to which goes a flag or a request of its own.
    message : float
        Seconds of a GPU's NIC, or of who posts to it, for each copy that goes to another host.
    nvlink, nvlink5, nic : float
        Shares of a GPU's NVLinks (Blackwell's are `nvlink5`) and of its NIC's bandwidth.
    """

    start: float
    far: float
    trips: float
    target: float
    message: float
    nvlink: float
    nvlink5: float
    nic: float


@dataclass(frozen=True)
class Relayed:
    """One way of a library that sends a token once to each host.

    Attributes
    ----------
    start : float
        Seconds of one token's exchange, without the route.
    forward : float
        Bytes/s at which a GPU hands on copies between network and NVLink, those of its own host among them.
    nvlink, nic : float
        Shares of a GPU's NVLinks and of its NIC's bandwidth.
    """

    start: float
    forward: float
    nvlink: float
    nic: float


@dataclass(frozen=True)
class Exchange:
    """An exchange: `tokens` of each rank with `topk` choices of `experts`, `hidden` elements in `dtype`.

    Examples
    --------
    >>> Exchange("combine", "pplx", 128, 7168, 8, 256).size
    14336.0
    """

    op: str
    library: str
    tokens: int
    hidden: int = 7168
    topk: int = 8
    experts: int = 256
    dtype: str = ""
    sms: int = 20

    @property
    def size(self) -> float:
        """Bytes of a token: dispatches are in fp8 and combines in bf16 where `dtype` says nothing."""
        usual = "fp8" if self.op == "dispatch" else "bf16"
        return self.hidden * ELEMENTS[self.dtype or usual]

    def met(self, groups: int) -> float:
        """Expected number of equal groups of experts that a token's choices fall into."""
        rest = self.experts - self.experts // groups
        missed = comb(rest, self.topk) / comb(self.experts, self.topk)
        return groups * (1.0 - missed)


def libraries() -> tuple[str, ...]:
    """Names of all libraries."""
    return (*OTHERS, *laws())


def check(exchange: Exchange, ranks: int) -> None:
    """Raises InputError with everything that is wrong with a question about `ranks` GPUs."""
    e, mistakes = exchange, []
    if e.library not in libraries():
        mistakes.append(unknown(WHERE, "--library", e.library, libraries()))
    if e.dtype and e.dtype not in ELEMENTS:
        mistakes.append(unknown(WHERE, "--dtype", e.dtype, ELEMENTS))
    if e.topk > e.experts:
        most = f"at most the {e.experts} experts"
        mistakes.append(Mistake(WHERE, "--topk", str(e.topk), most))
    if e.experts % ranks:
        whole = f"a multiple of the {ranks} ranks, which hold equally many"
        mistakes.append(Mistake(WHERE, "--experts", str(e.experts), whole))
    if mistakes:
        raise InputError(mistakes)


def plan(
    exchange: Exchange, ranks: tuple[str, ...], fabric: Any, settings: Nccl
) -> Plan:
    """The plan of an exchange between `ranks`.

    Raises
    ------
    InputError
        For a question that makes no sense, or a group that the library was not measured on.
    """
    check(exchange, len(ranks))
    group = group_of(fabric, ranks, settings)
    if len(group.first_of_size) > 1:
        counts = ", ".join(str(len(host)) for host in group.hosts)
        expected = "equally many ranks on every host"
        raise InputError.of(WHERE, "--gpus", f"{counts} ranks on hosts", expected)
    if exchange.library in OTHERS:
        return _by_others(exchange, group, fabric, settings)
    law = laws()[exchange.library][exchange.op]
    if isinstance(law, Direct):
        return _direct(exchange, law, group, fabric)
    return _relayed(exchange, law, group, fabric)


def _by_others(exchange: Exchange, group: Group, fabric: Any, settings: Nccl) -> Plan:
    """The plan of NCCL's all-to-all, or of kernels with laws of their own."""
    e, ranks = exchange, group.ranks
    if e.library == "nccl":
        size = e.tokens * e.topk * e.size
        return backends.plan_of("all_to_all", size, ranks, fabric, settings)
    several = group.nodes > 1
    met = e.met(group.n)
    hosts = e.met(group.nodes) if several else met
    tokens = Tokens(
        e.op, e.tokens, e.size, met, hosts, group.nodes, e.sms, kernel=e.library
    )
    kernels: Any = deepep if e.library == "deepep" else hybridep
    size = e.tokens * e.size * hosts
    made: Plan | None = kernels.plan(
        "all_to_all", size, ranks, fabric, settings, tokens
    )
    if made is None:
        found = f"{e.library} on {group.n} {fabric.gpu_model} in {group.nodes} hosts"
        expected = "a group like those it was measured on (docs/experts.md)"
        raise InputError.of(WHERE, "--library", found, expected)
    return made


def _direct(exchange: Exchange, law: Direct, group: Group, fabric: Any) -> Plan:
    """A copy for each choice over all links at once; copies to other hosts pass the NIC one after the other."""
    e = exchange
    facts = fabric.cluster_facts
    recent = generation_of(fabric.gpu_model).nvlink5
    share = law.nvlink5 if recent else law.nvlink
    key = ("token copies", group.shape)
    links, data = paths.once_routed(fabric, key, lambda: _copies(group, fabric))
    latency, away = law.start, 1.0 - 1.0 / group.nodes
    size = e.tokens * e.topk * e.size
    rate = float("inf")
    if group.nodes > 1:
        by = _tables()["direct"][e.library]["by"]
        targets = e.experts if by == "expert" else group.n
        trip = group.remote_latency + (facts.net_write_trip or 0.0)
        target = law.target + (facts.net_write_target or 0.0)
        latency = law.far + law.trips * trip + targets * away * target
        # A NIC's own time for a copy comes on top of that of its bytes.
        message = law.message + (facts.net_write or 0.0)
        far = [kind not in INSIDE for kind in fabric.links.kind[links]]
        slowest = np.min(fabric.links.bandwidth[links][far] / data[far]) * law.nic
        rate = 1.0 / (1.0 / slowest + away * message / e.size)
    reached = _reached(fabric, links, share, law.nic)
    return _planned(e, group, latency, links, data, reached, (size, rate))


def _relayed(exchange: Exchange, law: Relayed, group: Group, fabric: Any) -> Plan:
    """A token once to each host with a choice, and on from there."""
    e, several = exchange, group.nodes > 1
    met = e.met(group.n)
    hosts = e.met(group.nodes) if several else met
    tokens = Tokens(e.op, e.tokens, e.size, met, hosts, group.nodes, e.sms)
    links, data = deepep.loads(group, fabric, tokens)
    latency = law.start + group.remote_latency * several
    reached = _reached(fabric, links, law.nvlink, law.nic)
    rate = law.forward if several else float("inf")
    size = e.tokens * e.size * hosts
    return _planned(e, group, latency, links, data, reached, (size, rate))


def _reached(fabric: Any, links: np.ndarray, nvlink: float, nic: float) -> np.ndarray:
    """Shares of links that a library reaches."""
    kinds = fabric.links.kind[links]
    network = [kind not in INSIDE for kind in kinds]
    return np.select([kinds == "nvlink", network], [nvlink, nic], 1.0)


def _planned(
    e: Exchange,
    group: Group,
    latency: float,
    links: np.ndarray,
    data: np.ndarray,
    reached: np.ndarray,
    pace: tuple[float, float],
) -> Plan:
    """The plan; `pace`: bytes that a rank sends, and what bounds them a second beside links."""
    size, rate = pace
    return Plan(
        "all_to_all",
        size,
        group.ranks,
        e.library,
        e.op,
        e.sms,
        latency,
        links,
        data / reached,
        rate,
        evidence(e.library),
        data=data,
    )


def _copies(group: Group, fabric: Any) -> tuple[np.ndarray, np.ndarray]:
    """Links, and bytes on each per byte that a rank sends: to every rank a part."""
    flows = pairwise.flows("all_to_all", group.ranks)
    return paths.gather(fabric, group.expand(fabric, flows))


@cache
def _tables() -> dict[str, Any]:
    return schema.read(FILE, _schema())


def _schema() -> schema.Table:
    """What the file says: every number with what it rests on."""
    number = schema.sourced(schema.Number())

    def ways(kind: type) -> schema.Table:
        keys = [entry.name for entry in fields(kind)]
        way = schema.all_of(keys, number)
        words = {"by": schema.Text(("expert", "rank")), "evidence": schema.Text()}
        return schema.Table({**words, **dict.fromkeys(OPS, way)}, OPS)

    return schema.Table(
        {
            "direct": schema.Named(ways(Direct)),
            "relayed": schema.Named(ways(Relayed)),
        },
        ("direct", "relayed"),
    )


@cache
def laws() -> dict[str, dict[str, Direct | Relayed]]:
    """Laws by library and way."""
    kinds = {"direct": Direct, "relayed": Relayed}
    return {
        library: {way: _law(kinds[name], table[way]) for way in OPS}
        for name in kinds
        for library, table in _tables()[name].items()
    }


def _law(kind: type, row: dict[str, Any]) -> Any:
    return kind(**{key: entry["value"] for key, entry in row.items()})


def evidence(library: str) -> str:
    """What a library's constants rest on."""
    tables = _tables()
    return str({**tables["direct"], **tables["relayed"]}[library]["evidence"])
