"""Imports that not every command needs: modules that wait until they are used, and optional packages."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple

from prestep.sim.errors import PrestepError


@contextmanager
def lazily() -> Iterator[None]:
    """Modules that are imported in it, `from package import module`, wait until something of them is used.

    For commands: their help, completion and mistakes on the command line do without the simulator, which is slow to
    import. And for what a module chooses by a scenario's keys: most jobs do without experts, FSDP or Gloo. The
    statements are as any others to a reader, a type checker and the tests of what imports what.

    Examples
    --------
    >>> with lazily():
    ...     from prestep.sim import predict
    >>> predict.STEPS
    3
    """
    real = builtins.__import__
    # Of the module with the block: another thread may import meanwhile. Between lie the frames of contextlib.
    importing = sys._getframe(2).f_globals

    def deferring(
        name: str,
        globals: Any = None,
        locals: Any = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        if globals is not importing or not fromlist:
            return real(name, globals, locals, fromlist or (), level)
        modules = {part: _Waiting(f"{name}.{part}") for part in fromlist}
        return SimpleNamespace(**modules)

    builtins.__import__ = deferring
    try:
        yield
    finally:
        builtins.__import__ = real


class _Waiting:
    """Stands for a module, which is imported when something of it is asked for."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._module), name)


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
    "matplotlib": Extra("a picture (prestep plot)", "pip install 'prestep[plot]'"),
    "mcp": Extra("prestep mcp", "pip install 'prestep[mcp]'"),
    "torch": Extra(
        "prestep capture",
        "pip install 'prestep[capture]', or first a build of PyTorch for CPUs, which is enough and has no CUDA "
        "libraries (pip install torch --index-url URL, with the URL that pytorch.org gives for CPU)",
    ),
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
