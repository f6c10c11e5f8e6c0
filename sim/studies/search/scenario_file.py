"""A scenario as a file: every key that is not at its default, with units."""

from __future__ import annotations

import json
import os
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from prestep.sim.errors import InputError
from prestep.sim.files import write_text
from prestep.sim.spec.sections import Scenario

UNITS = {"bytes": "B", "bandwidth": "B/s", "duration": "s"}


def check_target(path: Path, source: Path) -> None:
    """Raises InputError if the file could not be written, or is the searched one: before the work, not after."""
    if not path.absolute().parent.is_dir():
        raise InputError.of(
            "command line", "--write", str(path), "a file in a folder that exists"
        )
    if path.exists() and path.samefile(source):
        raise InputError.of(
            "command line", "--write", str(path), "another file than the scenario"
        )


def write_scenario(scenario: Scenario, path: Path) -> None:
    """Writes a TOML file that `load_scenario` reads as this scenario; files it names are relative to it."""
    write_text(path, text_beside(scenario, path.absolute().parent))


def text_beside(scenario: Scenario, folder: Path) -> str:
    """The scenario as a file in a folder; files that it names are relative to it."""
    return text_of(_beside(scenario, folder))


def _beside(s: Scenario, folder: Path) -> Scenario:
    def near(file: str | None) -> str | None:
        return None if file is None else os.path.relpath(Path(file).absolute(), folder)

    return replace(
        s,
        cluster=replace(
            s.cluster, file=near(s.cluster.file), hostfile=near(s.cluster.hostfile)
        ),
        model=replace(s.model, file=near(s.model.file)),
        placement=replace(s.placement, hostfile=near(s.placement.hostfile)),
    )


def text_of(scenario: Scenario) -> str:
    """The scenario's sections as TOML."""
    lines: list[str] = []
    for name, section in scenario.sections().items():
        plain = type(section)()
        keys = [
            entry
            for entry in fields(section)
            if getattr(section, entry.name) != getattr(plain, entry.name)
        ]
        if keys and name != "measured":
            lines += ["", f"[{name}]"]
            lines += [
                f"{e.name} = {_value(getattr(section, e.name), e.metadata.get('unit', ''))}"
                for e in keys
            ]
    return "\n".join(lines[1:]) + "\n"


def _value(value: Any, unit: str) -> str:
    if unit:
        return json.dumps(f"{value:.17g} {UNITS[unit]}")
    if is_dataclass(value):
        said = {
            entry.name: getattr(value, entry.name)
            for entry in fields(value)
            if getattr(value, entry.name) != entry.default
        }
        return _value(said, "")
    if isinstance(value, dict):
        return (
            "{ "
            + ", ".join(
                f"{json.dumps(key)} = {_value(item, '')}" for key, item in value.items()
            )
            + " }"
        )
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_value(item, "") for item in value) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)
