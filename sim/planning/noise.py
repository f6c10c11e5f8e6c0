"""Noise of a run: how much operations, GPUs, hosts and links differ from step to step, drawn for every simulated rank.

    kernel    every kernel by itself                 launch   every launch of the host by itself
    gpu       all kernels of a rank in a step        host     all launches of a rank in a step
    step      all kernels of all ranks in a step     pause    a GPU or its host that stands still now and then
    latency   what a transfer waits before its bytes          link     the time of its bytes

Each but pauses is the relative standard deviation of a log-normal factor with mean 1 (`sim/costs/jitter.toml`); a pause
makes one kernel of a rank longer, the more often the more GPUs the rank stands for. A simulated rank
that stands for n is the slowest of n: of n draws of the step's factors, and of n sums of kernels between two waits for
communication (of as many as meet there). Transfers of k symmetric groups take the slowest of k draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from prestep.sim.graph.opgraph import COMM, KERNEL, Chain, OpGraph, Program
from prestep.sim.planning.jitter import Jitter

STEPS = (
    2**31
)  # names the draws of steps, where ranks and transfers have smaller numbers
PAUSES = STEPS + 1  # the same of pauses
LEAST = 0.05  # no sum of kernels is faster than this share of its mean, however wide the noise


@dataclass(frozen=True, eq=False)
class Noise:
    """Factors of one replica, as the engine takes them.

    Attributes
    ----------
    kernels, launches : mapping
        By rank, factors on durations and host times, shape (steps * operations,).
    latency, bytes : np.ndarray
        Factors on transfers, shape (steps, communications).
    """

    kernels: Mapping[int, list[float]]
    launches: Mapping[int, list[float]]
    latency: np.ndarray
    bytes: np.ndarray


def noise_of(
    jitter: Jitter,
    graph: OpGraph,
    duration: np.ndarray,
    steps: int,
    seed: tuple[int, ...],
    length: float = 0.0,
) -> Noise:
    """Draws the factors of `steps` steps; the same seed gives the same.

    Parameters
    ----------
    duration
        Seconds of each kernel of the graph, shape (kernels,).
    length
        Seconds of a step, in which pauses befall its GPUs.
    seed
        Numbers that name the replica.
    """
    kernels, launches = dict[int, list[float]](), dict[int, list[float]]()
    common = _of_steps(np.random.default_rng([*seed, STEPS]), steps, jitter)
    for at, drawn in enumerate(_drawn(jitter, graph, duration)):
        draw, rank = np.random.default_rng([*seed, at]), drawn.program.rank
        kernels[rank], launches[rank] = drawn.steps(draw, common)
        pauses = np.random.default_rng([*seed, PAUSES, at])
        _pause(kernels[rank], drawn, steps, length, pauses)
    draw = np.random.default_rng([*seed, len(graph.programs)])
    return Noise(kernels, launches, *_of_transfers(draw, graph, steps, jitter))


def _drawn(jitter: Jitter, graph: OpGraph, duration: np.ndarray) -> Iterator[_Drawn]:
    """The simulated ranks of a graph, each with what its factors are drawn from."""
    weight = np.array([_kernels_in(kernel) for kernel in graph.kernels], dtype=float)
    for program in graph.programs:
        alike = len(graph.represents[program.rank])
        parts = list(_segments(program, graph)) if alike > 1 else []
        yield _Drawn(jitter, program, alike, duration, weight, parts)


def _flat(steps: Iterable[np.ndarray]) -> list[float]:
    """Factors of all steps, one step after the other."""
    return [factor for step in steps for factor in step.tolist()]


@dataclass(frozen=True, eq=False)
class _Drawn:
    """What the factors of a simulated rank are drawn from.

    Attributes
    ----------
    alike : int
        Ranks that it stands for: its factors are those of the slowest.
    duration, weight : np.ndarray
        Of every kernel of the graph, its seconds and the kernels that it stands for.
    parts : list of (operations, ranks)
        Kernels between two waits for communication, and the ranks that meet at the second wait.
    """

    jitter: Jitter
    program: Program
    alike: int
    duration: np.ndarray
    weight: np.ndarray
    parts: list[tuple[np.ndarray, int]]

    def steps(
        self, draw: np.random.Generator, common: np.ndarray
    ) -> tuple[list[float], list[float]]:
        """Factors on the kernels and on the launches of all steps, one after the other; `common`: a factor of each."""
        factors = [self.step(draw) for _ in common]
        kernels = (
            of_step * on_kernels
            for of_step, (on_kernels, _) in zip(common, factors, strict=True)
        )
        return _flat(kernels), _flat(on_launches for _, on_launches in factors)

    def step(self, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Factors on the kernels and on the launches of a step."""
        of_kernels = self._of_the_slowest if self.alike > 1 else self._of_kernels
        kernels = of_kernels(draw)
        return kernels, _of_launches(draw, len(self.program), self.jitter, self.alike)

    def _of_kernels(self, draw: np.random.Generator) -> np.ndarray:
        """Factors on the kernels of a rank that stands for itself."""
        factors = np.ones(len(self.program))
        at = np.flatnonzero(self.program.kind == KERNEL)
        weight = self.weight[self.program.payload[at]]
        relative = self.jitter.kernel / np.sqrt(weight)
        sigma = np.sqrt(np.log1p(relative**2))
        factors[at] = np.exp(sigma * draw.standard_normal(len(at)) - sigma**2 / 2)
        of_gpu: np.ndarray = _lognormal(draw.standard_normal(1), self.jitter.gpu)
        noisy: np.ndarray = factors * of_gpu
        return noisy

    def _of_the_slowest(self, draw: np.random.Generator) -> np.ndarray:
        """Factors on the kernels of the slowest of `alike` ranks, one for all kernels between two waits.

        A sum's relative spread is sqrt(gpu^2 + own^2): gpu the step's, own that of its kernels. What follows the last
        wait of a step and what precedes the first of the next are one sum to the ranks that wait, of two independent
        draws.
        """
        common = float(_slowest(draw, 1, self.alike)[0])
        sums = []
        for ops, met in self.parts:
            kernels = self.program.payload[ops]
            times, weight = self.duration[kernels], self.weight[kernels]
            total, own = _sum(times, weight, self.jitter)
            slowest = float(_slowest(draw, 1, min(met, self.alike))[0])
            sums.append(_Sum(ops, total, own, slowest))
        return _factors(sums, self.jitter.gpu, common, len(self.program))


def _pause(
    factors: list[float],
    drawn: _Drawn,
    steps: int,
    length: float,
    draw: np.random.Generator,
) -> None:
    """Makes kernels of all steps longer by the pauses that befall the GPUs that a rank stands for."""
    program = drawn.program
    at = np.flatnonzero(program.kind == KERNEL)
    seconds = drawn.duration[program.payload[at]]
    if not seconds.sum() > 0:
        return
    for step in range(steps):
        lengths = drawn.jitter.pauses.drawn(draw, drawn.alike, length)
        hit = draw.choice(len(at), len(lengths), p=seconds / seconds.sum())
        for one, pause in zip(hit.tolist(), lengths.tolist(), strict=True):
            factors[step * len(program) + int(at[one])] += pause / seconds[one]


def _of_steps(draw: np.random.Generator, steps: int, jitter: Jitter) -> np.ndarray:
    """A factor of each step on the kernels of all ranks alike: no rank waits for another because of it."""
    factors: np.ndarray = _lognormal(draw.standard_normal(steps), jitter.step)
    return factors


def _of_launches(
    draw: np.random.Generator, operations: int, jitter: Jitter, alike: int
) -> np.ndarray:
    """Factors on the launches of a step: one of the host for all, and one of each."""
    host = _lognormal(_slowest(draw, 1, alike), jitter.host)
    each = _lognormal(draw.standard_normal(operations), jitter.launch)
    factors: np.ndarray = host * each
    return factors


def _of_transfers(
    draw: np.random.Generator, graph: OpGraph, steps: int, jitter: Jitter
) -> tuple[np.ndarray, np.ndarray]:
    """Factors on the latency and on the bytes of transfers: each draw is the slowest of the transfer's groups."""
    groups = np.array([max(1, len(comm.groups)) for comm in graph.comms], dtype=float)
    latency, link = (
        np.array([_slowest(draw, len(groups), groups) for _ in range(steps)])
        for _ in range(2)
    )
    return _lognormal(latency, jitter.latency), _lognormal(link, jitter.link)


def _kernels_in(kernel: Any) -> int:
    """Kernels that one stands for: the noise of many evens out."""
    if not isinstance(kernel, Chain) or kernel.tail:
        return 1
    return max(
        1,
        kernel.times
        * sum(int((p.kind == KERNEL).sum()) for p in kernel.graph.programs),
    )


def _slowest(
    draw: np.random.Generator, count: int, of: float | np.ndarray
) -> np.ndarray:
    """The largest of `of` standard normal draws, `count` times: one uniform draw to the power 1 / of, inverted."""
    many = np.broadcast_to(np.asarray(of, dtype=float), (count,))
    low, shares = NormalDist(), draw.random(count)
    high = np.exp(np.log(np.clip(shares, 1e-300, 1.0)) / many)
    return np.array(
        [low.inv_cdf(min(max(share, 1e-15), 1 - 1e-15)) for share in high.tolist()]
    )


def _lognormal(z: np.ndarray, spread: float) -> np.ndarray:
    """Factors with mean 1 and that relative standard deviation, from standard normal draws."""
    sigma = math.sqrt(math.log1p(spread * spread))
    return np.exp(sigma * z - sigma * sigma / 2)


def _segments(program: Program, graph: OpGraph) -> Iterator[tuple[np.ndarray, int]]:
    """Kernels between two waits for communication, and how many ranks meet at the second wait."""
    kind, here = program.kind, list[int]()
    for i in range(len(program)):
        if kind[i] != KERNEL:
            continue
        awaited = [d for d in program.deps[i] if d >= 0 and kind[d] == COMM]
        if awaited and here:
            met = [c for d in awaited for c in program.parts[program.payload[d]]]
            yield (
                np.array(here),
                max(
                    (len(group) for c in met for group in graph.comms[c].groups),
                    default=1,
                ),
            )
            here = []
        here.append(i)
    if here:
        yield np.array(here), len(graph.represents[program.rank])


def _factors(sums: list[_Sum], gpu: float, common: float, length: int) -> np.ndarray:
    """Factors on all operations of a program, where the GPU's spread is `gpu` and its slowest draw `common`."""
    factors = np.ones(length)
    across = _across_steps(sums, gpu)
    for at, one in enumerate(sums):
        if gpu + one.spread > 0:
            shift = one.shift(gpu, common)
            if at in (0, len(sums) - 1):
                shift *= across
            factors[one.ops] = max(LEAST, 1.0 + shift)
    return factors


class _Sum(NamedTuple):
    """Kernels between two waits: seconds together, the relative spread of that, and the slowest rank's normal draw."""

    ops: np.ndarray
    total: float
    spread: float
    z: float

    def shift(self, gpu: float, common: float) -> float:
        """Relative delay, where the GPU's spread is `gpu` and its slowest draw `common`."""
        own = self.spread
        draws = gpu * common + own * self.z
        return draws * math.hypot(gpu, own) / (gpu + own)


def _sum(times: np.ndarray, weight: np.ndarray, jitter: Jitter) -> tuple[float, float]:
    """Seconds of some kernels together, and its relative spread by the noise of each."""
    total = float(times.sum())
    squares = float(np.sqrt((times**2 / weight).sum()))
    return total, squares * jitter.kernel / total if total else 0.0


def _across_steps(sums: list[_Sum], gpu: float) -> float:
    """Factor on the shifts of the first and the last sum of a step, which are one sum of two independent draws."""
    if len(sums) < 2:
        return 1.0
    ends = [one.total * math.hypot(gpu, one.spread) for one in (sums[0], sums[-1])]
    return math.hypot(*ends) / sum(ends) if any(ends) else 1.0
