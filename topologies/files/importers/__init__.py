"""Reads clusters from files of any format: a module each with `sniff(text)` and `read(path)`.

NetworkX's formats are here. Those of other tools come through the entry point group `prestep.importers`: the room
`topologies/foreign`, and other distributions.

>>> from prestep.topologies.files import importers
>>> fabric = importers.read("topo.xml")
>>> importers.notes(fabric)
['assumed: latencies: ...']
"""

from __future__ import annotations

import inspect
from pathlib import Path

from prestep.sim import plugins
from prestep.sim.errors import InputError
from prestep.topologies.fabric import Fabric
from prestep.topologies.files.importers._text import text_of

__all__ = ["formats", "notes", "read"]

_PACKAGE = __name__


def formats() -> list[str]:
    """Names of the formats that can be read, sorted."""
    return sorted(plugins.discover(_PACKAGE))


def read(path: str | Path, format: str = "", host: str = "") -> Fabric:
    """The cluster in a file of any known format, told from its content unless `format` names one.

    `host` names the bundled host in every host of a file that says only which hosts there are (Slurm, ibnetdiscover).
    What had to be assumed and what was left out is in the facts of the cluster: see `notes`.

    Raises
    ------
    InputError
        If the file cannot be read, is of no known format, or is wrong; the element is named.
    """
    if format:
        return _read(path, format, host)
    text = text_of(path)
    for name in formats():
        if plugins.load_function(_PACKAGE, name, "sniff")(text):
            return _read(path, name, host)
    start = " ".join(text.split())[:40]
    raise InputError.of(
        str(path),
        "",
        f'a file that starts with "{start}"',
        f"one of {', '.join(formats())}",
    )


def _read(path: str | Path, name: str, host: str) -> Fabric:
    """The cluster by one importer; a host is named only to those that ask for one."""
    reader = plugins.load_function(_PACKAGE, name, "read")
    if not host:
        return reader(path)  # type: ignore[no-any-return]
    if "host" not in inspect.signature(reader).parameters:
        found, expected = f'"{host}"', f"none: {name} says what its hosts are"
        raise InputError.of(str(path), "host", found, expected)
    return reader(path, host=host)  # type: ignore[no-any-return]


def notes(fabric: Fabric) -> list[str]:
    """What had to be assumed of a cluster, what was left out, and what in it contradicts itself, one sentence each."""
    return [
        f"{key}: {known.source}"
        for key, known in fabric.facts.items()
        if key.startswith(("assumed:", "dropped:", "contradiction:"))
    ]
