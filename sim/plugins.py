"""Plug-ins: modules in a package, found by their names, and modules that entry points name.

The plug-ins of the package `prestep.sim.commands` are its files, and what installed distributions declare in the group
`prestep.commands`: the group is called like the package. Nothing is imported to be listed.
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from prestep.sim.entry_points import PREFIX, EntryPoint, entry_points
from prestep.sim.errors import InputError, Mistake, PrestepError, unknown

# CPython 3.11 counts the depth of trees for all threads together, and fails where two parse at once (gh-106905).
_PARSER = threading.Lock()
#: What a user can do about a plug-in that another distribution brings.
REMEDY = "update or uninstall that distribution"


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
    return {name: outline_of(plugin) for name, plugin in plugins_of(package).items()}


def outline_of(plugin: Plugin) -> Outline:
    """Returns what the file of a plug-in says; of one that cannot be used, why."""
    return _outline(plugin.text) if plugin.file else _broken(plugin)


def summaries(package: str) -> dict[str, str]:
    """The first line of every plug-in's docstring; see `outlines`."""
    return {
        name: _summary(plugin.text) if plugin.file else _broken(plugin).summary
        for name, plugin in plugins_of(package).items()
    }


def _broken(plugin: Plugin) -> Outline:
    """What stands in a list for a plug-in that cannot be used."""
    return Outline(f"cannot be used: {plugin.mistakes[0]}", frozenset(), {})


def _summary(text: str) -> str:
    """The first line of a file's docstring; most files begin with it, and need not be parsed."""
    line = text.removeprefix('"""').partition("\n")[0].partition('"""')[0]
    plain = text.startswith('"""') and line and "\\" not in line
    return line if plain else _outline(text).summary


@functools.cache  # of the same text; every scenario asks which frameworks and routings there are
def _outline(text: str) -> Outline:
    try:
        with _PARSER:
            module = ast.parse(text)
    except SyntaxError as error:  # another distribution's: imports of it say where
        return Outline(f"cannot be used: {error}", frozenset(), {})
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


class Plugin(NamedTuple):
    """A plug-in, before it is imported.

    Attributes
    ----------
    module : str
        What is imported.
    file : Path or None
        Its source; None where there is no such module, or several plug-ins have its name.
    entry : EntryPoint or None
        What declares it; None of a file in the package.
    mistakes : tuple of Mistake
        Why it cannot be used.
    """

    module: str
    file: Path | None
    entry: EntryPoint | None = None
    mistakes: tuple[Mistake, ...] = ()

    @property
    def text(self) -> str:
        """The source, "" where there is none."""
        return self.file.read_text(encoding="utf-8") if self.file else ""

    @property
    def source(self) -> str:
        """Who brings it."""
        return self.entry.source if self.entry else f"prestep's {self.module}"


def group_of(package: str) -> str:
    """Returns the entry point group of a package of plug-ins.

    Examples
    --------
    >>> group_of("prestep.workloads.schedules")
    'prestep.schedules'
    """
    return PREFIX + package.rpartition(".")[2]


def plugins_of(package: str) -> dict[str, Plugin]:
    """Returns the plug-ins of a package by name, sorted, with what is wrong with each.

    Raises
    ------
    PrestepError
        If the package does not exist.
    """
    own = {
        name: Plugin(f"{package}.{name}", path)
        for name, path in _files(package).items()
    }
    return plugins_in(group_of(package), own)


def plugins_in(group: str, own: Mapping[str, Plugin] = {}) -> dict[str, Plugin]:
    """Returns the plug-ins that entry points of a group declare, beside `own`, by name and sorted."""
    by_name = {name: [plugin] for name, plugin in own.items()}
    for entry in entry_points(group):
        key = entry.name.replace("-", "_")
        by_name.setdefault(key, []).append(declared(entry))
    return {name: _only(name, same) for name, same in sorted(by_name.items())}


def _only(name: str, same: list[Plugin]) -> Plugin:
    """The plug-in of a name; one that cannot be used where several have it."""
    first, *others = same
    if not others:
        return first
    entry = next(plugin.entry for plugin in same if plugin.entry)
    sources = " and ".join(plugin.source for plugin in same)
    expected, hint = "one plug-in of that name", "uninstall all but one"
    mistake = Mistake(entry.group, name, f"those of {sources}", expected, hint)
    return Plugin(first.module, None, entry, (mistake,))


def declared(entry: EntryPoint) -> Plugin:
    """Returns the plug-in that an entry point names."""
    spec, _ = spec_of(entry.module, tuple(sys.path))
    file = Path(spec.origin) if spec and spec.origin else None
    mistakes = () if file else (absent(entry, "a module that is installed"),)
    return Plugin(entry.module, file, entry, mistakes)


def missing(entry: EntryPoint) -> tuple[Mistake, ...]:
    """Returns the mistake of an entry point that names nothing, neither a module nor a folder; else nothing."""
    spec, places = spec_of(entry.module, tuple(sys.path))
    there = spec is not None or places
    return () if there else (absent(entry, "what is installed"),)


def absent(entry: EntryPoint, expected: str) -> Mistake:
    """Returns the mistake of an entry point that names what is not there."""
    key = f"{entry.group}: {entry.name}"
    return Mistake(entry.source, key, f"{entry.value}, not there", expected, REMEDY)


@functools.cache  # of one path of imports
def spec_of(
    module: str, path: tuple[str, ...]
) -> tuple[ModuleSpec | None, tuple[str, ...]]:
    """Returns what is known of a module that is not imported, nor the packages that it lies in; and its folders."""
    spec: ModuleSpec | None = None
    folders: list[str] | None = None
    parts = module.split(".")
    for depth, part in enumerate(parts, start=1):
        # Python asks the parent of a folder without an __init__ for its path, which imports the parent.
        if plain := _plain_folders(folders or (), part):
            spec, folders = None, plain
            continue
        name = ".".join(parts[:depth])
        specs = (finder.find_spec(name, folders) for finder in sys.meta_path)
        spec = next((spec for spec in specs if spec is not None), None)
        inside = spec.submodule_search_locations if spec else None
        if (
            name in sys.modules
        ):  # prestep adds its rooms to its path when it is imported
            inside = getattr(sys.modules[name], "__path__", inside)
        folders = None if inside is None else [*inside]
        if spec is None or (folders is None and parts[depth:]):
            return None, ()
    return spec, tuple(folders or ())


def _plain_folders(folders: Iterable[str], part: str) -> list[str]:
    """Folders of a package that have no `__init__.py`, where there is no module of that name either."""
    places = [Path(folder, part) for folder in folders]
    if any((place / "__init__.py").is_file() for place in places):
        return []
    if any(place.with_suffix(".py").is_file() for place in places):
        return []
    return [str(place) for place in places if place.is_dir()]


def discover(package: str) -> dict[str, str]:
    """Plug-ins of `package`: public file name -> full module name, sorted; imports the package but no plug-in.

    Names that start with "_" and sub-packages are not plug-ins.

    Raises
    ------
    PrestepError
        If the package does not exist.
    """
    return {name: plugin.module for name, plugin in plugins_of(package).items()}


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
        If there is no such plug-in; close names are suggested. If several have that name, or another distribution's
        cannot be imported.
    """
    key = name.replace("-", "_")
    imported = sys.modules.get(f"{package}.{key}")
    entries = entry_points(group_of(package))
    if key in {entry.name.replace("-", "_") for entry in entries}:
        return _declared(package, key, tuple(sys.path))
    if imported is not None and _is_plugin(key, imported):
        return imported  # its folder need not be read again: kernels ask, too
    plugins = plugins_of(package)
    if key not in plugins:
        raise InputError(unknown(package, "", name, plugins))
    return imported_plugin(plugins[key])


@functools.cache  # of one path of imports
def _declared(package: str, key: str, path: tuple[str, ...]) -> ModuleType:
    """The plug-in of a name that an entry point declares."""
    return imported_plugin(plugins_of(package)[key])


def imported_plugin(plugin: Plugin) -> ModuleType:
    """Returns a plug-in's module.

    Raises
    ------
    InputError
        If it cannot be used, or is another distribution's and fails to be imported.
    """
    if plugin.mistakes:
        raise InputError(plugin.mistakes)
    try:
        return importlib.import_module(plugin.module)
    except Exception as error:
        if plugin.entry is None or not plugin.entry.foreign:
            raise
        key = f"{plugin.entry.group}: {plugin.entry.name}"
        found = f"{plugin.module}, which fails with {type(error).__name__}: {error}"
        expected = "a module that can be imported"
        mistake = Mistake(plugin.source, key, found, expected, REMEDY)
        raise InputError(mistake) from error


def _is_plugin(key: str, module: ModuleType) -> bool:
    """Whether a module of a package of plug-ins is one of them: public, and no sub-package."""
    return key[:1] != "_" and "." not in key and not hasattr(module, "__path__")


def load_function(package: str, name: str, function: str) -> Callable[..., Any]:
    """The function `function` of the plug-in `name`; a plug-in without it is an error in the plug-in."""
    return _defined(load(package, name), package, function)


def function_of(plugin: Plugin, function: str) -> Callable[..., Any]:
    """Returns a function of a plug-in; raises as `imported_plugin`, and PrestepError where it defines none."""
    return _defined(imported_plugin(plugin), plugin.source, function)


def _defined(module: ModuleType, source: str, function: str) -> Callable[..., Any]:
    if not callable(getattr(module, function, None)):
        raise PrestepError(
            f"{module.__name__}: a plug-in of {source} must define the function {function}()"
        )
    return getattr(module, function)  # type: ignore[no-any-return]


def providers(package: str, function: str) -> dict[str, Callable[..., Any]]:
    """Every plug-in of `package` that defines `function`, imported; helper modules beside them are left out."""
    loaded = {
        name: imported_plugin(plugin) for name, plugin in plugins_of(package).items()
    }
    return {
        name: getattr(module, function)
        for name, module in loaded.items()
        if callable(getattr(module, function, None))
    }
