"""What a step draws: watts of its GPUs, its hosts and their network, joules of a step and of a token."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from prestep.sim.analysis.kernels import KernelUse, kernel_uses
from prestep.sim.costs import Gpu
from prestep.sim.costs.clock import fitting, work_kind
from prestep.sim.costs.draw import Draw, Wall, wall
from prestep.sim.costs.measured import gpu_of
from prestep.sim.engine.execution import Run
from prestep.sim.planning.fleet import fleet_of
from prestep.sim.planning.planned import Planned
from prestep.topologies.fabric import Fabric

#: Share of its limit that a GPU draws which the limit holds: 687 to 698 of 700 W (H100 and H200, steps of products).
HELD = 0.99
#: Bytes of HBM traffic for every byte that a GPU sends: read, written to the peer's buffer, read there (guess).
TRAFFIC = 3.0
#: Tiers of the network's switches; NVSwitches belong to their hosts.
SWITCHES = ("leaf", "switch", "spine", "core")


@dataclass(frozen=True)
class Energy:
    """What a step draws; watts are means over the step.

    Attributes
    ----------
    gpu_power
        Watts of a GPU.
    gpu_limit
        Watts that a GPU may draw.
    limited
        Whether the GPUs would draw more if they might.
    gpu_clock
        Mean clock of the SMs while kernels run, a share of the highest: the one at which they draw what is said.
    gpu_clock_hz
        The same in Hz; nan where nobody says what the highest is.
    communication_power
        Watts of a GPU for what communication moves, of `gpu_power` at the highest clock: a guess.
    host_power
        Watts of a host at the wall, with its GPUs.
    network_power
        Watts of the switches of the job's network.
    total_power
        Watts of all.
    step_energy
        Joules of a step: all GPUs, hosts and switches.
    gpu_step_energy
        Joules of a step: one GPU.
    energy_per_token
        Joules of a token (sample, where the model has no tokens).
    evidence
        Grade of the GPU's figures.
    """

    gpu_power: float
    gpu_limit: float
    limited: bool
    gpu_clock: float
    gpu_clock_hz: float
    communication_power: float
    host_power: float
    network_power: float
    total_power: float
    step_energy: float
    gpu_step_energy: float
    energy_per_token: float
    evidence: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Share:
    """GPUs that are alike: what they are, how many, the kernels of all of them in a step, and the bytes they send."""

    gpu: Gpu
    count: int
    uses: tuple[KernelUse, ...]
    sent: float = 0.0


@dataclass(frozen=True)
class Drawn:
    """Means of GPUs: watts that they draw, may draw, and would draw; clock over the highest of the model.

    `communication`: watts, of those that they would draw, for what they send.
    """

    power: float
    limit: float
    wanted: float
    clock: float
    communication: float


def energy_of(
    planned: Planned, shares: Sequence[Share], step: float, tokens: float
) -> Energy | None:
    """What a step of so many seconds and tokens draws; None where nobody says what such a GPU draws."""
    gpu, gpus = planned.gpu, planned.lowered.layout.world
    if gpu.draw is None or gpu.power_limit is None:
        return None
    drawn = _mean([(drawn_by(share, step), share.count) for share in shares])
    hosts = planned.machine.hosts
    constants = wall(bool(planned.fabric.cluster_facts.liquid))
    host = host_power(drawn.power, gpus / hosts, constants)
    network = network_power(planned.fabric, hosts, constants)
    total = hosts * host + network
    return Energy(
        gpu_power=drawn.power,
        gpu_limit=drawn.limit,
        limited=drawn.wanted > drawn.power,
        gpu_clock=drawn.clock,
        gpu_clock_hz=drawn.clock * (gpu.facts.clock or math.nan),
        communication_power=drawn.communication,
        host_power=host,
        network_power=network,
        total_power=total,
        step_energy=total * step,
        gpu_step_energy=drawn.power * step,
        energy_per_token=total * step / tokens if tokens else math.nan,
        evidence=grade_of(gpu),
    )


def _mean(parts: Sequence[tuple[Drawn, int]]) -> Drawn:
    """Over all GPUs."""
    total = sum(count for _, count in parts)
    means = (
        math.fsum(getattr(drawn, entry.name) * count for drawn, count in parts) / total
        for entry in fields(Drawn)
    )
    return parts[0][0] if len(parts) == 1 else Drawn(*means)


def drawn_by(share: Share, step: float) -> Drawn:
    """What alike GPUs draw in a step of so many seconds.

    Under its limit a GPU runs at the clock at which the mix of its kernels fits.
    """
    gpu, (draw, allowed) = share.gpu, (share.gpu.draw, share.gpu.power_limit)
    assert draw is not None and allowed is not None

    sending = draw.moved * TRAFFIC * share.sent

    def watts(clock: float) -> float:
        joules = kernel_energy(draw.at(clock), share.uses) + sending
        return draw.idle + joules / (share.count * step)

    wanted = watts(1.0)
    power = min(wanted, HELD * allowed)
    clock = fitting(watts, power) if wanted > power else 1.0
    communication = sending / (share.count * step)
    return Drawn(power, allowed, wanted, gpu.clock * clock, communication)


def kernel_energy(draw: Draw, uses: Iterable[KernelUse]) -> float:
    """Joules of kernels beyond those of a GPU without any."""
    return math.fsum(
        draw.kernel(
            use.time,
            use.flops * use.count,
            use.bytes * use.count,
            work_kind(use.kernel),
        )
        for use in uses
    )


def host_power(gpu: float, gpus: float, constants: Wall) -> float:
    """Watts at the wall of a host whose GPUs draw so much each."""
    return gpus * (constants.host_per_gpu + constants.overhead * gpu)


def network_power(fabric: Fabric, hosts: int, constants: Wall) -> float:
    """Watts of the switches, by the share of their hosts that the job has."""
    if hosts < 2:
        return 0.0
    switches = sum(kind in SWITCHES for kind in fabric.nodes.kinds)
    return constants.switch * switches * hosts / len(fabric.hosts)


def grade_of(gpu: Gpu) -> str:
    """Evidence of what a GPU draws: fitted to it, or lent by another."""
    return "fitted" if gpu.facts.draw is not None else "guess"


def shares_of(
    planned: Planned, run: Run, all_uses: tuple[KernelUse, ...]
) -> list[Share]:
    """The GPUs of a run with their kernels: all alike, or by what a what-if has changed of some."""
    fleet = fleet_of(planned.fabric, gpu_of(planned.fabric), planned.gpus)
    world, sent = planned.lowered.layout.world, sent_by_gpus(planned, run)
    if not fleet.speeds:
        return [Share(planned.gpu, world, all_uses, sent)]
    graph, groups = planned.graph, dict[Gpu, list[int]]()
    for at, program in enumerate(graph.programs):
        groups.setdefault(fleet.of(program.rank), []).append(at)
    counts = {
        gpu: sum(len(graph.represents[graph.programs[at].rank]) for at in members)
        for gpu, members in groups.items()
    }
    return [
        Share(
            gpu,
            counts[gpu],
            kernel_uses(planned, run, members),
            sent * counts[gpu] / world,
        )
        for gpu, members in groups.items()
    ]


def sent_by_gpus(planned: Planned, run: Run) -> float:
    """Bytes that leave all GPUs in a step, the mean of the steps of a run."""
    fabric, moved = planned.fabric, run.bytes.everywhere
    gpu = np.zeros(len(fabric.nodes), dtype=bool)
    gpu[fabric.positions(fabric.gpus)] = True
    rows = np.flatnonzero(moved > 0)
    leaving = rows[gpu[fabric.ends[0][rows]]]
    return math.fsum(moved[leaving].tolist()) / len(run.start[0])


_CHANGED = re.compile(
    r"gpu(?:\[.*\])?\.(clock|power_limit|hbm_bandwidth|flops)=([\d.]+)(x|%)"
)
LITTLE = 0.001  # of the step: less is no change
HALF = 0.5  # of the time that the change alone would save or cost: less of it is odd


def factors(changes: Iterable[str]) -> dict[str, float]:
    """What GPUs' attributes are multiplied by, from items such as "gpu.clock=0.95x".

    Examples
    --------
    >>> factors(["gpu.clock=0.95x", "gpu[3].flops=50%", "nvlink.bandwidth=2x"])
    {'clock': 0.95, 'flops': 0.5}
    """
    return {
        m[1]: float(m[2]) / (100 if m[3] == "%" else 1)
        for m in map(_CHANGED.fullmatch, changes)
        if m
    }


def bound_note(
    asked: Mapping[str, float], uses: Sequence[KernelUse], gpu: Gpu, speedup: float
) -> str:
    """Why more or less HBM bandwidth or arithmetic changes a step less than one expects; "" where it does not.

    Every kernel waits for one of the two alone, so the other one's share of the kernels' time stays.
    """
    changed = [name for name in ("hbm_bandwidth", "flops") if name in asked]
    total = math.fsum(use.time for use in uses)
    if len(changed) != 1 or not total:
        return ""
    factor = asked[changed[0]]
    if not factor or not speedup:
        return ""
    if abs(1 / speedup - 1) >= HALF * abs(1 / factor - 1):
        return ""
    arithmetic = math.fsum(
        use.time for use in uses if gpu.roofline.arithmetic(use.kernel)
    )
    own, other, rest = "HBM", "arithmetic", arithmetic
    if changed[0] == "flops":
        own, other, rest = "arithmetic", "HBM", total - arithmetic
    if rest < total / 100:
        return ""
    share = f"{rest / total:.0%}".replace("%", " %")
    return f"{share} of the kernels' time waits for {other}, not for {own}."


def limit_note(
    before: Energy | None,
    after: Energy | None,
    asked: Mapping[str, float],
    speedup: float,
) -> str:
    """Why a changed clock or power limit does more or less than one expects; "" where there is nothing odd.

    ``asked`` is what `factors` returns.

    Examples
    --------
    >>> limit_note(None, None, {"clock": 2.0}, 1.5)
    ''
    """
    if before is None or after is None or not asked.keys() & {"clock", "power_limit"}:
        return ""
    limit, share = (
        f"{before.gpu_limit:.0f} W",
        f"{before.gpu_clock:.0%}".replace("%", " %"),
    )
    clock, power = asked.get("clock", 1.0), asked.get("power_limit", 1.0)
    if power > 1 and before.limited and abs(speedup - 1) < LITTLE:
        return f"Kernels were timed under the limit of {limit} and keep those times: what more power adds is unknown."
    if power > 1 and not before.limited:
        return f"The limit of {limit} does not hold this step back."
    if power > 1 and not after.limited:
        return f"The limit of {after.gpu_limit:.0f} W holds nothing back any more: the highest clock does."
    held = f"the limit of {limit} keeps its clock at {share} of the highest in the mean"
    less = speedup - 1 > HALF * (clock - 1)
    if clock < 1 and not less and speedup > clock + LITTLE:
        return "Arithmetic follows the clock; memory, links and the host do not."
    if clock < 1 and before.limited and less:
        return f"A lower clock costs less than one may expect: {held} anyway."
    if clock > 1 and before.limited:
        chip = "This stands for a faster chip that draws no more power"
        return f"{chip}; the GPU as it is would gain less, for {held}."
    return ""
