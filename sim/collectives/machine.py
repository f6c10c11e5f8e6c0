"""Constants of the machine that a fabric stands for: its GPU's, or those of a file that `prestep calibrate` wrote.

A cluster file names such a file with the key `nccl`, relative to itself; `prestep collective --nccl-constants` says it
for one command. What the file leaves out is the GPU's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from sim import files
from sim.collectives import constants
from sim.collectives.constants import Constants, Pace, Pairs
from sim.costs import interference
from sim.errors import InputError, Mistake, did_you_mean

_PROTOS = ("LL", "LL128", "Simple")
_TEXTS = ("evidence",)
OVERLAP = (
    "overlap"  # what kernels and collectives cost each other (`sim.costs.interference`)
)


def of(fabric: Any) -> Constants:
    """The constants with which collectives on `fabric` are predicted.

    Raises
    ------
    InputError
        With every mistake in the fabric's own file.
    """
    return (
        load_file(fabric.constants, fabric.gpu_model)
        if fabric.constants
        else constants.load(fabric.gpu_model)
    )


@lru_cache(maxsize=16)
def load_file(path: str, gpu: str) -> Constants:
    """The tables of a file laid over those of `gpu`, table by table."""
    table, known = _read(Path(path)), constants.load(gpu).tables
    mistakes = [
        mistake
        for name, rows in table.items()
        for mistake in _check(path, name, rows, known)
    ]
    if mistakes:
        raise InputError(mistakes)
    merged = dict(known)
    for name, rows in table.items():
        if name == OVERLAP:
            merged[name] = {**known.get(name, {}), **rows}
            continue
        nested = (
            {proto: _over(known[name].get(proto, {}), rows[proto]) for proto in rows}
            if _by_protocol(rows)
            else {}
        )
        merged[name] = {**known[name], **nested} if nested else _over(known[name], rows)
    # A file of overlap alone says nothing of collectives by themselves.
    return constants.build(
        merged,
        gpu,
        "fitted" if set(table) - {OVERLAP} else constants.load(gpu).evidence,
    )


def _read(path: Path) -> dict[str, Any]:
    expected = (
        "constants of NCCL (TOML), as `prestep calibrate LOGS -o FILE` writes them"
    )
    try:
        return files.toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(Mistake(str(path), "", "no such file", expected)) from None
    except OSError as error:
        raise InputError(
            Mistake(str(path), "", (error.strerror or str(error)).lower(), expected)
        ) from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise InputError(Mistake(str(path), "", str(error), expected)) from None


def _over(known: Mapping[str, Any], rows: Mapping[str, Any]) -> dict[str, Any]:
    """The file's numbers over the GPU's; what the GPU's rest on does not hold for them."""
    return {key: value for key, value in known.items() if key != "evidence"} | dict(
        rows
    )


def _by_protocol(rows: Any) -> bool:
    return isinstance(rows, Mapping) and bool(rows) and set(rows) <= set(_PROTOS)


def _check(path: str, name: str, rows: Any, known: Mapping[str, Any]) -> list[Mistake]:
    if name == OVERLAP:
        return interference.mistakes_of(path, rows)
    if name not in known or not isinstance(rows, Mapping):
        hint = did_you_mean(name, [*known, OVERLAP])
        return [
            Mistake(
                path,
                name,
                "an unknown table" if name not in known else repr(rows),
                "a table of NCCL's",
                hint,
            )
        ]
    if name == "pairs":
        return _entries(path, name, rows, Pairs, known[name])
    if _by_protocol(known[name]):
        if not _by_protocol(rows):
            return [
                Mistake(
                    path,
                    name,
                    ", ".join(rows) or "nothing",
                    f"tables of {', '.join(_PROTOS)}",
                )
            ]
        return [
            mistake
            for proto, entries in rows.items()
            for mistake in _entries(
                path, f"{name}.{proto}", entries, Pace, known[name].get(proto, {})
            )
        ]
    return []


def _entries(
    path: str, name: str, rows: Any, kind: type, known: Mapping[str, Any]
) -> list[Mistake]:
    """Mistakes in one table of numbers: keys that the model does not have, values that are none, keys that lack."""
    if not isinstance(rows, Mapping):
        return [Mistake(path, name, repr(rows), "a table of numbers")]
    fields = {entry.name: entry for entry in dataclasses.fields(kind)}
    found = []
    for key, value in rows.items():
        if key not in fields:
            found.append(
                Mistake(
                    path,
                    f"{name}.{key}",
                    "an unknown key",
                    "a constant",
                    did_you_mean(key, fields),
                )
            )
        elif key not in _TEXTS and not _number(value):
            found.append(
                Mistake(
                    path,
                    f"{name}.{key}",
                    repr(value),
                    "a number that is not negative, or one per op",
                )
            )
    needed = [key for key, entry in fields.items() if _needed(entry)]
    missing = [key for key in needed if key not in rows and key not in known]
    return found + [
        Mistake(path, f"{name}.{key}", "nothing", "a number") for key in missing
    ]


def _needed(entry: Any) -> bool:
    return (
        entry.default is dataclasses.MISSING
        and entry.default_factory is dataclasses.MISSING
    )


def _number(value: Any) -> bool:
    if isinstance(value, Mapping):
        return bool(value) and all(_number(each) for each in value.values())
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
