"""Collects nodes and links while a family puts its cluster together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np

from prestep.topologies.core.links import TYPES, Ints, Links, Nodes, Texts
from prestep.topologies.core.quantity import LinkSpec
from prestep.topologies.fabric import Fabric

_ENDS = ("src", "dst")


class FabricBuilder:
    """A cluster under construction, kept as columns: hosts that are all alike are added without a loop over links.

    >>> builder = FabricBuilder()
    >>> gpu = builder.node("gpu0", "gpu", host="host0")
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._kinds: list[str] = []
        self._hosts: list[str] = []
        self._index: dict[str, int] = {}
        # What links are like, once for all that are alike, and of which of those each row is one.
        self._values: dict[str, list[Any]] = {
            key: [] for key in Links.__dataclass_fields__ if key not in _ENDS
        }
        self._numbers: dict[tuple[str, int, int], tuple[int, LinkSpec]] = {}
        self._alike: list[Ints] = []
        self._ends: dict[str, list[Sequence[str] | Ints]] = {key: [] for key in _ENDS}
        # Rows and ends of links that were added since the last copy of hosts.
        self._added: tuple[list[int], list[str], list[str]] = [], [], []

    def node(self, name: str, kind: str, host: str = "") -> str:
        """Add a node and return its name; GPUs get their rank in the order they are added."""
        self._index[name] = len(self._names)
        self._names.append(name)
        self._kinds.append(kind)
        self._hosts.append(host)
        return name

    def link(self, a: str, b: str, kind: str, spec: LinkSpec, count: int = 1) -> None:
        """Join `a` (the end nearer the CPU) and `b` by `count` physical links, one row in each direction."""
        number = self._number(kind, spec, count)
        alike, src, dst = self._added
        alike += (number, number + 1)
        src += (a, b)
        dst += (b, a)

    def cables(
        self,
        a: Sequence[str],
        b: Sequence[str],
        kind: str,
        spec: LinkSpec,
        count: int = 1,
    ) -> None:
        """Join `a[i]` and `b[i]` for every i: as many calls of `link`, with the rows in the same order."""
        number = self._number(kind, spec, count)
        alike, src, dst = self._added
        alike += [number, number + 1] * len(a)
        for end, other in zip(a, b, strict=True):
            src += (end, other)
            dst += (other, end)

    def _number(self, kind: str, spec: LinkSpec, count: int) -> int:
        """Where the values of such links are: those of the way to the second end, and then those of the way back."""
        key = kind, id(spec), count
        if key not in self._numbers:
            # With the specification, so that no other has its identity.
            self._numbers[key] = len(self._values["kind"]), spec
            for way in (spec, spec.reverse):
                for name, value in _numbers(kind, way, count).items():
                    self._values[name].append(value)
        return self._numbers[key][0]

    def _gather(self) -> None:
        """Puts the links that were added one by one behind the others."""
        alike, *ends = self._added
        if alike:
            self._alike.append(np.array(alike))
            for key, column in zip(_ENDS, ends, strict=True):
                self._ends[key].append(column)
        self._added = [], [], []

    def repeat(self, part: FabricBuilder, hosts: Sequence[str]) -> None:
        """Add a copy of `part` for every host: its nodes are of that host, and their names start with `host0/`."""
        self._gather()
        part._gather()
        first_node = len(self._names)
        first_value = len(self._values["kind"])
        self._repeat_nodes(part, hosts)
        for key, values in part._values.items():
            self._values[key].extend(values)
        self._alike.append(np.tile(part._rows(), len(hosts)) + first_value)
        for key in _ENDS:
            self._ends[key].append(part._repeated_ends(key, hosts, first_node))

    def _repeat_nodes(self, part: FabricBuilder, hosts: Sequence[str]) -> None:
        """The nodes of `part`, once for every host."""
        first = len(self._names)
        each = len(part._names)
        names = [f"{host}/{name}" for host in hosts for name in part._names]
        self._names.extend(names)
        self._kinds.extend(part._kinds * len(hosts))
        self._hosts.extend([host for host in hosts for _ in range(each)])
        self._index.update(zip(names, range(first, first + len(names)), strict=True))

    def _repeated_ends(
        self, key: str, hosts: Sequence[str], first: int
    ) -> Sequence[str] | Ints:
        """One end of all rows in a copy for each host, where the first copy's nodes begin at position `first`."""
        inside = self._positions(key)
        if (inside < 0).any():
            # A link leads to a name that is no node: keep the names, so that `finish` can say which.
            names = self._names_at(key)
            return [f"{host}/{name}" for host in hosts for name in names]
        copies = first + len(self._names) * np.arange(len(hosts))
        positions: Ints = (inside + copies[:, None]).ravel()
        return positions

    def _rows(self) -> Ints:
        return (
            np.concatenate(self._alike) if self._alike else np.empty(0, dtype=np.int64)
        )

    def _positions(self, key: str) -> Ints:
        """Nodes at one end of all rows; -1 for a name that is none."""
        parts = [
            names
            if isinstance(names, np.ndarray)
            else np.array(list(map(self._index.get, names, repeat(-1))))
            for names in self._ends[key]
        ]
        return (
            np.concatenate(parts).astype(np.int64)
            if parts
            else np.empty(0, dtype=np.int64)
        )

    def _names_at(self, key: str) -> list[str]:
        """Names at one end of all rows."""
        names: list[str] = []
        for part in self._ends[key]:
            if isinstance(part, np.ndarray):
                names.extend(self._names[at] for at in part.tolist())
            else:
                names.extend(part)
        return names

    def _texts(self, key: str, positions: Ints) -> Texts:
        """Names at one end of all rows: all rows of a node share one text."""
        texts: Texts = np.array(self._names, dtype=object)[positions]
        if (positions < 0).any():
            texts[:] = self._names_at(key)
        return texts

    def finish(self, name: str, gpu_model: str, family: str = "") -> Fabric:
        """The checked fabric; raises InputError with everything that is wrong with it."""
        self._gather()
        nodes = Nodes(tuple(self._names), tuple(self._kinds), tuple(self._hosts))
        # The cached property, as it would make it.
        nodes.__dict__["index"] = dict(self._index)
        rows, ends = self._rows(), {key: self._positions(key) for key in _ENDS}
        alike = {
            key: np.array(values, dtype=TYPES.get(key, np.str_))[rows]
            for key, values in self._values.items()
        }
        links = Links(
            **{key: self._texts(key, at) for key, at in ends.items()}, **alike
        )
        links.remember(nodes, ends["src"], ends["dst"])
        return Fabric(name, nodes, links, gpu_model, family)


def _numbers(kind: str, spec: LinkSpec, count: int) -> dict[str, Any]:
    """One row without its ends."""
    one = spec.bandwidth
    return {
        "kind": kind,
        "count": count,
        "bandwidth": one.value * count,
        "raw": spec.wire * count,
        "latency": spec.latency.value,
        "evidence": one.evidence,
        "latency_evidence": spec.latency.evidence,
        "source": one.source,
    }
