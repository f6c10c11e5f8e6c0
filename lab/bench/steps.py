"""Training steps as workloads of `lab.bench.performance`: other simulators' and ours, from 8 to 131,072 GPUs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from lab.bench import networks
from lab.bench.case import NAN, Case, Counted
from lab.bench.collectives import Operation, activity, play, ring
from lab.bench.large import DEEPSEEK, LLAMA
from prestep.sim.engine.engine import Timed, execute
from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import OpGraph, Program
from prestep.sim.predict import execute as executed
from prestep.sim.predict import plan, reported
from prestep.sim.spec.load import parse_scenario

MIB = 2.0**20


def chakra(ranks: int, layers: int = 32) -> Counted:
    """G5: 64 layers' passes of two halves, each followed by an all-reduce of 8 ranks; gradients' beside."""
    fabric = networks.astra_hierarchy(ranks)
    hosts = fabric.positions(fabric.gpus).reshape(-1, 8)
    plans = {
        "tp": activity(fabric, 64 * MIB, ring(hosts)),
        "dp": activity(fabric, 52 * MIB, ring(hosts.T)),
    }
    program: list[Operation] = []
    reduced: tuple[
        int, ...
    ] = ()  # the last tensor-parallel all-reduce, which the next kernel waits for
    for backward, seconds in ((False, 1e-3), (True, 2e-3)):
        for _ in range(layers):
            for _half in range(2):
                program.append(Operation(0, seconds, reduced))
                program.append(Operation(1, "tp", (len(program) - 1,)))
                reduced = (len(program) - 1,)
            if backward:
                program.append(Operation(2, "dp", reduced))
    run = play(fabric, [program], plans)
    return run.finished, {"operations": len(program), "events": run.events}


def step(tables: dict[str, Any], **changes: dict[str, Any]) -> Counted:
    """A predicted step of ours with its report, by the ordinary path."""
    sections = {
        name: {**tables.get(name, {}), **changes.get(name, {})}
        for name in {*tables, *changes}
    }
    planned = plan(parse_scenario(sections, "performance"))
    run, graph = executed(planned), planned.graph
    result = reported(planned, run)
    counts = {
        "programs": len(graph.programs),
        "operations": graph.operations,
        "events": run.events,
        "solves": run.solves,
        "MFU %": 100 * result.mfu,
    }
    return result.step_time, counts


def slow_and_degraded() -> Counted:
    """1,024 GPUs of which one is slow, and one NIC at a third of its speed."""
    return step(
        curve_point(1024),
        cluster={"set": {"nic[host5].bandwidth": "0.3x"}},
        faults={"slow_rank": 300, "slow_factor": 1.3},
    )


def curve_point(gpus: int) -> dict[str, Any]:
    """Llama 3 70B on so many GPUs: TP 8, PP up to 8, the rest data-parallel; 16 samples a replica."""
    pp = min(8, gpus // 8)
    dp = gpus // (8 * pp)
    return {
        "cluster": {"name": "rail-h100", "hosts": gpus // 8},
        "model": {"name": "llama3-70b"},
        "training": {
            "framework": "megatron",
            "seq_len": 8192,
            "micro_batch": 1,
            "global_batch": 16 * dp,
        },
        "parallel": {
            "dp": dp,
            "tp": 8,
            "pp": pp,
            "sequence_parallel": True,
            "data_parallel": "zero1" if dp > 1 else "none",
        },
        "megatron": {"overlap_grad_reduce": True, "overlap_param_gather": True},
    }


def warm_estimate() -> Counted:
    """G7: GPT-3 175B on 64 GPUs (Megatron's table of selective recomputation), simulated again in a warm process."""
    tables = {
        "cluster": {"name": "a100-hdr800", "hosts": 8},
        "model": {"name": "gpt3-175b"},
        "training": {
            "framework": "megatron",
            "seq_len": 2048,
            "micro_batch": 1,
            "global_batch": 64,
            "recompute": "selective",
        },
        "parallel": {
            "tp": 8,
            "pp": 8,
            "vpp": 3,
            "schedule": "interleaved",
            "sequence_parallel": True,
        },
    }
    step(tables)
    start = time.perf_counter()
    step_time, counts = step(tables)
    return step_time, counts | {"warm ms": 1e3 * (time.perf_counter() - start)}


def streams(ranks: int, kernels: int) -> Counted:
    """Streams with so many kernels each and nothing between them: what the engine itself costs."""
    kinds = 8
    graph = OpGraph(
        tuple(_stream(rank, kernels, kinds) for rank in range(ranks)),
        tuple(Kernel("copy", (kind + 1,)) for kind in range(kinds)),
        comms=(),
        streams=("compute",),
        phases=("forward",),
        represents={rank: (rank,) for rank in range(ranks)},
    )
    timed = Timed(
        graph=graph,
        durations=np.linspace(1e-5, 2e-5, kinds),
        plans=(),
        bandwidth=np.ones(1),
        kernel_gap=1e-6,
        launch_latency=2e-6,
    )
    start = time.process_time()
    run = execute(timed, 1)
    spent = time.process_time() - start
    return run.finished, {
        "operations": graph.operations,
        "events": run.events,
        "operations/s": graph.operations / spent,
        "events/s": run.events / spent,
    }


def _stream(rank: int, kernels: int, kinds: int) -> Program:
    """So many kernels in a row, launched every microsecond."""
    zeros = np.zeros(kernels, dtype=np.int64)
    return Program(
        rank,
        kind=zeros,
        stream=zeros,
        payload=np.arange(kernels) % kinds,
        host=np.full(kernels, 1e-6),
        deps=((),) * kernels,
        phase=zeros,
        layer=zeros,
        microbatch=zeros,
        parts=(),
        names=("",) * kernels,
    )


CURVE = (8, 64, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072)


def curve_case(gpus: int) -> Callable[[], Counted]:
    return lambda: step(curve_point(gpus))


CASES = {
    "G5-512": Case(
        "training step, 512 ranks",
        lambda: chakra(512),
        "ASTRA-sim 26.8 s, 215 MB",
        220.891734e-3,
        2.0,
        300,
    ),
    "G5-4096": Case(
        "training step, 4,096 ranks",
        lambda: chakra(4096),
        "ASTRA-sim > 300 s, 2,155 MB, stopped",
        NAN,
        5.0,
        500,
    ),
    "G6": Case(
        "Llama 3 405B, 16,384 H100",
        lambda: step(LLAMA),
        "(none can)",
        NAN,
        5.0,
        1000,
    ),
    "G6-slow": Case(
        "the same, one slow GPU",
        lambda: step(LLAMA, faults={"slow_rank": 3000, "slow_factor": 1.3}),
        "(none can)",
        NAN,
        120.0,
        6000,
    ),
    "G7": Case(
        "GPT-3 175B, 64 A100, warm",
        warm_estimate,
        "Calculon 1.9 ms, warm",
        13.75,
        60.0,
        1000,
    ),
    "deepseek": Case(
        "DeepSeek-V3, 2,048 H800",
        lambda: step(DEEPSEEK),
        "(none)",
        NAN,
        10.0,
        1000,
    ),
    "slow-1024": Case(
        "1,024 GPUs, one slow, one NIC degraded",
        slow_and_degraded,
        "(none)",
        NAN,
        60.0,
        1000,
    ),
    "G10c": Case(
        "16,384 streams",
        lambda: streams(16_384, 8),
        "(goal: 300 k events/s)",
        NAN,
        10.0,
        2000,
    ),
    "engine": Case(
        "1,000 streams",
        lambda: streams(1000, 200),
        "(goal: 100 k operations/s)",
        NAN,
        10.0,
        500,
    ),
}
# Llama 3 70B, a step with its report: cost grows with distinct work, not with GPUs.
CASES |= {
    f"curve-{n}": Case(
        f"{n:,} GPUs",
        curve_case(n),
        "",
        NAN,
        20.0 if n <= 100_000 else 30.0,
        2000,
    )
    for n in CURVE
}
