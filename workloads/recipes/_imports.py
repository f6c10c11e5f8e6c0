"""Where functions that a Python recipe imports are written: files of its checkout, found by name, never imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

#: Folders above a file in which a module's folder may lie.
HIGHEST = 12


class Source(NamedTuple):
    """What `from module import name` says: `level` is the number of dots before the module."""

    module: str
    level: int
    name: str


def imported(module: ast.Module) -> dict[str, Source]:
    """What a file imports from others by the names that it has there, in functions too."""
    return {
        alias.asname or alias.name: Source(node.module or "", node.level, alias.name)
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


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
