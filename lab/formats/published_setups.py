"""Which scenario a published measurement stands for: models by name, machines and frameworks by source.

``cases/published/setups.toml`` holds what the sources say in words, and what had to be assumed, ``cases/mlperf`` the
same of MLPerf's submissions; ``generic.toml`` what is taken for sources and machines that no setup knows, and
dimensions of models known by name.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from prestep.sim.errors import InputError, Mistake, did_you_mean

FOLDER = Path(__file__).parents[1] / "cases" / "published"
SETUPS = FOLDER / "setups.toml"
GENERIC = FOLDER / "generic.toml"
MLPERF = FOLDER.parent / "mlperf" / "setups.toml"
LORA = FOLDER.parent / "lora" / "setups.toml"
PATTERNS = (
    "source",
    "hardware",
    "gpus",
    "model",
    "precision",
    "tp",
    "pp",
    "dp",
    "ep",
    "vpp",
    "recompute",
    "notes",
)
JOINED = (
    "slice",
    "one_host",
    "hosts",
    "selective",
    "whole",
    "stage_batches",
    "by_layout",
    "counts_recompute",
    "reason",
    "assumed",
    "fit",
    "computed",
)
SECTIONS = (
    "cluster",
    "model",
    "training",
    "parallel",
    "megatron",
    "adapter",
    "pytorch",
    "nccl",
)


@dataclass(frozen=True)
class Setup:
    """What rows of a source have in common.

    Attributes
    ----------
    source, hardware, gpus, model, precision, tp, pp, dp, ep, vpp, recompute, notes : str
        Regular expressions that a row's texts contain; "" for any.
    text : str
        As those, of all that a row says in words: source, hardware, model, framework, sharding, recomputation, notes.
    generic : str
        "cluster" or "framework": what it stands in for where no setup of the row's source says it.
    sharding : str
        The same for its column `zero_or_fsdp`.
    slice : str
        Name under which its rows are reported; default the source.
    one_host, hosts : str
        Cluster of runs on one host, and of larger ones (its `hosts` is set to fit).
    per_host : int
        GPUs of a host.
    selective : str
        What the source means by selective recomputation, where it is not Megatron's.
    whole : str
        What it means by full recomputation, where that is not of every layer.
    stage_batches : bool
        Where a row says no micro batch: as many microbatches as pipeline stages (torchtitan's default of 2024).
    columns : mapping
        Cells that the source says in words, for rows that leave them empty.
    by_layout : bool
        The number of GPUs that is printed contradicts the layout, and the layout is right.
    counts_recompute : bool
        TFLOP/s that are printed count recomputation, though the notes do not say so.
    reason : str
        Why its rows cannot be predicted; "" when they can.
    assumed : str
        What the source does not say and was taken to be so.
    fit : str
        Constants of these setups that were read off rows of the source itself.
    computed : str
        Why its times are no measured steps, where the source computed them from something else.
    guesses : tuple of str
        What generic setups stand in for (`setup_of`).
    unsaid : tuple of str
        What a row's own script sets and the prediction leaves out (`mlperf_scripts`).
    sections : mapping
        Keys of the scenario, by section; a row's own columns come before them.
    """

    source: str = ""
    hardware: str = ""
    gpus: str = ""
    model: str = ""
    precision: str = ""
    tp: str = ""
    pp: str = ""
    dp: str = ""
    ep: str = ""
    vpp: str = ""
    recompute: str = ""
    notes: str = ""
    text: str = ""
    generic: str = ""
    sharding: str = ""
    slice: str = ""
    one_host: str = ""
    hosts: str = ""
    per_host: int = 8
    selective: str = ""
    whole: str = ""
    stage_batches: bool = False
    columns: Mapping[str, Any] | None = None
    by_layout: bool = False
    counts_recompute: bool = False
    reason: str = ""
    assumed: str = ""
    fit: str = ""
    computed: str = ""
    guesses: tuple[str, ...] = ()
    unsaid: tuple[str, ...] = ()
    sections: Mapping[str, Mapping[str, Any]] | None = None

    def fits(self, texts: Mapping[str, str]) -> bool:
        """Whether it speaks of a row, by the row's `texts_of`."""
        return all(pattern.search(texts[key]) for key, pattern in self._patterns)

    @cached_property
    def _patterns(self) -> list[tuple[str, re.Pattern[str]]]:
        """What is to be found in which text; what is not said fits all."""
        said = [(key, getattr(self, key)) for key in (*PATTERNS, "text", "sharding")]
        return [(key, re.compile(text, re.IGNORECASE)) for key, text in said if text]


def texts_of(row: Mapping[str, str]) -> dict[str, str]:
    """What setups look at of a row."""
    texts = {key: row.get(key, "") for key in PATTERNS}
    return texts | {"text": _words(row), "sharding": row.get("zero_or_fsdp", "")}


def _words(row: Mapping[str, str]) -> str:
    names = (
        "source",
        "hardware",
        "model",
        "framework",
        "zero_or_fsdp",
        "recompute",
        "notes",
    )
    return "; ".join(row[name] for name in names if row.get(name))


@lru_cache(maxsize=1)
def setups() -> tuple[Setup, ...]:
    """All setups, in the order of the file: of those that fit a row, later ones add to and replace earlier ones.

    Raises
    ------
    InputError
        For a key that does not exist.
    """
    return tuple(
        _setup(table, path, i)
        for path in (GENERIC, SETUPS, MLPERF, LORA)
        for i, table in enumerate(tables(path, "setup"))
    )


@lru_cache(maxsize=8)
def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def tables(path: Path, key: str) -> Sequence[Mapping[str, Any]]:
    """The tables of a file that have one name, in order."""
    entries: Sequence[Mapping[str, Any]] = _read(path).get(key, ())
    return entries


def _setup(table: Mapping[str, Any], path: Path, index: int) -> Setup:
    keys = {
        name
        for name in Setup.__dataclass_fields__
        if name not in ("sections", "guesses", "unsaid")
    }
    sections = {
        name: table[name] for name in SECTIONS if isinstance(table.get(name), Mapping)
    }
    plain = {name: value for name, value in table.items() if name not in sections}
    if strange := sorted(plain.keys() - keys):
        hint = did_you_mean(strange[0], [*keys, *SECTIONS])
        raise InputError(
            Mistake(
                str(path),
                f"setup[{index}].{strange[0]}",
                "unknown key",
                "a key of a setup",
                hint,
            )
        )
    return Setup(**plain, sections=sections)


def setup_of(row: Mapping[str, str]) -> Setup:
    """All that fits a row, joined.

    Raises
    ------
    InputError
        If nothing is said of the row's source and hardware, or why it cannot be predicted.
    """
    texts = texts_of(row)
    fitting = [setup for setup in setups() if setup.fits(texts)]
    gpus = int(row["gpus"]) if row.get("gpus", "").isdecimal() else 0
    chosen, guesses = _without_guesses(fitting, gpus)
    joined = _joined(chosen)
    where = row.get("id") or row.get("source", "")
    if joined.get("reason"):
        expected = "a run that can be predicted"
        raise InputError(Mistake(where, "", joined["reason"], expected))
    if not (joined.get("hosts") or joined.get("one_host")):
        hardware = f'"{row.get("hardware", "")}"'
        raise InputError(Mistake(where, "hardware", hardware, _machines()))
    return Setup(**joined, guesses=guesses)


def _joined(chosen: Sequence[Setup]) -> dict[str, Any]:
    """What setups say together; of one thing, the last word."""
    joined: dict[str, Any] = {"sections": {}}
    for setup in chosen:
        values = {name: getattr(setup, name) for name in JOINED}
        joined |= {name: value for name, value in values.items() if value}
        if setup.hosts or setup.one_host:
            joined["per_host"] = setup.per_host
        if setup.columns:
            joined["columns"] = {**joined.get("columns", {}), **setup.columns}
        for section, keys in (setup.sections or {}).items():
            joined["sections"].setdefault(section, {}).update(keys)
    return joined


def _without_guesses(
    fitting: Sequence[Setup], gpus: int
) -> tuple[list[Setup], tuple[str, ...]]:
    """Setups to join, and what is guessed: of the generic ones only those whose matter no setup of the source settles.

    A source that knows one host only leaves larger runs to the generic cluster.
    """
    own = [setup for setup in fitting if not setup.generic]
    settled = {
        "cluster": any(
            setup.hosts or (setup.one_host and gpus <= setup.per_host) for setup in own
        ),
        "framework": any(
            "framework" in (setup.sections or {}).get("training", {}) for setup in own
        ),
    }
    used = [setup for setup in fitting if setup.generic and not settled[setup.generic]]
    guesses = {setup.generic: setup.assumed or setup.generic for setup in used}
    return [*used, *own], tuple(guesses.values())


def _machines() -> str:
    generic = [setup.hardware for setup in setups() if setup.generic == "cluster"]
    return f"hardware that a [[setup]] fits, of its source or a generic one ({len(generic)} kinds in {GENERIC.name})"
