"""The recordings of a program's ranks as one: operations in a table, and which rank stands for which."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from prestep.workloads.capture.copies import copies
from prestep.workloads.capture.recording import FORMAT, VERSION

#: What all ranks have alike, but for the count of weights of some.
OF_THE_FIRST = ("parameters", "step", "assumed", "compiled", "threads", "recomputation")


def joined(
    recorded: Mapping[int, Mapping[str, Any]], pipeline: Sequence[int], world: int
) -> dict[str, Any]:
    """What the file says of a program, from what its ranks recorded; see `prestep.workloads.capture.recording`.

    ``pipeline`` are the ranks that send to each other.
    """
    classes = _classes(world, pipeline, recorded)
    table: dict[str, int] = {}
    ranks = [
        _rank(rank, represents, recorded[rank], table)
        for rank, represents in classes.items()
    ]
    first = recorded[min(recorded)]
    return {
        "format": FORMAT,
        "version": VERSION,
        "world": world,
        "operations": [json.loads(text) for text in table],
        "ranks": ranks,
        "groups": {
            _group(rank, name): members
            for rank in classes
            for name, members in recorded[rank]["groups"].items()
        },
        "described": {
            _group(rank, name): text
            for rank in classes
            for name, text in recorded[rank]["described"].items()
        },
        "versions": {"torch": first["torch"]},
        **{key: first[key] for key in OF_THE_FIRST},
    }


def _group(rank: int, name: str) -> str:
    """Groups of several ranks may have the same name, and other members."""
    return f"{rank}:{name}"


def _rank(
    rank: int,
    represents: tuple[int, ...],
    recorded: Mapping[str, Any],
    table: dict[str, int],
) -> dict[str, Any]:
    """A rank's part of the file; its operations are added to the ``table`` of all ranks."""
    names = {name: _group(rank, name) for name in recorded["groups"]}
    places = [table.setdefault(text, len(table)) for text in recorded["operations"]]
    events = [_renumbered(event, places, names) for event in recorded["events"]]
    return {
        "rank": rank,
        "represents": list(represents),
        "events": events,
        **{key: recorded[key] for key in ("alive", "segments", "owners", "modules")},
    }


def _renumbered(
    event: Sequence[Any], places: Sequence[int], names: Mapping[str, str]
) -> list[Any]:
    row = list(event)
    if row[0] in ("operate", "operate_compiled"):
        row[2] = places[row[2]]
    elif row[0] == "communicate":
        row[4] = names[row[4]]
    return row


def _classes(
    world: int, pipeline: Sequence[int], recorded: Mapping[int, Mapping[str, Any]]
) -> dict[int, tuple[int, ...]]:
    """The ranks that each recorded rank stands for.

    A rank of a pipeline stands for those at its place in the copies of the pipeline, rank 0 without one for all. A
    recorded rank that does something else than the one that would stand for it is on its own.
    """
    lines = copies(tuple(pipeline), world) if len(pipeline) > 1 else ()
    places = {rank: tuple(line[i] for line in lines) for i, rank in enumerate(pipeline)}
    classes = places if lines else {pipeline[0]: tuple(range(world))}
    like = {rank: first for first, ranks in classes.items() for rank in ranks}
    alone = {
        rank
        for rank in recorded
        if rank not in classes and not _same(recorded[like[rank]], recorded[rank])
    }
    shared = {
        first: tuple(rank for rank in ranks if rank not in alone)
        for first, ranks in classes.items()
    }
    return {**shared, **{rank: (rank,) for rank in sorted(alone)}}


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two ranks asked for the same operations and communications in the same order.

    Numbers may differ: ranks take their own part of a tensor.
    """
    return _asked(one) == _asked(other)


def _on_tensors(text: str) -> str:
    """An operation's name and tensors, without its numbers."""
    name, arguments, options, results = json.loads(text)
    tensors = [_tensors(argument) for argument in (*arguments, *options.values())]
    return json.dumps([name, tensors, results])


def _tensors(argument: Any) -> Any:
    if isinstance(argument, list):
        return [_tensors(each) for each in argument]
    return argument if isinstance(argument, dict) else None


def _asked(recorded: Mapping[str, Any]) -> list[Any]:
    operations = [_on_tensors(text) for text in recorded["operations"]]
    return [
        (values[2], values[4]) if kind == "communicate" else operations[values[1]]
        for kind, *values in recorded["events"]
        if kind in ("operate", "operate_compiled", "communicate")
    ]
