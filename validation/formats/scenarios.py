"""What the harness ran, as a scenario: the same configuration in prestep's words, and nothing fitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prestep.sim.errors import InputError
from prestep.sim.spec.load import parse_scenario
from prestep.sim.spec.sections import Scenario
from prestep.topologies import cluster_names
from prestep.validation.formats import harness
from prestep.validation.formats.rows import Row

_PLAIN = {
    "gated": True,
    "activation": "silu",
    "norm": "rms",
    "positions": "rope",
    "bias": False,
    "tied_embeddings": False,
}
SIZE_KEYS = ("hidden", "layers", "heads", "kv_heads", "ffn", "vocab")
# The harness always says bucket_cap_mb, so DDP's first bucket has that size too (see Parallel.bucket_caps).
BUCKET_MB = 25
# SM clock at which the harness's spin of `slow.cycles` runs, 1/s: measured (README.md of the measurements).
SPIN_CLOCK = 1.98e9


def scenario_of(row: Row) -> Scenario:
    """The scenario of a row.

    Raises
    ------
    InputError
        If the row ran something that a scenario cannot say; it is never predicted as something else.
    """
    InputError.check(harness.beyond_scenarios(row))
    tables = sections_of(row)
    return parse_scenario({"cluster": cluster_of(row)} | tables, row.where)


def sections_of(row: Row) -> dict[str, Any]:
    """All but [cluster]; those that say nothing are left out."""
    tables: dict[str, Any] = {
        "model": _model(row.case),
        "training": _training(row.case),
        "pytorch": _pytorch(row.case),
        "parallel": _parallel(row.case, row.world),
        "nccl": dict(_setting(*one) for one in row.env.items()),
        "faults": _faults(row.case),
    }
    return {name: table for name, table in tables.items() if table}


def cluster_of(row: Row) -> dict[str, Any]:
    """[cluster]: what the row names, or the measured host."""
    parallel = _parallel(row.case, row.world)
    gpus = int(parallel.get("dp", 1) * parallel.get("tp", 1) * parallel.get("pp", 1))
    if "file" in row.cluster or "name" in row.cluster:
        return {"gpus": gpus} | dict(row.cluster)
    size, host = _measured_host(row)
    cluster: dict[str, Any] = {"name": host}
    if gpus != size:
        cluster["gpus"] = gpus
    return cluster | dict(row.cluster)


def _measured_host(row: Row) -> tuple[int, str]:
    """GPUs and name of the smallest measured host that has as many GPUs as the row."""
    prefix = "h200-host-"
    hosts = {
        int(name.removeprefix(prefix)): name
        for name in cluster_names()
        if name.startswith(prefix)
    }
    hosts.setdefault(8, "dgx-h200")
    large_enough = [size for size in sorted(hosts) if size >= row.world]
    if not large_enough:
        expected = f"at most {max(hosts)} GPUs of one host"
        raise InputError.of(row.where, "world", str(row.world), expected)
    return large_enough[0], hosts[large_enough[0]]


def _model(case: Mapping[str, Any]) -> dict[str, Any]:
    """[model], by the harness's name."""
    model = str(case["model"])
    if model.startswith("seedmlp_"):
        size = int(model.removeprefix("seedmlp_"))
        return {"kind": "mlp", "sizes": [size, size, size, 1]}
    # The harness builds pipeline stages without experts, whatever the model.
    is_moe, pipeline = model.startswith("moe"), harness.is_pipeline(case)
    if model in harness.MODELS:
        dense = {"experts": 0} if is_moe and pipeline else {}
        return {"name": harness.MODELS[model], **dense}
    experts = {"experts": 8, "experts_per_token": 2} if is_moe and not pipeline else {}
    sizes = dict(zip(SIZE_KEYS, harness.SIZES[model], strict=True))
    return {"kind": "transformer", **_PLAIN, **sizes, **experts}


def _training(case: Mapping[str, Any]) -> dict[str, Any]:
    """[training]: what the harness was told, and its defaults."""
    # Stages are neither compiled nor asked how to clear gradients; only blocks are checkpointed.
    pipeline = harness.is_pipeline(case)
    has_blocks = not str(case["model"]).startswith(("resnet", "seedmlp"))
    compiled = case.get("compile") and not pipeline
    training: dict[str, Any] = {
        "seq_len": case.get("seq", 2048),
        "micro_batch": case["mbs"],
        "precision": "bf16",
        "optimizer": "adamw",
        "framework": "pytorch-compiled" if compiled else "pytorch-eager",
        "recompute": "full" if case.get("ac") and has_blocks else "none",
        "set_to_none": pipeline or case.get("set_to_none", True),
        "warmup": case.get("warmup", 4),  # harness/train.py
    }
    if pipeline:
        return training | {"microbatches": case["microbatches"]}
    return training | {"grad_accumulation": case.get("ga", 1)}


def _pytorch(case: Mapping[str, Any]) -> dict[str, Any]:
    """[pytorch]: the harness compiles a block and checkpoints around it, and exchanges tokens in the world's group."""
    both = case.get("ac") and case.get("compile") and not harness.is_pipeline(case)
    around = {"checkpoint_compiled": "around"} if both else {}
    beside = case.get("mode") == "ddp" and case.get("ep", 1) > 1
    return around | ({"expert_group": "ddp"} if beside else {})


def _parallel(case: Mapping[str, Any], world: int) -> dict[str, Any]:
    """[parallel], by the case's mode."""
    if harness.is_pipeline(case):
        return _stages(case, world)
    mode, experts = case["mode"], {"ep": case["ep"]} if case.get("ep", 1) > 1 else {}
    if mode == "single":
        # Expert parallelism spans the ranks even where nothing else does.
        return {"dp": world if experts else 1, "data_parallel": "none", **experts}
    if mode == "ddp":
        return {"dp": world, **_ddp(case), **experts}
    if mode == "ddp_nooverlap":
        return {"dp": world, "data_parallel": "ddp-no-overlap", **experts}
    return {**_tensor_and_sharded(case, world), **experts}


def _ddp(case: Mapping[str, Any]) -> dict[str, Any]:
    """DDP with the buckets that the harness asked for."""
    return {
        "data_parallel": "ddp",
        "bucket_cap": f"{case.get('bucket_mb', BUCKET_MB)} MiB",
        "gradient_as_bucket_view": case.get("gabv", True),
    }


def _stages(case: Mapping[str, Any], world: int) -> dict[str, Any]:
    """Pipeline stages, and data parallelism over the ranks that are left."""
    pp = case.get("pp", world)
    return {
        "dp": world // pp,
        "data_parallel": "ddp-no-overlap" if world > pp else "none",
        "pp": pp,
        "vpp": case.get("vpp", 1),
        "schedule": harness.SCHEDULES[case["schedule"]],
        # The harness gives the first stages one layer more where layers do not divide.
        "uneven_stages": True,
    }


def _tensor_and_sharded(case: Mapping[str, Any], world: int) -> dict[str, Any]:
    """Tensor parallelism, FSDP over the ranks that are left, or either alone."""
    usual = {"fsdp": 1, "tp": world}.get(case["mode"], 2)
    tp = case.get("tp", usual)
    grid = {"dp": world // tp, "tp": tp}
    if world <= tp:
        return {**grid, "data_parallel": "none"}
    reshard = case.get("reshard", True)
    # The harness says so of every module that it wraps, the whole model among them.
    frees = {"reshard_after_forward": reshard, "reshard_root": reshard}
    return {**grid, "data_parallel": "fsdp", **frees}


def _setting(variable: str, value: str) -> tuple[str, Any]:
    """A key of [nccl] and its value, by an environment variable."""
    key, kind = harness.NCCL[variable]
    try:
        return key, kind(value)
    except ValueError:
        raise InputError.of(
            "env", variable, repr(value)[:60], "a whole number"
        ) from None


def _faults(case: Mapping[str, Any]) -> dict[str, Any]:
    slow = case.get("slow")
    if not slow:
        return {}
    numbers = isinstance(slow, dict) and all(
        type(slow.get(key)) in (int, float) for key in ("rank", "cycles")
    )
    if not numbers:
        raise InputError.of(
            "case", "slow", repr(slow)[:60], '{"rank": 3, "cycles": 2000000}'
        )
    return {
        "slow_rank": slow["rank"],
        "slow_per_layer": f"{float(slow['cycles']) / SPIN_CLOCK!r} s",
    }
