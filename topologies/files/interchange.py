"""Clusters in and out of files: what `prestep topology import`, `export` and `check` do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from prestep.sim import plugins
from prestep.sim.errors import InputError, unknown
from prestep.sim.units import format_bandwidth
from prestep.topologies.core.links import TYPES, Links
from prestep.topologies.core.quantity import Quantity
from prestep.topologies.fabric import Fabric
from prestep.topologies.files import importers
from prestep.topologies.files.clusterfile import unroutable
from prestep.topologies.files.importers import node_link
from prestep.topologies.show.tiers import tiers

#: Relative difference of two numbers that were written in decimals and read again.
_ROUNDED = 1e-12


def differences(before: Fabric, after: Fabric) -> list[str]:
    """One line for everything of `before` that `after` has not or has otherwise; none if steps on both are the same.

    Examples
    --------
    >>> from prestep.topologies import load_cluster
    >>> differences(load_cluster("dgx-h100"), load_cluster("dgx-h200"))[0]
    'GPU model: h100 became h200'
    """
    return [
        *_texts(before, after),
        *_nodes(before, after),
        *_links(before, after),
        *_facts(before, after),
    ]


def _texts(before: Fabric, after: Fabric) -> Iterator[str]:
    if before.gpu_model != after.gpu_model:
        yield f"GPU model: {before.gpu_model} became {after.gpu_model}"
    files = {"NCCL's constants": "constants", "times of kernels": "kernels"}
    for what, key in files.items():
        one, other = getattr(before, key), getattr(after, key)
        if one and (not other or Path(one).resolve() != Path(other).resolve()):
            yield f"{what}: {one}"


def _nodes(before: Fabric, after: Fabric) -> Iterator[str]:
    """Nodes that are gone, or of another kind or host, or in another place: ranks go by their order."""
    one, other = (
        dict(
            zip(
                f.nodes.names,
                zip(f.nodes.kinds, f.nodes.hosts, strict=True),
                strict=True,
            )
        )
        for f in (before, after)
    )
    for name, known in one.items():
        if name not in other:
            yield f"node {name}"
        elif known != other[name]:
            yield f"node {name}: {known} became {other[name]}"
    if before.nodes.names != after.nodes.names and set(one) == set(other):
        yield "order of nodes, and with it that of ranks"


def _links(before: Fabric, after: Fabric) -> Iterator[str]:
    """Links that are gone, and their numbers, those of one kind and value together."""
    index = after.links.index
    rows = np.array([index.get(pair, -1) for pair in before.links.index])
    for row in np.flatnonzero(rows < 0).tolist():
        yield f"link {before.links.name(row)}"
    there = np.flatnonzero(rows >= 0)
    for column in Links.__dataclass_fields__:
        if column not in ("src", "dst"):
            yield from _column(before, after, column, there, rows[there])
    if len(there) == len(rows) and not np.array_equal(rows, np.arange(len(rows))):
        yield "order of links, which routes of equal length go by"


def _column(
    before: Fabric, after: Fabric, column: str, rows: np.ndarray, others: np.ndarray
) -> Iterator[str]:
    one, other = (
        getattr(before.links, column)[rows],
        getattr(after.links, column)[others],
    )
    if TYPES.get(column) is np.float64:
        same = np.isclose(one, other, rtol=_ROUNDED, atol=0.0)
    else:
        same = one == other
    away = np.flatnonzero(~np.asarray(same, dtype=bool))
    kinds = before.links.kind[rows[away]].tolist()
    changed = zip(kinds, one[away].tolist(), other[away].tolist(), strict=True)
    for (kind, was, is_now), count in Counter(changed).items():
        yield f"{column} of {count} {kind} links: {was} became {is_now}"


def _facts(before: Fabric, after: Fabric) -> Iterator[str]:
    for key, known in before.facts.items():
        if after.facts.get(key) != known:
            yield f"{key}: {_told(known)}"


def _told(known: Quantity) -> str:
    return f"{known.value:g} ({known.evidence}: {known.source})"


_IMPORTERS = "prestep.topologies.files.importers"
# Words that name a format on the command line, and suffixes that tell it.
_ALIASES = {"json": "node_link", "nodelink": "node_link"}
_SUFFIXES = {".json": "node_link", ".graphml": "graphml"}


def writers() -> list[str]:
    """Names of the formats that a cluster can be written in, sorted."""
    return sorted(plugins.providers(_IMPORTERS, "write"))


def import_file(
    path: str | Path,
    output: str | Path | None = None,
    format: str = "",
    host: str = "",
) -> tuple[Fabric, Path, list[str]]:
    """Read a cluster of another tool and write it as node-link JSON, which works wherever a cluster's name does.

    Parameters
    ----------
    output
        The file to write; the name of `path` with the suffix .json, in the current directory, when None.
    format
        A name of `importers.formats()`; told from the content when empty.
    host
        The model of every host, for a file that only names its hosts.

    Returns
    -------
    (Fabric, Path, list of str)
        The cluster, where it was written, and what had to be assumed or was left out.

    Raises
    ------
    InputError
        If the file is wrong, GPUs cannot reach each other, or the output would replace the input.
    """
    fabric = importers.read(path, format, host)
    mistakes = unroutable(fabric, str(path))
    InputError.check(mistakes)
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


def size_of(fabric: Fabric) -> str:
    """Hosts and GPUs in words.

    Examples
    --------
    >>> from prestep.topologies import load_cluster
    >>> size_of(load_cluster("dgx-h100"))
    '1 host, 8 GPUs'
    """
    parts = ((len(fabric.hosts), "host"), (len(fabric.gpus), "GPU"))
    return ", ".join(f"{n} {what}{'' if n == 1 else 's'}" for n, what in parts)


def report_of(fabric: Fabric, name_or_file: str) -> str:
    """One line of counts for a good cluster, a line per switch tier, and what was assumed or contradicts itself.

    Raises
    ------
    InputError
        With every GPU that the first cannot reach.
    """
    mistakes = unroutable(fabric, name_or_file)
    InputError.check(mistakes)
    doubts = any(key.startswith("contradiction:") for key in fabric.facts)
    verdict = "doubtful" if doubts else "good"
    lines = [
        f"{name_or_file}: {verdict}: {size_of(fabric)}, {len(fabric.links) // 2} links"
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
