"""What a prediction says: step time, why, and how far to trust it. SI units throughout."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from html import escape
from typing import Any

from prestep.sim.analysis.critical_path import CriticalPath
from prestep.sim.analysis.details import Details
from prestep.sim.analysis.energy import Energy
from prestep.sim.analysis.json_text import text_of
from prestep.sim.analysis.link_use import Link, LinkKind, LinkLoad
from prestep.sim.analysis.memory import FRAGMENTATION, Memory, MemoryVerdict, Recomputed
from prestep.sim.analysis.timeline import Timeline
from prestep.sim.analysis.uncertainty import Uncertainty
from prestep.sim.units import format_duration
from prestep.workloads.memory.account import Memory as Account


@dataclass(frozen=True)
class Fallback:
    """Something that no measurement or fit for this hardware covers: a guess, a datasheet's figure, an extrapolation.

    Attributes
    ----------
    what
        "kernel conv_fwd: no table", "all_reduce ring Simple", ...
    grade
        What it rests on.
    count
        How often a step has it on the simulated ranks.
    share
        Of the time of kernels and communications, 0 to 1; of the host's speed the share of the step in which GPUs
        wait for it.
    """

    what: str
    grade: str
    count: int
    share: float

    def __str__(self) -> str:
        times = "once" if self.count == 1 else f"{self.count} times"
        return f"{self.what}: {self.grade}, {times}, {self.share:.1%} of the time"


@dataclass(frozen=True)
class Prediction:
    """A predicted step.

    Attributes
    ----------
    step_time : float
        Seconds; what a user of the cluster would measure. The longest of the ranks'.
    step_time_by_rank : mapping
        Seconds by rank, between the ends of its compute work of two steps; none is above `step_time`.
    tokens_per_second_per_gpu : float
        Tokens per second and GPU (samples, if the model has no sequence).
    mfu : float
        Model flops over peak flops, 0 to 1. nan: peak not known.
    tflops_per_gpu : float
        Model flops per second and GPU, in 1e12.
    breakdown : mapping
        Seconds by share, in the order of `prestep.sim.analysis.metrics`; they sum to `step_time`.
    peak_memory : mapping
        `Memory` by rank.
    on_host : mapping
        Rank -> owner -> bytes that it keeps in its host's memory; ranks that keep none are not there.
    hosts : mapping
        Host of every rank that does.
    host_capacity : float or None
        Bytes of a host's memory; None: nobody says.
    memory_capacity, nominal_memory : float or None
        Bytes of a GPU that programs can have, and those on its datasheet.
    recomputed : Recomputed or None
        Of a step that does not fit and recomputes nothing: what it would need if it did. None: nobody asked.
    outside : mapping
        By rank, bytes beside those of the allocator: "context", "communication".
    accounts : mapping
        By rank, what came and went in the step; ranks that do the same share one.
    links : tuple of Link
        The busiest first.
    link_kinds : tuple of LinkKind
        The highest shadow price first.
    link_loads : tuple of LinkLoad
        The busiest links over time; not in `to_dict`.
    critical_path : CriticalPath or None
        What the end of the last step waited for, through all ranks; see `prestep.sim.analysis.critical_path`.
    evidence : mapping
        Evidence grade -> share of the step, by its critical path, that rests on it.
    tables : mapping
        Whose tables -> share of the kernels' time: "own", "library SOURCE", "borrowed from GPU", "limits" (datasheet).
    fallbacks : tuple of Fallback
        What no measurement or fit for this hardware covers, most time first.
    scenario : mapping
        What was run, short, in the order to print: name, cluster, gpu, gpus, model, layout, precision, ...
    effects : mapping
        What sections of extensions add to the step, a table for each: `checkpoint`, what a save costs; `dataload`, what
        reading data does to the step. In `to_dict` they are beside the other fields.
    delayed : bool
        Whether one of them makes every step wait; not in `to_dict`.
    replicas, host : mapping or None
        The step time with noise, where it was asked for; what the host does to it, where it does: see
        `prestep.sim.studies`.
    energy, cost : Energy or None, mapping or None
        Watts and joules of the step, where it is known what such a GPU draws; what it costs, where that was asked for.
    measured, measured_fitted : float or None, bool
        Seconds a real run took, never used by the prediction; whether a constant was once fitted to that run.
    uncertainty : Uncertainty or None
        The interval of the step time; see `prestep.sim.analysis.uncertainty`.
    expected_error : mapping or None
        How far off the nearest measured steps were that nothing was fitted to; only where `prestep run` looked.
    details : Details or None
        What pictures and traces show beside it; not in `to_dict`.
    """

    step_time: float
    step_time_by_rank: Mapping[int, float]
    tokens_per_second_per_gpu: float
    mfu: float
    tflops_per_gpu: float
    breakdown: Mapping[str, float]
    peak_memory: Mapping[int, Memory] = field(default_factory=dict)
    memory_capacity: float | None = None
    nominal_memory: float | None = None
    recomputed: Recomputed | None = None
    on_host: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    hosts: Mapping[int, str] = field(default_factory=dict)
    host_capacity: float | None = None
    outside: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    accounts: Mapping[int, Account] = field(
        default_factory=dict, repr=False, compare=False
    )
    links: tuple[Link, ...] = ()
    link_kinds: tuple[LinkKind, ...] = ()
    evidence: Mapping[str, float] = field(default_factory=dict)
    tables: Mapping[str, float] = field(default_factory=dict)
    fallbacks: tuple[Fallback, ...] = ()
    warnings: tuple[str, ...] = ()
    scenario: Mapping[str, Any] = field(default_factory=dict)
    measured: float | None = None
    measured_fitted: bool = False
    link_loads: tuple[LinkLoad, ...] = field(default=(), repr=False, compare=False)
    timeline: Timeline | None = field(default=None, repr=False, compare=False)
    effects: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    delayed: bool = False
    replicas: Mapping[str, Any] | None = None
    host: Mapping[str, Any] | None = None
    energy: Energy | None = None
    cost: Mapping[str, Any] | None = None
    expected_error: Mapping[str, Any] | None = None
    critical_path: CriticalPath | None = field(default=None, repr=False, compare=False)
    uncertainty: Uncertainty | None = field(default=None, repr=False, compare=False)
    details: Details | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        speed = f"{self.tokens_per_second_per_gpu:.4g} tokens/s/GPU, MFU {self.mfu:.1%}"
        return f"Prediction({format_duration(self.step_time)} a step, {speed})"

    def _repr_html_(self) -> str:
        """How notebooks show it: the figures, and where the time goes."""
        parts = sorted(self.breakdown.items(), key=lambda part: -part[1])
        rows = "".join(
            f"<tr><td>{name}</td><td>{format_duration(time)}</td><td>{time / self.step_time:.1%}</td></tr>"
            for name, time in parts
            if time > 0
        )
        return f"<p>{escape(repr(self))}</p><table>{rows}</table>"

    @property
    def signed_error(self) -> float | None:
        """(predicted - measured) / measured, or None if nothing was measured."""
        if not self.measured:
            return None
        return (self.step_time - self.measured) / self.measured

    @cached_property
    def fullest_rank(self) -> int | None:
        """The rank with the highest peak; the lowest of equals."""
        # Folded ranks share their tables: the first of those that do stands for all.
        first: dict[tuple[int, int], int] = {}
        for rank in sorted(self.peak_memory):
            key = id(self.peak_memory[rank]), id(self.outside.get(rank))
            first.setdefault(key, rank)
        peaks = {rank: sum(self.owners(rank).values()) for rank in first.values()}
        return min(peaks, key=lambda rank: (-peaks[rank], rank), default=None)

    def owners(self, rank: int) -> dict[str, float]:
        """Bytes of a rank's memory at its peak, by owner: the allocator's, and those beside it."""
        return {**self.peak_memory[rank].owners, **self.outside.get(rank, {})}

    def reserved_by(self, rank: int) -> float:
        """The same of one rank; 0 where its blocks are not simulated."""
        return self.accounts[rank].reserved if rank in self.accounts else 0.0

    @cached_property
    def reserved(self) -> dict[int, float]:
        """By rank, bytes that PyTorch's allocator holds; empty where its blocks are not simulated."""
        return {r: size for r in self.accounts if (size := self.reserved_by(r))}

    @property
    def out_of_memory(self) -> MemoryVerdict | None:
        """Verdict on the fullest rank, or on the fullest host if it is too small; None if memory was not predicted."""
        rank = self.fullest_rank
        if rank is None:
            return None
        host = self.host_verdict
        return host if host is not None and not host.fits else self._verdict_on(rank)

    @cached_property
    def kept_on_hosts(self) -> dict[str, dict[str, float]]:
        """Host -> owner -> bytes that all of its ranks keep in its memory."""
        kept: dict[str, dict[str, float]] = {}
        for rank, owners in self.on_host.items():
            whole = kept.setdefault(self.hosts[rank], {})
            for owner, size in owners.items():
                whole[owner] = whole.get(owner, 0.0) + size
        return kept

    @cached_property
    def host_verdict(self) -> MemoryVerdict | None:
        """On the host whose ranks keep most there; None: none do."""
        kept = self.kept_on_hosts
        if not kept:
            return None
        host = max(kept, key=lambda name: math.fsum(kept[name].values()))
        needed, capacity = math.fsum(kept[host].values()), self.host_capacity
        return MemoryVerdict(
            fits=capacity is None or needed <= capacity,
            rank=min(rank for rank, name in self.hosts.items() if name == host),
            needed=needed,
            capacity=capacity,
            largest_owner=max(kept[host], key=kept[host].__getitem__),
            usual=needed,
            host=host,
        )

    def _verdict_on(self, rank: int) -> MemoryVerdict:
        owners, capacity = self.owners(rank), self.memory_capacity
        allocated = self.peak_memory[rank].total
        outside = math.fsum(self.outside.get(rank, {}).values())
        needed = allocated + outside
        return MemoryVerdict(
            fits=capacity is None or needed <= capacity,
            rank=rank,
            needed=needed,
            capacity=capacity,
            largest_owner=max(owners, key=owners.__getitem__),
            outside=outside,
            usual=(self.reserved_by(rank) or FRAGMENTATION * allocated) + outside,
            nominal=self.nominal_memory,
            recomputed=self.recomputed,
        )

    @property
    def refusal(self) -> str:
        """Why `--strict` does not accept the result: a line for every fallback, and what they amount to."""
        plural = "s" if len(self.fallbacks) > 1 else ""
        lines = [f"fallback: {fallback}" for fallback in self.fallbacks]
        amount = f"{len(self.fallbacks)} kind{plural} of fallback"
        return "\n".join([*lines, f"--strict: {amount}, see above"])

    def to_dict(self) -> dict[str, Any]:
        """Plain values under the names that scripts rely on; everything but the timeline."""
        sections = {
            **dict(sorted(self.effects.items())),
            "replicas": self.replicas,
            "host": self.host,
            "cost": self.cost,
            "expected_error": self.expected_error,
        }
        return {
            **self._speed_to_dict(),
            "breakdown": dict(self.breakdown),
            **self._memory_to_dict(),
            "energy": _dict_of(self.energy),
            "critical_path": _dict_of(self.critical_path),
            "links": [asdict(link) for link in self.links],
            "link_kinds": [asdict(kind) for kind in self.link_kinds],
            "evidence": dict(self.evidence),
            "tables": dict(self.tables),
            "fallbacks": [asdict(fallback) for fallback in self.fallbacks],
            "warnings": list(self.warnings),
            "scenario": dict(self.scenario),
            **{
                name: dict(table)
                for name, table in sections.items()
                if table is not None
            },
        }

    def _speed_to_dict(self) -> dict[str, Any]:
        ranks = sorted(self.step_time_by_rank.items())
        return {
            "step_time": self.step_time,
            "step_time_by_rank": {str(rank): time for rank, time in ranks},
            "measured_step_time": self.measured,
            "signed_error": self.signed_error,
            "measured_fitted": self.measured_fitted,
            "tokens_per_second_per_gpu": self.tokens_per_second_per_gpu,
            "mfu": self.mfu,
            "tflops_per_gpu": self.tflops_per_gpu,
            "uncertainty": _dict_of(self.uncertainty),
        }

    def _memory_to_dict(self) -> dict[str, Any]:
        # Ranks that do the same share their memory.
        distinct = {id(memory): memory for memory in self.peak_memory.values()}
        tables = {
            at: {"total": memory.total, **memory.owners}
            for at, memory in distinct.items()
        }
        peaks = {
            str(rank): dict(tables[id(memory)])
            for rank, memory in sorted(self.peak_memory.items())
        }
        # Of those that share an account the first.
        last_first = sorted(self.accounts.items(), reverse=True)
        first = {id(account): rank for rank, account in last_first}
        verdict = self.out_of_memory
        return {
            "peak_memory": peaks,
            "reserved_memory": {str(r): size for r, size in self.reserved.items()},
            "memory_by_module": {
                str(rank): dict(self.accounts[rank].modules)
                for rank in sorted(first.values())
                if self.accounts[rank].modules
            },
            "out_of_memory": None if verdict is None else asdict(verdict),
            "host_memory": {str(r): dict(kept) for r, kept in self.on_host.items()},
        }

    def to_json(self) -> str:
        """`to_dict` as JSON text; numbers that are not finite become null."""
        return text_of(self.to_dict())


def _dict_of(
    value: CriticalPath | Energy | Uncertainty | None,
) -> dict[str, Any] | None:
    return None if value is None else value.to_dict()
