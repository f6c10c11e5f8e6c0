"""What one cluster has that another has not, item by item with its values: what a file of another format left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from prestep.topologies.core.links import TYPES, Links
from prestep.topologies.core.quantity import Quantity
from prestep.topologies.fabric import Fabric

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
