"""Clusters in and out of files: what `prestep topology import`, `export` and `check` do."""

from __future__ import annotations

from pathlib import Path

from prestep.sim import plugins
from prestep.sim.errors import InputError, unknown
from prestep.sim.units import format_bandwidth
from prestep.topologies.fabric import Fabric
from prestep.topologies.files import importers
from prestep.topologies.files.clusterfile import unroutable
from prestep.topologies.files.differences import differences
from prestep.topologies.files.importers import node_link
from prestep.topologies.show.tiers import tiers

_IMPORTERS = "prestep.topologies.files.importers"
# Words that name a format on the command line, and suffixes that tell it.
_ALIASES = {"json": "node_link", "nodelink": "node_link"}
_SUFFIXES = {".json": "node_link", ".graphml": "graphml"}


def writers() -> list[str]:
    """Names of the formats that a cluster can be written in, sorted."""
    return sorted(plugins.providers(_IMPORTERS, "write"))


def import_file(
    path: str | Path, output: str | Path | None = None, format: str = ""
) -> tuple[Fabric, Path, list[str]]:
    """Read a cluster of another tool and write it as node-link JSON, which works wherever a cluster's name does.

    Parameters
    ----------
    output
        The file to write; the name of `path` with the suffix .json, in the current directory, when None.
    format
        A name of `importers.formats()`; told from the content when empty.

    Returns
    -------
    (Fabric, Path, list of str)
        The cluster, where it was written, and what had to be assumed or was left out.

    Raises
    ------
    InputError
        If the file is wrong, GPUs cannot reach each other, or the output would replace the input.
    """
    fabric = importers.read(path, format)
    mistakes = unroutable(fabric, str(path))
    if mistakes:
        raise InputError(mistakes)
    target = (
        Path(output)
        if output
        else Path(f"{Path(path).name.partition('.')[0] or 'imported'}.json")
    )
    if target.resolve() == Path(path).resolve():
        raise InputError.of(
            str(target), "", "the file to import", "another file to write to (-o)"
        )
    _write(node_link.write, fabric, target)
    return fabric, target, importers.notes(fabric)


def export_file(fabric: Fabric, path: str | Path, format: str = "") -> list[str]:
    """Write a cluster for other tools; returns what the format cannot carry, all of it.

    The file is read again and compared, so no format has to know what it leaves out.

    Parameters
    ----------
    format
        "json" (NetworkX node-link), "graphml", "infragraph", ...: see `writers`; told from the suffix when empty.

    Raises
    ------
    InputError
        For a format that does not exist, or a place that cannot be written to.
    """
    name = _ALIASES.get(format, format.replace("-", "_")) or _SUFFIXES.get(
        Path(path).suffix, ""
    )
    writers = plugins.providers(_IMPORTERS, "write")
    if not name:
        expected = f"a file that ends in {' or '.join(_SUFFIXES)}, or --format"
        raise InputError.of(str(path), "", f'"{Path(path).suffix}"', expected)
    if name not in writers:
        raise InputError(unknown("export", "--format", format, {*writers, "json"}))
    lost = _write(writers[name], fabric, Path(path))
    if not Path(path).is_file():
        return lost  # a pipe: what went into it cannot be read again
    return lost + differences(fabric, importers.read(path, name))


def report_of(fabric: Fabric, name_or_file: str) -> str:
    """One line of counts for a good cluster, a line per switch tier, and what was assumed or contradicts itself.

    Raises
    ------
    InputError
        With every GPU that the first cannot reach.
    """
    mistakes = unroutable(fabric, name_or_file)
    if mistakes:
        raise InputError(mistakes)
    doubts = any(key.startswith("contradiction:") for key in fabric.facts)
    verdict = "doubtful" if doubts else "good"
    lines = [
        f"{name_or_file}: {verdict}: {len(fabric.hosts)} hosts, {len(fabric.gpus)} GPUs, {len(fabric.links) // 2} links"
    ]
    for tier in tiers(fabric):
        rates = format_bandwidth(tier.egress), format_bandwidth(tier.all_gather)
        lines.append(
            f"  {tier.kind}: joins {tier.children}, each sends {rates[0]}; all-gather up to {rates[1]}"
        )
    return "\n".join(lines + [f"  {note}" for note in importers.notes(fabric)])


def _write(write: object, fabric: Fabric, path: Path) -> list[str]:
    try:
        return write(fabric, path)  # type: ignore[operator, no-any-return]
    except OSError as error:
        raise InputError.of(
            str(path), "", error.strerror or str(error), "a place to write to"
        ) from None
