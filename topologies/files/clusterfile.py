"""Cluster files: TOML whose numbers may say where they come from.

::

    family = "host"                 # the module of topologies/ that builds it
    gpu = "h100"
    extends = "dgx-h100"            # optional: start from another file's keys
    several = "dgx-h100-superpod"   # optional, of a single host: the cluster of several such hosts
    gpus = { value = 8, evidence = "datasheet", source = "DGX H100 User Guide" }
    nccl = "my-nccl.toml"           # optional: NCCL's constants on this machine, written by `prestep calibrate`
    kernels = "my-gpu.toml"         # optional: kernel times of this machine's GPUs, written by `prestep calibrate`
    hosts = 4                       # a bare value is graded "guess", and its source is the file
    [nvlink]
    bandwidth = { value = "21.8 GB/s", evidence = "measured", source = "..." }     # one link, one direction, payload
    latency = { value = "0.3 us", evidence = "guess", source = "..." }

Other keys are those of the family's `Params`.
"""

from __future__ import annotations

import dataclasses
import math
import os
import typing
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from prestep.sim.errors import InputError, Mistake
from prestep.sim.extras import lazily
from prestep.topologies.core.checks import components
from prestep.topologies.core.facts import FILES
from prestep.topologies.core.kinds import ENDPOINTS
from prestep.topologies.core.quantity import LinkSpec, Quantity
from prestep.topologies.edit.overrides import with_overrides
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.compile import compile_graph
from prestep.topologies.files import tables
from prestep.topologies.files.bundled import CLUSTERS

with lazily():
    from prestep.topologies.files import gpu_links, host_models, importers, larger

# Of anything that a family counts, and of GPUs: so many take 1.3 GB.
MOST = 2**18
MOST_GPUS = 2**18
# What a file says of a link of another tool's cluster changes it; the rest of the link stays.
_ANY_LINK = LinkSpec(*[Quantity(1.0, "guess", "as it is")] * 2)
# Mistakes that show the pattern.
_SHOWN = 8


def read(name_or_file: str | Path, hosts: int | None = None) -> Fabric:
    """Build the named cluster or the one in a file; raises InputError with every mistake in it."""
    if _foreign(Path(name_or_file)):
        return _imported(Path(name_or_file), hosts)
    path = tables.locate(name_or_file)
    base = _foreign_base(path)
    if base is not None:
        return _extended(path, base, hosts)
    where, table = tables.where_of(path), tables.merged(path)
    family = tables.load_family(where, table)
    reader = tables.Reader(where)
    own = path.parent != CLUSTERS  # bundled files say all that is known
    hints = typing.get_type_hints(family.Params)
    usual: tuple[tables.Usual, ...] = ()
    if own:
        usual = (partial(host_models.usual_links, family),)
    values = reader.params(table, hints, *usual)
    if hosts is not None:
        values |= _hosts(reader, family, hosts)
    reader.mistakes += _too_many(where, family, values)
    if reader.mistakes:
        raise InputError(reader.mistakes)
    facts = dict(reader.facts)
    if own:
        params, others = host_models.filled(family, table, values)
        values |= host_models.cables(family, values)
        values, facts = {**params, **values}, {**others, **facts}
    fabric = _built(where, family, values).with_facts(path.stem, facts)
    measured = {field: str(table.get(key, "")) for key, field in FILES.items()}
    fabric = fabric.with_columns(**measured)
    return _doubted(fabric) if own else fabric


def _foreign_base(path: Path) -> Path | None:
    """The file of another tool that a cluster file extends; None for one of prestep's, or for no file."""
    name = tables.merged(path, extended=False).get("extends")
    base = path.parent / name if isinstance(name, str) else path
    return base if base != path and _foreign(base) else None


def _extended(path: Path, base: Path, hosts: int | None) -> Fabric:
    """Another tool's cluster with the facts, links and measured times that a cluster file states of it."""
    where = tables.where_of(path)
    table = tables.merged(path, extended=False)
    host = table.pop("host", "")
    if not isinstance(host, str):
        raise InputError.of(where, "host", str(host), "the name of a host model")
    fabric = _imported(base, hosts, host)
    for key in {"extends", "description"} & {*table}:
        del table[key]
    files = {field: str(table.pop(key, "")) for key, field in FILES.items()}
    kinds = dict.fromkeys(dict.fromkeys(fabric.links.kind.tolist()), LinkSpec)
    reader = tables.Reader(where)
    values = reader.params(table, kinds, lambda _: dict.fromkeys(kinds, _ANY_LINK))
    if reader.mistakes:
        raise InputError(reader.mistakes)
    changes = {
        f"{kind}.{part}": f"{reader.facts[f'{kind}.{part}'].value!r} {unit}"
        for kind in values
        for part, unit in (("bandwidth", "B/s"), ("latency", "s"))
        if f"{kind}.{part}" in reader.facts
    }
    changed = with_overrides(fabric, changes, where)
    measured = {field: file for field, file in files.items() if file}
    facts = {**changed.facts, **reader.facts}
    return changed.with_facts(path.stem, facts).with_columns(**measured)


def _doubted(fabric: Fabric) -> Fabric:
    """The cluster with a note for every link that its GPUs do not have."""
    conflicts = gpu_links.contradictions(fabric)
    if not conflicts:
        return fabric
    doubts = {
        "contradiction: links": Quantity(
            float(len(conflicts)), "guess", "; ".join(conflicts)
        )
    }
    return fabric.with_facts(fabric.name, {**fabric.facts, **doubts})


def _built(where: str, family: ModuleType, values: Mapping[str, Any]) -> Fabric:
    """The family's cluster; its mistakes are the file's."""
    try:
        fabric = compile_graph(family.build(family.Params(**values)))
    except InputError as error:
        mistakes = [dataclasses.replace(one, where=where) for one in error.mistakes]
        raise InputError(mistakes) from None
    return fabric


def _foreign(path: Path) -> bool:
    """Whether this is a file of another tool: imported JSON, GraphML, NCCL's XML, ..."""
    # os.path.isfile: False, and no error, for names that no system takes.
    return path.suffix not in ("", ".toml") and os.path.isfile(path)


def _imported(path: Path, hosts: int | None, host: str = "") -> Fabric:
    return checked(importers.read(path, host=host), str(path), hosts)


def checked(fabric: Fabric, where: str, hosts: int | None = None) -> Fabric:
    """A cluster that is as it is: of a graph, or of another tool's file; with notes on its doubtful links.

    Raises
    ------
    InputError
        For another number of hosts than it has, and for GPUs that cannot send to each other.
    """
    mistakes = unroutable(fabric, where)
    if hosts not in (None, len(fabric.hosts)):
        source = "graph" if where == "cluster" else "file"
        expected = f"{len(fabric.hosts)}, as in the {source}"
        mistakes.append(Mistake(where, "hosts", str(hosts), expected))
    InputError.check(mistakes)
    return _doubted(fabric)


def unroutable(fabric: Fabric, where: str) -> list[Mistake]:
    """GPUs without a path from another that leads through no GPU, memory or disk: each once, the first few."""
    joined = _joined(fabric)
    mistakes: list[Mistake] = []
    if frozenset.intersection(*joined.values()):
        return mistakes  # something joins them all
    expected = "a path that leads through no other GPU, memory or disk"
    for at, gpu in enumerate(fabric.gpus):
        before = fabric.gpus[:at]
        lost = [one for one in before if not joined[one] & joined[gpu]]
        if lost and len(mistakes) < _SHOWN:
            mistakes.append(Mistake(where, gpu, f"no path from {lost[0]}", expected))
    return mistakes


def _joined(fabric: Fabric) -> dict[str, frozenset[object]]:
    """What every GPU has a link to: groups of nodes that pass bytes on to each other, and other GPUs."""
    names, kinds = fabric.nodes.names, fabric.nodes.kinds
    passes = np.array([kind not in ENDPOINTS for kind in kinds])
    src, dst = fabric.ends
    inside = passes[src] & passes[dst]
    group = components(len(names), src[inside], dst[inside]).tolist()
    joined: dict[str, set[object]] = {gpu: set() for gpu in fabric.gpus}
    of_gpus = np.flatnonzero(np.array(kinds)[src] == "gpu")
    for a, b in zip(src[of_gpus].tolist(), dst[of_gpus].tolist(), strict=True):
        if passes[b]:
            joined[names[a]].add(group[b])
        elif kinds[b] == "gpu":
            joined[names[a]].add(frozenset((a, b)))
    return {gpu: frozenset(groups) for gpu, groups in joined.items()}


def _too_many(where: str, family: ModuleType, values: tables.Table) -> list[Mistake]:
    """Counts beyond any machine: a slip of the pen, which would take all memory before it is noticed."""
    counts = {key: _product(value) for key, value in values.items()}
    found = [
        Mistake(where, key, str(n), f"at most {MOST}")
        for key, n in counts.items()
        if n > MOST
    ]
    hosts, gpus = (
        counts.get(key) or _product(getattr(family.Params, key, 1))
        for key in ("hosts", "gpus")
    )
    if not found and hosts * gpus > MOST_GPUS:
        found.append(
            Mistake(
                where,
                "hosts",
                f"{hosts} of {gpus} GPUs each",
                f"at most {MOST_GPUS} GPUs",
            )
        )
    return found


def _product(value: object) -> int:
    """A count, or that of a grid; 0 for what counts nothing."""
    if isinstance(value, tuple) and value and all(type(n) is int for n in value):
        return math.prod(value)
    return value if type(value) is int else 0


def _hosts(reader: tables.Reader, family: ModuleType, hosts: int) -> tables.Table:
    if "hosts" in typing.get_type_hints(family.Params):
        return {"hosts": hosts}
    if hosts != 1:
        gpus = hosts * int(getattr(family.Params(), "gpus", 1))
        hint = larger.larger(
            reader.where.rpartition("/")[2].removesuffix(".toml"), gpus
        )
        hint = hint or "leave hosts out, or choose a cluster of another family"
        name = family.__name__.rpartition(".")[2]
        reader.mistakes.append(
            Mistake(
                reader.where,
                "hosts",
                str(hosts),
                f"1: the family {name} is one host",
                hint,
            )
        )
    return {}
