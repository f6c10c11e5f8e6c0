"""What there is: names of clusters, models, plug-ins and scenarios, from the files that hold them."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prestep.sim import data_files, plugins
from prestep.sim.entry_points import OWN, PREFIX, EntryPoint, entry_points, sources
from prestep.sim.errors import InputError, unknown

# Data files: kind -> (package, folder in it). Other distributions add folders under `prestep.<kind>`.
_FILES = {
    "clusters": ("prestep.topologies", "clusters"),
    "models": ("prestep.workloads", "models"),
    "scenarios": ("prestep.workloads", "scenarios"),
    "storage": ("prestep.sim", "costs/storage"),
    "gpus": ("prestep.sim", "costs/hardware"),
}
# Files beside those of a kind, by the end of their names: what was fitted of a GPU, or published.
_PARTS = {"gpus": ("-fitted", "-libraries", "-nccl", "-published")}
# Folders of data: kind -> (package, entry point group of other packages, pattern of the file that describes one).
_FOLDERS = {"sets": ("prestep.validation", "prestep.sets", "cases/*/set.toml")}
# Tables of one file: kind -> (package, file).
_ROWS = {
    "precisions": ("prestep.workloads", "precisions.toml"),
    "optimizers": ("prestep.workloads", "optimizers.toml"),
}
# Code: kind -> (package, function that makes a module a plug-in; "": every module is one).
_PLUGINS = {
    "algorithms": ("prestep.sim.collectives.algorithms", "estimate"),
    "collectives": ("prestep.sim.collectives.algorithms", "plan"),
    "topologies": ("prestep.topologies", "build"),
    "exporters": ("prestep.sim.exporters", "write"),
    "routings": ("prestep.topologies.policies", "spread"),
    "frameworks": ("prestep.workloads.frameworks", ""),
}
#: Kinds of extensions: packages of plug-ins, whose `LISTED` says what they are; with the function where one counts.
LISTS = "prestep.lists"
# Names listed among a kind's although they lie elsewhere: kind -> {name: package}.
# Making a communicator has no plan of bytes: it takes time before the first one.
_BESIDE = {"collectives": {"creation": "prestep.sim.collectives.nccl"}}


def names(kind: str) -> list[str]:
    """The names of one kind ("clusters", "models", "schedules", ...), sorted.

    Raises
    ------
    InputError
        For a kind that does not exist.
    """
    if kind == "schedules":
        return sorted(_schedules().names())
    if kind in _ROWS:
        package, file = _ROWS[kind]
        return sorted(_table(data_files.home(package) / file))
    if kind in _FILES or kind in _FOLDERS:
        return sorted(_paths(kind))
    if kind in _plugins():
        return sorted(_outlines(kind))
    if kind == "extensions":
        return list(extensions())
    kinds = [*_FILES, *_FOLDERS, *_ROWS, *_plugins(), "schedules", "extensions"]
    raise InputError(unknown("list", "", kind, kinds))


def summaries(kind: str) -> dict[str, str]:
    """A line about each name of a kind: the description of a file, the first sentence of a plug-in."""
    if kind in _FILES or kind in _FOLDERS:
        return {name: _described(path) for name, path in _paths(kind).items()}
    if kind in _ROWS:
        package, file = _ROWS[kind]
        rows = _table(data_files.home(package) / file)
        return {name: row.get("description", "") for name, row in rows.items()}
    if kind == "schedules":
        return dict(_schedules().summaries())
    if kind == "extensions":
        return extensions()
    if kind not in _plugins():
        return {}
    return {name: outline.summary for name, outline in _outlines(kind).items()}


def extensions() -> dict[str, str]:
    """What each room of prestep and each distribution adds, by group, and what of it cannot be used."""
    texts = {
        source.removeprefix(OWN).partition(" ")[0]: _adds(entries)
        for source, entries in sources().items()
    }
    return dict(sorted(texts.items()))


def _adds(entries: Iterable[EntryPoint]) -> str:
    groups: dict[str, list[str]] = {}
    mistakes: list[str] = []
    for entry in entries:
        groups.setdefault(entry.group.removeprefix(PREFIX), []).append(entry.name)
        mistakes += map(str, plugins.missing(entry))
    parts = [f"{group}: {', '.join(names)}" for group, names in sorted(groups.items())]
    return "; ".join([*parts, *mistakes])


def _schedules() -> Any:
    """The pipeline schedules; frameworks bring some along, so they are not a list of files."""
    from prestep.workloads import schedules  # imports every schedule

    return schedules


def _described(path: Path) -> str:
    """What a file of data says it is: its key for that, or the comment that it begins with."""
    table = _table(path)
    said = table.get("description") or table.get("title")
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    comment = first.removeprefix("#").strip() if first.startswith("#") else ""
    return str(said or comment)


def _paths(kind: str) -> dict[str, Path]:
    """The file of each name of a kind of data."""
    if kind in _FILES:
        package, folder = _FILES[kind]
        paths = data_files.files(data_files.home(package) / folder, kind)
        parts = _PARTS.get(kind, ())
        return {name: path for name, path in paths.items() if not name.endswith(parts)}
    package, group, pattern = _FOLDERS[kind]
    return {
        path.parent.name: path
        for home in map(data_files.home, (*data_files.packages(group), package))
        for path in home.glob(pattern)
    }


def _plugins() -> dict[str, tuple[str, str]]:
    """Package and function of each kind of plug-in, those of extensions too."""
    lists = {
        entry.name: (entry.module, entry.attribute) for entry in entry_points(LISTS)
    }
    return {**_PLUGINS, **lists}


def kinds_of_extensions() -> dict[str, str]:
    """Kinds that extensions list, with what they say of them."""
    outlines = {
        kind: plugins.outline_of(plugin)
        for kind, plugin in plugins.plugins_in(LISTS).items()
    }
    return {kind: one.constants.get("LISTED", "") for kind, one in outlines.items()}


def _outlines(kind: str) -> dict[str, plugins.Outline]:
    """The plug-ins of a kind; none is imported."""
    package, function = _plugins()[kind]
    outlines = {
        name: outline
        for name, outline in plugins.outlines(package).items()
        if not function or function in outline.functions
    }
    for name, other in _BESIDE.get(kind, {}).items():
        outlines[name] = plugins.outlines(other)[name]
    if kind == "frameworks":  # as scenarios spell them
        return {name.replace("_", "-"): one for name, one in outlines.items()}
    return outlines


def _table(path: Path) -> dict[str, Any]:
    """A file of TOML, read again when it has changed: every scenario asks for the names of formats and clusters."""
    status = path.stat()
    return _parsed(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=256)
def _parsed(path: Path, changed: int, size: int) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


DEMO = "llama1b-ddp4-b4"


def find_scenario(name: str | None) -> Path:
    """The file of that name, or the bundled scenario; without a name, the demonstration."""
    if name is not None and (len(Path(name).parts) != 1 or Path(name).exists()):
        return Path(name)
    own = data_files.home("prestep.workloads") / "scenarios"
    return data_files.file(own, "scenarios", name or DEMO) or Path(name or DEMO)
