"""Collects nodes and links while a family puts its cluster together."""

from __future__ import annotations

from topologies.fabric import Fabric
from topologies.known import LinkSpec
from topologies.links import Links, Nodes

_COLUMNS = tuple(Links.__dataclass_fields__)


class FabricBuilder:
    """A cluster under construction.

    >>> builder = FabricBuilder()
    >>> gpu = builder.node("gpu0", "gpu", host="host0")
    """

    def __init__(self) -> None:
        self._nodes: list[tuple[str, str, str]] = []
        self._links: list[tuple[str, str, str, int, float, float, float, str, str, str]] = []

    def node(self, name: str, kind: str, host: str = "") -> str:
        """Add a node and return its name; GPUs get their rank in the order they are added."""
        self._nodes.append((name, kind, host))
        return name

    def link(self, a: str, b: str, kind: str, spec: LinkSpec, count: int = 1) -> None:
        """Join `a` (the end nearer the CPU) and `b` by `count` physical links, one row in each direction."""
        for src, dst, way in ((a, b, spec), (b, a, spec.reverse)):
            one, raw = way.bandwidth, way.raw or way.bandwidth
            rates = one.value * count, raw.value * count
            grades = one.evidence, way.latency.evidence
            self._links.append((src, dst, kind, count, *rates, way.latency.value, *grades, one.source))

    def finish(self, name: str, gpu_model: str, family: str = "") -> Fabric:
        """The checked fabric; raises InputError with everything that is wrong with it."""
        columns = dict(zip(_COLUMNS, zip(*self._links, strict=True), strict=True)) if self._links else {}
        links = Links.of({key: columns.get(key, ()) for key in _COLUMNS})
        names, kinds, hosts = zip(*self._nodes, strict=True) if self._nodes else ((), (), ())
        return Fabric(name, Nodes(names, kinds, hosts), links, gpu_model, family)
