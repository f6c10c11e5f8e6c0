"""Opens recorded programs (.capture) as scenarios, and says where they run.

The program says how many ranks it has, and nobody can change them afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prestep.sim.errors import InputError, Mistake, unknown
from prestep.sim.spec.openers import Completed
from prestep.sim.spec.overrides import GPU, key_of, placing
from prestep.sim.spec.sections import Cluster, Scenario
from prestep.topologies import cluster_with_gpu, gpu_models, load_cluster, several_hosts
from prestep.topologies.fabric import Fabric
from prestep.workloads.capture import recording

ENDINGS = (".capture",)
FILES = "a recorded program (.capture)"
PROGRAMS = True
#: Sections that say what a program does.
PROGRAM = ("model", "training", "parallel", "megatron")


def opens(path: Path) -> dict[str, Any]:
    """The scenario of a recorded program: as many ranks as it was captured for."""
    world = recording.read(path).world
    return {
        "cluster": {"gpus": world},
        "model": {"file": path.name},
        "training": {"framework": "captured", "seq_len": 1, "micro_batch": 1},
        "parallel": {"dp": world, "data_parallel": "none"},
    }


def unchanged(tables: Mapping[str, Any], overrides: Sequence[str]) -> tuple[str, ...]:
    """The cluster that is named, which is that of both sides of a what-if; alone, it is what changes."""
    place = placing(overrides)
    return place if len(place) < len(overrides) else ()


def completed(
    tables: Mapping[str, Any], path: Path, overrides: Sequence[str]
) -> Completed:
    """The tables with a cluster; `gpu=h100` means one with that GPU, and without either it is a host as recorded.

    Raises
    ------
    InputError
        For what only the program can say, and for a GPU that no cluster has.
    """
    mistakes = [_of_program(path, item) for item in overrides]
    if refused := [mistake for mistake in mistakes if mistake]:
        raise InputError(refused)
    overrides = tuple(_as_cluster(path, item) for item in overrides)
    stated = tables["cluster"]
    if {key_of(item) for item in overrides} & {"cluster.name", "cluster.file"}:
        return Completed(tables, overrides)
    name = cluster_with_gpu(recording.read(path).gpu)
    if not name:
        return Completed(tables, overrides)
    note = f"no cluster was named: {name} has the GPU that the program was told of"
    return Completed(
        {**tables, "cluster": {**stated, "name": name}}, overrides, (note,)
    )


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


def settled(scenario: Scenario) -> Scenario:
    """A recorded program's scenario on as many hosts as its ranks need, with a note where its cluster has too few."""
    cluster, notes = scenario.cluster, list(scenario.notes)
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
