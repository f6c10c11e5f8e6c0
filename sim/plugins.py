"""File name = registry: a plug-in is a module in a package, found by its name.

Nothing is registered by hand and nothing is imported to be listed.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import importlib.util
import pkgutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from prestep.sim.errors import InputError, PrestepError, unknown

# CPython 3.11 counts the depth of trees for all threads together, and fails where two parse at once (gh-106905).
_PARSER = threading.Lock()


class Outline(NamedTuple):
    """What a plug-in's file says without being imported.

    Attributes
    ----------
    summary : str
        First line of its docstring.
    functions : frozenset of str
        Functions that it defines.
    constants : mapping
        Its literals, by name.
    """

    summary: str
    functions: frozenset[str]
    constants: Mapping[str, Any]


def outlines(package: str) -> dict[str, Outline]:
    """The outlines of all plug-ins of a package; their imports may be missing.

    Raises
    ------
    PrestepError
        If the package does not exist.
    """
    return {
        name: _outline(path.read_text(encoding="utf-8"))
        for name, path in _files(package).items()
    }


def summaries(package: str) -> dict[str, str]:
    """The first line of every plug-in's docstring; see `outlines`."""
    return {
        name: _summary(path.read_text(encoding="utf-8"))
        for name, path in _files(package).items()
    }


def _summary(text: str) -> str:
    """The first line of a file's docstring; most files begin with it, and need not be parsed."""
    line = text.removeprefix('"""').partition("\n")[0].partition('"""')[0]
    plain = text.startswith('"""') and line and "\\" not in line
    return line if plain else _outline(text).summary


@functools.cache  # of the same text; every scenario asks which frameworks and routings there are
def _outline(text: str) -> Outline:
    with _PARSER:
        module = ast.parse(text)
    functions = [node.name for node in module.body if isinstance(node, ast.FunctionDef)]
    assigned = [node for node in module.body if isinstance(node, ast.Assign)]
    return Outline(
        (ast.get_docstring(module) or "").partition("\n")[0],
        frozenset(functions),
        {name: value for node in assigned for name, value in _literals(node)},
    )


def _literals(node: ast.Assign) -> Iterator[tuple[str, Any]]:
    """Names and values of `A = 1` and `A, B = 1, 2`, as far as they are literals."""
    for target in node.targets:
        pairs = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(target.elts, node.value.elts, strict=False))
        for name, value in pairs:
            if isinstance(name, ast.Name):
                with contextlib.suppress(ValueError):
                    yield name.id, ast.literal_eval(value)


def discover(package: str) -> dict[str, str]:
    """Plug-ins of `package`: public file name -> full module name, sorted; imports the package but no plug-in.

    Names that start with "_" and sub-packages are not plug-ins.

    Raises
    ------
    PrestepError
        If the package does not exist.
    """
    return {name: f"{package}.{name}" for name in _files(package)}


def _files(package: str) -> dict[str, Path]:
    """The file of each plug-in, sorted by name."""
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.submodule_search_locations is None:
        raise PrestepError(f"{package}: no such package of plug-ins")
    names = {
        entry.name: Path(folder) / f"{entry.name}.py"
        for folder in spec.submodule_search_locations
        for entry in pkgutil.iter_modules([folder])
        if not entry.ispkg and not entry.name.startswith("_")
    }
    return dict(sorted(names.items()))


def load(package: str, name: str) -> ModuleType:
    """Import the plug-in `name` of `package`; dashes and underscores are the same ("zero-bubble" is zero_bubble.py).

    Raises
    ------
    InputError
        If there is no such plug-in; close names are suggested.
    """
    key = name.replace("-", "_")
    imported = sys.modules.get(f"{package}.{key}")
    if imported is not None and _is_plugin(key, imported):
        return imported  # its folder need not be read again: kernels ask, too
    known = discover(package)
    if key not in known:
        raise InputError(unknown(package, "", name, known))
    return importlib.import_module(known[key])


def _is_plugin(key: str, module: ModuleType) -> bool:
    """Whether a module of a package of plug-ins is one of them: public, and no sub-package."""
    return key[:1] != "_" and "." not in key and not hasattr(module, "__path__")


def load_function(package: str, name: str, function: str) -> Callable[..., Any]:
    """The function `function` of the plug-in `name`; a plug-in without it is an error in the plug-in."""
    module = load(package, name)
    found = getattr(module, function, None)
    if not callable(found):
        raise PrestepError(
            f"{module.__name__}: a plug-in of {package} must define the function {function}()"
        )
    return found  # type: ignore[no-any-return]


def providers(package: str, function: str) -> dict[str, Callable[..., Any]]:
    """Every plug-in of `package` that defines `function`, imported; helper modules beside them are left out."""
    loaded = {
        name: importlib.import_module(module)
        for name, module in discover(package).items()
    }
    return {
        name: getattr(module, function)
        for name, module in loaded.items()
        if callable(getattr(module, function, None))
    }


@functools.cache
def installed(group: str) -> tuple[str, ...]:
    """Returns the packages that other distributions declare under an entry point group, sorted.

    Examples
    --------
    >>> installed("prestep.of-nobody")
    ()
    """
    import importlib.metadata  # slow to import, and only lists and validation ask

    entries = importlib.metadata.entry_points(group=group)
    return tuple(sorted({entry.value for entry in entries}))


def home(package: str) -> Path:
    """Returns the folder of a package.

    Raises
    ------
    PrestepError
        If it is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise PrestepError(f"{package}: the package is missing from this installation")
    return Path(next(iter(spec.submodule_search_locations)))
