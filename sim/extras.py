"""Imports that not every command needs: modules that wait until they are used, and optional packages."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any, NamedTuple

from prestep.sim.errors import PrestepError


@contextmanager
def lazily() -> Iterator[None]:
    """Imports of prestep's own modules inside it are executed when something of the module is first used.

    For commands: their help, completion and mistakes on the command line do without the simulator, which is slow to
    import. Import modules, not what is in them, which would be a use. The main thread has to use them first.

    Examples
    --------
    >>> with lazily():
    ...     from prestep.sim import predict
    >>> predict.STEPS
    3
    """
    finder = _Deferring()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Deferring:
    """Finds modules of prestep, whose execution waits."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if not fullname.startswith("prestep."):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _DeferredLoader(spec.loader.name, spec.loader.path)
        return spec


class _DeferredLoader(SourceFileLoader):
    """Leaves a module with its name and place alone."""

    def exec_module(self, module: ModuleType) -> None:
        module.__class__ = _Deferred


class _Deferred(ModuleType):
    """A module until it is used: Python asks `__getattr__` for what is not there."""

    def __getattr__(self, name: str) -> Any:
        # `from package import module` asks the package first: it need not be executed for that.
        if any(isinstance(finder, _Deferring) for finder in sys.meta_path):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        _execute(self)
        return getattr(self, name)


def _execute(module: ModuleType) -> None:
    """Executes a deferred module, after the packages that it lies in, as Python always does."""
    package = sys.modules.get(module.__name__.rpartition(".")[0])
    if isinstance(package, _Deferred):
        _execute(package)
    is_deferred, loader = isinstance(module, _Deferred), module.__loader__
    if not is_deferred or not isinstance(loader, SourceFileLoader):
        return  # its package has used it
    module.__class__ = ModuleType
    try:
        SourceFileLoader.exec_module(loader, module)
    except BaseException:  # the next use fails with the same words
        module.__class__ = _Deferred
        raise


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
