"""NCCL's choices as files have them: its own logs, or a JSON made from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from prestep.sim import files
from prestep.sim.collectives.algorithms import algorithms
from prestep.sim.collectives.settings import Nccl
from prestep.sim.errors import InputError
from prestep.sim.strict import build
from prestep.validation.formats import nccl_log
from prestep.validation.formats.nccl_log import Log
from prestep.validation.formats.records import text_of


def read(path: Path) -> list[tuple[str, Log]]:
    """(label, log) of a file of either form."""
    text = text_of(path)
    if nccl_log.is_log(text):
        log = nccl_log.read(text, path.name)
        if not log.cluster:
            hint = "put it above the log"
            expected = "a line `# cluster: NAME` (or a file)"
            raise InputError.of(path.name, "", "no cluster", expected, hint)
        return [(path.stem, log)]
    expected = "an NCCL_DEBUG=INFO log, or JSON as the set's logs.json"
    try:
        report = files.json_of(text)
        if not isinstance(report, dict):
            raise ValueError(f"{str(report)[:20]} instead of logs by name")
        return [(label, _log(entry, path.name)) for label, entry in report.items()]
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:
        found = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise InputError.of(path.name, "", found[:80], expected) from None


def _log(entry: Mapping[str, Any], where: str) -> Log:
    choices = {}
    for key, (algo, proto, channels) in entry["choices"].items():
        op, size = key.split()
        _check(op, nccl_log.OPS.values())
        count = None if channels is None else int(channels)
        choices[op, int(size)] = (str(algo), str(proto), count)
    table = {op: _table(op, rows) for op, rows in entry["table"].items()}
    cluster, version = str(entry["cluster"]), str(entry["version"])
    nccl = {k: v for k, v in dict(entry.get("nccl", {})).items() if v is not None}
    _, mistakes = build(Nccl, nccl, where, "nccl", {})
    if mistakes:
        raise InputError(mistakes)
    return Log(cluster, version, nccl=nccl, table=table, choices=choices)


def _table(op: str, rows: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Latency and bandwidth by algorithm and protocol."""
    _check(op, nccl_log.OPS.values())
    for key in rows:
        algo, proto = key.split()
        _check(algo, algorithms())
        _check(proto, nccl_log.PROTOS)
    number = nccl_log.number
    return {key: (number(row[0]), number(row[1])) for key, row in rows.items()}


def _check(word: str, words: Iterable[str]) -> None:
    """Refuses a word that is none of these."""
    if word not in words:
        raise ValueError(f'"{word}", expected one of {", ".join(words)}')
