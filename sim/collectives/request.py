"""What `prestep collective` was asked for: settings of [nccl] and changed links from --set, GPUs by name or number."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from prestep.sim import assignments, strict
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires.processes import LOCAL, WRONG, memory_of
from prestep.sim.errors import InputError, Mistake, unknown

WHERE = "command line"


#: The key of where processes are, which a scenario has in its section of the cluster.
NUMA = "cluster.numa"


def split(overrides: Sequence[str]) -> tuple[Nccl, dict[str, str], str]:
    """Settings from items such as "nccl.p2p_disable=true"; changes of the cluster's links; where processes are.

    Raises
    ------
    InputError
        With every item that is none, and every setting that NCCL does not have or that has another type.
    """
    said: dict[str, object] = {}
    links: dict[str, str] = {}
    numa = LOCAL
    mistakes: list[Mistake] = []
    for item in overrides:
        try:
            name, value = assignments.split(item)
            section, _, key = name.partition(".")
            if name == NUMA:
                numa = _numa(value)
            elif section == "nccl":
                said[key] = assignments.read(Nccl, key, value)
            else:
                links[assignments.link_key(name, ("nccl", "cluster"))] = value
        except InputError as error:
            mistakes.extend(error.mistakes)
    made, wrong = strict.build(Nccl, said, "--set", "nccl", {})
    if mistakes + wrong:
        raise InputError(mistakes + wrong)
    return made, links, numa


def _numa(value: str) -> str:
    """On which socket processes are."""
    if value not in (LOCAL, WRONG):
        raise InputError(unknown("--set", NUMA, value, (LOCAL, WRONG)))
    return value


def placed(fabric: Any, numa: str) -> Any:
    """The cluster with its processes where they are.

    Raises
    ------
    InputError
        If they are on another socket of a host that has one.
    """
    if numa == LOCAL:
        return fabric
    moved = fabric.with_processes(numa)
    memory_of(moved, moved.gpus[0])
    return moved


def gpus(text: str, fabric: Any) -> tuple[str, ...]:
    """GPUs of a list such as "0,2,4-7" or "gpu0,gpu3"; the first is the root.

    Raises
    ------
    InputError
        With every entry that is no GPU of the cluster, and for fewer than two.
    """
    chosen: list[str] = []
    mistakes: list[Mistake] = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        listed = _listed(entry, fabric.gpus)
        if isinstance(listed, Mistake):
            mistakes.append(listed)
        else:
            chosen += listed
    mistakes += [
        Mistake(WHERE, "--gpus", f"{name} twice", "every GPU once")
        for name in sorted(_twice(chosen))
    ]
    if len(chosen) < 2 and not mistakes:
        enough = "at least two GPUs, such as 0,1 or 0-3"
        mistakes.append(Mistake(WHERE, "--gpus", f'"{text}"', enough))
    if mistakes:
        raise InputError(mistakes)
    return tuple(chosen)


def _listed(entry: str, names: Sequence[str]) -> Sequence[str] | Mistake:
    """The GPUs of one entry: a name, a number or a range of numbers."""
    if entry in names:
        return [entry]
    first, last = _range(entry)
    if first is None:
        return unknown(WHERE, "--gpus", entry, names)
    if not first <= last < len(names):
        numbers = f"numbers from 0 to {len(names) - 1}"
        return Mistake(WHERE, "--gpus", f'"{entry}"', numbers)
    return names[first : last + 1]


def _range(entry: str) -> tuple[int | None, int]:
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", entry)
    return (None, 0) if match is None else (int(match[1]), int(match[2] or match[1]))


def _twice(names: Sequence[str]) -> set[str]:
    return {name for name in names if names.count(name) > 1}
