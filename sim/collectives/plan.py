"""What a collective is to the network: a latency, then bytes over links at a bounded rate."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from prestep.sim.collectives.algorithms import algorithms
from prestep.sim.collectives.settings import COMMUNICATORS, Ctas, Nccl
from prestep.sim.errors import InputError, Mistake, unknown

RING_OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
PAIR_OPS = ("send", "recv", "sendrecv", "all_to_all", "gather", "scatter")
OPS = RING_OPS + PAIR_OPS
T = TypeVar("T")
PROTOS = ("LL", "LL128", "Simple")
# Settings that take one of a few words: who runs an operation, who posts one-sided transfers, where Gloo's tensors are.
WORDS = {
    "backend": ("nccl", "gloo", "nvshmem", "one_shot", "two_shot"),
    "transport": ("ibgda", "proxy"),
    "tensors": ("gpu", "cpu"),
}


class Idle(NamedTuple):
    """What a plan puts on links, and the payload bytes/s that the narrowest lets pass where links have `bandwidth`."""

    links: np.ndarray
    usage: np.ndarray
    data: np.ndarray
    bandwidth: np.ndarray
    rate: float

    def holds(self, plan: Plan, bandwidth: np.ndarray) -> bool:
        """Whether it is about a plan as it is now, on links of `bandwidth`."""
        same = self.links is plan.links and self.usage is plan.usage
        return same and self.bandwidth is bandwidth


def narrowest(bandwidth: np.ndarray, links: np.ndarray, usage: np.ndarray) -> float:
    """Payload bytes/s that the narrowest of some links lets pass."""
    return float(np.min(bandwidth[links] / usage)) if len(links) else math.inf


def changed(value: T, **fields: Any) -> T:
    """`dataclasses.replace` of a value that checks nothing when it is made: a tenth of the time, in a hot loop.

    What the value has worked out (a `cached_property`) stays behind.

    Examples
    --------
    >>> changed(Nccl(), algo="ring").algo
    'ring'
    """
    kept, known = vars(value), vars(type(value))["__dataclass_fields__"]
    if len(kept) > len(known):  # it has worked out what may not hold for the copy
        kept = {name: kept[name] for name in known}
    other = object.__new__(type(value))
    other.__dict__.update(kept, **fields)
    return other


@dataclass(frozen=True, eq=False)
class Plan:
    """One collective on one group of GPUs.

    Idle time = ``latency + size / min(rate_cap, min(bandwidth[links] / usage))``.

    Attributes
    ----------
    op : str
        One of ``OPS``.
    size : float
        Bytes as nccl-tests counts them: the buffer; for gathers, scatters and all-to-all the n-fold side.
    ranks : tuple of str
        GPU nodes of the fabric.
    algo, proto : str
        What runs ("ring", "Simple").
    channels : int
        CTAs, hence SMs, it takes on every GPU.
    latency : float
        Seconds that no bandwidth shortens: launch, hops, filling of pipelines.
    links, usage : np.ndarray
        Links of the fabric, and the bytes on each per payload byte (flags and packet headers included).
    data : np.ndarray or None
        The same without flags and packet headers: what is counted as carried. None: there are none of these.
    rate_cap : float
        Payload bytes/s that channels and protocol allow when nothing else runs.
    evidence : str
        What the time rests on: fitted (this GPU was measured) or guess (constants of another).
    notes : tuple of str
        Choices that were not what was asked for, for ``--explain``.
    on_cpu : bool
        Whether the rate is bound by threads of the CPU: kernels beside the collective do not lower it.
    buffered : float
        Last bytes of a send that lie in the sender's buffers when its kernel ends; the network moves them on.
    copies : float
        Times that the same crosses links of other hosts which stand for these, with these.
    idle : Idle or None
        What links let pass on an idle network, where that is known.
    hops : float
        Seconds of `latency` in which threads wait for flags among the data, step by step: longer beside kernels.
    """

    op: str
    size: float
    ranks: tuple[str, ...]
    algo: str
    proto: str
    channels: int
    latency: float
    links: np.ndarray
    usage: np.ndarray
    rate_cap: float
    evidence: str
    notes: tuple[str, ...] = field(default=())
    on_cpu: bool = False
    buffered: float = 0.0
    copies: float = 1.0
    data: np.ndarray | None = None
    idle: Idle | None = None
    hops: float = 0.0

    @property
    def data_usage(self) -> np.ndarray:
        """Bytes of data on each of `links` per payload byte."""
        return self.usage if self.data is None else self.data

    def on(self, links: np.ndarray, order: np.ndarray, **others: Any) -> Plan:
        """The plan on other links: the i-th has what the `order[i]`-th of its own has."""
        data = None if self.data is None else self.data[order]
        return replace(self, links=links, usage=self.usage[order], data=data, **others)

    def duration(self, bandwidth: np.ndarray) -> float:
        """Seconds on an idle network whose links have `bandwidth` bytes/s (all links of the fabric)."""
        if self.size <= 0:
            return self.latency
        if self.idle is not None and self.idle.holds(self, bandwidth):
            rate = self.idle.rate
        else:
            rate = narrowest(bandwidth, self.links, self.usage)
        return self.latency + self.size / min(self.rate_cap, rate)


def nccl_of(values: Mapping[str, Any], where: str = "nccl") -> Nccl:
    """Settings from keys and values, with algorithm and protocol in any spelling; None is what was not said.

    Raises
    ------
    InputError
        With every setting that NCCL does not have.
    """
    stated = {key: value for key, value in values.items() if value is not None}
    if "algo" in stated:
        stated["algo"] = re.sub("[ -]", "_", str(stated["algo"])).lower()
    if "proto" in stated:
        by_lower = {proto.lower(): proto for proto in PROTOS}
        stated["proto"] = by_lower.get(str(stated["proto"]).lower(), stated["proto"])
    nccl = Nccl(**stated)
    check(nccl, where)
    return nccl


def check(nccl: Nccl, where: str = "nccl") -> None:
    """Raises all that is wrong with the settings.

    Raises
    ------
    InputError
        With every setting that NCCL does not have, or that contradicts another.
    """
    if mistakes := mistakes_of(nccl, where):
        raise InputError(mistakes)


def mistakes_of(nccl: Nccl, where: str = "nccl") -> list[Mistake]:
    """What NCCL does not have, or what contradicts itself."""
    return _unknown(nccl, where) + _contradictions(nccl, where)


def _unknown(nccl: Nccl, where: str) -> list[Mistake]:
    """Settings whose values NCCL does not have."""
    mistakes = []
    if not re.match(r"2\.\d+(\.\d+)*$", nccl.version):
        expected = "a version of NCCL 2, such as 2.28.9"
        mistakes.append(Mistake(where, "version", nccl.version, expected))
    if nccl.algo is not None and nccl.algo not in algorithms():
        mistakes.append(unknown(where, "algo", nccl.algo, list(algorithms())))
    if nccl.proto is not None and nccl.proto not in PROTOS:
        mistakes.append(unknown(where, "proto", nccl.proto, PROTOS))
    mistakes += [
        unknown(where, key, str(getattr(nccl, key)), words)
        for key, words in WORDS.items()
        if getattr(nccl, key) not in words
    ]
    if nccl.cross_nic not in (0, 1, 2):
        mistakes.append(Mistake(where, "cross_nic", str(nccl.cross_nic), "0, 1 or 2"))
    return mistakes


def _contradictions(nccl: Nccl, where: str) -> list[Mistake]:
    """Settings that exclude each other."""
    mistakes = []
    low, high = nccl.min_channels, nccl.max_channels
    if low is not None and high is not None and low > high:
        expected = f"at most max_channels, {high}"
        mistakes.append(Mistake(where, "min_channels", str(low), expected))
    mistakes += _ctas(nccl, "", where)
    for axis in COMMUNICATORS:
        own = getattr(nccl, axis)
        mistakes += _ctas(own, f"{axis}.", where) if own is not None else []
    if nccl.backend == "gloo":
        why = 'nothing beside backend = "gloo": it is NCCL\'s'
        mistakes += [
            Mistake(where, key, str(getattr(nccl, key)), why)
            for key in ("algo", "proto", "min_channels", "max_channels")
            if getattr(nccl, key) is not None
        ]
    return mistakes


def _ctas(ctas: Nccl | Ctas, prefix: str, where: str) -> list[Mistake]:
    """More CTAs at least than at most."""
    low, high = ctas.min_ctas, ctas.max_ctas
    if low is None or high is None or low <= high:
        return []
    expected = f"at most max_ctas, {high}"
    return [Mistake(where, f"{prefix}min_ctas", str(low), expected)]
