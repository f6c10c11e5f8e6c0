"""What was measured on a cluster: logs of NCCL, traces, and training logs with the scenario that they ran."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from prestep.sim.collectives.settings import Nccl
from prestep.sim.errors import InputError, Mistake
from prestep.validation.doctor import logs, training
from prestep.validation.doctor.host_lines import TOOLS
from prestep.validation.doctor.logs import Run
from prestep.validation.doctor.recorded import (
    UNTIMED,
    Recorded,
    head_of,
    is_recorded,
    opened,
)
from prestep.validation.doctor.stuck import Delay, delays
from prestep.validation.doctor.sweep import RECORDED
from prestep.validation.doctor.training import Speed, Step
from prestep.validation.formats import nccl_log, nccl_tests
from prestep.validation.formats.collective_rows import Row
from prestep.validation.formats.nccl_tests_run import without_prefix
from prestep.validation.formats.records import text_of
from prestep.workloads import traces
from prestep.workloads.traces.collectives import SYNCHRONISING
from prestep.workloads.traces.replay import Job, assemble

KINDS = (
    "a log of nccl-tests (text or -J), NCCL_DEBUG lines, what nvidia-smi, ibstat, ethtool or lspci print, a training "
    "log, a trace, JSON lines of NCCL's inspector, a dump of PyTorch's flight recorder, or the scenario or recipe of a "
    "training log"
)
#: What a scenario or a recipe ends in.
SCENARIOS = (".toml", ".yaml", ".yml", ".sh", ".json", ".py")
_TRACE = re.compile(r'"(traceEvents|schemaVersion|deviceProperties)"')


@dataclass(frozen=True)
class Evidence:
    """What was measured: rows and lines of logs, training steps, collectives that jobs recorded, who delays them."""

    run: Run
    steps: tuple[Step, ...] = ()
    recorded: tuple[Recorded, ...] = ()
    delays: tuple[Delay, ...] = ()

    def with_rows(self, each: int) -> Evidence:
        """With the recorded collectives as rows, on hosts of so many GPUs."""
        if not self.recorded:
            return self
        world = 1 + max(max(one.ranks) for one in self.recorded)
        nodes = max(one.hosts for one in self.recorded)
        hosts = max(self.run.hosts, nodes, -(-world // each))
        rows = (*self.run.rows, *_rows(self.recorded, each))
        ranks = max(self.run.ranks, world)
        return replace(self, run=replace(self.run, rows=rows, ranks=ranks, hosts=hosts))


def read(paths: Sequence[Path], op: str = "", hosts: int | None = None) -> Evidence:
    """All files, each told by its content.

    Raises
    ------
    InputError
        For files of no kind, logs of different GPUs, and a training log without the scenario that it ran.
    """
    kinds: dict[str, list[Path]] = {}
    mistakes: list[Mistake] = []
    for path in paths:
        try:
            kinds.setdefault(_kind(path), []).append(path)
        except InputError as error:
            mistakes += error.mistakes
    speeds = [_speed(path) for path in kinds.get("training", [])]
    scenarios = kinds.get("scenario", [])
    mistakes += _unpaired(speeds, scenarios)
    if mistakes:
        raise InputError(mistakes)
    found = kinds.get("log", [])
    recorded = kinds.get("trace", [])
    job = assemble(traces.read(recorded)) if recorded else None
    collectives = [*_met(job)] if job else []
    files = [opened(path) for path in kinds.get("recorded", [])]
    collectives += (one for timed, _ in files for one in timed)
    late = delays([dump for _, dump in files if dump is not None])
    if files and not (collectives or late):
        where = kinds["recorded"][0].name
        raise InputError.of(where, "", "no collective with a time", UNTIMED)
    version = (job.nccl if job else "") or Nccl.version
    none = Run((), hosts=hosts or 0, version=version)
    run = logs.read(found, op, hosts) if found else none
    steps = tuple(Step(speed, scenarios[0]) for speed in speeds)
    return Evidence(run, steps, tuple(collectives), late)


def _speed(path: Path) -> Speed:
    return training.read(text_of(path), path.name)


def _unpaired(speeds: Sequence[Speed], scenarios: Sequence[Path]) -> Iterator[Mistake]:
    """Training logs without the one scenario that they ran, and the other way round."""
    if speeds and len(scenarios) != 1:
        found = f"{len(scenarios)} scenarios or recipes"
        expected = "one beside the training log: what it ran"
        yield Mistake(speeds[0].where, "", found, expected)
    elif scenarios and not speeds:
        found = "a scenario or recipe, and no training log"
        yield Mistake(scenarios[0].name, "", found, "the log of a training that ran it")


def _kind(path: Path) -> str:
    """What a file is: log, trace, training or scenario."""
    if path.is_dir() or path.suffix in (".gz", ".parquet", ".et"):
        return "trace"
    if is_recorded(head_of(path)):
        return "recorded"
    text = text_of(path, KINDS)
    plain = without_prefix(text)
    if nccl_tests.is_log(text) or nccl_log.is_log(plain) or TOOLS.search(text):
        return "log"
    if path.suffix == ".json" and _TRACE.search(text[:100_000]):
        return "trace"
    if training.is_log(text):
        return "training"
    if path.suffix in SCENARIOS:
        return "scenario"
    start = text.strip().split("\n")[0][:60]
    raise InputError.of(path.name, "", repr(start), KINDS)


def _met(job: Job) -> Iterator[Recorded]:
    """The collectives of a trace."""
    for meeting in job.meetings:
        if meeting.op in SYNCHRONISING and len(meeting.ranks) > 1:
            ranks = tuple(sorted(meeting.ranks))
            yield Recorded(meeting.op, int(meeting.size), ranks, 0, meeting.duration)


def _rows(recorded: Sequence[Recorded], each: int) -> Iterator[Row]:
    """The shortest time of every collective: longer ones waited, or shared links with kernels."""
    best: dict[tuple[str, int, tuple[int, ...], int], float] = {}
    for op, size, ranks, nodes, time in recorded:
        if size > 0 and time > 0:
            hosts = nodes or len({rank // each for rank in ranks})
            key = op, size, ranks, hosts
            best[key] = min(best.get(key, time), time)
    for (op, size, ranks, hosts), time in best.items():
        row = Row(RECORDED, op, len(ranks), size, time, time, where="trace")
        several = hosts if hosts > 1 else None
        yield replace(row, hosts=several, per_host=-(-len(ranks) // hosts))
