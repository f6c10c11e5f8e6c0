"""Python files as trees: their functions, and what they import; each is parsed once."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

from prestep.sim import files
from prestep.sim.errors import InputError, Mistake
from prestep.workloads.recipes import _imports


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
        raise InputError(Mistake(where, "", found, "Python")) from None
    except (RecursionError, MemoryError):
        raise InputError(Mistake(str(path), "", files.DEEP, "Python")) from None


@functools.lru_cache(maxsize=256)
def imported_by(path: Path, text: str) -> dict[str, _imports.Source]:
    return _imports.imported(module_of(path, text))
