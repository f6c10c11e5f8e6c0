"""Python files of recipes as trees: their functions, what they import, and the files of the checkout where that lies.

Nothing is imported; each file is parsed once.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from prestep.sim import files
from prestep.sim.errors import InputError


def functions_of(path: Path, text: str) -> dict[str, ast.FunctionDef]:
    """The functions of a file by name.

    Raises InputError if it is no Python.
    """
    return {
        node.name: node
        for node in module_of(path, text).body
        if isinstance(node, ast.FunctionDef)
    }


@functools.lru_cache(maxsize=256)
def module_of(path: Path, text: str) -> ast.Module:
    try:
        module = ast.parse(text)
        constants = (n.value for n in ast.walk(module) if isinstance(n, ast.Constant))
        files.check_numbers(list(constants))
        return module
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f"{path}:{line}" if line else str(path)
        found = getattr(error, "msg", None) or str(error)
        raise InputError.of(where, "", found, "Python") from None
    except (RecursionError, MemoryError):
        raise InputError.of(str(path), "", files.DEEP, "Python") from None


@functools.lru_cache(maxsize=256)
def imported_by(path: Path, text: str) -> dict[str, Source]:
    """What a file imports from others by the names that it has there, in functions too."""
    return {
        alias.asname or alias.name: Source(node.module or "", node.level, alias.name)
        for node in ast.walk(module_of(path, text))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


#: Folders above a file in which a module's folder may lie.
HIGHEST = 12


class Source(NamedTuple):
    """What `from module import name` says: `level` is the number of dots before the module."""

    module: str
    level: int
    name: str


def file_of(path: Path, source: Source) -> Path | None:
    """The file of a module that another imports, if it lies in the same checkout."""
    return next(
        (file for file in _places(path.absolute(), source) if _there(file)), None
    )


def _places(path: Path, source: Source) -> Iterator[Path]:
    """Where it may lie: beside the file that imports it, or below one of the folders above."""
    parents = list(path.parents)
    level = source.level
    roots = parents[level - 1 : level] if level else parents[:HIGHEST]
    parts = source.module.split(".") if source.module else []
    for root in roots:
        folder = root.joinpath(*parts)
        if parts:
            yield folder.with_suffix(".py")
        yield folder / "__init__.py"


def _there(file: Path) -> bool:
    try:
        return file.is_file()
    except OSError:
        return False
