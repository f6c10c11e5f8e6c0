"""Constants under a step: which of them every kernel, communication and pause rests on, and by which share of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from prestep.sim.analysis.critical_path import HOST, Segment
from prestep.sim.collectives.plan import Plan
from prestep.sim.costs.kinds import OPERATIONS, STREAM_PASSES
from prestep.sim.graph.kernel import PREFIX, Kernel
from prestep.sim.graph.opgraph import KERNEL, Chain, Program
from prestep.sim.planning.planned import Planned


class Constant(NamedTuple):
    """What may be off: a `family` of widths ("gemm", "bandwidth"), which one of it, and its evidence grade."""

    family: str
    name: str
    grade: str


def label(constant: Constant) -> tuple[str, str]:
    """Its name and grade, as parts of an interval have them."""
    return constant.name or constant.family, constant.grade


#: Part of an interval: how far hosts of one kind differ. It has the seconds of the host's own constant once more.
SPEED = "speed of the host"


class Grounds:
    """Constants under a segment of the path; those of a kernel or a plan are found once."""

    def __init__(self, planned: Planned) -> None:
        self.planned = planned
        self.programs: dict[int, Program] = {p.rank: p for p in planned.graph.programs}
        self.kernels: dict[int, list[tuple[Constant, float]]] = {}
        self.past: dict[Constant, float] = {}
        facts, host = planned.fabric.cluster_facts, planned.machine.host
        self.host = Constant("host", "", "fitted" if host.is_known else "guess")
        # Hosts of one kind differ from start to start, those with neighbours the most: the cluster file says how far.
        spread = None if host.source == "scenario" else facts.host_spread
        self.speed = Constant("host", SPEED, "fitted")
        self.host_spread = spread or 0.0

    def shares(self, segment: Segment) -> Sequence[tuple[Constant, float]]:
        if segment.kind == HOST:
            return [(constant, 1.0) for constant in self.of_host]
        if segment.index < 0:
            return [(Constant("pause", "", "measured"), 1.0)]
        program = self.programs[segment.rank]
        payload = int(program.payload[segment.index])
        if segment.kind == "communication" and program.kind[segment.index] == KERNEL:
            return list(self._exchanges(payload, segment.axis))
        if segment.kind == "communication":
            return list(
                self._plan(
                    self.planned.plans[program.parts[payload][0]], segment.duration
                )
            )
        return self._computing(payload)

    @property
    def of_host(self) -> tuple[Constant, Constant]:
        """What all of the host's own work rests on."""
        return self.host, self.speed

    def of_kernel(self, payload: int) -> Sequence[tuple[Constant, float]]:
        """Constants of a kernel of the graph by share; of a chain with what it waits for its own exchanges."""
        kernel = self.planned.graph.kernels[payload]
        waiting = self._waiting(kernel) if isinstance(kernel, Chain) else {}
        computing = 1.0 - sum(waiting.values())
        shares = [(c, share * computing) for c, share in self._computing(payload)]
        for axis, share in waiting.items():
            shares += [(c, part * share) for c, part in self._exchanges(payload, axis)]
        return shares

    def of_plan(self, plan: Plan) -> tuple[Constant, Constant]:
        """Of its latency and of its bytes."""
        (latency, _), (bandwidth, _) = self._plan(plan, 0.0)
        return latency, bandwidth

    def _waiting(self, chain: Chain) -> dict[str, float]:
        """Shares of a chain's time that wait for its own exchanges, by axis."""
        found = self.planned.chains.get(chain.graph)
        if found is None or found.cycle is None or not found.period:
            return {}
        exposed = found.cycle.exposed
        return {axis: time / found.period for axis, time in exposed.items()}

    def _computing(self, payload: int) -> list[tuple[Constant, float]]:
        if payload not in self.kernels:
            kernel = self.planned.graph.kernels[payload]
            self.kernels[payload] = list(self._kernel(kernel))
        return self.kernels[payload]

    def _kernel(self, kernel: Kernel | Chain) -> Iterator[tuple[Constant, float]]:
        if not isinstance(kernel, Chain):
            yield self._constant(kernel), 1.0
            return
        chain, rest = self.planned.chains[kernel.graph], 1.0
        constituents = list(chain.constituents())
        # An exchange at the end that no kernel waits for makes the period shorter than what is in it, by 0.02 %.
        kernels = math.fsum(share for _, share in constituents)
        computing = max(1.0 - chain.waiting, kernels)
        for inner, share in constituents:
            share /= computing
            rest -= share
            for constant, part in self._kernel(inner):
                yield constant, part * share
        yield Constant("pause", "", "measured"), max(0.0, rest)

    def _exchanges(self, payload: int, axis: str) -> Iterator[tuple[Constant, float]]:
        """What layers wait for their own exchanges along an axis rests on all of these alike."""
        chain = self.planned.graph.kernels[payload]
        if not isinstance(chain, Chain):
            return
        cycle = self.planned.chains[chain.graph].cycle
        exchanges = () if cycle is None else cycle.exchanges
        plans = [e.plan for e in exchanges if e.comm.axis == axis]
        for plan in plans:
            for constant, share in self._plan(plan, 0.0):
                yield constant, share / len(plans)

    def _constant(self, kernel: Kernel) -> Constant:
        gpu = self.planned.gpu
        if kernel.kind == "spin":
            return Constant("pause", "", "measured")
        family = (
            family_of(kernel.kind.removeprefix(PREFIX)) if gpu.like is None else "lent"
        )
        grade, _, octaves, _ = gpu.basis(kernel)
        beyond = ", past its table" if octaves else ""
        constant = Constant(family, f"{kernel.kind} {kernel.dtype}{beyond}", grade)
        if octaves:
            self.past[constant] = max(octaves, self.past.get(constant, 0.0))
        return constant

    def _plan(self, plan: Plan, time: float) -> Iterator[tuple[Constant, float]]:
        """Latency, then bytes over links; what takes longer than on an idle network is the latter."""
        grade = (
            plan.evidence
            if plan.evidence in ("fitted", "datasheet", "guess")
            else "fitted"
        )
        time = time or plan.duration(self.planned.fabric.links.bandwidth)
        share = min(1.0, plan.latency / time) if time > 0 else 1.0
        yield Constant("latency", f"latency {plan.algo} {plan.proto}", grade), share
        yield (
            Constant("bandwidth", f"bandwidth {plan.algo} {plan.proto}", grade),
            1.0 - share,
        )


def family_of(kind: str) -> str:
    """The family of widths of a kind of kernel."""
    if "mm" in kind:
        return "gemm"
    if "attention" in kind:
        return "attention"
    return (
        "memory"
        if kind in {*STREAM_PASSES, *OPERATIONS}
        or kind.startswith(("foreach", "fused", "_fused_adamw"))
        else "other"
    )
