"""What nccl-tests says of its run and of times, in either form, and the reader of its JSON (option -J)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from prestep.sim import files
from prestep.sim.errors import InputError, Mistake, unknown
from prestep.validation.formats.records import whole

#: The beginnings of lines that nccl-tests prints: its comments, and rows of size, count and type.
_COMMENT = (
    r"#\s*(?:nThread \d|nccl-tests version|Using devices|Rank\s+\d|size\s+count|\(B\)|Out of bounds"
    r"|Avg bus|Collective test)"
)
_ROW = r"[ \t]*\b\d+[ \t]+\d+[ \t]+(?:float|double|half|b?float(?:16|32|64)|fp?8\w*|u?int\d+)[ \t]"
_LINE = re.compile(rf"^(?P<prefix>[^\n]*?)(?={_COMMENT}|{_ROW})", re.MULTILINE)
_DIGITS = re.compile(r"\d+")
#: A prefix is short; what is longer is a line that happens to quote one.
_LONGEST = 200
#: Lines that have it: one alone may quote another log.
_FEWEST = 2


def without_prefix(text: str) -> str:
    """The text as the program printed it.

    Examples
    --------
    >>> log = "[1,0]<stdout>:# nThread 1 nGpus 1\\n[1,0]<stdout>:# Using devices\\n[1,3]<stdout>:# a comment"
    >>> print(without_prefix(log))
    # nThread 1 nGpus 1
    # Using devices
    # a comment
    >>> without_prefix("# nThread 1 nGpus 1")
    '# nThread 1 nGpus 1'
    """
    counts = Counter(_shape(match["prefix"]) for match in _LINE.finditer(text))
    shapes = [shape for shape, count in counts.items() if shape and count >= _FEWEST]
    if not shapes:
        return text
    # The longest first: one prefix may begin as another does.
    beginning = re.compile(f"^(?:{'|'.join(_longest_first(shapes))})", re.MULTILINE)
    return beginning.sub("", text)


def _shape(prefix: str) -> str:
    """A pattern for a prefix in which any number may stand for another (ranks, times); "" for none."""
    if not prefix.strip() or len(prefix) > _LONGEST:
        return ""
    parts = map(re.escape, _DIGITS.split(prefix.rstrip(" \t")))
    # Numbers may be aligned to the right (`srun -l`), and one blank belongs to the prefix.
    return r"[ \t]*\d+".join(parts).removeprefix(r"\ ") + r"[ \t]?"


def _longest_first(shapes: Iterable[str]) -> list[str]:
    return sorted(shapes, key=lambda shape: (-len(shape), shape))


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
SIDES = ("out_of_place", "in_place")
LEAST = 1e-3  # microseconds: no clock of a GPU is finer
MOST_RANKS = 1 << 20  # of a run
MOST_CODE = 1_000_000  # of a version: 22809


class Timing(NamedTuple):
    """One time of a log: its line, bytes, out of place or in place, s."""

    line: int
    size: int
    side: str
    time: float


@dataclass
class Run:
    """What a log says before its rows; `places` are (rank, host) of its devices."""

    op: str = ""
    ranks: int = 0
    hosts: int = 1
    version: str | None = None
    gpu: str = ""
    env: dict[str, str] = field(default_factory=dict)
    places: set[tuple[str, str]] = field(default_factory=set)


class Parsed(NamedTuple):
    """What a log says: its run, its times, and what is wrong with the lines that could not be read."""

    run: Run
    timings: list[Timing]
    mistakes: list[Mistake]


def named(text: str) -> str:
    """The operation that a program's or file's name holds, the longest that fits."""
    fits = [name for name in OPS if name in text.lower()]
    return OPS[max(fits, key=len)] if fits else ""


def version(code: int) -> str:
    """22809 -> 2.28.9 (NCCL_VERSION_CODE since 2.9)."""
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


def us(value: Any, key: str, where: str) -> float:
    try:
        time = float(value)
    except (TypeError, ValueError):
        time = math.nan
    if not (math.isfinite(time) and time >= LEAST):
        expected = f"microseconds, more than 0, at least {LEAST:g}"
        raise InputError.of(where, key, repr(value), expected)
    return time * 1e-6


def from_json(text: str, path: Path) -> Parsed:
    """What the JSON of a log says of its run, and its times."""
    report = _report(text, path)
    timings: list[Timing] = []
    mistakes: list[Mistake] = []
    for at, result in enumerate(report["results"]):
        with InputError.collected(mistakes):
            cells = _result(result, f"{path.name}: results[{at}]")
            timings += [Timing(at + 1, *cell) for cell in cells]
    return Parsed(_run_of(report, path.name), timings, mistakes)


def _report(text: str, path: Path) -> Mapping[str, Any]:
    """The JSON of a log, with a list of results."""
    try:
        report: Mapping[str, Any] = files.json_of(text)
    except ValueError as error:
        where = f"{path.name}:{getattr(error, 'lineno', 1)}"
        found = getattr(error, "msg", str(error))
        expected = "a JSON report of nccl-tests (-J)"
        raise InputError.of(where, "", found, expected) from None
    if not isinstance(report.get("results"), list):
        keys = ["version", "args", "env", "nccl_version", "config", "results"]
        expected = "a list under results, beside"
        raise InputError(unknown(path.name, "results", "nothing", keys, expected))
    return report


def _result(result: Any, where: str) -> list[tuple[int, str, float]]:
    """(size, side, s) of one size of the JSON."""
    size = result.get("size") if isinstance(result, Mapping) else None
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        expected = "bytes, a whole number"
        raise InputError.of(where, "size", repr(result)[:60], expected)
    cells = []
    for side in SIDES:
        times = result.get(side)
        if isinstance(times, Mapping):
            time = times.get("time", times.get("cpu_time"))
            cells.append((result["size"], side, us(time, f"{side}.time", where)))
    return cells


def _run_of(report: Mapping[str, Any], where: str) -> Run:
    """What a JSON report says of its run."""
    config = _typed(report, "config", dict, where) or {}
    devices = _devices(config, where) or _devices(report, where)
    # With MPI one device of every process is listed.
    per_process = whole({"nthreads": 1, **config}, "nthreads", where, 1)
    per_process *= whole({"ngpus": 1, **config}, "ngpus", where, 1)
    ranks = max(1, len(devices)) * per_process
    if ranks > MOST_RANKS:
        found, expected = f"{ranks} ranks", f"at most {MOST_RANKS}"
        raise InputError.of(where, "config", found, expected)
    program = [*(_typed(report, "args", list, where) or []), ""][0]
    code = report.get("nccl_version")
    known = isinstance(code, int) and 0 < code < MOST_CODE
    return Run(
        op=named(Path(str(program)).name),
        ranks=ranks,
        hosts=max(1, len({str(device.get("hostname")) for device in devices})),
        version=version(code) if known else None,  # type: ignore[arg-type]
        gpu=str(devices[0].get("device_info", "")) if devices else "",
        env=_variables(_typed(report, "env", list, where) or []),
    )


def _devices(table: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """The devices that a report or its configuration lists."""
    devices: list[Any] = _typed(table, "devices", list, where) or []
    for at, device in enumerate(devices):
        if not isinstance(device, dict):
            key, expected = (
                f"devices[{at}]",
                "a device: its rank, hostname and device_info",
            )
            raise InputError.of(where, key, repr(device)[:60], expected)
    return devices


def _typed(table: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
    """A list or a table of a report; None where it has none."""
    value = table.get(key)
    if value is not None and not isinstance(value, kind):
        expected = "a list" if kind is list else "a table"
        raise InputError.of(where, key, repr(value)[:60], expected)
    return value


def _variables(entries: Sequence[Any]) -> dict[str, str]:
    """NCCL's variables among entries such as `NCCL_ALGO=Ring`."""
    texts = [entry for entry in entries if isinstance(entry, str)]
    return dict(
        entry.split("=", 1)
        for entry in texts
        if entry.startswith("NCCL_") and "=" in entry
    )
