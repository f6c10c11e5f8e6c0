"""A recorded step as values: what each rank asked of its GPU, in order; and the file it is kept in.

The file is JSON, compressed: `{"format": "prestep capture", "version": 1, "world", "operations", "ranks", ...}`. Every
distinct operation stands in the file once; events name it by number.
"""

from __future__ import annotations

import functools
import gzip
import json
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from prestep.sim import files
from prestep.sim.errors import InputError, Mistake
from prestep.workloads.capture.groups import axis_of
from prestep.workloads.capture.schema import EVENTS, wrong_in
from prestep.workloads.memory.allocator import Segment
from prestep.workloads.operation import Argument, Operand, Operation

FORMAT, VERSION = "prestep capture", 2
EXPECTED = "a file that `prestep capture` wrote"
SPOILT = "the recording was changed: capture the program again"
MOST_TOLD = 10  # mistakes
#: Bytes of a recording, unpacked: 512 ranks that differ in every operation have 600 MB.
LARGEST = 2**30


class Event(NamedTuple):
    """One thing that a rank's host did: a tuple, of which a recording has tens of thousands.

    Attributes
    ----------
    kind
        A key of `EVENTS`.
    values
        By the names there.
    calls
        Calls of Python functions since the event before.
    """

    kind: str
    values: Mapping[str, Any]
    calls: int


#: What PyTorch calls a group that the program gives no name.
UNNAMED = "undefined"


@dataclass(frozen=True)
class RankRecording:
    """The step of one rank; `represents`: the ranks that do the same, itself among them.

    Attributes
    ----------
    alive
        Bytes of every storage that the step found, by number.
    segments
        What PyTorch's allocator had reserved then, after the steps before (`prestep.workloads.memory.allocator`).
    owners
        "parameters", "gradients", "optimizer" or "buffers", by storages that last longer than a step needs them.
    modules
        Paths of the modules that asked for storages in the step.
    """

    rank: int
    represents: tuple[int, ...]
    events: tuple[Event, ...]
    alive: Mapping[int, int]
    segments: tuple[Segment, ...] = ()
    owners: Mapping[int, str] = field(default_factory=dict)
    modules: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Recording:
    """A step of a program on `world` ranks.

    Attributes
    ----------
    groups
        Ranks of every process group, by name.
    described
        What the program calls them ("mesh_tp", "TENSOR_MODEL_PARALLEL_GROUP").
    parameters
        Weights that the optimizers of one rank update; sharded ones whole.
    gpu
        The GPU that the program was told it has ("h200").
    assumed
        Values that the program read and nobody computes, and how often.
    compiled
        Functions and modules that the program asked to have compiled, and called: their operations are in regions.
    command
        The script and its arguments.
    versions
        Of PyTorch and prestep.
    threads
        Of what the program computes on the host; 0: as many as it has cores.
    recomputation
        Whether operations that checkpointing computes again are told from backward's; older files do not tell them.
    attention_said
        Whether the program allows no fused attention but cuDNN's, which other GPUs take then as well.
    """

    world: int
    operations: tuple[Operation, ...]
    ranks: tuple[RankRecording, ...]
    groups: Mapping[str, tuple[int, ...]]
    parameters: int
    step: int
    gpu: str
    assumed: Mapping[str, int] = field(default_factory=dict)
    compiled: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    described: Mapping[str, str] = field(default_factory=dict)
    threads: int = 0
    recomputation: bool = False
    attention_said: bool = False

    def axis(self, group: str) -> str:
        """The parallel axis of a group, or a neutral name, with a number where others of the same ranks have it too.

        Each is a communicator of its own, whose operations do not wait for those of the others.
        """
        name, members = self._axis(group), self.groups[group]
        if self.described.get(group) != UNNAMED:
            return name
        of_rank = group.partition(":")[0]
        alike = [
            each
            for each, ranks in self.groups.items()
            if each.partition(":")[0] == of_rank and ranks == members
        ]
        place = [each for each in alike if self._axis(each) == name].index(group)
        return f"{name} {place + 1}" if place else name

    def _axis(self, group: str) -> str:
        description = self.described.get(group, "")
        return axis_of(description, len(self.groups[group]), self.world)


def read(path: Path) -> Recording:
    """The recording in a file; a prediction asks for it several times, so the last one is kept.

    Raises
    ------
    InputError
        If there is no such file, or it is none of ours.
    """
    try:
        state = path.stat()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        if isinstance(error, FileNotFoundError):
            reason = "no such file"
        raise InputError.of(str(path), "", reason, EXPECTED) from None
    if not stat.S_ISREG(state.st_mode):
        # A pipe may wait for ever, and a device never ends.
        raise InputError.of(str(path), "", "no regular file", EXPECTED)
    return _read(path, state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=1)
def _read(path: Path, _modified: int, _size: int) -> Recording:
    packed = files.read_bytes(path, EXPECTED, LARGEST)
    try:
        table = files.json_of(files.unpacked(path, packed, LARGEST))
    except ValueError as error:
        raise InputError.of(str(path), "", str(error), EXPECTED) from None
    except InputError as error:
        raise InputError(
            replace(one, expected=EXPECTED) for one in error.mistakes
        ) from None
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        raise InputError.of(str(path), "format", "another file", EXPECTED)
    if table.get("version") != VERSION:
        hint = "capture the program again"
        raise InputError.of(
            str(path), "version", str(table.get("version")), str(VERSION), hint
        )
    wrong = list(islice(wrong_in(table), MOST_TOLD))
    if wrong:
        raise InputError(Mistake(str(path), *each, SPOILT) for each in wrong)
    return _recording(table)


def write(path: Path, recording: Mapping[str, Any]) -> None:
    """Keeps a recording, given as the tables of the file."""
    text = json.dumps(recording, separators=(",", ":"), sort_keys=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def _recording(table: Mapping[str, Any]) -> Recording:
    return Recording(
        world=int(table["world"]),
        operations=tuple(_operation(entry) for entry in table["operations"]),
        ranks=tuple(_rank(entry) for entry in table["ranks"]),
        groups={name: tuple(ranks) for name, ranks in table["groups"].items()},
        parameters=int(table["parameters"]),
        step=int(table["step"]),
        gpu=str(table["gpu"]),
        assumed=dict(table["assumed"]),
        compiled=tuple(table["compiled"]),
        command=tuple(table["command"]),
        versions=dict(table["versions"]),
        described=dict(table.get("described", {})),
        threads=int(table.get("threads", 0)),
        recomputation=bool(table.get("recomputation", False)),
        attention_said=bool(table.get("attention_said", False)),
    )


def _rank(entry: Mapping[str, Any]) -> RankRecording:
    return RankRecording(
        rank=int(entry["rank"]),
        represents=tuple(entry["represents"]),
        events=tuple(_event(row) for row in entry["events"]),
        alive={int(number): int(size) for number, size in entry["alive"].items()},
        segments=tuple(_segment(row) for row in entry.get("segments", ())),
        owners=_by_storage(entry.get("owners", {})),
        modules=_by_storage(entry.get("modules", {})),
    )


def _segment(row: Sequence[Any]) -> Segment:
    stream, small, blocks = row
    return stream, small, [(size, storage) for size, storage in blocks]


def _by_storage(table: Mapping[str, Sequence[int]]) -> dict[int, str]:
    return {number: name for name, numbers in table.items() for number in numbers}


def _event(row: Sequence[Any]) -> Event:
    kind, *values, calls = row
    names = EVENTS[kind]
    return Event(kind, dict(zip(names, values, strict=True)), int(calls))


def _operation(entry: Sequence[Any]) -> Operation:
    name, arguments, options, results = entry
    return Operation(
        name,
        tuple(_argument(a) for a in arguments),
        tuple((key, _argument(value)) for key, value in options.items()),
        tuple(_operand(r) for r in results),
    )


def _argument(value: Any) -> Argument:
    if isinstance(value, dict):
        return _operand(value)
    if isinstance(value, list):
        return tuple(_argument(v) for v in value)
    return value  # type: ignore[no-any-return]


def _operand(value: Mapping[str, Any]) -> Operand:
    return Operand(
        value["dtype"],
        tuple(value["shape"]),
        tuple(value.get("strides", ())),
        value.get("device", "cuda"),
    )
