"""What the script of an MLPerf submission says of a row: its exported variables as keys of a scenario.

``cases/mlperf/configs.json`` has the variables by round, submitter, system and benchmark, ``switches.toml`` what each
means here. A switch that is not simulated, or that nobody knows, is said with the row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from sim import schema
from sim.errors import InputError, Mistake
from sim.schema import Items, Table, Text
from validation.formats.published_setups import Setup

FOLDER = Path(__file__).parents[1] / "cases" / "mlperf"
CONFIGS = FOLDER / "configs.json"
SWITCHES = FOLDER / "switches.toml"
#: Round, submitter, system and benchmark of a row's address.
SYSTEM = r"training_results_(v[\d.]+)/tree/[^/]+/([^/]+)/results/([^/]+)/([^/\s]+)"
#: The script that a row's notes name, and the variables that they repeat.
SCRIPT = r"\bconfig (config_[\w.-]+?\.sh)\b"
VARIABLE = r"\b([A-Z][A-Z0-9_]{2,})=(\S+?)(?=[\s;]|$)"
TRUTHS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True)
class Tables:
    """Tables of a scenario by a variable's value."""

    def mistakes(self, where: str, key: str, value: object) -> Iterator[Mistake]:
        if not isinstance(value, Mapping):
            yield Mistake(where, key, str(value), "tables by value")


SCHEMA = Table(
    {
        "switch": Items(
            Table(
                {
                    "names": Items(Text()),
                    "key": Text(),
                    "whole": schema.Switch(),
                    "values": Tables(),
                    "harmless": Items(Text()),
                    "lost": Text(),
                    "ignored": Text(),
                },
                needed=("names",),
            )
        )
    },
    needed=("switch",),
)


@dataclass(frozen=True)
class Switch:
    """What variables mean.

    Attributes
    ----------
    names : tuple of str
        Patterns of their names.
    key : str
        The scenario's key that has their value, by its section; a truth, or a `whole` number.
    values : mapping
        Tables of the scenario by value.
    harmless : tuple of str
        Values that change nothing.
    lost : str
        What of them is not simulated.
    ignored : str
        Why they do not matter to the time of a step.
    """

    names: tuple[str, ...]
    key: str = ""
    whole: bool = False
    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    harmless: tuple[str, ...] = ()
    lost: str = ""
    ignored: str = ""

    def fits(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.names)

    def tables(self, name: str, value: str) -> Mapping[str, Mapping[str, Any]]:
        """Keys of the scenario that a variable sets, by section."""
        if self.key:
            section, key = self.key.split(".")
            return {section: {key: _value(name, value, self.whole)}}
        return self.values.get(value, {})

    def unsaid(self, name: str, value: str) -> str:
        """What the prediction leaves out because of a variable; "" for nothing."""
        if self.key or self.ignored or value in self.values or value in self.harmless:
            return ""
        return f"{name}={value} not simulated: {self.lost or 'unknown value'}"


@lru_cache(maxsize=1)
def switches() -> tuple[Switch, ...]:
    """All switches, in the order of the file.

    Raises
    ------
    InputError
        With every mistake in it.
    """
    table = schema.read(SWITCHES, SCHEMA, "what the switches of scripts mean")
    return tuple(_switch(entry) for entry in table["switch"])


def _switch(entry: Mapping[str, Any]) -> Switch:
    lists = {name: tuple(entry.get(name, ())) for name in ("names", "harmless")}
    return Switch(**{**entry, **lists})


def with_script(setup: Setup, row: Mapping[str, str]) -> Setup:
    """The setup with what the row's script says over it.

    Raises
    ------
    InputError
        If a switch has a value that it cannot have.
    """
    variables = variables_of(row)
    if not variables:
        return setup
    sections = {name: dict(keys) for name, keys in (setup.sections or {}).items()}
    for switch in switches():
        for name in sorted(filter(switch.fits, variables)):
            for section, keys in switch.tables(name, variables[name]).items():
                sections.setdefault(section, {}).update(keys)
    return replace(setup, sections=sections, unsaid=_unsaid(variables))


def variables_of(row: Mapping[str, str]) -> dict[str, str]:
    """The variables that the script of a row exports; {} of a row that names none."""
    notes = row.get("notes", "")
    script = re.search(SCRIPT, notes)
    if script is None:
        return {}
    address = re.search(SYSTEM, row.get("url_or_repo", ""))
    entry = _configs().get("/".join(address.groups()), {}) if address else {}
    same = str(entry.get("config", "")).rpartition("/")[2] == script[1]
    told = dict(re.findall(VARIABLE, notes))
    return {**(entry["env"] if same else {}), **told}


@lru_cache(maxsize=1)
def _configs() -> Mapping[str, Mapping[str, Any]]:
    configs: Mapping[str, Mapping[str, Any]] = json.loads(
        CONFIGS.read_text(encoding="utf-8")
    )
    return configs


def _unsaid(variables: Mapping[str, str]) -> tuple[str, ...]:
    """What is not simulated of a script, each thing once."""
    texts = [_unsaid_of(name, variables[name]) for name in sorted(variables)]
    return tuple(filter(None, texts))


def _unsaid_of(name: str, value: str) -> str:
    switch = next((one for one in switches() if one.fits(name)), None)
    if switch is None:
        return f"{name}={value} unknown"
    return switch.unsaid(name, value)


def _value(name: str, value: str, whole: bool) -> bool | int:
    """A truth, or a whole number.

    Raises
    ------
    InputError
        If it is none.
    """
    if whole and value.isdigit():
        return int(value)
    truth = TRUTHS.get(value.lower())
    if whole or truth is None:
        expected = "a whole number" if whole else f"one of {', '.join(TRUTHS)}"
        raise InputError(Mistake(name, "", f'"{value}"', expected))
    return truth
