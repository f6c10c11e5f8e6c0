"""Training cases that are measured where nobody says others, those of a rehearsal, and sizes of the models.

It needs no PyTorch: prestep predicts the same models (`prestep.validation.formats.scenarios`).
"""

from __future__ import annotations

from typing import Any

from prestep.sim import files
from prestep.workloads.operation import words

Case = dict[str, Any]
#: Collectives that are timed alone.
COLLECTIVES = words(
    "all_reduce all_gather reduce_scatter all_to_all broadcast reduce sendrecv"
)
#: What a case may be: data, tensor and pipeline parallelism.
MODES = ("single", "ddp", "ddp_nooverlap", "fsdp", "fsdptp", "tp", "pp", "ppdp")
REHEARSED = ("tiny", "moetiny")
SIZES = {name: tuple(sizes) for name, sizes in files.beside(__file__)["sizes"].items()}
# Bytes of GPU memory from which on 8B and 1B models are run.
LARGE = 100e9
MIDDLE = 35e9
HEAD = {"warmup": 4, "steps": 8}
HOST_BOUND: Case = {"mbs": 1, "seq": 128, "warmup": 6, "steps": 30}
EIGHT_B: Case = {
    "model": "llama8b",
    "seq": 2048,
    "mbs": 1,
    **HEAD,
    "steps": 6,
    "trace": [0],
}
MOE: Case = {
    "id": "moe-single-b2",
    "model": "moe8x",
    "mode": "single",
    "mbs": 2,
    "seq": 2048,
    **HEAD,
    "trace": [0],
}


def usual(world: int, memory: float) -> list[Case]:
    """Cases for this many GPUs of this much memory (bytes): bound by the host, by arithmetic, by communication."""
    # At the end some run again: how fast a host is changes while it is used.
    cases = [
        *_first(world, memory),
        *_split(world, memory),
        *_more(memory),
        *_large(world, memory),
        *_again(world),
    ]
    return cases if memory < MIDDLE else [*cases, MOE]


def _model(memory: float) -> tuple[str, Case]:
    """A short name, and the model that the memory has room for."""
    if memory >= MIDDLE:
        return "1b", {"model": "llama1b", "seq": 2048, **HEAD}
    return "125m", {"model": "llama125m", "seq": 1024, **HEAD}


def _traced(name: str, mode: str, batch: int, model: Case, **more: Any) -> Case:
    """A case of which rank 0 is traced."""
    return {"id": name, "mode": mode, **more, "mbs": batch, "trace": [0], **model}


def _host_bound(name: str, model: str, mode: str) -> Case:
    """A case whose kernels are so small that the host's launches are its time."""
    return {"id": name, "model": model, "mode": mode, **HOST_BOUND}


def _first(n: int, memory: float) -> list[Case]:
    """One GPU, then data parallelism: what every machine runs first."""
    short, model = _model(memory)
    single = [
        _host_bound("h4-single", "h4", "single"),
        _traced(f"{short}-single-b2", "single", 2, model),
    ]
    if n == 1:
        return single
    return [
        *single,
        _traced(f"{short}-ddp{n}-b2", "ddp", 2, model),
        _traced(f"{short}-fsdp{n}-b2", "fsdp", 2, model),
        _host_bound(f"h4-ddp{n}", "h4", "ddp"),
        _host_bound(f"h4-fsdp{n}", "h4", "fsdp"),
    ]


def _split(n: int, memory: float) -> list[Case]:
    """The model itself cut up, where its layers and heads divide by the GPUs."""
    short, model = _model(memory)
    if not (1 < n <= 8 and short == "1b" and 8 % n == 0):
        return []
    count = max(8, n)
    pipe = {"mode": "pp", "mbs": 1, "schedule": "1f1b", "microbatches": count}
    name = f"1b-pp{n}-1f1b-m{count}"
    return [
        _traced(f"1b-tp{n}-b4", "tp", 4, model, tp=n),
        {"id": name, "trace": [0, n - 1], **pipe, **model},
    ]


def _more(memory: float) -> list[Case]:
    """Other sizes on one GPU."""
    short, model = _model(memory)
    return [
        _host_bound("h16-single", "h16", "single"),
        {"id": f"{short}-single-b4", "mode": "single", "mbs": 4, **model},
    ]


def _large(n: int, memory: float) -> list[Case]:
    """The largest model, where there is room for it."""
    if memory < LARGE:
        return []
    single = {"id": "8b-single-b1", "mode": "single", **EIGHT_B}
    sharded = {"id": f"8b-fsdp{n}-b1", "mode": "fsdp", **EIGHT_B}
    return [single, sharded] if n > 1 else [single]


def _again(n: int) -> list[Case]:
    """Cases bound by the host, once more."""
    single = _host_bound("h4-single-again", "h4", "single")
    if n == 1:
        return [single]
    return [
        single,
        _host_bound(f"h4-ddp{n}-again", "h4", "ddp"),
        _host_bound(f"h16-fsdp{n}-again", "h16", "fsdp"),
    ]


def rehearsal(world: int) -> list[Case]:
    """One case of every mode, of tiny models."""
    common = {"model": "tiny", "mbs": 1, "seq": 16, "warmup": 1, "steps": 2}
    cases: list[Case] = [
        {"id": "tiny-single", "mode": "single", **common, "trace": [0]}
    ]
    if world > 1:
        pipe = {**common, "schedule": "1f1b", "microbatches": max(2, world)}
        cases += [
            {"id": "tiny-ddp", "mode": "ddp", **common, "trace": True},
            {"id": "tiny-ddp-no", "mode": "ddp_nooverlap", **common},
            {"id": "tiny-fsdp", "mode": "fsdp", **common},
            {"id": "tiny-tp", "mode": "tp", "tp": 2, **common}
            if world == 2
            else {"id": "tiny-fsdptp", "mode": "fsdptp", "tp": 2, **common},
            {"id": "tiny-pp", "mode": "pp", **pipe},
            {
                "id": "tiny-zb",
                "mode": "pp",
                **pipe,
                "schedule": "zb",
                "vpp": 2 if world == 2 else 1,
            },
            {"id": "moe-ep", "mode": "ddp", "ep": world, **common, "model": "moetiny"},
        ]
    return cases
