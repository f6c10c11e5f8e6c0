"""Whether the links of a cluster's GPUs are links that such GPUs have, by the bundled clusters with the same GPU."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from prestep.sim.errors import InputError
from prestep.topologies.core.quantity import EDITED
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.compile import compile_graph
from prestep.topologies.files.bundled import cluster_names
from prestep.topologies.files.host_models import HostModel, named
from prestep.topologies.files.tables import locate, merged

#: Datasheets round the wire differently.
_MORE = 1.05
#: Payload over wire of a file that states the payload alone: 0.8 at least on every GPU here; generations halve.
_LESS = 0.7


def contradictions(fabric: Fabric) -> list[str]:
    """A sentence for every kind of link that GPUs of the cluster's model do not have, or not as fast.

    NVLinks are of the GPU's generation, and no more than it has; PCIe may be slower than the GPU's, but not faster.
    Nothing is said of a GPU that no bundled cluster has.

    Examples
    --------
    >>> from prestep.topologies import load_cluster
    >>> contradictions(load_cluster("dgx-h100"))
    []
    >>> contradictions(load_cluster("dgx-h100").with_columns(gpu_model="l40s"))
    ['NVLinks of 25 GB/s at a l40s, which has none']
    """
    wires = _wires(fabric.gpu_model)
    if not wires:
        return []
    most = max(wires["count"])
    return [*_nvlinks(fabric, wires), *_counts(fabric, most), *_pcie(fabric, wires)]


def _nvlinks(fabric: Fabric, known: dict[str, set[float]]) -> Iterator[str]:
    has = sorted(known["nvlink"])
    for wire in _of_gpus(fabric, "nvlink"):
        if has and has[0] * _LESS <= wire <= has[-1] * _MORE:
            continue
        own = f"whose have {_rates(has)}" if has else "which has none"
        yield f"NVLinks of {_rates([wire])} at a {fabric.gpu_model}, {own}"


def _counts(fabric: Fabric, most: float) -> Iterator[str]:
    """More NVLinks at one GPU than such GPUs have."""
    count = _most_nvlinks(fabric)
    if count > most > 0:
        yield f"{count:g} NVLinks at a {fabric.gpu_model}, which has {most:g}"


def _most_nvlinks(fabric: Fabric) -> float:
    """Physical NVLinks of the GPU that has most of them."""
    rows, gpus = fabric.links.of_kind("nvlink"), fabric.positions(fabric.gpus)
    size = len(fabric.nodes)
    of_node = np.bincount(fabric.ends[0][rows], fabric.links.count[rows], size)
    return float(of_node[gpus].max())


def _pcie(fabric: Fabric, known: dict[str, set[float]]) -> Iterator[str]:
    most = max(known["pcie"], default=np.inf)
    for wire in _of_gpus(fabric, "pcie"):
        if wire > most * _MORE:
            own = f"which takes {_rates([most])} at most"
            yield f"PCIe of {_rates([wire])} at a {fabric.gpu_model}, {own}"


def _of_gpus(fabric: Fabric, kind: str) -> list[float]:
    """Wire rates of one physical link of a kind, of all that leave a GPU, but of those that are a what-if."""
    links, gpus = fabric.links, np.array(fabric.nodes.kinds) == "gpu"
    of_kind = (links.kind == kind) & (links.source != EDITED)
    rows = np.flatnonzero(of_kind & gpus[fabric.ends[0]])
    each = links.raw[rows] / links.count[rows]
    return sorted({float(f"{wire:.4g}") for wire in each.tolist()})


def _rates(wires: list[float]) -> str:
    return " or ".join(f"{wire / 1e9:g} GB/s" for wire in wires)


@lru_cache(maxsize=64)
def _wires(gpu: str) -> dict[str, set[float]]:
    """What bundled clusters with a GPU say of its links: wire rates of NVLinks and PCIe, and how many NVLinks."""
    known: dict[str, set[float]] = {}
    for name in cluster_names():
        if str(merged(locate(name)).get("gpu", "")) == gpu:
            fabric = _one_host(named(name))
            for kind in ("nvlink", "pcie"):
                known.setdefault(kind, set()).update(_of_gpus(fabric, kind))
            known.setdefault("count", set()).add(_most_nvlinks(fabric))
    return known


def _one_host(model: HostModel) -> Fabric:
    """The cluster with a single host, where its family can be scaled: its GPUs have the same links."""
    params = model.params
    if "hosts" in {entry.name for entry in dataclasses.fields(params)}:
        with contextlib.suppress(InputError):  # a family of at least two
            params = dataclasses.replace(params, hosts=1)
    return compile_graph(model.family.build(params))
