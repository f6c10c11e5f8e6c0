"""Logs of nccl-tests: the text it prints, and the JSON of its option -J.

Columns of the text: size (B), count, type, redop, root, then time (us), algbw, busbw, #wrong out of place and the same
in place (four more of each with per-iteration timing). Lines that begin with # carry the program, the devices and
NCCL's version; NCCL_DEBUG lines the variables that were set. Source: nccl-tests README and src/util.cu, v2.13 to v2.19.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prestep.sim.collectives.settings import Nccl
from prestep.sim.errors import InputError, Mistake
from prestep.validation.formats.collective_rows import IN_PLACE, Row
from prestep.validation.formats.nccl_env import Unpredictable, settings_of
from prestep.validation.formats.nccl_tests_run import (
    SIDES,
    Parsed,
    Run,
    Timing,
    from_json,
    named,
    us,
    version,
    without_prefix,
)
from prestep.validation.formats.records import text_of

# Only these differ in place: the rank's own part need not be copied.
DIFFERS = ("all_gather", "reduce_scatter")
# A table cut down by hand, as in reports: fewer columns, and perhaps the command above it.
_COLUMNS = re.compile(r"^[#\s]*size\b[^\n]*\btime\b[^\n]*\balgbw\b", re.MULTILINE)
_TYPED_COLUMNS = re.compile(r"^#\s+size\s+count\s+type", re.MULTILINE)
_PROGRAM = re.compile(r"^# nThread \d+ ", re.MULTILINE)
_RANK = re.compile(r"#\s+Rank\s+(\d+)\s.*?\son\s+(\S+)\s+device\s+\d+\s+\[\S+\]\s*(.*)")
# The beginning of such a line: what follows may be damaged.
_DEVICE = re.compile(r"#\s+Rank\b")
DEVICES = "devices"
_COMMAND = re.compile(r"(\w+)_perf\b(.*)")


def is_log(text: str) -> bool:
    """Whether a text looks like the output of nccl-tests, in either form, after a launcher's prefixes or without."""
    text = without_prefix(text)
    if text.lstrip().startswith("{"):
        return '"results"' in text
    headers = (_COLUMNS, _TYPED_COLUMNS, _PROGRAM)
    return any(header.search(text) for header in headers)


def read(path: str | Path, op: str = "", cluster: str = "") -> list[Row]:
    """Rows of a log, two for every size where both forms were timed and differ.

    Parameters
    ----------
    op
        The operation, where neither the log nor its name says it ("all_reduce").
    cluster
        Name or file of the cluster it ran on.

    Raises
    ------
    InputError
        With line and column of everything that is wrong.
    """
    path = Path(path)
    log = parsed(path)
    if log.mistakes:
        raise InputError(log.mistakes)
    run, timings = log.run, log.timings
    run.op = op or run.op or named(path.stem)
    InputError.check(list(missing(run, timings, path.name)))
    return list(rows_of(run, timings, path, cluster))


def parsed(path: Path) -> Parsed:
    """What a log says, and the lines of it that are damaged.

    Raises
    ------
    InputError
        If the file cannot be read, or is JSON that is none of nccl-tests.
    """
    text = without_prefix(text_of(path))
    is_json = text.lstrip().startswith("{")
    return from_json(text, path) if is_json else _from_text(text, path)


def missing(run: Run, timings: Sequence[Timing], where: str) -> Iterator[Mistake]:
    """What a log has to say before its rows can be compared."""
    if not run.op:
        hint = "say --op, or name the file after the program: all_reduce_perf.log"
        expected = "which collective ran"
        yield Mistake(where, "op", "no name of a program", expected, hint)
    if run.ranks < 2:
        expected = 'at least 2: the "# Rank" lines of the log'
        yield Mistake(where, "ranks", str(run.ranks), expected)
    if not timings:
        yield Mistake(where, "", "no row of times", "the output of nccl-tests")


def rows_of(
    run: Run, timings: Sequence[Timing], path: Path, cluster: str
) -> Iterator[Row]:
    """The rows of a run, every second size of a series held out."""
    wanted, ignored = _settings(run, f"{path.name}:{timings[0].line}")
    place: dict[str, Any] = {
        "cluster": cluster,
        "hosts": run.hosts if run.hosts > 1 else None,
        "per_host": run.ranks // max(1, run.hosts),
    }
    series: Counter[str] = Counter()
    for line, size, side, time in timings:
        if size <= 0 or (side == "in_place" and run.op not in DIFFERS):
            continue
        name = run.op + (IN_PLACE if side == "in_place" else "")
        held_out, where = series[name] % 2 == 1, f"{path.name}:{line}"
        series[name] += 1
        row = Row("nccl-tests", name, run.ranks, size, time, time, held_out, where)
        yield replace(row, wanted=wanted, ignored=ignored, **place)


def _settings(run: Run, where: str) -> tuple[Nccl, tuple[str, ...]]:
    """NCCL's settings of a run, and the variables that change nothing."""
    try:
        return settings_of(run.env, run.op, run.version, where)
    except Unpredictable as error:
        expected = "settings that [nccl] can say"
        raise InputError.of(where, "NCCL", str(error), expected) from None


def _from_text(text: str, path: Path) -> Parsed:
    """What the text of a log says of its run, and its times."""
    run = Run()
    timings: list[Timing] = []
    mistakes: list[Mistake] = []
    columns: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if _COLUMNS.match(line) and "type" not in line:
            columns = _named_columns(line)
        elif _is_row(line, columns) or _is_cut(line):
            with InputError.collected(mistakes):
                cells = _timed(line, columns, f"{path.name}:{number}")
                timings += [Timing(number, *cell) for cell in cells]
        elif _DEVICE.match(line) and not _RANK.match(line):
            mistakes.append(_no_device(line, f"{path.name}:{number}"))
        else:
            _about(line, run)
    run.ranks = _ranks(run, mistakes) or run.ranks
    run.hosts = max(1, len({host for _, host in run.places}))
    mistakes += _without_a_line(run, mistakes, path.name)
    return Parsed(run, timings, mistakes)


def _no_device(line: str, where: str) -> Mistake:
    expected = "Rank N ... on HOST device N [PCI address] GPU"
    return Mistake(where, DEVICES, repr(line.strip()[:60]), expected)


def _ranks(run: Run, mistakes: Sequence[Mistake]) -> int:
    """Ranks of the devices that the log lists: all that have a line, whole or damaged, up to the last; 0: none has."""
    listed = len(run.places) + sum(mistake.key == DEVICES for mistake in mistakes)
    return max([listed, *(int(rank) + 1 for rank, _ in run.places)])


def _without_a_line(
    run: Run, mistakes: Sequence[Mistake], where: str
) -> Iterator[Mistake]:
    """Ranks that no line stands for, whole or damaged."""
    there = {int(rank) for rank, _ in run.places}
    if not there or any(mistake.key == DEVICES for mistake in mistakes):
        return
    lacking = (rank for rank in range(run.ranks) if rank not in there)
    if missing := list(itertools.islice(lacking, 8)):
        found = f"no line of rank {', '.join(map(str, missing))}"
        yield Mistake(where, DEVICES, found, f"ranks 0 to {run.ranks - 1}")


def _is_row(line: str, columns: Mapping[str, int]) -> bool:
    """Whether a line is one of times: of a table with named columns, or as nccl-tests prints them."""
    if columns and re.match(r"\s*\d[\d_,]*\s+\S", line):
        return True
    if line.startswith("#") or _COMMAND.search(line) or "NCCL" in line:
        return False
    return bool(re.match(r"\s*\d+\s+\d+\s+[a-z]\w*\s+\w+", line))


def _is_cut(line: str) -> bool:
    """Whether a line begins as one of times and ends before its operation: the log was cut there."""
    return bool(re.fullmatch(r"\s+\d+\s+\d+(\s+[a-z]\w*)?\s*", line))


def _timed(
    line: str, columns: Mapping[str, int], where: str
) -> list[tuple[int, str, float]]:
    words = line.split()
    return [_cut(words, columns, where)] if columns else _cells(words, where)


def _about(line: str, run: Run) -> None:
    """What a line beside the rows says of the run."""
    if line.startswith("#"):
        _header(line, run)
    elif command := _COMMAND.search(line):
        _command(line, command[1], run)
    elif "NCCL" in line:
        _debug(line, run)


def _named_columns(line: str) -> dict[str, int]:
    """Place of every column, the first of a name, without units (`size(B)` is size); none without size and time."""
    words = [re.sub(r"\(.*?\)", "", word) for word in line.strip("# \t").split()]
    places = {word: at for at, word in reversed(list(enumerate(words)))}
    return places if {"size", "time"} <= places.keys() else {}


def _command(line: str, program: str, run: Run) -> None:
    """`mpirun -np 16 ... all_reduce_perf -b 8 -e 4G -g 8 -t 1`: what ran on how many GPUs."""
    run.op = run.op or named(program)
    before, after = line.split(program, 1)
    counts = [re.search(rf"\s{option}\s+(\d+)", after) for option in ("-g", "-t")]
    counts.append(re.search(r"\s(?:-np?|--np|--ntasks)[\s=]+(\d+)", before))
    run.ranks = run.ranks or math.prod(int(count[1]) for count in counts if count)


def _cut(
    words: Sequence[str], columns: Mapping[str, int], where: str
) -> tuple[int, str, float]:
    """(size, side, s) of a row of a table that has these columns."""
    if len(words) <= max(columns["size"], columns["time"]):
        found, expected = f"{len(words)} columns", f"the {len(columns)} of the header"
        raise InputError.of(where, "", found, expected)
    size, time = (re.sub(r"[_,]", "", words[columns[key]]) for key in ("size", "time"))
    return int(size), SIDES[0], us(time, "time", where)


def _header(line: str, run: Run) -> None:
    """A line that begins with #: a rank's device, the program, NCCL's version."""
    if match := _RANK.match(line):
        rank, host, gpu = match.groups()
        run.places.add((rank, host))
        run.gpu = gpu.strip() or run.gpu
    elif match := re.match(r"# Collective test starting: (\S+)", line):
        run.op = named(match[1])
    elif match := re.search(r"nccl-library=(\d+)", line):
        run.version = version(int(match[1]))
    elif match := re.match(r"# nThread (\d+) nGpus (\d+)", line):
        run.ranks = int(match[1]) * int(match[2])


def _debug(line: str, run: Run) -> None:
    """NCCL_DEBUG: `NCCL version 2.28.9+cuda13.0`, `NCCL_ALGO set by environment to Ring`."""
    if match := re.search(r"NCCL version (2\.\d+\.\d+)", line):
        run.version = match[1]
    elif match := re.search(
        r"(NCCL_\w+) set by environment to (\S+?)\.?$", line.strip()
    ):
        run.env[match[1]] = match[2]


def _cells(words: Sequence[str], where: str) -> list[tuple[int, str, float]]:
    """(size, side, s) of a row; a side that was not timed is left out."""
    size, times = int(words[0]), words[5:]
    if len(times) < 4:
        expected = "size count type redop root, time algbw busbw #wrong"
        raise InputError.of(where, "", f"{len(words)} columns", expected)
    # Four columns a side, eight with per-iteration timing; a time stamp may follow.
    step = 8 if len(times) >= 16 else 4
    sides = {SIDES[0]: times[:step], SIDES[1]: times[step : 2 * step]}
    return [
        (size, side, us(cells[0], "time", where))
        for side, cells in sides.items()
        if len(cells) >= 4
    ]
