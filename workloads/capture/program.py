"""Captures a program: runs it once for every rank that may differ, and makes one recording of what the ranks did."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import prestep
from prestep.sim import threads
from prestep.sim.errors import InputError, Mistake, ProgramFailed
from prestep.workloads.capture.groups import copies
from prestep.workloads.capture.recording import FORMAT, VERSION

RECORDER = "prestep.workloads.capture.record"


@dataclass(frozen=True)
class Device:
    """The GPU that the program is told it has: what `torch.cuda.get_device_properties` answers.

    Attributes
    ----------
    name
        As prestep calls it ("h200").
    capability
        Major and minor compute capability.
    memory
        Bytes.
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    memory: int
    l2: int

    def properties(self) -> dict[str, Any]:
        return {
            "name": f"NVIDIA {self.name.upper()}",
            "major": self.capability[0],
            "minor": self.capability[1],
            "total_memory": self.memory,
            "multi_processor_count": self.multiprocessors,
            "L2_cache_size": self.l2,
            "warp_size": 32,
            "max_threads_per_multi_processor": 2048,
            "regs_per_multiprocessor": 65536,
            "max_threads_per_block": 1024,
            "shared_memory_per_block": 49152,
            "shared_memory_per_block_optin": 232448,
            "shared_memory_per_multiprocessor": 233472,
            "gcnArchName": "",
            "uuid": "GPU-00000000-0000-0000-0000-000000000000",
            "pci_bus_id": 0,
            "pci_device_id": 0,
            "pci_domain_id": 0,
            "is_integrated": False,
            "is_multi_gpu_board": False,
        }


@dataclass(frozen=True)
class Job:
    """What is captured: a script with its arguments, on `world` ranks, `gpus` of them on a host.

    `ranks` are run beside those that are found to differ. `stop` ends rank 0 with the recorded step; all others end
    there anyway. `busiest`: how many times its share of tokens the first of several experts has, where routers choose.
    `mark`: the name of the ranges with which steps begin, instead of updates of weights.
    """

    command: tuple[str, ...]
    world: int
    gpus: int
    device: Device
    step: int
    quiet: bool = False
    ranks: tuple[int, ...] = ()
    stop: bool = False
    busiest: float = 1.0
    mark: str = ""


@dataclass(frozen=True)
class Captured:
    """What a program's ranks recorded; ``failure``: how rank 0 ended after its step, if not well."""

    tables: dict[str, Any]
    failure: ProgramFailed | None = None


def capture(job: Job, tell: Callable[[str], None] = lambda line: None) -> Captured:
    """The tables of the recording of a program; see `prestep.workloads.capture.recording`.

    Rank 0 is run first, then the ranks that it sends to or receives from, and theirs: the stages of a pipeline.
    All others do what a rank that was run does, which the last rank of all, and those that were named, are run to
    confirm.

    Raises
    ------
    InputError
        If a rank fails before its step is recorded, or never updates weights twice.
    """
    with tempfile.TemporaryDirectory(prefix="prestep-capture-") as folder:

        def run(rank: int) -> _Ran:
            tell(f"rank {rank} of {job.world}")
            return _run(
                job, rank, Path(folder) / f"{rank}.json.gz", job.quiet or rank > 0
            )

        first = run(0)
        recorded = {0: first.recorded}
        while pending := _unheard(recorded):
            recorded[pending[0]] = run(pending[0]).recorded
        pipeline = tuple(sorted(recorded))
        confirming = (job.world - 1,) if len(recorded) == 1 else ()
        for rank in (*confirming, *job.ranks):
            if rank not in recorded:
                recorded[rank] = run(rank).recorded
    tables = joined(recorded, pipeline, job.world)
    named = {"gpu": job.device.name, "command": list(job.command)}
    return Captured({**tables, **named}, first.failure)


def _unheard(recorded: Mapping[int, Mapping[str, Any]]) -> list[int]:
    """Ranks that a rank that was run sends to or receives from, and that were not run themselves."""
    peers = {peer for one in recorded.values() for peer in _peers(one)}
    return sorted(peers - recorded.keys())


class _Ran(NamedTuple):
    """What a rank recorded, and how it ended after that if not well."""

    recorded: dict[str, Any]
    failure: ProgramFailed | None


def _run(job: Job, rank: int, out: Path, quiet: bool) -> _Ran:
    """Runs one rank; its prints go where the program's own would, those of other ranks than 0 nowhere."""
    sink = subprocess.DEVNULL if quiet else None
    said = subprocess.PIPE if job.quiet else None
    done = subprocess.run(
        _command(job, rank, out),
        env=_environment(job, rank, out),
        stdout=sink,
        stderr=said,
        check=False,
    )
    failure = _failed(job, rank, done) if done.returncode else None
    recorded = _recorded(out)
    if failure is not None and recorded["step"] < job.step:
        raise failure
    if not recorded["events"]:
        raise _never_stepped(job, rank, recorded)
    return _Ran(recorded, failure)


def _recorded(out: Path) -> dict[str, Any]:
    """What a rank left; nothing where it was killed, or left by `os._exit`."""
    if not out.exists():
        return {"step": 0, "steps": 0, "events": [], "operations": (), "marks": ()}
    recorded: dict[str, Any] = json.loads(gzip.decompress(out.read_bytes()))
    return recorded


def _command(job: Job, rank: int, out: Path) -> list[str]:
    return [
        *(sys.executable, "-m", RECORDER, "--out", str(out), "--step", str(job.step)),
        *("--busiest", str(job.busiest)),
        *(("--mark", job.mark) if job.mark else ()),
        # As a scheduler does, a job of fewer ranks than a host has GPUs is given as many as it has ranks.
        *("--gpus", str(min(job.gpus, job.world))),
        *("--gpu", json.dumps(job.device.properties())),
        *(("--stop",) if job.stop or rank > 0 else ()),
        *("--", *job.command),
    ]


def _failed(
    job: Job, rank: int, done: subprocess.CompletedProcess[bytes]
) -> ProgramFailed:
    printed = (done.stderr or b"").decode(errors="replace").strip().splitlines()
    found = f"ended with exit code {done.returncode}"
    expected = "a program that runs to its end"
    hint = printed[-1] if printed else "what it printed is above"
    mistake = Mistake(job.command[0], f"rank {rank}", found, expected, hint)
    # A signal ends a program as shells say it: 128 and its number.
    code = done.returncode if done.returncode > 0 else 128 - done.returncode
    return ProgramFailed(mistake, code)


def _never_stepped(job: Job, rank: int, recorded: Mapping[str, Any]) -> InputError:
    """What was expected of a program, and the names of ranges in it that may mark its steps."""
    names = ", ".join(recorded["marks"])
    if job.mark:
        found = f"{recorded['steps']} ranges named {job.mark}"
        expected = "at least two"
        hint = f"it has ranges named {names}" if names else "it names no ranges"
    else:
        found = (
            f"weights updated {recorded['steps']} times after gradients were computed"
        )
        expected = "at least two steps of an optimizer, or of weights that the program updates itself"
        hint = "let the script train a few steps, or mark them: --mark NAME"
        hint += f", one of {names}" if names else ""
        if recorded["operations"] == ():
            found, expected = "an end without a recording", "a program that returns"
            hint = "it may leave by os._exit, or replace itself by another program"
        elif not recorded["operations"]:
            found, expected = "no operation on a GPU", "a program that trains on one"
            hint = "it may need an argument that says so, such as --cuda or --accel"
    return InputError.of(job.command[0], f"rank {rank}", found, expected, hint)


def _environment(job: Job, rank: int, out: Path) -> dict[str, str]:
    """What torchrun sets, where prestep is, and where ranks leave objects for each other."""
    here = str(prestep.HOME)
    path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH", ""))))
    local = rank % job.gpus
    return {
        **threads.environment(),
        "PYTHONPATH": path,
        "PRESTEP_CAPTURE_OBJECTS": str(out.parent / "objects"),
        "RANK": str(rank),
        "WORLD_SIZE": str(job.world),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(min(job.gpus, job.world)),
        "GROUP_RANK": str(rank // job.gpus),
        "NODE_RANK": str(rank // job.gpus),
        **_threads(min(job.gpus, job.world)),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
    }


def _threads(processes: int) -> dict[str, str]:
    """torchrun gives each of several processes of a host one thread, unless somebody says how many."""
    name = "OMP_NUM_THREADS"
    return {name: "1"} if processes > 1 and name not in os.environ else {}


def _peers(recorded: Mapping[str, Any]) -> list[int]:
    """Ranks that one sends to or receives from."""
    found: set[int] = set()
    for kind, *values in recorded["events"]:
        if kind == "communicate" and values[2] in ("send", "recv"):
            found.add(recorded["groups"][values[3]][values[6]])
    return sorted(found)


#: What all ranks have alike, but for the count of weights of some.
OF_THE_FIRST = (
    "parameters",
    "step",
    "assumed",
    "compiled",
    "threads",
    "recomputation",
    "attention_said",
)


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
