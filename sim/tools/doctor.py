"""What `prestep doctor` looks at: whether this environment can run prestep, and what in it is missing or in the way."""

from __future__ import annotations

import os
import platform
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import prestep
from prestep.sim import __version__
from prestep.sim.extras import EXTRAS, Extra
from prestep.sim.outputs.declarations import schemas_beside

OLDEST = (3, 11)
EXTRA = re.compile(r"""extra == ['"]([\w-]+)""")
REQUIREMENT = re.compile(r"([\w.-]+)(?:\[.*?\])?\s*(?:>=\s*([\d.]+))?")


@dataclass(frozen=True)
class Finding:
    """One thing looked at: `state` is good, missing (an extra: no harm) or wrong, with what to do about it."""

    what: str
    state: str
    found: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.state:8} {self.what}: {self.found}" + (
            f" ({self.advice})" if self.advice else ""
        )


def examined() -> list[Finding]:
    """Everything, what is wrong last."""
    order = ("good", "missing", "wrong")
    found = [_python(), _version(), *_libraries(), *map(_extra, extras()), _folder()]
    return sorted(found, key=lambda finding: order.index(finding.state))


def in_short(findings: Sequence[Finding]) -> str:
    """The answer: whether prestep works here, and what some commands lack."""
    wrong = [finding.what for finding in findings if finding.state == "wrong"]
    if wrong:
        return f"Not all is well here: {', '.join(wrong)}."
    lacking = sum(finding.state == "missing" for finding in findings)
    if not lacking:
        return "prestep works here, with all that its commands can use."
    packages = "1 package" if lacking == 1 else f"{lacking} packages"
    return f"prestep works here; {packages} that only some commands need are missing."


def extras() -> list[str]:
    """Packages that only some commands need: those above, and what else the package's extras name but `dev`."""
    try:
        lines = metadata.requires("prestep") or []
    except metadata.PackageNotFoundError:
        lines = []
    optional = [
        line for line in lines if (extra := EXTRA.search(line)) and extra[1] != "dev"
    ]
    named = [match[1] for line in optional if (match := REQUIREMENT.match(line))]
    return list(dict.fromkeys([*EXTRAS, *named]))


SCHEMA = schemas_beside(__file__, Finding)["schema"]


def to_json(findings: list[Finding]) -> dict[str, Any]:
    return {
        "good": all(f.state != "wrong" for f in findings),
        "findings": [asdict(f) for f in findings],
    }


def _python() -> Finding:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} CPUs"
    good = sys.version_info[:2] >= OLDEST
    return Finding(
        "Python",
        "good" if good else "wrong",
        found,
        "" if good else "3.11 or newer is needed",
    )


def _version() -> Finding:
    try:
        installed = metadata.version("prestep")
    except metadata.PackageNotFoundError:
        return Finding(
            "prestep", "good", f"{__version__}, from {prestep.HOME}, not installed"
        )
    same = installed == __version__
    advice = "" if same else f"the code is {__version__}: install it again"
    return Finding(
        "prestep",
        "good" if same else "wrong",
        f"{installed}, from {prestep.HOME}",
        advice,
    )


def _libraries() -> list[Finding]:
    try:
        needed = metadata.requires("prestep") or []
    except metadata.PackageNotFoundError:
        return []
    return [_library(line) for line in needed if "extra ==" not in line]


def _library(line: str) -> Finding:
    match = REQUIREMENT.match(line)
    name, least = (match[1], match[2] or "0") if match else (line, "0")
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, "wrong", "not installed", f"pip install '{line}'")
    good = _numbers(found) >= _numbers(least)
    return Finding(
        name,
        "good" if good else "wrong",
        found,
        "" if good else f"pip install '{line}'",
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _extra(name: str) -> Finding:
    try:
        return Finding(name, "good", metadata.version(name))
    except metadata.PackageNotFoundError:
        extra = EXTRAS.get(name, Extra("an extra of prestep", f"pip install {name}"))
        return Finding(
            name, "missing", "not installed", f"only for {extra.use}: {extra.install}"
        )


def _folder() -> Finding:
    try:
        with tempfile.TemporaryFile():
            return Finding("temporary files", "good", tempfile.gettempdir())
    except OSError as error:
        return Finding(
            "temporary files",
            "wrong",
            str(error),
            "set TMPDIR to a folder that can be written to",
        )
