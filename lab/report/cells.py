"""Cells of published rows in the table of `lab.report.export`: source, licence, layout, peers' predictions."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from lab.formats.published_setups import FOLDER
from lab.report.export import AXES, COUNTS, TEXTS

#: Step times of a peer; `lab.bench.peer_llm_analysis` writes them.
PEER_STEPS = FOLDER / "peer_llm_analysis.csv"
LICENCES = FOLDER / "licences.toml"


def cells_by_row(rows: Sequence[Mapping[str, str]]) -> dict[str, dict[str, Any]]:
    """Returns the cells of published rows by the rows' names; times are in seconds."""
    peers = _peers()
    return {row["id"]: _described(row) | peers.get(row["id"], {}) for row in rows}


def _described(row: Mapping[str, str]) -> dict[str, Any]:
    source = row.get("source", "")
    licence = _licence(source)
    return {
        "source": source,
        "url": row.get("url_or_repo", ""),
        **{key: licence[key] for key in ("licence", "cite")},
        **{name: row.get(name) or None for name in TEXTS},
        **{name: _number(row.get(name, "")) for name in (*COUNTS, *AXES)},
    }


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None  # an empty cell, or a range in words


def _licence(source: str) -> Mapping[str, str]:
    """Licence of a source, by the beginning of its name; facts that were cited where it has none."""
    table = _licences()
    close = [entry for entry in table if source.startswith(entry["source"])]
    return close[0] if close else {"licence": "facts", "cite": source}


@cache
def _licences() -> tuple[Mapping[str, str], ...]:
    return tuple(tomllib.loads(LICENCES.read_text(encoding="utf-8"))["licence"])


def _peers() -> dict[str, dict[str, float | None]]:
    """What peers say of published rows, s."""
    with PEER_STEPS.open(encoding="utf-8", newline="") as file:
        return {
            row["id"]: {
                "llm_analysis": _number(row["default"]),
                "llm_analysis_half": _number(row["half"]),
            }
            for row in csv.DictReader(file)
        }
