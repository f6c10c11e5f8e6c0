"""What lowering takes and gives: where ranks lie, what tells them apart, and the step as a graph of operations."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from prestep.sim.graph.opgraph import OpGraph
from prestep.workloads.memory.account import Memory

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def strides_of(order: Sequence[str], degrees: Mapping[str, int]) -> dict[str, int]:
    """Distance of neighbours along each axis; `order` is from the innermost axis outwards."""
    strides, stride = {}, 1
    for axis in order:
        strides[axis] = stride
        stride *= degrees[axis]
    return strides


@dataclass(frozen=True)
class Layout:
    """Ranks as a grid of dp x pp x tp; `order` is from the axis on neighbouring ranks outwards; cp counts as dp."""

    dp: int
    pp: int
    tp: int
    order: tuple[str, ...] = ("tp", "pp", "dp")

    @cached_property
    def _strides(self) -> dict[str, int]:
        return strides_of(self.order, vars(self))

    def rank(self, d: int, p: int, t: int) -> int:
        strides = self._strides
        return d * strides["dp"] + p * strides["pp"] + t * strides["tp"]

    def where(self, rank: int) -> tuple[int, int, int]:
        strides = self._strides
        d, p, t = (
            rank // strides[axis] % getattr(self, axis) for axis in ("dp", "pp", "tp")
        )
        return d, p, t

    def pipeline(self, rank: int) -> tuple[int, ...]:
        """The ranks of the pipeline that a rank is in, in the order of the stages."""
        stride = self._strides["pp"]
        first = rank - rank // stride % self.pp * stride
        return tuple(first + p * stride for p in range(self.pp))

    @property
    def world(self) -> int:
        return self.dp * self.pp * self.tp


@dataclass(frozen=True)
class Unlike:
    """What makes ranks differ.

    Attributes
    ----------
    marks : tuple
        Of every rank, equal for ranks that are alike; empty: all are.
    slowness : mapping of int to float
        Time of a kernel on a rank over its model's, where it is not 1.
    """

    marks: Sequence[Hashable] = ()
    slowness: Mapping[int, float] | None = None


@dataclass(frozen=True)
class Place:
    """Which copies of a group meet it on links, and which ranks NVLink joins."""

    gpus_per_host: int
    blocking: bool  # links above the hosts are shared by more than they carry
    hosts: tuple[int, ...] = ()  # each rank's; empty: ranks fill host after host
    nvlink: tuple[int, ...] = ()  # each rank's NVLink domain; empty: its host

    def domains(self, ranks: Sequence[int]) -> int:
        """NVLink domains that these ranks lie in."""
        if self.nvlink:
            return len({self.nvlink[rank] for rank in ranks})
        return len({*self.hosts_of(ranks).tolist()})

    def hosts_of(self, ranks: Sequence[int] | Ints) -> Ints:
        """The host of each rank."""
        numbers = np.asarray(ranks)
        return self._hosts[numbers] if self.hosts else numbers // self.gpus_per_host

    @cached_property
    def _hosts(self) -> Ints:
        return np.array(self.hosts)

    def beside(
        self, groups: Sequence[tuple[int, ...]] | Ints, mine: tuple[int, ...]
    ) -> Ints:
        """The groups, a line each, that can share links with ``mine``.

        Those on its hosts; where links above the hosts are too narrow for all, every one if it leaves a host.
        """
        lines, own = np.asarray(groups), self.hosts_of(mine)
        if self.blocking and np.ptp(own):
            return lines
        shared: Bools = np.isin(self.hosts_of(lines), own)
        near: Ints = lines[shared.any(axis=1)]
        return near

    def neighbours(self, rank: int) -> Ints:
        """Ranks on the host of one, with it."""
        if self.hosts:
            return np.flatnonzero(self._hosts == self._hosts[rank])
        first = rank // self.gpus_per_host * self.gpus_per_host
        return np.arange(first, first + self.gpus_per_host)


@dataclass(frozen=True)
class Site:
    """What lowering has to know of the cluster.

    Attributes
    ----------
    host_factor : float
        Time of the host over that of the one on which the framework's costs were fitted.
    place : Place
        How ranks share hosts.
    speeds : sequence
        Of every rank's GPU, where they are of several kinds; empty: all are alike.
    unlike : Unlike
        What tells ranks apart beside their GPUs.
    workspace : float
        Bytes that cuBLAS takes on these GPUs for each of its handles.
    operators : mapping
        Seconds of a captured program's operators, where the scenario says them.
    host_memory : float
        Bytes a second of a rank's part of its host's memory.
    attention : str
        The kernel that PyTorch takes for attention; "": the job names one.
    experts : str
        How a rank's experts run (`pytorch.experts`).
    capability : tuple of int
        Compute capability of the GPUs; (): nobody says.
    """

    host_factor: float = 1.0
    place: Place = Place(8, blocking=False)
    speeds: Sequence[Hashable] = ()
    unlike: Unlike = Unlike()
    workspace: float = 0.0
    operators: Mapping[str, float] = field(default_factory=dict)
    host_memory: float = 250e9
    attention: str = ""
    experts: Literal["loop", "grouped"] = "loop"
    capability: tuple[int, ...] = ()


@dataclass(frozen=True)
class Lowered:
    """The graph with what does not depend on time.

    ``memory`` and ``host_operations`` (how often each host operation runs in a step) are per simulated rank;
    ``parameters`` counts the whole model; ``made_for`` has the host factor and what told ranks apart. ``tensors`` has
    the bytes of every parameter, or of its shard, that the first simulated rank keeps; empty: nobody counted.
    ``model_flops`` are those of a step's model over all ranks, nan where the program's file does not tell them from
    recomputation; None: they follow from the model's sizes. ``reads``: what a program's step reads over all ranks, and
    its unit. ``chosen``: attention and experts of the `Site`. ``launch``: seconds of the host for each further CUDA
    kernel of an operation; 0: what operations cost the host has them. ``hosts``: of every rank, time of its host over
    the site's, which the graph has already; empty: all are alike.
    """

    graph: OpGraph
    memory: dict[int, Memory]
    host_operations: dict[int, dict[str, float]]
    parameters: int
    layout: Layout
    made_for: tuple[float, Sequence[Hashable]] = (1.0, ())
    tensors: tuple[float, ...] = ()
    model_flops: float | None = None
    reads: tuple[float, str] = (math.nan, "steps")
    chosen: tuple[str, str] = ("", "loop")
    launch: float = 0.0
    hosts: tuple[float, ...] = ()
