"""Sets of NCCL's choices (`kind = "choices"` in set.toml): algorithm, protocol and channels against NCCL's own logs.

A log says what was chosen for the sizes that ran, and prints the table of latencies and bandwidths from which NCCL
chooses. From the table follows the choice at every other size, unless two rows are closer than its rounding: those
sizes are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lab.formats import nccl_table
from lab.formats.nccl_table import Log
from prestep.sim import files, progress
from prestep.sim.collectives.algorithms import algorithms
from prestep.sim.collectives.group import group_of
from prestep.sim.collectives.nccl import tuner
from prestep.sim.collectives.plan import nccl_of
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.collectives.settings import Nccl
from prestep.sim.errors import InputError, PrestepError
from prestep.sim.strict import build
from prestep.topologies import load_cluster
from prestep.topologies.fabric import Fabric
from prestep.validation.formats import nccl_env, nccl_log
from prestep.validation.formats.records import text_of
from prestep.validation.report.comparison import Comparison
from prestep.validation.report.gate import Check, prediction_checks
from prestep.validation.report.interface import Point, Skip, Table
from prestep.validation.report.summary import Errors, errors_of
from prestep.validation.sets.sets import asked


def read(path: Path) -> list[tuple[str, Log]]:
    """(label, log) of a file of either form."""
    text = text_of(path)
    if nccl_log.is_log(text):
        log = nccl_table.read(text, path.name)
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
        _check(op, nccl_env.FUNCTIONS.values())
        count = None if channels is None else int(channels)
        choices[op, int(size)] = (str(algo), str(proto), count)
    table = {op: _table(op, rows) for op, rows in entry["table"].items()}
    cluster, version = str(entry["cluster"]), str(entry["version"])
    nccl = {k: v for k, v in dict(entry.get("nccl", {})).items() if v is not None}
    _, mistakes = build(Nccl, nccl, where, "nccl", {})
    InputError.check(mistakes)
    return Log(cluster, version, nccl=nccl, table=table, choices=choices)


def _table(op: str, rows: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Latency and bandwidth by algorithm and protocol."""
    _check(op, nccl_env.FUNCTIONS.values())
    for key in rows:
        algo, proto = key.split()
        _check(algo, algorithms())
        _check(proto, nccl_env.PROTOS.values())
    number = nccl_table.number
    return {key: (number(row[0]), number(row[1])) for key, row in rows.items()}


def _check(word: str, words: Iterable[str]) -> None:
    """Refuses a word that is none of these."""
    if word not in words:
        raise ValueError(f'"{word}", expected one of {", ".join(words)}')


LIMIT = 0.05  # share of sizes that may differ
SIZES = tuple(2**k for k in range(3, 33))
ROUNDING = 0.0501  # of the table's microseconds and GB/s
LOGGED, TABLE = "chosen in the log", "by the log's table"
HEAD = ("case", "NCCL", "prestep", "")


@dataclass(frozen=True)
class Case:
    """One size: what NCCL runs, and what is predicted, as "ring LL 24"; without channels where NCCL's are not known."""

    name: str
    kind: str
    expected: str
    found: str
    error: str = ""

    @property
    def equal(self) -> bool:
        return not self.error and self.found == self.expected

    def to_json(self) -> dict[str, Any]:
        return vars(self) | {"equal": self.equal}


@dataclass(frozen=True)
class ChoiceReport(Comparison):
    """All sizes of all logs."""

    name: str
    title: str
    cases: tuple[Case, ...]
    skips: tuple[Skip, ...] = ()
    unit: str = "choices"

    def _errors(self, kind: str | None = None) -> Errors:
        chosen = [case for case in self.cases if kind in (None, case.kind)]
        return errors_of([(case.name, float(not case.equal)) for case in chosen])

    @property
    def groups(self) -> dict[str, Errors]:
        """Shares of choices that differ."""
        return {"all": self._errors()} | {
            kind: self._errors(kind) for kind in (LOGGED, TABLE)
        }

    @property
    def checks(self) -> tuple[Check, ...]:
        failed = [case.name for case in self.cases if case.error]
        checks = [*prediction_checks(len(self.cases), failed, len(self.skips))]
        for kind in (LOGGED, TABLE):
            errors = self._errors(kind)
            if errors.n:
                differ = ", ".join(
                    case.name
                    for case in self.cases
                    if case.kind == kind and not case.equal
                )
                checks.append(Check(f"{kind}: differ", errors.mape, LIMIT, differ))
        return tuple(checks)

    @property
    def case_tables(self) -> Sequence[Table]:
        rows = [
            (c.name, c.expected, c.found, c.error or ("" if c.equal else "differs"))
            for c in self.cases
        ]
        return (
            Table(
                f"{sum(c.equal for c in self.cases)} of {len(self.cases)} choices are NCCL's",
                HEAD,
                rows,
            ),
        )

    @property
    def points(self) -> Sequence[Point]:
        return tuple(
            Point(c.name, c.kind, 1.0, float(c.equal), False, error=c.error)
            for c in self.cases
        )

    def figures(self) -> dict[str, Any]:
        equal = sum(case.equal for case in self.cases)
        return {
            "n": len(self.cases),
            "equal": equal,
            "agreement": equal / len(self.cases) if self.cases else None,
            "groups": {
                name: {"n": e.n, "agreement": 1 - e.mape}
                for name, e in self.groups.items()
                if e.n
            },
        }


def validate_set(
    name: str, rows: str | Path | None = None, jobs: int = 1
) -> ChoiceReport:
    """Compares the set's logs, or another: an NCCL_DEBUG log with a line `# cluster: NAME`, or JSON as the set's.

    Raises
    ------
    InputError
        If there is no such set, or a file cannot be read.
    """
    _, (path, *_), title = asked(name, rows)
    cases: list[Case] = []
    skips: list[Skip] = []
    for label, log in progress.track(read(path), "logs"):
        cases += compare(label, log, str(path.name), skips)
    return ChoiceReport(name, title, tuple(cases), tuple(skips))


@dataclass(frozen=True)
class _Group:
    """The GPUs of a log's communicator, their cluster, and NCCL's settings."""

    gpus: Sequence[str]
    fabric: Fabric
    nccl: Nccl

    def model(self) -> Any:
        """What NCCL chooses by."""
        members = group_of(self.fabric, self.gpus, self.nccl)
        return tuner.model_of(members, self.fabric, self.nccl)


def compare(label: str, log: Log, where: str, skips: list[Skip]) -> Iterator[Case]:
    """Every choice of a log and of its table."""
    try:
        group = _group(log)
        model = group.model()
    except PrestepError as error:
        skips.append(Skip(label, where, str(error)))
        return
    if log.ranks > len(group.gpus):
        why = f"{log.ranks} ranks on the {len(group.gpus)} GPUs of {log.cluster}"
        skips.append(Skip(label, where, why))
        return
    for (op, size), choice in log.choices.items():
        case = Case(f"{label}/{op}/{size}", LOGGED, _choice(*choice), "")
        yield _predicted(case, op, size, group, with_channels=bool(choice[2]))
    for op, size, best in _by_tables(log, model):
        case = Case(f"{label}/{op}/{size}", TABLE, best, "")
        yield _predicted(case, op, size, group, with_channels=False)


def _group(log: Log) -> _Group:
    """The communicator that wrote a log."""
    fabric = load_cluster(log.cluster)
    nccl = nccl_of({"version": log.version or None} | log.nccl)
    return _Group(fabric.gpus[: log.ranks or len(fabric.gpus)], fabric, nccl)


def _choice(algo: str, proto: str, channels: int | None) -> str:
    """A choice as text, with the channels where a log says them."""
    return f"{algo} {proto}" + (f" {channels}" if channels else "")


def _by_tables(log: Log, model: Any) -> Iterator[tuple[str, int, str]]:
    """Operation, size and choice by the log's tables, of sizes that did not run."""
    for op, rows in log.table.items():
        for size in SIZES if rows else ():
            best = by_table(op, size, rows, model)
            if best is not None and (op, size) not in log.choices:
                yield op, size, best


def _predicted(
    case: Case, op: str, size: int, group: _Group, with_channels: bool
) -> Case:
    """The case with prestep's own choice, or why there is none."""
    try:
        plan = plan_collective(op, float(size), group.gpus, group.fabric, group.nccl)
    except PrestepError as error:
        return replace(case, error=str(error))
    channels = plan.channels if with_channels else None
    return replace(case, found=_choice(plan.algo, plan.proto, channels))


def by_table(
    op: str, size: int, rows: Mapping[str, tuple[float, float]], model: Any
) -> str | None:
    """What NCCL takes by a table as printed; None where its rounding leaves two open."""
    spans = {key: _span(op, size, key, *row, model) for key, row in rows.items()}
    best = min(spans, key=lambda key: spans[key][1])
    clear = all(low > spans[best][1] for key, (low, _) in spans.items() if key != best)
    return best if clear else None


def _span(
    op: str, size: int, key: str, latency: float, bandwidth: float, model: Any
) -> tuple[float, float]:
    """Least and most microseconds of a row, by the rounding of its two numbers."""
    algo, proto = key.split()
    module = algorithms()[algo]
    slower, narrower = (
        module.corrected(op, size, proto, model)
        if hasattr(module, "corrected")
        else (1.0, 1.0)
    )

    def time(error: float) -> float:
        return (latency + error) * slower + size / max(
            1e-9, (bandwidth - error) * narrower
        ) / 1000

    return time(-ROUNDING), time(ROUNDING)
