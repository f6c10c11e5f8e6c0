"""The JSON report of nccl-tests (its option -J)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sim import files
from sim.errors import InputError, Mistake, unknown
from validation.formats.nccl_tests_run import (
    SIDES,
    Parsed,
    Run,
    Timing,
    named,
    us,
    version,
)


def from_json(text: str, path: Path) -> Parsed:
    """What the JSON of a log says of its run, and its times."""
    report = _report(text, path)
    timings: list[Timing] = []
    mistakes: list[Mistake] = []
    for at, result in enumerate(report["results"]):
        try:
            cells = _result(result, f"{path.name}: results[{at}]")
            timings += [Timing(at + 1, *cell) for cell in cells]
        except InputError as error:
            mistakes.extend(error.mistakes)
    return Parsed(_run_of(report), timings, mistakes)


def _report(text: str, path: Path) -> Mapping[str, Any]:
    """The JSON of a log, with a list of results."""
    try:
        report: Mapping[str, Any] = files.json_of(text)
    except ValueError as error:
        where = f"{path.name}:{getattr(error, 'lineno', 1)}"
        found = getattr(error, "msg", str(error))
        expected = "a JSON report of nccl-tests (-J)"
        raise InputError(Mistake(where, "", found, expected)) from None
    if not isinstance(report.get("results"), list):
        keys = ["version", "args", "env", "nccl_version", "config", "results"]
        expected = "a list under results, beside"
        raise InputError(unknown(path.name, "results", "nothing", keys, expected))
    return report


def _result(result: Any, where: str) -> list[tuple[int, str, float]]:
    """(size, side, s) of one size of the JSON."""
    if not isinstance(result, Mapping) or not isinstance(result.get("size"), int):
        expected = "bytes, a whole number"
        raise InputError(Mistake(where, "size", repr(result)[:60], expected))
    cells = []
    for side in SIDES:
        times = result.get(side)
        if isinstance(times, Mapping):
            time = times.get("time", times.get("cpu_time"))
            cells.append((result["size"], side, us(time, f"{side}.time", where)))
    return cells


def _run_of(report: Mapping[str, Any]) -> Run:
    """What a JSON report says of its run."""
    config = report.get("config") or {}
    devices = config.get("devices") or report.get("devices") or []
    per_process = int(config.get("nthreads", 1)) * int(config.get("ngpus", 1))
    program = Path(str((report.get("args") or [""])[0])).name
    hosts = {device.get("hostname") for device in devices}
    code = report.get("nccl_version")
    return Run(
        op=named(program),
        # With MPI one device of every process is listed.
        ranks=max(1, len(devices)) * per_process,
        hosts=max(1, len(hosts)),
        version=version(code) if isinstance(code, int) and code else None,
        gpu=str(devices[0].get("device_info", "")) if devices else "",
        env=_variables(report.get("env") or []),
    )


def _variables(entries: Sequence[str]) -> dict[str, str]:
    """NCCL's variables among entries such as `NCCL_ALGO=Ring`."""
    return dict(
        entry.split("=", 1)
        for entry in entries
        if entry.startswith("NCCL_") and "=" in entry
    )
