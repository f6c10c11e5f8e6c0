"""Packages that only some commands need: what for, and the command that installs them."""

from __future__ import annotations

from typing import NamedTuple

from prestep.sim.errors import PrestepError


class Extra(NamedTuple):
    """An optional package.

    Attributes
    ----------
    use : str
        What it is for.
    install : str
        The command that installs it.
    """

    use: str
    install: str


EXTRAS = {
    "scipy": Extra("prestep calibrate", "pip install 'prestep[calibrate]'"),
    "optuna": Extra("prestep search --trials", "pip install 'prestep[search]'"),
    "distributed": Extra(
        "prestep sweep --executor dask://...", "pip install 'prestep[cluster]'"
    ),
    "matplotlib": Extra(
        "a picture (prestep plot, --plot, --picture)", "pip install 'prestep[plot]'"
    ),
    "mcp": Extra("prestep mcp", "pip install 'prestep[mcp]'"),
    "torch": Extra("prestep capture", "pip install 'prestep[capture]'"),
}


#: Packages that come with an optional one, and are imported beside it: they are missing together.
COME_WITH = {"anyio": "mcp", "mcp_types": "mcp"}


class MissingPackage(PrestepError):
    """A package that is needed here is not installed."""

    def __init__(self, package: str) -> None:
        extra = EXTRAS[package]
        super().__init__(
            f"{extra.use} needs {package}, which is not installed: {extra.install}"
        )
        self.package = package


def missing(error: ImportError) -> MissingPackage | None:
    """What to tell about an import that failed; None if it is no optional package of prestep's."""
    name = (error.name or "").partition(".")[0]
    package = COME_WITH.get(name, name)
    return MissingPackage(package) if package in EXTRAS else None
