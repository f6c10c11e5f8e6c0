"""What a collective is to the network: a latency, then bytes over links at a bounded rate."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from sim.collectives.registry import algorithms
from sim.errors import InputError, Mistake, unknown

RING_OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
PAIR_OPS = ("send", "recv", "sendrecv", "all_to_all", "gather", "scatter")
OPS = RING_OPS + PAIR_OPS
PROTOS = ("LL", "LL128", "Simple")
# Settings that take one of a few words: who runs an operation, who posts one-sided transfers, where Gloo's tensors are.
WORDS = {"backend": ("nccl", "gloo", "nvshmem"), "transport": ("ibgda", "proxy"), "tensors": ("gpu", "cpu")}


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

    def duration(self, bandwidth: np.ndarray) -> float:
        """Seconds on an idle network whose links have `bandwidth` bytes/s (all links of the fabric)."""
        if self.size <= 0:
            return self.latency
        rate = self.rate_cap
        if len(self.links):
            rate = min(rate, float(np.min(bandwidth[self.links] / self.usage)))
        return self.latency + self.size / rate


class Send(NamedTuple):
    """One transfer of a symbolic step: `dst` adds the chunk to its own (reduce) or replaces it."""

    src: int
    dst: int
    chunk: int
    reduce: bool


@dataclass(frozen=True)
class Settings:
    """The part of a scenario's [nccl] that decides collectives, normalised and hashable."""

    version: str = "2.28.9"
    algo: str | None = None
    proto: str | None = None
    min_channels: int | None = None
    max_channels: int | None = None
    nvls: bool | None = None
    buffer_size: float | None = None
    max_ctas: int | None = None
    collnet: bool | None = None
    p2p_disable: bool = False
    shm_disable: bool = False
    cross_nic: int = 2
    pxn_disable: bool = False
    hostid: int | None = None
    nchannels_per_net_peer: int | None = None
    net_speed: float | None = None
    net: str | None = None
    socket_nthreads: int | None = None
    nsocks_perthread: int | None = None
    backend: str = "nccl"
    transport: str = "ibgda"
    tensors: str = "gpu"

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor number of the version: (2, 28)."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)


def settings(nccl: Any, where: str = "nccl") -> Settings:
    """Settings from any object with those attributes (``sim.spec.Nccl``); None gives the defaults.

    Raises
    ------
    InputError
        For an algorithm or protocol that NCCL does not have.
    """
    if isinstance(nccl, Settings):
        return nccl
    defaults = {name: entry.default for name, entry in Settings.__dataclass_fields__.items()}
    values: dict[str, Any] = {name: getattr(nccl, name, default) for name, default in defaults.items()}
    values |= {name: defaults[name] for name, value in values.items() if value is None}
    mistakes = []
    if not re.match(r"2\.\d+(\.\d+)*$", str(values["version"])):
        mistakes.append(Mistake(where, "version", str(values["version"]), "a version of NCCL 2, such as 2.28.9"))
    if values["algo"] is not None:
        values["algo"] = re.sub("[ -]", "_", str(values["algo"])).lower()
        if values["algo"] not in algorithms():
            mistakes.append(unknown(where, "algo", values["algo"], list(algorithms())))
    if values["proto"] is not None:
        by_lower = {p.lower(): p for p in PROTOS}
        if str(values["proto"]).lower() not in by_lower:
            mistakes.append(unknown(where, "proto", str(values["proto"]), PROTOS))
        values["proto"] = by_lower.get(str(values["proto"]).lower())
    mistakes += [
        unknown(where, key, str(values[key]), words) for key, words in WORDS.items() if values[key] not in words
    ]
    if values["cross_nic"] not in (0, 1, 2):
        mistakes.append(Mistake(where, "cross_nic", str(values["cross_nic"]), "0, 1 or 2"))
    low, high = values["min_channels"], values["max_channels"]
    if low is not None and high is not None and low > high:
        mistakes.append(Mistake(where, "min_channels", str(low), f"at most max_channels, {high}"))
    if values["backend"] == "gloo":
        forced = [key for key in ("algo", "proto", "min_channels", "max_channels") if values[key] is not None]
        why = 'nothing beside backend = "gloo": it is NCCL\'s'
        mistakes += [Mistake(where, key, str(values[key]), why) for key in forced]
    if mistakes:
        raise InputError(mistakes)
    return Settings(**values)
