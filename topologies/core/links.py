"""Nodes and directed links as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Texts = npt.NDArray[Any]

TYPES: dict[str, Any] = {
    "count": np.int64,
    "bandwidth": np.float64,
    "raw": np.float64,
    "latency": np.float64,
}
# Texts that many rows share: as fixed-width numpy text, two million rows would take more than a gigabyte.
_SHARED = ("src", "dst", "evidence", "latency_evidence", "source")
TYPES |= dict.fromkeys(_SHARED, object)


@dataclass(frozen=True)
class Nodes:
    """What the links connect: `names[i]` is a `kinds[i]` in host `hosts[i]` ("" outside every host)."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    hosts: tuple[str, ...]

    @cached_property
    def index(self) -> dict[str, int]:
        """Name -> position."""
        return dict(zip(self.names, range(len(self.names)), strict=True))

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        """Names of the GPUs."""
        return self.of_kind("gpu")

    @cached_property
    def host_names(self) -> tuple[str, ...]:
        """The hosts, in order of their first nodes."""
        return tuple(dict.fromkeys(host for host in self.hosts if host))

    @cached_property
    def host_at(self) -> Ints:
        """The place of every node's host in `host_names`; -1 outside."""
        at = {host: number for number, host in enumerate(self.host_names)}
        return np.array([at.get(host, -1) for host in self.hosts], dtype=np.int64)

    @cached_property
    def place(self) -> Ints:
        """A number for every node, equal for nodes of one name in their hosts, and for those of one kind outside."""
        bare = [
            name.rpartition("/")[2] if host else kind
            for name, kind, host in zip(self.names, self.kinds, self.hosts, strict=True)
        ]
        at = {name: number for number, name in enumerate(dict.fromkeys(bare))}
        return np.array([at[name] for name in bare], dtype=np.int64)

    @cached_property
    def above(self) -> Ints:
        """Of every node the first of its host; a node outside of hosts stands for itself."""
        host = self.host_at
        _, first, which = np.unique(host, return_index=True, return_inverse=True)
        return np.where(host >= 0, first[which], np.arange(len(host)))

    def of_kind(self, kind: str) -> tuple[str, ...]:
        """Names of one kind, in order."""
        return tuple(
            name
            for name, found in zip(self.names, self.kinds, strict=True)
            if found == kind
        )


@dataclass(frozen=True, eq=False)
class Links:
    """Directed links, one per row; parallel links between two nodes are one row.

    Attributes
    ----------
    src, dst : array of str
        Names of the nodes a link leaves and enters.
    kind : array of str
        "nvlink", "pcie", "socket", "memory", "nvme", "nic", ...
    count : array of int
        Physical links in this row.
    bandwidth : array of float
        Payload bytes/s in this direction, all `count` links together.
    raw : array of float
        Wire bytes/s in this direction, all `count` links together (datasheet).
    latency : array of float
        Seconds, end to end, without software.
    evidence, latency_evidence : array of str
        Grade of `bandwidth` and of `latency`.
    source : array of str
        Where `bandwidth` comes from.
    """

    src: Texts
    dst: Texts
    kind: Texts
    count: Ints
    bandwidth: Floats
    raw: Floats
    latency: Floats
    evidence: Texts
    latency_evidence: Texts
    source: Texts

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[Any]]) -> Links:
        """Links from plain columns, one value per row."""
        return cls(
            **{
                key: np.array(column, dtype=TYPES.get(key, np.str_))
                for key, column in columns.items()
            }
        )

    def __len__(self) -> int:
        return len(self.src)

    def ends(self, nodes: Nodes) -> tuple[Ints, Ints]:
        """Positions in `nodes` of the nodes that every row leaves and enters; -1 for a name that is not there."""
        known = self.__dict__.get("_ends")
        if known is None or known[0] is not nodes:
            src, dst = (
                [nodes.index.get(end, -1) for end in ends.tolist()]
                for ends in (self.src, self.dst)
            )
            known = self.remember(
                nodes, np.array(src, dtype=np.int64), np.array(dst, dtype=np.int64)
            )
        return known[1], known[2]

    def with_values(self, **columns: Any) -> Links:
        """Links between the same nodes with other columns."""
        other = replace(self, **columns)
        lasting = (
            ("_ends",) if "kind" in columns else ("_ends", "kinds", "kind_numbers")
        )
        shared = {
            name: self.__dict__[name] for name in lasting if name in self.__dict__
        }
        other.__dict__.update(shared)
        return other

    def remember(self, nodes: Nodes, src: Ints, dst: Ints) -> tuple[Nodes, Ints, Ints]:
        """Keep what `ends` answers for these nodes, where it is known before."""
        self.__dict__["_ends"] = nodes, src, dst
        return nodes, src, dst

    def name(self, link: int) -> str:
        """`gpu0-nvswitch1`: the direction is from the first to the second."""
        return f"{self.src[link]}-{self.dst[link]}"

    @cached_property
    def index(self) -> dict[tuple[str, str], int]:
        """(src, dst) -> row."""
        return {
            pair: at
            for at, pair in enumerate(
                zip(self.src.tolist(), self.dst.tolist(), strict=True)
            )
        }

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Kinds that occur, in order of first appearance."""
        return tuple(dict.fromkeys(self.kind.tolist()))

    @cached_property
    def kind_numbers(self) -> Ints:
        """Place of every row's kind in `kinds`: numbers compare many times as fast as texts."""
        at = {kind: number for number, kind in enumerate(self.kinds)}
        return np.array([at[kind] for kind in self.kind.tolist()], dtype=np.int64)

    def kinds_on(self, rows: Ints) -> tuple[str, ...]:
        """Kinds of some rows, in the order of `kinds`.

        Examples
        --------
        >>> from prestep.topologies import load_cluster
        >>> links = load_cluster("dgx-h100").links
        >>> links.kinds_on(links.of_kind("nvlink"))
        ('nvlink',)
        """
        met = np.bincount(self.kind_numbers[rows], minlength=len(self.kinds))
        return tuple(kind for kind, n in zip(self.kinds, met, strict=True) if n)

    def of_kind(self, kind: str) -> Ints:
        """Rows of one kind."""
        number = self.kinds.index(kind) if kind in self.kinds else -1
        return np.flatnonzero(self.kind_numbers == number)

    def names(self, links: Sequence[int] | Ints) -> list[str]:
        """Names of several links, for messages."""
        return [self.name(int(link)) for link in links]


def distinct(table: Ints) -> tuple[Ints, Ints]:
    """The first of all rows that are equal, and for every row the place of its equal among those."""
    packed = np.ascontiguousarray(table.astype(np.int32))
    # Each row as one opaque value: numpy compares those several times as fast.
    rows = packed.view(np.dtype((np.void, packed.dtype.itemsize * packed.shape[1])))
    _, first, which = np.unique(rows.ravel(), return_index=True, return_inverse=True)
    return first, which


def numbered(values: np.ndarray) -> Ints:
    """0, 1, ... by first appearance: equal values, or equal rows, have equal numbers.

    Examples
    --------
    >>> numbered(np.array([7, 3, 7, 5])).tolist()
    [0, 1, 0, 2]
    """
    axis = 0 if values.ndim > 1 else None
    _, first, inverse = np.unique(
        values, axis=axis, return_index=True, return_inverse=True
    )
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse.reshape(-1)]


def compact(rows: Ints) -> tuple[Ints, Ints]:
    """The distinct ones of some rows, ascending, and the place of each row among them.

    Examples
    --------
    >>> [part.tolist() for part in compact(np.array([7, 3, 7]))]
    [[3, 7], [1, 0, 1]]
    """
    size = int(rows.max(initial=-1)) + 1
    if len(rows) < size // 64:
        return np.unique(rows, return_inverse=True)
    # Marks among all rows take a tenth of the time of a sort.
    met = np.zeros(size, dtype=bool)
    met[rows] = True
    distinct_rows, place = np.flatnonzero(met), np.empty(size, dtype=np.int64)
    place[distinct_rows] = np.arange(len(distinct_rows))
    return distinct_rows, place[rows]


def groups(key: Ints) -> list[tuple[int, Ints]]:
    """Every value of `key` and where it stands."""
    order = np.argsort(key, kind="stable")
    if not len(order):
        return []
    edges = np.flatnonzero(np.diff(key[order])) + 1
    return [(int(key[part[0]]), part) for part in np.split(order, edges)]
