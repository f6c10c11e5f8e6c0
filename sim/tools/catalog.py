"""What there is: names of clusters, models, plug-ins and scenarios, from the files that hold them."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path

from sim import plugins
from sim.errors import InputError, PrestepError, unknown

# Data files: kind -> (package, folder in it).
_FOLDERS = {
    "clusters": ("topologies", "clusters"),
    "models": ("workloads", "models"),
    "scenarios": ("workloads", "scenarios"),
    "storage": ("sim", "costs/storage"),
}
# Folders of data: kind -> (package, folder in it, file that makes a folder in there one of the kind).
_FOLDERS_OF_FOLDERS = {"sets": ("validation", "cases", "set.toml")}
# Tables of one file: kind -> (package, file).
_ROWS = {
    "precisions": ("workloads", "precisions.toml"),
    "optimizers": ("workloads", "optimizers.toml"),
}
# Packages of which every module is one of the kind.
_MODULES = {"frameworks": "workloads.frameworks"}
# Code: kind -> (package, function that makes a module a plug-in; other modules there are helpers).
_PLUGINS = {
    "algorithms": ("sim.collectives.algorithms", "estimate"),
    "collectives": ("sim.collectives.algorithms", "plan"),
    "topologies": ("topologies", "build"),
    "exporters": ("sim.exporters", "write"),
    "routings": ("topologies.policies", "spread"),
}
# Names listed among a kind's although they lie elsewhere: kind -> {name: package}.
# Making a communicator has no plan of bytes: it takes time before the first one.
_BESIDE = {"collectives": {"creation": "sim.collectives.nccl"}}
_PROBES = "validation.measure.probes"  # read without PyTorch, which they import


def names(kind: str) -> list[str]:
    """The names of one kind ("clusters", "models", "schedules", ...), sorted.

    Raises
    ------
    InputError
        For a kind that does not exist.
    """
    if kind == "schedules":
        from workloads import schedules

        return sorted(schedules.names())
    if kind in _FOLDERS:
        package, folder = _FOLDERS[kind]
        return sorted(path.stem for path in (_home(package) / folder).glob("*.toml"))
    if kind in _FOLDERS_OF_FOLDERS:
        package, folder, file = _FOLDERS_OF_FOLDERS[kind]
        return sorted(
            path.parent.name for path in (_home(package) / folder).glob(f"*/{file}")
        )
    if kind in _ROWS:
        package, file = _ROWS[kind]
        return list(tomllib.loads((_home(package) / file).read_text(encoding="utf-8")))
    if kind in _MODULES:
        return [name.replace("_", "-") for name in plugins.discover(_MODULES[kind])]
    if kind in _PLUGINS:
        return sorted((*plugins.providers(*_PLUGINS[kind]), *_BESIDE.get(kind, {})))
    if kind == "probes":
        return sorted(plugins.discover(_PROBES))
    code = (*_ROWS, *_MODULES, *_PLUGINS, "probes", "schedules")
    raise InputError(
        unknown("list", "", kind, [*_FOLDERS, *_FOLDERS_OF_FOLDERS, *code])
    )


def summaries(kind: str) -> dict[str, str]:
    """A line about each name of a kind: the description of a file, the first sentence of a plug-in."""
    if kind in _FOLDERS:
        package, folder = _FOLDERS[kind]
        files = {path.stem: path for path in (_home(package) / folder).glob("*.toml")}
        tables = {
            name: tomllib.loads(path.read_text(encoding="utf-8"))
            for name, path in files.items()
        }
        return {
            name: str(table.get("description") or table.get("title") or "")
            for name, table in tables.items()
        }
    if kind in _PLUGINS or kind in _MODULES:
        package = _MODULES.get(kind) or _PLUGINS[kind][0]
        beside = _BESIDE.get(kind, {})
        modules = {
            name: plugins.load(beside.get(name, package), name) for name in names(kind)
        }
        return {
            name: (module.__doc__ or "").partition("\n")[0]
            for name, module in modules.items()
        }
    if kind == "probes":
        return {name: one.summary for name, one in plugins.outlines(_PROBES).items()}
    if kind in _FOLDERS_OF_FOLDERS:
        package, folder, file = _FOLDERS_OF_FOLDERS[kind]
        paths = {name: _home(package) / folder / name / file for name in names(kind)}
        return {
            name: str(tomllib.loads(path.read_text(encoding="utf-8")).get("title", ""))
            for name, path in paths.items()
        }
    return {}


DEMO = "llama1b-ddp4"


def find_scenario(name: str | None) -> Path:
    """The file of that name, or the bundled scenario; without a name, the demonstration."""
    bundled = _home("workloads") / "scenarios" / f"{name or DEMO}.toml"
    return (
        bundled
        if name is None or (not Path(name).exists() and bundled.exists())
        else Path(name)
    )


def _home(package: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise PrestepError(f"{package}: the package is missing from this installation")
    return Path(next(iter(found.submodule_search_locations)))
