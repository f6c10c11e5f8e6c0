"""Logs of nccl-tests: the text it prints, and the JSON of its option -J.

Columns of the text: size (B), count, type, redop, root, then time (us), algbw, busbw, #wrong out of place and the same
in place (four more of each with per-iteration timing). Lines that begin with # carry the program, the devices and
NCCL's version; NCCL_DEBUG lines the variables that were set. Source: nccl-tests README and src/util.cu, v2.13 to v2.19.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sim import files
from sim.errors import InputError, Mistake, unknown
from validation.formats.collective_rows import IN_PLACE, Row
from validation.formats.nccl_env import Unpredictable, settings_of
from validation.formats.records import text_of

OPS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "sendrecv": "sendrecv",
}
# Only these differ in place: the rank's own part need not be copied.
DIFFERS = ("all_gather", "reduce_scatter")
SIDES = ("out_of_place", "in_place")
# A table cut down by hand, as in reports: fewer columns, and perhaps the command above it.
_COLUMNS = re.compile(r"^[#\s]*size\b[^\n]*\btime\b[^\n]*\balgbw\b", re.MULTILINE)
_COMMAND = re.compile(r"(\w+)_perf\b(.*)")


@dataclass
class Run:
    """What a log says before its rows."""

    op: str = ""
    ranks: int = 0
    hosts: int = 1
    version: str | None = None
    gpu: str = ""
    env: dict[str, str] = field(default_factory=dict)


def is_log(text: str) -> bool:
    """Whether a text looks like the output of nccl-tests, in either form."""
    head = text.lstrip()[:1]
    if head == "{":
        return '"results"' in text
    if _COLUMNS.search(text):
        return True
    return bool(
        re.search(r"^#\s+size\s+count\s+type", text, re.MULTILINE)
        or re.search(r"^# nThread \d+ ", text, re.M)
    )


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
    text = text_of(path)
    run, found = (
        _from_json(text, path)
        if text.lstrip().startswith("{")
        else _from_text(text, path)
    )
    run.op = op or run.op or _named(path.stem)
    mistakes = []
    if not run.op:
        hint = "say --op, or name the file after the program: all_reduce_perf.log"
        mistakes.append(
            Mistake(
                path.name, "op", "no name of a program", "which collective ran", hint
            )
        )
    if run.ranks < 2:
        mistakes.append(
            Mistake(
                path.name,
                "ranks",
                str(run.ranks),
                'at least 2: the "# Rank" lines of the log',
            )
        )
    if not found:
        mistakes.append(
            Mistake(path.name, "", "no row of times", "the output of nccl-tests")
        )
    if mistakes:
        raise InputError(mistakes)
    return list(_rows(run, found, path, cluster))


def _rows(
    run: Run, found: Sequence[tuple[int, int, str, float]], path: Path, cluster: str
) -> Iterator[Row]:
    where = f"{path.name}:{found[0][0]}"
    try:
        wanted, ignored = settings_of(run.env, run.op, run.version, where)
    except Unpredictable as error:
        expected = "settings that [nccl] can say"
        raise InputError(Mistake(where, "NCCL", str(error), expected)) from None
    place: dict[str, Any] = {
        "cluster": cluster,
        "hosts": run.hosts if run.hosts > 1 else None,
        "per_host": run.ranks // max(1, run.hosts),
    }
    position: dict[str, int] = {}
    for line, size, side, time in found:
        if size <= 0 or (side == "in_place" and run.op not in DIFFERS):
            continue
        name = run.op + (IN_PLACE if side == "in_place" else "")
        position[name] = position.get(name, -1) + 1
        held_out, at = position[name] % 2 == 1, f"{path.name}:{line}"
        row = Row("nccl-tests", name, run.ranks, size, time, time, held_out, at)
        yield replace(row, wanted=wanted, ignored=ignored, **place)


def _named(text: str) -> str:
    """The operation that a program's or file's name holds, the longest that fits."""
    fits = [name for name in OPS if name in text.lower()]
    return OPS[max(fits, key=len)] if fits else ""


def _from_text(text: str, path: Path) -> tuple[Run, list[tuple[int, int, str, float]]]:
    run = Run()
    rows: list[tuple[int, int, str, float]] = []
    mistakes: list[Mistake] = []
    places: set[tuple[str, str]] = set()
    hosts: set[str] = set()
    columns: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if _COLUMNS.match(line) and "type" not in line:
            columns = _named_columns(line)
        elif _is_row(line, columns):
            try:
                cells = _timed(line, columns, f"{path.name}:{number}")
                rows += [(number, *cell) for cell in cells]
            except InputError as error:
                mistakes.extend(error.mistakes)
        else:
            _about(line, run, places, hosts)
    if mistakes:
        raise InputError(mistakes)
    run.ranks = len(places) or run.ranks
    run.hosts = max(1, len(hosts))
    return run, rows


def _is_row(line: str, columns: Mapping[str, int]) -> bool:
    """Whether a line is one of times: of a table with named columns, or as nccl-tests prints them."""
    if columns and re.match(r"\s*\d[\d_,]*\s+\S", line):
        return True
    if line.startswith("#") or _COMMAND.search(line) or "NCCL" in line:
        return False
    return bool(re.match(r"\s*\d+\s+\d+\s+[a-z]\w*\s+\w+", line))


def _timed(
    line: str, columns: Mapping[str, int], where: str
) -> list[tuple[int, str, float]]:
    words = line.split()
    return [_cut(words, columns, where)] if columns else _cells(words, where)


def _about(line: str, run: Run, places: set[tuple[str, str]], hosts: set[str]) -> None:
    """What a line beside the rows says of the run."""
    if line.startswith("#"):
        _header(line, run, places, hosts)
    elif command := _COMMAND.search(line):
        _command(line, command[1], run)
    elif "NCCL" in line:
        _debug(line, run)


def _named_columns(line: str) -> dict[str, int]:
    """Place of every column, the first of a name, without units (`size(B)` is size); none without size and time."""
    words = [re.sub(r"\(.*?\)", "", word) for word in line.strip("# \t").split()]
    found = {word: at for at, word in reversed(list(enumerate(words)))}
    return found if {"size", "time"} <= found.keys() else {}


def _command(line: str, program: str, run: Run) -> None:
    """`mpirun -np 16 ... all_reduce_perf -b 8 -e 4G -g 8 -t 1`: what ran on how many GPUs."""
    run.op = run.op or _named(program)
    before, after = line.split(program, 1)
    counts = [re.search(rf"\s{option}\s+(\d+)", after) for option in ("-g", "-t")]
    counts.append(re.search(r"\s(?:-np?|--np|--ntasks)[\s=]+(\d+)", before))
    run.ranks = run.ranks or math.prod(int(count[1]) for count in counts if count)


def _cut(
    words: Sequence[str], columns: Mapping[str, int], where: str
) -> tuple[int, str, float]:
    """(size, side, s) of a row of a table that has these columns."""
    if len(words) <= max(columns["size"], columns["time"]):
        raise InputError(
            Mistake(
                where, "", f"{len(words)} columns", f"the {len(columns)} of the header"
            )
        )
    size = int(re.sub(r"[_,]", "", words[columns["size"]]))
    return (
        size,
        SIDES[0],
        _us(re.sub(r"[_,]", "", words[columns["time"]]), "time", where),
    )


def _header(line: str, run: Run, places: set[tuple[str, str]], hosts: set[str]) -> None:
    if match := re.match(
        r"#\s+Rank\s+(\d+)\s.*?\son\s+(\S+)\s+device\s+\d+\s+\[\S+\]\s*(.*)", line
    ):
        places.add((match[1], match[2]))
        hosts.add(match[2])
        run.gpu = match[3].strip() or run.gpu
    elif match := re.match(r"# Collective test starting: (\S+)", line):
        run.op = _named(match[1])
    elif match := re.search(r"nccl-library=(\d+)", line):
        run.version = _version(int(match[1]))
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


def _version(code: int) -> str:
    """22809 -> 2.28.9 (NCCL_VERSION_CODE since 2.9)."""
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


def _cells(words: Sequence[str], where: str) -> list[tuple[int, str, float]]:
    """(size, side, s) of a row; a side that was not timed is left out."""
    size, times = int(words[0]), words[5:]
    # Four columns a side, eight with per-iteration timing; a time stamp may follow.
    step = 8 if len(times) >= 16 else 4
    if len(times) < 4:
        raise InputError(
            Mistake(
                where,
                "",
                f"{len(words)} columns",
                "size count type redop root, time algbw busbw #wrong",
            )
        )
    sides = zip(SIDES, (times[at : at + step] for at in (0, step)), strict=True)
    return [
        (size, side, _us(cells[0], "time", where))
        for side, cells in sides
        if len(cells) >= 4
    ]


def _us(value: Any, key: str, where: str) -> float:
    try:
        time = float(value)
    except (TypeError, ValueError):
        time = math.nan
    if not (math.isfinite(time) and time > 0):
        raise InputError(Mistake(where, key, repr(value), "microseconds, more than 0"))
    return time * 1e-6


def _from_json(text: str, path: Path) -> tuple[Run, list[tuple[int, int, str, float]]]:
    try:
        report = files.json_of(text)
    except ValueError as error:
        line, found = getattr(error, "lineno", 1), getattr(error, "msg", str(error))
        raise InputError(
            Mistake(
                f"{path.name}:{line}", "", found, "a JSON report of nccl-tests (-J)"
            )
        ) from None
    if not isinstance(report.get("results"), list):
        known = ["version", "args", "env", "nccl_version", "config", "results"]
        raise InputError(
            unknown(
                path.name, "results", "nothing", known, "a list under results, beside"
            )
        )
    rows: list[tuple[int, int, str, float]] = []
    mistakes: list[Mistake] = []
    for at, result in enumerate(report["results"]):
        try:
            rows += [
                (at + 1, *cell)
                for cell in _result(result, f"{path.name}: results[{at}]")
            ]
        except InputError as error:
            mistakes.extend(error.mistakes)
    if mistakes:
        raise InputError(mistakes)
    return _run_of(report), rows


def _result(result: Any, where: str) -> list[tuple[int, str, float]]:
    if not isinstance(result, Mapping) or not isinstance(result.get("size"), int):
        raise InputError(
            Mistake(where, "size", repr(result)[:60], "bytes, a whole number")
        )
    found = []
    for side in SIDES:
        times = result.get(side)
        if isinstance(times, Mapping):
            found.append(
                (
                    result["size"],
                    side,
                    _us(
                        times.get("time", times.get("cpu_time")), f"{side}.time", where
                    ),
                )
            )
    return found


def _run_of(report: Mapping[str, Any]) -> Run:
    config = report.get("config") or {}
    devices = config.get("devices") or report.get("devices") or []
    per_process = int(config.get("nthreads", 1)) * int(config.get("ngpus", 1))
    args = report.get("args") or [""]
    env = dict(
        entry.split("=", 1)
        for entry in report.get("env") or []
        if entry.startswith("NCCL_") and "=" in entry
    )
    code = report.get("nccl_version")
    version = _version(code) if isinstance(code, int) and code else None
    hosts = {device.get("hostname") for device in devices}
    gpu = str(devices[0].get("device_info", "")) if devices else ""
    # With MPI one device of every process is listed.
    ranks = max(1, len(devices)) * per_process
    return Run(
        _named(Path(str(args[0])).name), ranks, max(1, len(hosts)), version, gpu, env
    )
