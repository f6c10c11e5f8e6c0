"""From a scenario to an operation graph: laws of every layout, and layouts that go together."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.errors import InputError
from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import COMM, KERNEL, OpGraph
from prestep.sim.predict import predict
from prestep.sim.spec.load import parse_scenario
from prestep.workloads.models.model import load_model
from prestep.workloads.parallel.folding import grid_of
from prestep.workloads.parallel.groups import Groups
from prestep.workloads.torch.lower import ANYWHERE
from prestep.workloads.torch.rank_step import RankStep
from prestep.workloads.torch.recorder import Shared
from prestep.workloads.torch.tape import Tape
from tests.executed import executed
from tests.sample import together
from tests.workloads.small import (
    EXPERTS,
    HIDDEN,
    LAYERS,
    MLP,
    SEQ,
    TRANSFORMER,
    communications,
    lowered,
    ops,
    scenario,
    volume,
)

RESNET = {"kind": "resnet", "layers": 50, "image_size": 64}
M4: dict[str, Any] = {"microbatches": 4}
# Every way of spreading a model that can be asked for, and those that go together: (model, training, parallel).
LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "single": (TRANSFORMER, {}, {}),
    "accumulation": (TRANSFORMER, {"grad_accumulation": 3}, {}),
    "recompute": (TRANSFORMER, {"recompute": "full"}, {}),
    "compiled": (TRANSFORMER, {"framework": "pytorch-compiled"}, {}),
    "mlp": (MLP, {}, {"dp": 4}),
    "resnet": (RESNET, {}, {"dp": 4}),
    "ddp": (TRANSFORMER, {}, {"dp": 4}),
    "ddp-no-overlap": (TRANSFORMER, {}, {"dp": 4, "data_parallel": "ddp-no-overlap"}),
    "fsdp": (TRANSFORMER, {}, {"dp": 4, "data_parallel": "fsdp"}),
    "fsdp kept": (
        TRANSFORMER,
        {"recompute": "full"},
        {"dp": 2, "data_parallel": "fsdp", "reshard_after_forward": False},
    ),
    "tp": (TRANSFORMER, {}, {"tp": 4}),
    "tp recompute": (TRANSFORMER, {"recompute": "full"}, {"tp": 2}),
    "tp sequence": (TRANSFORMER, {}, {"tp": 4, "sequence_parallel": True}),
    "gpipe": (TRANSFORMER, M4, {"pp": 4, "schedule": "gpipe"}),
    "1f1b": (TRANSFORMER, M4, {"pp": 4, "schedule": "1f1b"}),
    "interleaved": (TRANSFORMER, M4, {"pp": 2, "vpp": 2, "schedule": "interleaved"}),
    "zero-bubble": (TRANSFORMER, M4, {"pp": 2, "vpp": 2, "schedule": "zero-bubble"}),
    "zbv": (TRANSFORMER, M4, {"pp": 2, "vpp": 2, "schedule": "zbv"}),
    "ep": (EXPERTS, {}, {"dp": 4, "ep": 4}),
    "fsdp x tp": (TRANSFORMER, {}, {"dp": 2, "tp": 2, "data_parallel": "fsdp"}),
    "fsdp x tp sequence": (
        TRANSFORMER,
        {},
        {"dp": 2, "tp": 2, "data_parallel": "fsdp", "sequence_parallel": True},
    ),
    "ddp x tp": (TRANSFORMER, {}, {"dp": 2, "tp": 2}),
    "pp x dp": (TRANSFORMER, M4, {"dp": 2, "pp": 2, "data_parallel": "ddp-no-overlap"}),
    "pp x ddp": (TRANSFORMER, M4 | {"grad_accumulation": 2}, {"dp": 2, "pp": 2}),
    "zero-bubble x ddp": (
        TRANSFORMER,
        M4,
        {"dp": 2, "pp": 2, "schedule": "zero-bubble"},
    ),
    "pp x tp": (TRANSFORMER, M4, {"tp": 2, "pp": 2}),
    "pp x tp sequence": (
        TRANSFORMER,
        M4,
        {"tp": 2, "pp": 2, "sequence_parallel": True},
    ),
    "hsdp": (TRANSFORMER, {}, {"dp": 4, "data_parallel": "fsdp", "fsdp_shards": 2}),
    "zero2": (TRANSFORMER, {}, {"dp": 4, "data_parallel": "zero2"}),
    "pp x fsdp": (
        TRANSFORMER,
        M4 | {"grad_accumulation": 2},
        {"dp": 2, "pp": 2, "data_parallel": "fsdp"},
    ),
    "pp x fsdp freed": (
        TRANSFORMER,
        M4,
        {"dp": 2, "pp": 2, "data_parallel": "fsdp", "reshard_after_forward": True},
    ),
    "zbv x fsdp": (
        TRANSFORMER,
        M4,
        {"dp": 2, "pp": 2, "vpp": 2, "schedule": "zbv", "data_parallel": "fsdp"},
    ),
    "fsdp x ep": (EXPERTS, {}, {"dp": 4, "ep": 2, "data_parallel": "fsdp"}),
    "fsdp x ep x pp": (
        EXPERTS,
        M4,
        {"dp": 2, "ep": 2, "pp": 2, "data_parallel": "fsdp"},
    ),
    "fsdp x ep x tp": (
        EXPERTS,
        {"recompute": "full"},
        {"dp": 2, "ep": 2, "tp": 2, "data_parallel": "fsdp"},
    ),
    "ddp x ep of copies": (EXPERTS, {}, {"dp": 4, "ep": 2}),
    "ddp x ep": (EXPERTS, {"grad_accumulation": 2}, {"dp": 2, "ep": 2}),
}
every_layout = pytest.mark.parametrize("name", LAYOUTS)


def low(name: str) -> Any:
    model, training, parallel = LAYOUTS[name]
    return lowered(model, training, **parallel)


@every_layout
def test_every_layout_predicts(name: str) -> None:
    """A finite step whose breakdown sums to it, the same for every copy of a rank, with memory for every rank."""
    model, training, parallel = LAYOUTS[name]
    result = predict(scenario(model, training, **parallel))
    assert math.isfinite(result.step_time) and result.step_time > 0
    assert sum(result.breakdown.values()) == pytest.approx(result.step_time)
    gpus = math.prod(parallel.get(axis, 1) for axis in ("dp", "tp", "pp"))
    assert (
        list(result.step_time_by_rank) == list(result.peak_memory) == list(range(gpus))
    )


@together("name", LAYOUTS)
def test_operations_wait_for_earlier_ones(name: str) -> None:
    """Dependencies point to earlier operations, or into the previous step; never to themselves or the future."""
    for p in low(name).graph.programs:
        n = len(p)
        assert all(-n <= d < i for i, deps in enumerate(p.deps) for d in deps)


@together("name", LAYOUTS)
def test_who_meets_is_simulated(name: str) -> None:
    """A communication waits for exactly as many operations as take part in it; its ranks exist and differ."""
    graph: OpGraph = low(name).graph
    taking = [0] * len(graph.comms)
    for p in graph.programs:
        for parts in p.parts[: int((p.kind == COMM).sum())]:
            for c in parts:
                taking[c] += 1
    world = sorted(rank for ranks in graph.represents.values() for rank in ranks)
    for comm, count in zip(graph.comms, taking, strict=True):
        assert count in (comm.arrivals, 0) and comm.size > 0
        for group in comm.groups:
            assert len(set(group)) == len(group) and set(group) <= set(world)
    assert world == list(range(len(world)))


@together("name", LAYOUTS)
def test_the_step_frees_what_it_allocates(name: str) -> None:
    """After the step parameters, their optimizer state and lasting buffers are alive; the peak held all of them."""
    model, training, parallel = LAYOUTS[name]
    s = scenario(model, training, **parallel)
    groups = Groups(grid_of(s), ANYWHERE.place)
    step = RankStep(s, load_model(s.model), groups, Tape(0, Shared(), _free()))
    step.record()
    alive, memory = step.tape.memory.alive, step.tape.memory
    assert alive["activations"] == alive["workspace"] == 0
    assert alive["gradients"] == memory.before["gradients"]  # DDP's buckets
    assert (
        alive["parameters"] > 0 and alive["optimizer"] >= 2 * alive["parameters"] * 0.99
    )
    assert memory.now == sum(alive.values()) <= memory.peak
    assert memory.peak == pytest.approx(sum(memory.at_peak.values()))
    # Gradients of all parameters are alive together before the optimizer runs, in buckets or alone.
    assert (
        memory.peak
        >= alive["parameters"] + alive["optimizer"] + 0.99 * alive["parameters"]
    )


def _free() -> dict[str, float]:
    from prestep.workloads.host_costs import host_costs

    return dict.fromkeys(host_costs("pytorch-compiled"), 0.0)


@pytest.mark.parametrize(
    "parallel",
    [{"data_parallel": "fsdp"}, {"data_parallel": "none"}, {"sequence_parallel": True}],
)
def test_degree_one_is_the_identity(parallel: dict[str, Any]) -> None:
    """On one GPU every kind of parallelism is a single GPU."""
    assert [(op.name, op.kernel, op.deps) for op in ops(lowered(**parallel))] == [
        (op.name, op.kernel, op.deps) for op in ops(lowered())
    ]


@pytest.mark.parametrize(
    "name", [n for n, (_, _, p) in LAYOUTS.items() if len(p) and n != "compiled"]
)
def test_folded_and_unfolded_runs_agree(name: str) -> None:
    """A slow rank that is not slow simulates every rank by itself, and the step takes as long."""
    model, training, parallel = LAYOUTS[name]
    s = scenario(model, training, **parallel)
    tables = {"faults": {"slow_rank": 0, "slow_factor": 1.0}}
    whole = predict(
        type(s)(**{**vars(s), "faults": type(s.faults)(**tables["faults"])})
    )
    assert predict(s).step_time == pytest.approx(whole.step_time, rel=1e-6)


@given(
    st.sampled_from(("gpipe", "1f1b")),
    st.sampled_from((2, 4)),
    st.integers(4, 8),
    st.integers(1, 2),
)
@settings(max_examples=10, deadline=None)
def test_pipeline_transfers(
    schedule: str, pp: int, microbatches: int, runs: int
) -> None:
    """Every boundary carries each microbatch's activation once forward and its gradient once back, two ends each."""
    found = lowered(
        pp=pp,
        schedule=schedule,
        training={"microbatches": microbatches, "grad_accumulation": runs},
    )
    sends = [c for c in found.graph.comms if c.op == "send"]
    assert len(sends) == 2 * (pp - 1) * microbatches * runs
    assert {c.size for c in sends} == {2.0 * 2 * SEQ * HIDDEN} and {
        c.arrivals for c in sends
    } == {2}
    forward = [c.groups[0] for c in sends if c.groups[0][0] < c.groups[0][1]]
    assert len(forward) == len(sends) // 2 and all(b - a == 1 for a, b in forward)
    ends = [communications(found, rank)["pp send"] for rank in range(pp)]
    assert (
        sum(ends) == 2 * len(sends) and ends[0] == ends[-1] == 2 * microbatches * runs
    )


def test_pipeline_stages_hold_the_model_once() -> None:
    """Parameters of all stages make the model, whatever the cut; copies of the pipeline do not count again."""
    whole = lowered().parameters
    for name in ("gpipe", "interleaved", "zbv", "pp x tp", "pp x dp"):
        assert low(name).parameters == whole, name


def test_a_pipeline_between_copies_sends_to_its_own_kind() -> None:
    """With two replicas a transfer happens in both at once, between ranks of one replica."""
    sends = [c for c in low("pp x dp").graph.comms if c.op == "send"]
    assert {c.groups for c in sends} == {((0, 1), (2, 3)), ((1, 0), (3, 2))}


def test_fsdp_and_tensor_parallel_split_the_same_parameters_twice() -> None:
    """Each data-parallel group gathers a tensor-parallel share of the blocks twice, and all outside of them once."""
    found = low("fsdp x tp")
    rest = 2 * 1000 * HIDDEN + (2 * LAYERS + 1) * HIDDEN
    share = (found.parameters - rest) / 2 + rest
    root = (2 * 1000 + 1) * HIDDEN
    assert volume(found, "dp all_gather") == 2.0 * (2 * share - root)
    assert volume(found, "dp reduce_scatter") == 2.0 * share
    assert communications(found)["tp all_reduce"] == 7 * LAYERS
    groups = {(c.axis, c.groups) for c in found.graph.comms}
    assert groups == {("dp", ((0, 2), (1, 3))), ("tp", ((0, 1), (2, 3)))}


def test_a_pipeline_with_data_parallelism_averages_every_stage() -> None:
    """Each stage reduces its own parameters over its replicas once a step, in the last microbatch with DDP."""
    for name in ("pp x dp", "pp x ddp", "zero-bubble x ddp"):
        found = low(name)
        assert (
            sum(volume(found, "dp all_reduce", rank) for rank in (0, 1))
            == 2.0 * found.parameters
        ), name
        reduced = [
            op.microbatch for op in ops(found, 1) if "dp" in {c.axis for c in op.comms}
        ]
        assert set(reduced) == {3}


def test_work_is_the_same_however_it_is_spread() -> None:
    """Flops of the blocks' products over all ranks do not depend on the layout, for the same samples."""

    def flops(name: str, replicas: int = 1) -> float:
        graph = low(name).graph
        done = 0.0
        for p in graph.programs:
            kernels: list[Kernel] = [
                graph.kernels[k] for k in p.payload[(p.kind == KERNEL) & (p.layer >= 0)]
            ]
            done += sum(k.flops for k in kernels) * len(graph.represents[p.rank])
        return done / replicas

    one = flops("single")
    for name, samples in (
        ("ddp", 4),
        ("fsdp", 4),
        ("tp", 1),
        ("tp sequence", 1),
        ("1f1b", 4),
        ("fsdp x tp", 2),
    ):
        assert flops(name, samples) == pytest.approx(one), name


@together(
    ("model", "parallel", "key"),
    [
        (MLP, {"tp": 2}, "parallel.tp"),
        (MLP, {"pp": 2, "microbatches": 2}, "parallel.pp"),
        (MLP, {"dp": 2, "data_parallel": "fsdp"}, "parallel.data_parallel"),
        (RESNET, {"dp": 2, "data_parallel": "fsdp"}, "parallel.data_parallel"),
        (
            TRANSFORMER,
            {"cp": 2, "data_parallel": "none"},
            "parallel.data_parallel",
        ),
        (TRANSFORMER, {"dp": 2, "ep": 2}, "parallel.ep"),
        (EXPERTS, {"tp": 2, "etp": 1}, "parallel.etp"),
        ({**EXPERTS, "moe_ffn": 1}, {"tp": 2}, "model.moe_ffn"),
        (
            {**EXPERTS, "moe_ffn": 3, "shared_experts": 1},
            {"dp": 2, "tp": 2, "ep": 2, "etp": 1, "sequence_parallel": True},
            "model.moe_ffn",
        ),
        (
            EXPERTS,
            {"dp": 2, "tp": 2, "ep": 2, "etp": 1},
            "parallel.sequence_parallel",
        ),
        (
            EXPERTS,
            {"dp": 4, "ep": 2, "data_parallel": "zero1"},
            "parallel.data_parallel",
        ),
        (MLP, {"dp": 2, "data_parallel": "zero2"}, "parallel.data_parallel"),
    ],
)
def test_what_is_not_simulated_is_refused(
    model: dict[str, Any], parallel: dict[str, Any], key: str
) -> None:
    """A combination that would be predicted as something else is an error that names its key."""
    with pytest.raises(InputError) as error:
        executed(scenario(model, **parallel))
    assert key in {mistake.key for mistake in error.value.mistakes}


def test_the_engine_runs_every_operation_of_every_step() -> None:
    """Three steps back to back: every operation starts and ends once, steps do not overtake each other."""
    s = scenario(dp=4)
    done = executed(s, steps=3)
    for start, end in zip(done.run.start, done.run.end, strict=True):
        assert start.shape[0] == 3 and (end >= start).all() and (start >= 0).all()
    assert (
        done.lowered.graph.operations
        == len(ops(lowered(dp=4)))
        == done.run.start[0].shape[1]
    )


#: Bytes of a handle, by ATen/cuda/CublasHandlePool.cpp: 4,096 KiB twice and 16 KiB eight times, or 32 MiB from Hopper on.
HANDLES = {"dgx-a100": 2 * 4096 * 1024 + 8 * 16 * 1024, "dgx-h100": 32 * 2**20}


@pytest.mark.parametrize("cluster", HANDLES)
def test_cublas_takes_memory_by_the_generation_of_its_gpu(cluster: str) -> None:
    """The program's thread and backward's have a handle each."""
    tables = {
        "cluster": {"name": cluster, "gpus": 1},
        "model": {"name": "llama3.2-1b"},
        "training": {"seq_len": 128, "micro_batch": 1, "global_batch": 1},
        "parallel": {"dp": 1},
    }
    memory = predict(parse_scenario(tables, "workspace.toml")).peak_memory[0]
    assert memory.workspace == 2 * HANDLES[cluster]
