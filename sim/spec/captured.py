"""Where a recorded program runs: the program says how many ranks it has, and nobody can change them afterwards."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prestep.sim.errors import InputError, Mistake, unknown
from prestep.sim.spec.scenario_file import is_capture
from prestep.sim.spec.sections import Cluster, Scenario
from prestep.sim.units import parse_duration
from prestep.topologies import (
    cluster_with_gpu,
    gpu_models,
    load_cluster,
    several_hosts,
)
from prestep.topologies.fabric import Fabric

#: Keys that say where a program runs; all others of [cluster] are changes there.
PLACE = ("gpu", "cluster.name", "cluster.file", "cluster.hosts")
#: What has operators of its own.
RECORDED = "a program that `prestep capture` recorded"
#: Sections that say what a program does.
PROGRAM = ("model", "training", "parallel", "megatron")
#: The key that names a GPU, and leaves its cluster to us.
GPU = "gpu"


def key_of(override: str) -> str:
    """The key of a `--set` item."""
    return override.partition("=")[0].strip()


def read_changes(path: Path, overrides: Sequence[str]) -> tuple[str, ...]:
    """Overrides as a scenario takes them: of a recording `gpu=h100` means a cluster with that GPU.

    Raises
    ------
    InputError
        For what only the program can say, and for a GPU that no cluster has.
    """
    if not is_capture(path):
        return tuple(overrides)
    mistakes = [_of_program(path, item) for item in overrides]
    if refused := [mistake for mistake in mistakes if mistake]:
        raise InputError(refused)
    return tuple(_as_cluster(path, item) for item in overrides)


def _of_program(path: Path, override: str) -> Mistake | None:
    key, _, value = override.partition("=")
    if key.strip().partition(".")[0] not in PROGRAM:
        return None
    expected = "a key of the cluster: its links, its GPUs, [nccl], [faults]"
    hint = "the program decides that: change it there and capture it again"
    return Mistake(str(path), key.strip(), value.strip(), expected, hint)


def _as_cluster(path: Path, override: str) -> str:
    key, _, value = override.partition("=")
    if key.strip() != GPU:
        return override
    name = cluster_with_gpu(value.strip().lower())
    if not name:
        raise InputError(unknown(str(path), GPU, value.strip(), gpu_models()))
    return f"cluster.name={name}"


def operator_times(scenario: Scenario) -> dict[str, float]:
    """Seconds of a recorded program's operators, as [costs.operators] has them.

    Raises
    ------
    InputError
        For times that are none, and operators that the program does not call.
    """
    stated = scenario.costs.operators
    if not stated:
        return {}
    # most scenarios state none
    from prestep.workloads.capture import recording

    file = Path(scenario.model.file or "")
    if not is_capture(file):
        where = Mistake(scenario.where, "costs.operators", ", ".join(stated), RECORDED)
        raise InputError(where)
    called = {each.operator for each in recording.read(file).operations}
    own = {name for name in called if not name.startswith("aten::")} or called
    mistakes = [
        unknown(scenario.where, "costs.operators", name, own)
        for name in stated
        if name not in called
    ]
    if mistakes:
        raise InputError(mistakes)
    return {
        name: parse_duration(time, scenario.where, f"costs.operators.{name}")
        for name, time in stated.items()
    }


def placing(overrides: Sequence[str]) -> tuple[str, ...]:
    """Those of the overrides that say where a program runs."""
    return tuple(item for item in overrides if key_of(item) in PLACE)


def default_cluster(
    tables: Mapping[str, Any], path: Path, overrides: Sequence[str]
) -> dict[str, Any]:
    """[cluster] of a recording that nobody gave one: a host with the GPU that the program was told of.

    Empty for a scenario that has a cluster, and where no cluster has that GPU.
    """
    if not is_capture(path):
        return {}
    stated = tables.get("cluster", {})
    named = {key_of(item) for item in overrides} | {f"cluster.{key}" for key in stated}
    if named & {"cluster.name", "cluster.file"}:
        return {}
    # most scenarios are no recordings
    from prestep.workloads.capture import recording

    name = cluster_with_gpu(recording.read(path).gpu)
    return {"cluster": {**stated, "name": name}} if name else {}


def with_room(scenario: Scenario, default: bool = False) -> Scenario:
    """A recorded program's scenario on as many hosts as its ranks need, with a note where its cluster has too few.

    `default`: nobody named the cluster, which is noted too. Other scenarios stay as they are.
    """
    if not is_capture(Path(scenario.model.file or "")):
        return scenario
    cluster, notes = scenario.cluster, []
    if default:
        has = "has the GPU that the program was told of"
        notes.append(f"no cluster was named: {cluster.name} {has}")
    for larger, note in _larger(cluster):
        if _built(larger) is not None:
            cluster = larger
            notes.append(note)
    return replace(scenario, cluster=cluster, notes=tuple(notes))


def _larger(cluster: Cluster) -> Iterator[tuple[Cluster, str]]:
    """Clusters with room and what to say of them; nothing for one that has room, or whose hosts were counted."""
    ranks, name = cluster.gpus or 1, cluster.name or ""
    one = _built(replace(cluster, hosts=None))
    if one is None:
        return
    needed = math.ceil(ranks * len(one.hosts) / len(one.gpus))
    several = several_hosts(name)
    hosts = cluster.hosts or needed
    if several and hosts > 1:
        note = f"{name} is one host: {ranks} ranks run on {hosts} of them, {several}"
        yield replace(cluster, name=several, hosts=hosts), note
    elif cluster.hosts is None and ranks > len(one.gpus):
        note = f"{one.name} with {needed} hosts: as many as {ranks} ranks need"
        yield replace(cluster, hosts=needed), note


def _built(cluster: Cluster) -> Fabric | None:
    """The cluster without its changes; None where something is wrong with it, which is said elsewhere."""
    try:
        return load_cluster(cluster.name or cluster.file or "", cluster.hosts)
    except InputError:
        return None
