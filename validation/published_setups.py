"""Which scenario a published measurement stands for: models by name, machines and frameworks by source.

``cases/published/setups.toml`` holds what the sources say in words, and what had to be assumed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from sim.errors import InputError, Mistake, did_you_mean

FOLDER = Path(__file__).parent / "cases" / "published"
SETUPS = FOLDER / "setups.toml"
SECTIONS = ("cluster", "model", "training", "parallel", "megatron", "pytorch", "nccl")


@dataclass(frozen=True)
class Setup:
    """What rows of a source have in common.

    Attributes
    ----------
    source, hardware, model, precision, tp, pp, dp, ep, vpp, recompute, notes : str
        Regular expressions that a row's texts contain; "" for any.
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
    reason : str
        Why its rows cannot be predicted; "" when they can.
    assumed : str
        What the source does not say and was taken to be so.
    sections : mapping
        Keys of the scenario, by section; a row's own columns come before them.
    """

    source: str = ""
    hardware: str = ""
    model: str = ""
    precision: str = ""
    tp: str = ""
    pp: str = ""
    dp: str = ""
    ep: str = ""
    vpp: str = ""
    recompute: str = ""
    notes: str = ""
    slice: str = ""
    one_host: str = ""
    hosts: str = ""
    per_host: int = 8
    selective: str = ""
    whole: str = ""
    stage_batches: bool = False
    reason: str = ""
    assumed: str = ""
    sections: Mapping[str, Mapping[str, Any]] | None = None

    def fits(self, row: Mapping[str, str]) -> bool:
        wanted = ("source", "hardware", "model", "precision", "tp", "pp", "dp", "ep", "vpp", "recompute", "notes")
        return all(re.search(getattr(self, key), row.get(key, ""), re.IGNORECASE) for key in wanted)


@dataclass(frozen=True)
class Family:
    """A kind of model by its name: the keys of a scenario's [model] that no column has."""

    name: str
    keys: Mapping[str, Any]


@lru_cache(maxsize=1)
def setups() -> tuple[Setup, ...]:
    """All setups, in the order of the file: of those that fit a row, later ones add to and replace earlier ones.

    Raises
    ------
    InputError
        For a key that does not exist.
    """
    return tuple(_setup(table, i) for i, table in enumerate(_table().get("setup", ())))


@lru_cache(maxsize=1)
def families() -> tuple[Family, ...]:
    """Families of models, the first that fits a name counts."""
    return tuple(Family(table.pop("name"), table) for table in map(dict, _table().get("family", ())))


def _table() -> dict[str, Any]:
    return tomllib.loads(SETUPS.read_text(encoding="utf-8"))


def _setup(table: Mapping[str, Any], index: int) -> Setup:
    known = {name for name in Setup.__dataclass_fields__ if name != "sections"}
    sections = {name: table[name] for name in SECTIONS if isinstance(table.get(name), Mapping)}
    plain = {name: value for name, value in table.items() if name not in sections}
    if strange := sorted(plain.keys() - known):
        hint = did_you_mean(strange[0], [*known, *SECTIONS])
        raise InputError(Mistake(str(SETUPS), f"setup[{index}].{strange[0]}", "unknown key", "a key of a setup", hint))
    return Setup(**plain, sections=sections)


def setup_of(row: Mapping[str, str]) -> Setup:
    """All that fits a row, joined.

    Raises
    ------
    InputError
        If nothing is said of the row's source and hardware, or why it cannot be predicted.
    """
    joined: dict[str, Any] = {}
    sections: dict[str, dict[str, Any]] = {}
    for setup in filter(lambda setup: setup.fits(row), setups()):
        for name in ("slice", "one_host", "hosts", "selective", "whole", "stage_batches", "reason", "assumed"):
            if value := getattr(setup, name):
                joined[name] = value
        if setup.hosts or setup.one_host:
            joined["per_host"] = setup.per_host
        for section, keys in (setup.sections or {}).items():
            sections.setdefault(section, {}).update(keys)
    where = f"{row.get('source', '')}, {row.get('hardware', '')}"
    if not joined:
        raise InputError(Mistake(where, "", "no setup", "a [[setup]] for this source and hardware", str(SETUPS.name)))
    if joined.get("reason"):
        raise InputError(Mistake(where, "", joined["reason"], "a setup that can be predicted"))
    return Setup(**joined, sections=sections)


def family_of(model: str) -> Mapping[str, Any]:
    """Keys of [model] by the model's name.

    Raises
    ------
    InputError
        If no family has such a name.
    """
    for family in families():
        if re.search(family.name, model, re.IGNORECASE):
            return family.keys
    raise InputError(Mistake("model", "", f'"{model}"', "a name that some [[family]] of setups.toml fits"))
