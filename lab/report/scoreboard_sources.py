"""The cases of a saved result by source, with what the peers said of the same rows."""

from __future__ import annotations

import csv
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.bench import peer_llm_analysis as peer
from lab.formats.published_setups import FOLDER
from lab.report.cells import PEER_STEPS
from lab.sets.published import read
from prestep.sim import files
from prestep.sim.errors import InputError, Mistake
from prestep.validation.report.summary import Errors, errors_of
from prestep.validation.sets.sets import set_names, set_table

PEERS = FOLDER / "peers.toml"


@dataclass(frozen=True)
class Case:
    """A predicted row: seconds measured and predicted, and by llm-analysis (by efficiency; empty: it cannot).

    `computed`: by its source, which measured no such step.
    """

    id: str
    measured: float
    predicted: float
    fitted: bool
    assumed: bool
    computed: bool = False
    peer: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """Rows of one source, and what peers reach on it."""

    name: str
    cases: tuple[Case, ...]
    box: float | None = None
    rank: float | None = None
    note: str = ""
    claims: tuple[Mapping[str, Any], ...] = ()

    @property
    def judged(self) -> tuple[Case, ...]:
        """Rows that count: complete ones that no constant was taken from."""
        return tuple(c for c in self.cases if not c.fitted and not c.assumed)

    @property
    def ours(self) -> Errors:
        return errors_of([(c.id, c.predicted / c.measured - 1) for c in self.judged])

    def of_peer(self, efficiency: str) -> Errors:
        """Errors of llm-analysis on those judged rows that it has words for."""
        rows = [c for c in self.judged if efficiency in c.peer]
        return errors_of([(c.id, c.peer[efficiency] / c.measured - 1) for c in rows])


def sources(
    result: Path, rows: Sequence[Path], peers: Path = PEER_STEPS
) -> list[Source]:
    """The cases of a saved result by source, in the order of peers.toml; those without a case are left out.

    Raises
    ------
    InputError
        If the result is no JSON of `prestep validate published mlperf`, or has cases that `rows` lack.
    """
    texts = {row["id"]: row for path in rows for row in read(path)}
    times = _peer_times(peers)
    entries = tomllib.loads(PEERS.read_text(encoding="utf-8"))["source"]
    by_source: dict[str, list[Case]] = {entry["name"]: [] for entry in entries}
    for case in _cases(result):
        name = case["id"]
        if name not in texts:
            raise _no_row(result, name, rows)
        if case["predicted"] is not None:
            entry = next(entry for entry in entries if _fits(entry, texts[name]))
            by_source[entry["name"]].append(_case(case, times.get(name, {})))
    return [
        _source(entry, by_source[entry["name"]])
        for entry in entries
        if by_source[entry["name"]]
    ]


def _no_row(result: Path, name: str, rows: Sequence[Path]) -> InputError:
    paths = ", ".join(map(str, rows))
    expected, hint = f"a row of {paths}", "--rows names the CSV"
    return InputError(Mistake(str(result), name, "a case", expected, hint))


def _case(told: Mapping[str, Any], peers: Mapping[str, float]) -> Case:
    fitted, assumed = bool(told["fitted"]), bool(told["assumed"])
    times = told["measured"], told["predicted"]
    return Case(told["id"], *times, fitted, assumed, bool(told.get("computed")), peers)


def _source(entry: Mapping[str, Any], cases: Sequence[Case]) -> Source:
    note, claims = entry.get("note", ""), tuple(entry.get("claims", ()))
    box, rank = entry.get("box"), entry.get("rank")
    return Source(entry["name"], tuple(cases), box, rank, note, claims)


def _fits(entry: Mapping[str, Any], row: Mapping[str, str]) -> bool:
    return all(
        re.search(entry.get(key, ""), row.get(key, ""), re.IGNORECASE)
        for key in ("source", "hardware")
    )


def _cases(path: Path) -> list[dict[str, Any]]:
    expected = "the output of `prestep validate published --json`"
    try:
        report = files.json_of(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(Mistake(str(path), "", str(error), expected)) from None
    sets = report if isinstance(report, list) else [report]
    cases = [case for one in sets for case in _published(one)]
    if not cases:
        found = "no cases of the set published"
        raise InputError(Mistake(str(path), "", found, expected))
    return cases


def published_sets() -> list[str]:
    """Sets whose rows have the columns of published steps; others of the kind name a format of their own."""
    return [name for name in set_names("published") if "format" not in set_table(name)]


def _published(report: Any) -> list[dict[str, Any]]:
    """The cases of a report of published steps; [] of another."""
    wanted = ("id", "measured", "predicted", "fitted", "assumed")
    if not isinstance(report, dict) or report.get("set") not in published_sets():
        return []
    cases = report.get("cases")
    if not isinstance(cases, list):
        return []
    whole = [
        isinstance(case, dict) and all(key in case for key in wanted) for case in cases
    ]
    return list(cases) if all(whole) else []


def _peer_times(path: Path) -> dict[str, dict[str, float]]:
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {
            row["id"]: {
                name: float(row[name]) for name in peer.EFFICIENCIES if row[name]
            }
            for row in csv.DictReader(file)
        }
