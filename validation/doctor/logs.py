"""Logs for the doctor: nccl-tests' text or JSON, NCCL_DEBUG lines, or both in one file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from prestep.sim.collectives.settings import Nccl
from prestep.sim.errors import InputError, Mistake
from prestep.validation.doctor.diagnosis import Sign
from prestep.validation.doctor.host_lines import TOOLS
from prestep.validation.formats import nccl_log, nccl_tests
from prestep.validation.formats.collective_rows import Row
from prestep.validation.formats.nccl_tests_run import (
    Parsed,
    Timing,
    named,
    without_prefix,
)
from prestep.validation.formats.records import text_of

_SIZE = re.compile(r"nRanks (\d{1,7}) nNodes (\d{1,7})\b")
_VERSION = re.compile(r"NCCL version (2\.\d+\.\d+)")
_DEVICES = re.compile(r"NET/(?:IB|OFI|Socket) : Using (.*)")
_VARIABLE = re.compile(r"NCCL_\w+ set by environment to")
#: Columns that rccl-tests adds to a row: what ran, over how many channels.
_RAN = re.compile(
    r"^\s*(\d+)\s.*?\b(RING|TREE|NVLS\w*|COLLNET\w*|PAT)\s+(LL128|LL|SIMPLE)\s+(\d+)\s*$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Run:
    """What logs say together.

    Attributes
    ----------
    rows : tuple of Row
        Measured sizes; none where there are NCCL_DEBUG lines alone.
    gpu : str
        Name of the GPU, as nccl-tests prints it.
    ranks, hosts, nics : int
        Most GPUs and hosts of a log, and NICs of a host; 0 where nothing says it.
    lines : tuple of Sign
        What NCCL_DEBUG wrote.
    skipped : tuple of Mistake
        Damaged lines, which were left out.
    """

    rows: tuple[Row, ...]
    gpu: str = ""
    ranks: int = 0
    hosts: int = 0
    nics: int = 0
    version: str = ""
    lines: tuple[Sign, ...] = ()
    skipped: tuple[Mistake, ...] = field(default=(), repr=False)

    @property
    def per_host(self) -> int:
        return self.ranks // max(1, self.hosts)


def read(paths: Sequence[Path], op: str = "", hosts: int | None = None) -> Run:
    """What logs say together, on any number of hosts each; `op` and `hosts`, where they do not say them.

    Raises
    ------
    InputError
        For files that cannot be read or are no logs of NCCL, and logs of different GPUs.
    """
    runs = [_read(path, op) for path in paths]
    gpus = {run.gpu for run in runs if run.gpu}
    if len(gpus) > 1:
        expected = "logs of one kind of GPU"
        raise InputError.of("logs", "", "; ".join(sorted(gpus)), expected)
    extents = [(run.ranks, hosts or run.hosts) for run in runs if run.ranks]
    ranks, nodes = max(extents, default=(0, hosts or 0))
    return Run(
        tuple(
            _placed(row, hosts or run.hosts or nodes)
            for run in runs
            for row in run.rows
        ),
        next(iter(gpus), ""),
        ranks,
        nodes,
        max(run.nics for run in runs),
        next((run.version for run in runs if run.version), Nccl.version),
        tuple(line for run in runs for line in run.lines),
        tuple(mistake for run in runs for mistake in run.skipped),
    )


def _placed(row: Row, hosts: int) -> Row:
    """The row on so many hosts."""
    several = hosts if hosts > 1 else None
    return replace(row, hosts=several, per_host=row.ranks // max(1, hosts))


def _read(path: Path, op: str) -> Run:
    """What one file says."""
    text = without_prefix(text_of(path))
    lines = tuple(_debug_lines(path, text))
    run = _of_lines(lines)
    if nccl_tests.is_log(text):
        return _with_times(run, path, op)
    if not (nccl_log.is_log(text) or TOOLS.search(text)):
        start = text.strip().split("\n")[0][:60]
        expected = "nccl-tests' text or JSON, NCCL_DEBUG=INFO lines, or what nvidia-smi, ibstat, ethtool or lspci print"
        raise InputError.of(path.name, "", repr(start), expected)
    return run


def _with_times(run: Run, path: Path, op: str) -> Run:
    """What NCCL_DEBUG says of a run, with what nccl-tests says."""
    log = nccl_tests.parsed(path)
    if run.lines and not (log.timings or log.mistakes):
        return replace(run, gpu=log.run.gpu)
    log.run.op = op or log.run.op or named(path.stem)
    log.run.ranks = log.run.ranks if log.run.ranks > 1 else run.ranks
    log.run.hosts = max(log.run.hosts, run.hosts)
    return replace(
        run,
        rows=tuple(_rows(log, path)),
        gpu=log.run.gpu,
        ranks=log.run.ranks,
        hosts=log.run.hosts,
        version=log.run.version or run.version,
        lines=(*run.lines, *_variables(log, path)),
        skipped=tuple(log.mistakes),
    )


def _rows(log: Parsed, path: Path) -> Iterator[Row]:
    """The rows of an nccl-tests log, without the settings that were made: those are what the doctor looks for."""
    if mistakes := list(nccl_tests.missing(log.run, log.timings, path.name)):
        raise InputError([*mistakes, *log.mistakes])
    plain = replace(log.run, env={})
    timings: list[Timing] = log.timings
    machine = ",".join(sorted({host for _, host in log.run.places}))
    for row in nccl_tests.rows_of(plain, timings, path, ""):
        yield replace(row, machine=machine)


def _variables(log: Parsed, path: Path) -> Iterator[Sign]:
    """NCCL's variables of a JSON report, as NCCL_DEBUG would have printed them."""
    if path.suffix == ".json":
        for name, value in log.run.env.items():
            yield Sign(path.name, f"{name} set by environment to {value}")


def _debug_lines(path: Path, text: str) -> Iterator[Sign]:
    """The lines that NCCL_DEBUG wrote, and those that say what a host has."""
    for number, line in enumerate(text.splitlines(), 1):
        body = re.split(r"NCCL (?:INFO|WARN)", line, maxsplit=1)[-1].strip()
        if body != line.strip() or _VARIABLE.search(line) or TOOLS.search(line):
            yield Sign(f"{path.name}:{number}", body)
        elif match := _RAN.match(line):
            size, algo, proto, channels = match.groups()
            ran = f"{size} Bytes -> Algo {algo} proto {proto}"
            last = f"channel{{Lo..Hi}}={{0..{int(channels) - 1}}}"
            yield Sign(f"{path.name}:{number}", f"{ran} {last}")


def _of_lines(lines: Sequence[Sign]) -> Run:
    """What NCCL_DEBUG says of the run's extent."""
    ranks = hosts = nics = 0
    version = ""
    for line in lines:
        if match := _SIZE.search(line.text):
            ranks, hosts = max((ranks, hosts), (int(match[1]), int(match[2])))
        elif match := _DEVICES.search(line.text):
            nics = max(nics, len(re.findall(r"\[\d+\]", match[1])))
        elif match := _VERSION.search(line.text):
            version = match[1]
    return Run((), "", ranks, hosts, nics, version, tuple(lines))
