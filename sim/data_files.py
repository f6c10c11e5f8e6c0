"""Data files of a kind (clusters, GPUs, models, ...): prestep's own folder, and those of other distributions.

A distribution names a package under the entry point group of the kind (`prestep.clusters`); its folder holds files
as ours does.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from prestep.sim.entry_points import PREFIX, entry_points
from prestep.sim.errors import InputError, PrestepError
from prestep.sim.plugins import absent, spec_of


def folders(own: Path, kind: str) -> dict[Path, str]:
    """Returns the folders with files of a kind, and who brings each; `own` is prestep's, and the first.

    Raises
    ------
    InputError
        If a distribution names a package that is not there.
    """
    sources = {own: "prestep"}
    for entry in entry_points(PREFIX + kind):
        _, places = spec_of(entry.value, tuple(sys.path))
        if not places:
            raise InputError(absent(entry, "a package with files"))
        sources |= {Path(place): entry.source for place in places}
    return sources


def files(own: Path, kind: str) -> dict[str, Path]:
    """Returns the TOML files of a kind by name, sorted; see `file`."""
    paths = {
        path.stem: path
        for folder in reversed(folders(own, kind))
        for path in folder.glob("*.toml")
    }
    return dict(sorted(paths.items()))


def file(own: Path, kind: str, name: str) -> Path | None:
    """Returns the file of a name; None where there is none.

    Raises
    ------
    InputError
        If several folders have one.
    """
    sources = {
        folder / f"{name}.toml": source
        for folder, source in folders(own, kind).items()
        if (folder / f"{name}.toml").is_file()
    }
    if len(sources) > 1:
        found = f"those of {' and '.join(sources.values())}"
        expected, hint = "one file of that name", "uninstall all but one"
        raise InputError.of(PREFIX + kind, name, found, expected, hint)
    return next(iter(sources), None)


def packages(group: str) -> tuple[str, ...]:
    """Returns the packages that distributions declare under an entry point group, sorted.

    Examples
    --------
    >>> packages("prestep.of-nobody")
    ()
    """
    return tuple(sorted({entry.value for entry in entry_points(group)}))


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
