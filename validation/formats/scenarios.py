"""What the harness ran, as a scenario: the same configuration in prestep's words, and nothing fitted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sim.errors import InputError, Mistake, unknown
from sim.spec.load import parse_scenario
from sim.spec.sections import Scenario
from topologies import cluster_names
from validation.formats.rows import ALONE, BOOKKEEPING, JOB_LABEL, Row, hosts_of

MODELS = {
    "llama125m": "llama3-125m-plain",
    "llama1b": "llama3-1b-plain",
    "llama8b": "llama3-8b-plain",
    "moe8x": "moe8x-plain",
    "resnet50": "resnet50",
}
# Hidden size, layers, heads, key and value heads, feed-forward size, vocabulary: models of the harness that have no
# name in prestep.
SIZES = {
    "llama2b": (2560, 20, 20, 4, 6912, 64000),
    "llama3b": (3072, 28, 24, 8, 8192, 128256),
    "h4": (256, 4, 8, 4, 512, 1024),
    "h16": (256, 16, 8, 4, 512, 1024),
    "moe4l": (1024, 4, 16, 16, 2048, 32000),
    "llama500m": (1536, 16, 12, 4, 4096, 50304),
    "llama13b": (5120, 40, 40, 40, 13824, 32000),
    "moe12l": (1536, 12, 12, 12, 3072, 32000),
    "qwen1b5": (1536, 28, 12, 2, 8960, 151936),
    "llama7b": (4096, 32, 32, 32, 11008, 32000),
    "narrow1b": (1280, 40, 20, 20, 3456, 50304),
    "wide6b": (6144, 12, 48, 8, 16384, 64000),
    "moe6w": (2048, 6, 16, 4, 5632, 64000),
}
_PLAIN = {
    "gated": True,
    "activation": "silu",
    "norm": "rms",
    "positions": "rope",
    "bias": False,
    "tied_embeddings": False,
}
SCHEDULES = {
    "gpipe": "gpipe",
    "1f1b": "1f1b",
    "interleaved": "interleaved",
    "zb": "zero-bubble",
}
MODES = ("single", "ddp", "ddp_nooverlap", "fsdp", "fsdptp", "tp", "pp", "ppdp")
# The harness always says bucket_cap_mb, so DDP's first bucket has that size too (see Parallel.bucket_caps).
BUCKET_MB = 25
# SM clock at which the harness's spin of `slow.cycles` runs, 1/s: measured (README.md of the measurements).
SPIN_CLOCK = 1.98e9
# Static graphs change DDP's first step only; `gpus` is read by nothing.
KEYS = BOOKKEEPING | {
    "model",
    "mode",
    "mbs",
    "seq",
    "ga",
    "bucket_mb",
    "reshard",
    "ac",
    "ep",
    "microbatches",
    "vpp",
    "tp",
    "pp",
    "schedule",
    "compile",
    "set_to_none",
    "gabv",
    "static",
    "slow",
    "gpus",
}
UNLESS_SAID = ("sp", "ckpt", "slow")  # nothing at all when false
_NCCL = {
    "NCCL_MAX_NCHANNELS": ("max_channels", int),
    "NCCL_MIN_NCHANNELS": ("min_channels", int),
    "NCCL_ALGO": ("algo", str),
    "NCCL_PROTO": ("proto", str),
}
_LABEL_OF_CHANNELS = re.compile(r"ch(\d+)")
# The emulated leaf-spine: hosts x GPUs, Gbit/s of the ports, between the leaves, and of one host's port if it differs.
_RATE = r"(\d+(?:\.\d+)?)"
_LEAF_SPINE = re.compile(
    rf"(?:(\d+)x(\d+)-)?nic{_RATE}-spine{_RATE}((?:-n\d+nic{_RATE[1:-1]})*)"
)
_SLOW_PORT = re.compile(rf"-n(\d+)nic{_RATE}")
_LOOKS_SO = re.compile(r"nic\d.*spine\d|spine\d.*nic\d")
_SHAPES = {
    1: ("h200-leafspine-4x1", 4),
    2: ("h200-leafspine-2x2", 2),
}  # by GPUs of a host: cluster, and its hosts
GOODPUT = 0.124  # GB/s of TCP payload per Gbit/s of a port: leafspine_tcp.txt of the measurements


def scenario_of(row: Row) -> Scenario:
    """The scenario of a row.

    Raises
    ------
    InputError
        If the row ran something that a scenario cannot say; it is never predicted as something else.
    """
    mistakes = [
        mistake
        for job in (row, *row.beside)
        for mistake in _cannot_say(job, partner=job is not row)
    ]
    if mistakes:
        raise InputError(mistakes)
    tables = _sections(row)
    cluster = _cluster(row, _gpus(tables["parallel"]))
    if row.beside:
        jobs = [
            _sections(job) | {"name": f"{job.name}, line {job.where}"}
            for job in (row, *row.beside)
        ]
        return parse_scenario({"cluster": cluster, "jobs": jobs}, row.where)
    return parse_scenario({"cluster": cluster} | tables, row.where)


def _sections(row: Row) -> dict[str, Any]:
    """All but [cluster]; those that say nothing are left out."""
    tables: dict[str, Any] = {
        "model": _model(row.case),
        "training": _training(row.case),
        "parallel": _parallel(row.case, row.world),
        "nccl": _nccl(row),
        "faults": _faults(row.case),
        "placement": _placement(row),
    }
    return {name: table for name, table in tables.items() if table}


def _gpus(parallel: Mapping[str, Any]) -> int:
    return int(parallel.get("dp", 1) * parallel.get("tp", 1) * parallel.get("pp", 1))


def _placement(row: Row) -> dict[str, Any]:
    """The hosts of a job that had not all of them."""
    job = JOB_LABEL.fullmatch(row.label)
    return (
        {"hosts": [f"host{number}" for number in hosts_of(job["hosts"])]} if job else {}
    )


def _cannot_say(row: Row, partner: bool = False) -> list[Mistake]:
    return [
        *_wrong_case(row),
        *_wrong_pipeline(row),
        *(
            unknown(row.where, f"env.{key}", key, _NCCL)
            for key in row.env
            if key not in _NCCL
        ),
        *_wrong_label(row, partner),
    ]


def _wrong_case(row: Row) -> Iterator[Mistake]:
    case, where = row.case, row.where
    for key, value in case.items():
        if key not in KEYS and (value or key not in UNLESS_SAID):
            yield unknown(where, f"case.{key}", key, KEYS)
    if case.get("mode") not in MODES:
        yield unknown(where, "case.mode", str(case.get("mode")), MODES)
    model = str(case.get("model"))
    if model not in MODELS | SIZES and not re.fullmatch(r"seedmlp_[1-9]\d*", model):
        known = [*MODELS, *SIZES, "seedmlp_<size>"]
        yield unknown(where, "case.model", model, known)
    if not isinstance(case.get("mbs"), int):
        expected = "samples per rank and microbatch"
        yield Mistake(where, "case.mbs", repr(case.get("mbs")), expected)
    if case.get("slow") and case.get("mode") == "single":
        apart = "ranks of single run apart"
        yield Mistake(where, "case.slow", "a slow rank", "nothing", apart)


def _wrong_pipeline(row: Row) -> Iterator[Mistake]:
    case, where = row.case, row.where
    if not _is_pipeline(case):
        return
    schedule, microbatches = case.get("schedule"), case.get("microbatches")
    if schedule not in SCHEDULES:
        yield unknown(where, "case.schedule", str(schedule), SCHEDULES)
    if not isinstance(microbatches, int):
        yield Mistake(where, "case.microbatches", repr(microbatches), "a number")


def _wrong_label(row: Row, partner: bool) -> Iterator[Mistake]:
    """A label of an emulated cluster that is none, or of a job whose partners are missing."""
    emulated = _emulated(row)
    strange = (
        int(emulated[2] or 1) not in _SHAPES
        if emulated
        else bool(_LOOKS_SO.search(row.label))
    )
    if strange:
        expected = (
            "such as 4x1-nic16-spine8, 2x2-nic16-spine16 or 4x1-nic16-spine16-n3nic4"
        )
        yield Mistake(row.where, "label", row.label, expected)
    job = JOB_LABEL.fullmatch(row.label)
    if job and job["how"] != ALONE and not row.beside and not partner:
        expected = "rows of the jobs on the other hosts too, in the same file"
        hint = f'or "{ALONE}-..." if there was no other'
        yield Mistake(row.where, "label", row.label, expected, hint)


def _is_pipeline(case: Mapping[str, Any]) -> bool:
    return case.get("mode") in ("pp", "ppdp")


def _cluster(row: Row, gpus: int) -> dict[str, Any]:
    """The measured host of as many GPUs, else the smallest that has them."""
    if emulated := _emulated(row):
        return _leaf_spine(emulated, gpus, row.world) | dict(row.cluster)
    if "file" in row.cluster or "name" in row.cluster:  # the row says where it ran
        return {"gpus": gpus} | dict(row.cluster)
    names = {
        int(name.rsplit("-", 1)[1]): name
        for name in cluster_names()
        if name.startswith("h200-host-")
    }
    names.setdefault(8, "dgx-h200")
    fitting = [size for size in sorted(names) if size >= row.world]
    if not fitting:
        raise InputError(
            Mistake(
                row.where,
                "world",
                str(row.world),
                f"at most {max(names)} GPUs of one host",
            )
        )
    cluster: dict[str, Any] = {"name": names[fitting[0]]}
    return (cluster if gpus == fitting[0] else cluster | {"gpus": gpus}) | dict(
        row.cluster
    )


def _leaf_spine(emulated: re.Match[str], gpus: int, world: int) -> dict[str, Any]:
    """The emulated cluster, with the rates of its ports and between its leaves."""
    hosts, per_host, port, spine, slow = emulated.groups()
    name, usual = _SHAPES[int(per_host or 1)]
    rates = {"nic.bandwidth": port, "spine.bandwidth": spine}
    # The filter of a port slows both of its directions, and only the network's side: not the NIC's slot in the host.
    rates |= {
        f"nic[host{host}].bandwidth": rate for host, rate in _SLOW_PORT.findall(slow)
    }
    count = int(hosts or usual)
    return {
        "name": name,
        "set": {
            key: f"{float(rate) * GOODPUT:.4g} GB/s" for key, rate in rates.items()
        },
        **({"hosts": count} if count != usual else {}),
        **(
            {"gpus": gpus}
            if gpus < count * int(per_host or 1) and gpus == world
            else {}
        ),
    }


def _emulated(row: Row) -> re.Match[str] | None:
    """The label of an emulated cluster, taken apart."""
    job = JOB_LABEL.fullmatch(row.label)
    return _LEAF_SPINE.fullmatch(job["cluster"] if job else row.label)


def _model(case: Mapping[str, Any]) -> dict[str, Any]:
    model = str(case["model"])
    # The harness builds pipeline stages without experts, whatever the model.
    is_moe, pipeline = model.startswith("moe"), _is_pipeline(case)
    if model in MODELS:
        return {
            "name": MODELS[model],
            **({"experts": 0} if is_moe and pipeline else {}),
        }
    if model in SIZES:
        sizes = dict(
            zip(
                ("hidden", "layers", "heads", "kv_heads", "ffn", "vocab"),
                SIZES[model],
                strict=True,
            )
        )
        experts = (
            {"experts": 8, "experts_per_token": 2} if is_moe and not pipeline else {}
        )
        return {"kind": "transformer", **_PLAIN, **sizes, **experts}
    size = int(model.removeprefix("seedmlp_"))
    return {"kind": "mlp", "sizes": [size, size, size, 1]}


def _training(case: Mapping[str, Any]) -> dict[str, Any]:
    pipeline, plain = (
        _is_pipeline(case),
        str(case["model"]).startswith(("resnet", "seedmlp")),
    )
    training: dict[str, Any] = {
        "seq_len": case.get("seq", 2048),
        "micro_batch": case["mbs"],
        "precision": "bf16",
        "optimizer": "adamw",
        # Stages are neither compiled nor asked how to clear gradients; only blocks are checkpointed.
        "framework": "pytorch-compiled"
        if case.get("compile") and not pipeline
        else "pytorch-eager",
        "recompute": "full" if case.get("ac") and not plain else "none",
        "set_to_none": pipeline or case.get("set_to_none", True),
        "warmup": case.get("warmup", 4),  # harness/train.py
    }
    if pipeline:
        return training | {"microbatches": case["microbatches"]}
    return training | {"grad_accumulation": case.get("ga", 1)}


def _parallel(case: Mapping[str, Any], world: int) -> dict[str, Any]:
    mode, experts = case["mode"], {"ep": case["ep"]} if case.get("ep", 1) > 1 else {}
    if mode == "single":
        # Expert parallelism spans the ranks even where nothing else does.
        return {"dp": world if experts else 1, "data_parallel": "none", **experts}
    if mode == "ddp":
        cap, view = case.get("bucket_mb", BUCKET_MB), case.get("gabv", True)
        return {
            "dp": world,
            "data_parallel": "ddp",
            "bucket_cap": f"{cap} MiB",
            "gradient_as_bucket_view": view,
            **experts,
        }
    if mode == "ddp_nooverlap":
        return {"dp": world, "data_parallel": "ddp-no-overlap", **experts}
    if mode in ("pp", "ppdp"):
        pp = case.get("pp", world)
        # The harness gives the first stages one layer more where layers do not divide.
        schedule = {
            "pp": pp,
            "vpp": case.get("vpp", 1),
            "schedule": SCHEDULES[case["schedule"]],
            "uneven_stages": True,
        }
        return {
            "dp": world // pp,
            "data_parallel": "ddp-no-overlap" if world > pp else "none",
            **schedule,
        }
    tp = case.get("tp", {"fsdp": 1, "tp": world}.get(mode, 2))
    sharded = {
        "data_parallel": "fsdp",
        "reshard_after_forward": case.get("reshard", True),
    }
    return {
        "dp": world // tp,
        "tp": tp,
        **(sharded if world > tp else {"data_parallel": "none"}),
        **experts,
    }


def _nccl(row: Row) -> dict[str, Any]:
    settings = {_NCCL[key][0]: _NCCL[key][1](value) for key, value in row.env.items()}
    label = _LABEL_OF_CHANNELS.fullmatch(row.label)
    return {"max_channels": int(label[1]), **settings} if label else settings


def _faults(case: Mapping[str, Any]) -> dict[str, Any]:
    slow = case.get("slow")
    if not slow:
        return {}
    numbers = isinstance(slow, dict) and all(
        type(slow.get(key)) in (int, float) for key in ("rank", "cycles")
    )
    if not numbers:
        raise InputError(
            Mistake("case", "slow", repr(slow)[:60], '{"rank": 3, "cycles": 2000000}')
        )
    return {
        "slow_rank": slow["rank"],
        "slow_per_layer": f"{float(slow['cycles']) / SPIN_CLOCK!r} s",
    }
