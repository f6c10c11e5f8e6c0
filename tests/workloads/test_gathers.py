"""Laws of gathered parameters: nothing reads one before it is there, in any step, framework and way of sharding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from prestep.sim.errors import InputError
from prestep.sim.graph.opgraph import COMM, KERNEL, Chain, OpGraph, Program
from prestep.sim.spec.load import Scenario, parse_scenario
from prestep.sim.tools import catalog
from tests.executed import Executed, executed, step_time

HIDDEN, FFN, VOCAB, LAYERS, RANKS = 1024, 4096, 1000, 4, 4
MODEL = {
    "kind": "transformer",
    "hidden": HIDDEN,
    "layers": LAYERS,
    "heads": 16,
    "ffn": FFN,
    "vocab": VOCAB,
}
#: Parameters of a layer's matrices by arithmetic: queries, keys, values and output; gate, up and down.
MATRICES = 4 * HIDDEN**2 + 3 * HIDDEN * FFN
EMBEDDING = VOCAB * HIDDEN
WIDE = 2  # bytes of a parameter that is gathered
#: Bytes a second that one GPU takes from NVLink (NVIDIA H200 datasheet: 900 GB/s both ways).
NVLINK = 450e9
SLOW = 0.1
#: All that shard; recorded programs and others gather as their own code says.
FRAMEWORKS = tuple(name for name in catalog.names("frameworks") if name != "captured")
MODES = ("zero1", "zero2", "zero3", "fsdp")
OVERLAP = {"overlap_grad_reduce": True, "overlap_param_gather": True}
OVERLAPS: list[dict[str, Any]] = [
    {},
    {"overlap_grad_reduce": True},
    OVERLAP,
    OVERLAP | {"param_gather_from_start": True},
    OVERLAP | {"bucket_size": 3_000_000},
]


def scenario(
    framework: str,
    mode: str,
    megatron: dict[str, Any] | None = None,
    dp: int = RANKS,
    nvlink: float = SLOW,
    host: float = 1.0,
    apart: bool = False,
) -> Scenario:
    """A step of a small model on a host whose links are slow; ``apart``: one GPU differs by next to nothing."""
    links = {"nvlink.bandwidth": f"{nvlink}x"} if nvlink != 1 else {}
    if apart:
        links["gpu[1].clock"] = "0.9999999x"
    return parse_scenario(
        {
            "cluster": {
                "name": "h200-host-4",
                "gpus": dp,
                "set": links,
                "host_factor": host,
            },
            "model": MODEL,
            "training": {"framework": framework, "seq_len": 1024, "micro_batch": 2},
            "parallel": {"dp": dp, "data_parallel": mode},
            "megatron": megatron or {},
        },
        "gathers.toml",
    )


def sharded(framework: str, apart: bool = False) -> Iterator[tuple[str, Scenario]]:
    """What the framework runs of all ways of sharding, and Megatron's ways of hiding gathers."""
    for mode in MODES:
        megatron = (framework, mode) == ("megatron", "zero1")
        for choices in OVERLAPS if megatron else [{}]:
            asked = scenario(framework, mode, choices, apart=apart)
            try:
                executed(asked, 1)
            except InputError:
                continue
            yield f"{mode} {choices}", asked


def readers(graph: OpGraph, program: Program) -> Iterator[tuple[int, float]]:
    """Kernels of the first forward pass, and the layers whose parameters have to be there when each begins.

    One that stands for many reads all that its products multiply with: these are as many layers as it has of their
    arithmetic.
    """
    done, every = 0.0, _products(graph, program)
    for op in np.flatnonzero((program.kind == KERNEL) & (program.phase == 0)).tolist():
        if program.microbatch[op]:
            return
        if op in every:
            done += every[op]
            yield op, LAYERS * done / sum(every.values())
        elif program.layer[op] >= 0:
            yield op, int(program.layer[op]) + 1


def _products(graph: OpGraph, program: Program) -> dict[int, float]:
    """Operations of layers that stand for many kernels, and the arithmetic of the products among these."""
    flops = {}
    for op in np.flatnonzero(
        (program.kind == KERNEL) & (program.microbatch == 0)
    ).tolist():
        chain = graph.kernels[program.payload[op]]
        if (
            isinstance(chain, Chain)
            and chain.name == "layer forward"
            and not chain.tail
        ):
            own = chain.graph.programs[0]
            kernels = [chain.graph.kernels[k] for k in own.payload[own.kind == KERNEL]]
            products = [k.flops for k in kernels if k.is_product]
            flops[op] = chain.times * sum(products)
    return flops


def gathers(graph: OpGraph, program: Program) -> dict[int, float]:
    """Operations that bring parameters, and their bytes."""
    sizes = {}
    for op in np.flatnonzero(program.kind == COMM).tolist():
        comms = [graph.comms[part] for part in program.parts[program.payload[op]]]
        if comms[0].op in ("all_gather", "broadcast"):
            sizes[op] = sum(comm.size for comm in comms)
    return sizes


def too_early(done: Executed) -> Iterator[str]:
    """Kernels that begin before what they read has been gathered since it was updated."""
    graph = done.lowered.graph
    for rank, program in enumerate(graph.programs):
        start, end = done.run.start[rank], done.run.end[rank]
        sizes = gathers(graph, program)
        ops, moved = list(sizes), np.array(list(sizes.values()))
        updates = np.flatnonzero((program.kind == KERNEL) & (program.phase == 2))
        for step in range(1, done.run.steps):
            updated = start[step - 1][updates[0]]
            begun, ended = start[:, ops].ravel(), end[:, ops].ravel()
            every = np.tile(moved, done.run.steps)
            for op, layers in readers(graph, program):
                now = start[step][op]
                here = float(every[(begun >= updated) & (ended <= now + 1e-12)].sum())
                if here < WIDE * (EMBEDDING + layers * MATRICES):
                    yield f"{program.names[op]} of step {step}: {layers} layers, {here:.4g} bytes"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_nothing_reads_a_parameter_before_it_is_gathered(framework: str) -> None:
    """Bytes gathered since the update are at least those of all layers up to the one that begins."""
    ways = dict(sharded(framework))
    assert ways
    broken = {way: list(too_early(executed(one))) for way, one in ways.items()}
    assert {way: texts for way, texts in broken.items() if texts} == {}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_step_takes_as_long_with_every_rank_simulated(framework: str) -> None:
    """A GPU that is slower by a ten-millionth takes apart what was folded, and moves no step."""
    folded, each = (dict(sharded(framework, apart)) for apart in (False, True))
    times = {
        way: [step_time(executed(one)) for one in (folded[way], each[way])]
        for way in folded
    }
    assert all(a == pytest.approx(b, rel=1e-4) for a, b in times.values()), times


def computation(framework: str) -> dict[int, float]:
    """Seconds of one GPU's forward (0) and backward (1) pass alone, on a fast host."""
    done = executed(scenario(framework, "none", dp=1, host=0.1))
    program, run = done.lowered.graph.programs[0], done.run
    return {
        phase: float(run.end[0][-1][ops].max() - run.start[0][-1][ops].min())
        for phase in (0, 1)
        for ops in [np.flatnonzero((program.kind == KERNEL) & (program.phase == phase))]
    }


def gathering() -> float:
    """Seconds in which every GPU receives what it does not have, at the least."""
    parameters = EMBEDDING + LAYERS * MATRICES
    return WIDE * parameters * (RANKS - 1) / RANKS / (SLOW * NVLINK)


@pytest.mark.parametrize("mode", ["zero1", "zero2"])
@pytest.mark.parametrize(
    "framework",
    ["megatron", "deepspeed", "deepspeed-eager", "pytorch-eager", "pytorch-compiled"],
)
def test_a_step_is_no_shorter_than_its_gathers_and_what_waits_for_them(
    framework: str, mode: str
) -> None:
    """What was updated travels between the last backward pass and the next forward pass, and beside neither."""
    if mode == "zero2" and framework.startswith("pytorch"):
        return  # FSDP that keeps gathered parameters: they travel layer by layer
    passes = computation(framework)
    step = step_time(executed(scenario(framework, mode, host=0.1)))
    assert step > gathering() + passes[0] + passes[1]


@pytest.mark.parametrize("nvlink", [1.0, 0.3, SLOW])
def test_gathers_beside_the_forward_pass_are_no_slower(nvlink: float) -> None:
    """Where the host, which launches more of them, is fast; and still not beside the backward pass, which needs all."""
    behind, beside = (
        step_time(executed(scenario("megatron", "zero1", choices, RANKS, nvlink, 0.1)))
        for choices in ({"overlap_grad_reduce": True}, OVERLAP)
    )
    assert beside <= behind
    if nvlink == SLOW:
        assert beside > gathering() + computation("megatron")[1]
