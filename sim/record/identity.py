"""What makes two scenarios the same run: the keys that the step depends on, however the files said them.

Names of models, defaults that are written out, batches said in another way, GPUs of the cluster that no rank uses, and
what a run is called do not count.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from prestep.sim.collectives.settings import Nccl
from prestep.sim.spec.sections import Placement, Scenario
from prestep.topologies import cluster_names, load_cluster
from prestep.workloads.frameworks import framework_of
from prestep.workloads.job.layout import (
    axis_order,
    grad_accumulation_of,
    microbatches_of,
)
from prestep.workloads.job.megatron import Megatron
from prestep.workloads.job.parallel import Parallel
from prestep.workloads.models.counts import total_parameters
from prestep.workloads.models.model import ModelSpec, load_model

DIGITS = 16
_AXES = ("dp", "tp", "pp", "cp", "ep")
# Sections of which a framework reads all, some or nothing.
TRAINERS = ("megatron", "pytorch")


def key_of(scenario: Scenario) -> str:
    """A hash that two scenarios share if they are the same run on the same cluster; jobs and serving have none: ""."""
    if scenario.jobs:
        return ""
    text = json.dumps(canonical(scenario), sort_keys=True, default=str)
    return _hash(text.encode())


def _hash(data: bytes) -> str:
    import hashlib  # slow to import, and every run asks for its kind alone

    return hashlib.sha256(data).hexdigest()[:DIGITS]


def canonical(scenario: Scenario) -> dict[str, Any]:
    """What the step depends on, by section."""
    facts = {
        "cluster": _cluster(scenario),
        "model": _model(load_model(scenario.model, scenario.where)),
        "training": _training(scenario),
        "parallel": _parallel(scenario),
        **_trainer(scenario),
        "nccl": _unlike(scenario.nccl, Nccl()),
        "placement": _unlike(scenario.placement, Placement()),
    }
    further = {"adapter": scenario.adapter, "faults": scenario.faults}
    for name, section in (further | dict(scenario.extensions)).items():
        facts[name] = _unlike(section, type(section)())
    return {name: table for name, table in facts.items() if table}


def _trainer(scenario: Scenario) -> dict[str, Any]:
    """Switches that the framework reads and others may not."""
    framework = framework_of(scenario)
    switches = {}
    for section in TRAINERS:
        part = getattr(scenario, section)
        read, stated = framework.reads(type(part)), _unlike(part, type(part)())
        switches[section] = {name: v for name, v in stated.items() if name in read}
    return switches


def _unlike(section: Any, plain: Any) -> dict[str, Any]:
    """Keys that are not the default."""
    names = [field.name for field in fields(section)]
    return {
        name: getattr(section, name)
        for name in names
        if getattr(section, name) != getattr(plain, name)
    }


def _cluster(scenario: Scenario) -> dict[str, Any]:
    """The cluster's name, or what its file says; changes of its links; where ranks are told apart, how many hosts."""
    c = scenario.cluster
    facts: dict[str, Any] = {"name": c.name} if c.name else {"file": _digest(c.file)}
    if c.set:
        facts["set"] = sorted(c.set.items())
    changes = {
        "hosts": c.hosts,
        "host_factor": c.host_factor,
        "kernel_gap": c.kernel_gap,
    }
    facts |= {key: value for key, value in changes.items() if value is not None}
    if c.routing != "adaptive":
        facts |= {
            "routing": c.routing,
            "seed": c.routing_seed,
            "flows": c.routing_flows,
        }
    return facts | ({"hostfile": _digest(c.hostfile)} if c.hostfile else {})


def _digest(file: str | None) -> str:
    try:
        return _hash(Path(file or "").read_bytes())
    except OSError:
        return str(file)


def _model(spec: ModelSpec) -> dict[str, Any]:
    """Its shape without its name; positions that are not learned have no rows."""
    shape = {
        name: value for name, value in asdict(spec).items() if value and name != "name"
    }
    if spec.positions != "learned":
        shape.pop("max_positions", None)
    return shape


def _training(scenario: Scenario) -> dict[str, Any]:
    t = scenario.training
    keys = (
        "seq_len",
        "micro_batch",
        "precision",
        "recompute",
        "optimizer",
        "framework",
        "set_to_none",
    )
    counts = {
        "microbatches": microbatches_of(scenario),
        "runs": grad_accumulation_of(scenario),
    }
    packed = {} if t.packed is None else {"packed": t.packed}
    return {key: getattr(t, key) for key in keys} | counts | packed


def _parallel(scenario: Scenario) -> dict[str, Any]:
    """The axes, and the switches of those that are there."""
    p = scenario.parallel
    sizes = {axis: getattr(p, axis) for axis in _AXES}
    switches: dict[str, Any] = {axis: n for axis, n in sizes.items() if n > 1}
    framework = framework_of(scenario)
    layers = bool(framework.reads(Megatron))
    switches |= _replicas(p, framework.reads(Parallel), layers)
    if p.tp > 1:
        switches["sequence_parallel"] = p.sequence_parallel
    if p.pp > 1:
        switches |= {"schedule": p.schedule, "vpp": p.vpp}
    if p.ep > 1 or layers:
        switches |= _experts(p)
    order = [axis for axis in axis_order(scenario) if axis in switches]
    return switches | ({"order": order} if len(order) > 1 else {})


def _replicas(p: Parallel, keys: Collection[str], layers: bool) -> dict[str, Any]:
    """How replicas are kept equal.

    `keys` of [parallel] are those that the framework reads and others may not; one rank of Megatron's `layers` has a
    way of data parallelism too.
    """
    ranks, switches = p.dp * p.cp, dict[str, Any]()
    if ranks > 1 or (layers and p.data_parallel != "none"):
        switches["data_parallel"] = p.data_parallel
    if ranks > 1 and p.data_parallel == "ddp" and "bucket_cap" in keys:
        switches |= {"caps": p.bucket_caps, "view": p.gradient_as_bucket_view}
    if p.data_parallel in ("fsdp", "zero3"):
        shards = p.fsdp_shards or ranks
        switches |= {"shards": shards, "reshard": p.reshards}
        usual = Parallel()
        outside = {"root_groups": p.root_groups, "reshard_root": p.reshard_root}
        switches |= {k: v for k, v in outside.items() if v != getattr(usual, k)}
    return switches


def _experts(p: Parallel) -> dict[str, Any]:
    """The switches of expert parallelism; without it only those that differ from a dense layer's."""
    experts = {"etp": p.etp or p.tp, "imbalance": p.imbalance}
    dense = {"etp": p.tp, "imbalance": "uniform"} if p.ep == 1 else {}
    return {key: value for key, value in experts.items() if value != dense.get(key)}


@dataclass(frozen=True)
class Kind:
    """What tells how near two runs are: hardware, framework, model and layout; sizes as powers of two."""

    gpu: str
    framework: str
    model: str
    mode: str
    precision: str
    recompute: str
    gpus: float
    parameters: float
    seq_len: float
    tokens: float


def kind_of(scenario: Scenario, gpu: str | None = None) -> Kind:
    """The kind of a run; `gpu`: its GPU, where the cluster was loaded before."""
    p, t = scenario.parallel, scenario.training
    spec = load_model(scenario.model, scenario.where)
    sharding = p.data_parallel or "none"
    axes = [sharding] * (p.dp * p.cp > 1) + [
        axis for axis in _AXES[1:] if getattr(p, axis) > 1
    ]
    tokens = (
        t.micro_batch * microbatches_of(scenario) * t.seq_len / (p.tp * p.pp * p.cp)
    )
    sizes = (p.dp * p.tp * p.pp * p.cp, _parameters(spec), t.seq_len, tokens)
    what = "experts" if spec.experts else spec.kind
    return Kind(
        gpu or gpu_of(scenario),
        t.framework,
        what,
        "+".join(axes) or "alone",
        t.precision,
        t.recompute,
        *(round(math.log2(max(1.0, size)), 2) for size in sizes),
    )


def _parameters(spec: ModelSpec) -> float:
    if spec.kind == "transformer":
        return float(total_parameters(spec))
    if spec.kind == "mlp":
        return float(
            sum(a * b for a, b in zip(spec.sizes, spec.sizes[1:], strict=False))
        )
    return 25.6e6  # of ResNet-50


def gpu_of(scenario: Scenario) -> str:
    """The kind of GPU of a scenario's cluster."""
    cluster = scenario.cluster.name or scenario.cluster.file or ""
    bundled = cluster in cluster_names()  # other files may have changed
    return _gpu_of_bundled(cluster) if bundled else load_cluster(cluster).gpu_model


@lru_cache
def _gpu_of_bundled(cluster: str) -> str:
    return load_cluster(cluster).gpu_model
