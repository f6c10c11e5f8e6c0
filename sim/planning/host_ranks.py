"""Ranks of one host whose Python runs at different speeds: `cluster.host_factor_by_rank`, over `host_factor`."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

from prestep.sim.errors import InputError, Mistake
from prestep.sim.spec.sections import Scenario
from prestep.topologies.fabric import Fabric
from prestep.workloads.lowered import Lowered

#: Frameworks that tell ranks apart by what is known of their GPUs and hosts.
SIMULATED = ("pytorch-eager", "pytorch-compiled", "cuda-graph")


def ratios(scenario: Scenario, fabric: Fabric, gpus: Sequence[str]) -> list[float]:
    """For every rank its host's time over `host_factor`; empty: all are alike."""
    stated = scenario.cluster.host_factor_by_rank
    return [*_in_turn(stated, fabric, gpus)] if stated else []


def _in_turn(
    stated: Sequence[float], fabric: Fabric, gpus: Sequence[str]
) -> Iterator[float]:
    """Ranks of a host take them in turn, those of the next host from the first."""
    seen: dict[str, int] = {}
    for gpu in gpus:
        host = fabric.host_of(gpu)
        at = seen[host] = seen.get(host, -1) + 1
        yield stated[at % len(stated)]


def with_hosts(
    speeds: Sequence[Hashable], scenario: Scenario, fabric: Fabric, gpus: Sequence[str]
) -> Sequence[Hashable]:
    """What tells ranks apart: their GPUs, and how fast their hosts are.

    Raises
    ------
    InputError
        If the framework does not tell ranks apart by their hosts.
    """
    hosts = ratios(scenario, fabric, gpus)
    if len(set(hosts)) < 2:
        return speeds
    framework = scenario.training.framework
    if framework not in SIMULATED:
        key, expected = "cluster.host_factor_by_rank", f"one of {', '.join(SIMULATED)}"
        hint = "host_factor is that of the slowest rank, for which the others wait"
        raise InputError(Mistake(scenario.where, key, framework, expected, hint))
    return tuple(zip(speeds or [None] * len(hosts), hosts, strict=True))


def by_rank(
    lowered: Lowered, scenario: Scenario, fabric: Fabric, gpus: Sequence[str]
) -> Lowered:
    """The step with the host's times of every simulated rank as its own host takes them."""
    hosts = ratios(scenario, fabric, gpus)
    if not hosts:
        return lowered
    programs = tuple(
        replace(program, host=program.host * hosts[program.rank])
        for program in lowered.graph.programs
    )
    return replace(lowered, graph=replace(lowered.graph, programs=programs))
