"""Layers of experts and latent attention of Megatron: laws, work and memory."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.formats.model_flops import layer_flops
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.costs.kinds import work
from prestep.sim.errors import InputError
from prestep.sim.graph.kernel import GROUPS
from prestep.sim.graph.opgraph import KERNEL
from prestep.sim.predict import predict
from prestep.sim.spec.load import parse_scenario
from prestep.sim.spec.sections import Scenario
from prestep.workloads.host_costs import host_costs
from prestep.workloads.job.model import Model
from prestep.workloads.job.parallel import Parallel
from prestep.workloads.job.training import Training
from prestep.workloads.lowered import Place
from prestep.workloads.megatron.moe import COUNTS
from prestep.workloads.megatron.shard import busiest, distinct, spread_of
from prestep.workloads.megatron.units import Unit, Units
from prestep.workloads.models.counts import layer_parameters
from prestep.workloads.models.model import load_model
from prestep.workloads.parallel.folding import Grid
from prestep.workloads.parallel.groups import Groups
from prestep.workloads.routing import layers_of
from prestep.workloads.torch.recorder import Shared
from prestep.workloads.torch.tape import Tape
from tests.sample import together

SMALL: dict[str, Any] = {
    "kind": "transformer",
    "hidden": 1024,
    "layers": 4,
    "heads": 8,
    "ffn": 4096,
    "vocab": 4096,
    "experts": 8,
    "experts_per_token": 2,
}
LATENT = {
    "head_dim": 128,
    "kv_lora_rank": 256,
    "q_lora_rank": 512,
    "rope_head_dim": 64,
    "v_head_dim": 128,
}


def run(
    model: dict[str, Any], parallel: dict[str, Any], hosts: int = 1, **megatron: Any
) -> Prediction:
    """A step on hosts so fast that what the GPUs do decides."""
    tables = {
        "cluster": {"name": "rail-h100", "hosts": hosts, "host_factor": 0.01},
        "model": model,
        "training": {"framework": "megatron", "seq_len": 2048},
        "parallel": {"uneven_stages": True, **parallel},
        "megatron": megatron,
    }
    return predict(parse_scenario(tables, "test"))


@cache
def unit(
    index: int, tp: int = 1, ep: int = 1, etp: int | None = None, **keys: Any
) -> Unit:
    m = load_model(Model(**SMALL | keys))
    parallel = Parallel(dp=max(1, ep), tp=tp, ep=ep, etp=etp, sequence_parallel=tp > 1)
    s = Scenario(
        model=Model(**SMALL),
        training=Training(seq_len=2048, framework="megatron"),
        parallel=parallel,
    )
    groups = Groups(
        Grid(parallel.dp, 1, tp, cp=1, ep=ep, etp=tp if etp is None else etp),
        Place(8, False),
    )
    costs = host_costs("megatron")
    spread = spread_of(groups, s, m) if m.experts else None
    return Units(
        s, m, groups.of("tp", 0), None, lambda: Tape(0, Shared(), costs), spread
    ).layer(index)


def flops(unit: Unit) -> tuple[float, float]:
    """Of matrix products and attention, forward and backward."""

    def of(graph: Any) -> float:
        p = graph.programs[0]
        kernels = [graph.kernels[k] for k in p.payload[p.kind == KERNEL]]
        return sum(
            work(k)[0]
            for k in kernels
            if k.is_product or k.is_attention or k.kind in GROUPS
        )

    return of(unit.forward.uncut), of(unit.backward.uncut)


@together(
    "keys",
    [
        {},
        {"shared_experts": 2, "moe_ffn": 512},
        {"experts": 0, "experts_per_token": None},
        LATENT,
        {"moe_ffn": 512, **LATENT},
    ],
)
@together(("tp", "ep", "etp"), [(1, 1, None), (1, 4, None), (2, 2, None), (2, 4, 1)])
def test_a_layer_computes_what_its_formula_says(
    keys: dict[str, Any], tp: int, ep: int, etp: int | None
) -> None:
    """Flops of a unit's products over all ranks are those of the model, however the layer is spread; backward twice (scores
    2.5 times, since a fused kernel computes them again). The router is whole on every rank."""
    if keys.get("experts") == 0:
        ep, etp = 1, None
    m = load_model(Model(**SMALL | keys))
    forward, backward = flops(unit(1, tp, ep, etp, **keys))
    expected = layer_flops(m, 1, 2048) * 2048 / tp
    if m.latent:  # compressing projections are whole on every rank, of its part of the sequence: the same sum
        expected *= 1.0
    assert forward == pytest.approx(expected, rel=0.01)
    assert 2.0 * forward * 0.99 <= backward <= 2.5 * forward


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"shared_experts": 1, "router_bias": True},
        LATENT,
        {"qk_norm": True, "bias": True},
    ],
    ids=str,
)
def test_a_unit_has_the_parameters_of_its_layer(keys: dict[str, Any]) -> None:
    """On one rank all of them; with four expert-parallel ranks a quarter of the experts."""
    m = load_model(Model(**SMALL | keys))
    assert sum(unit(1, **keys).parameters.values()) == layer_parameters(m, True)
    whole, quarter = (unit(1, ep=ep, **keys).parameters for ep in (1, 4))
    for name, count in whole.items():
        assert quarter[name] == count // (4 if name.startswith("experts.") else 1)


def test_layers_of_different_kinds() -> None:
    """Dense layers first and experts in every other: each layer is its kind's unit, and parameters add up."""
    model = SMALL | {"dense_layers": 1, "moe_every": 2, "layers": 6}
    m = load_model(Model(**model))
    assert [m.has_experts(i) for i in range(6)] == [
        False,
        True,
        False,
        True,
        False,
        True,
    ]
    counted = (
        sum(layer_parameters(m, m.has_experts(i)) for i in range(6))
        + 2 * m.vocab * m.hidden
        + m.hidden
    )
    for pp in (1, 2, 4):
        result = run(model, {"dp": 8 // pp, "pp": pp, "ep": 2, "microbatches": 4})
        assert result.scenario["parameters"] == counted


def test_counting_tokens_takes_the_host_time() -> None:
    """Experts padded to a capacity need no counts: on a slow host the step is shorter, on a fast one hardly."""

    def step(host_factor: float, **megatron: Any) -> float:
        tables = {
            "cluster": {"name": "rail-h100", "hosts": 1, "host_factor": host_factor},
            "model": SMALL,
            "training": {"framework": "megatron", "seq_len": 512},
            "parallel": {"dp": 8, "ep": 8},
            "megatron": megatron,
        }
        return predict(parse_scenario(tables, "test")).step_time

    padded = {"moe_capacity": 1.0, "moe_pad_to_capacity": True}
    saved = step(2.0) - step(2.0, **padded)
    waits = 4 * COUNTS["alltoall"]  # layers, and numbers that each waits for
    # The copies, and what the host no longer waits for.
    copies = 2.0 * waits * host_costs("megatron")["moe_counts"]
    assert copies < saved < 1.5 * copies
    assert step(0.01) == pytest.approx(step(0.01, **padded), rel=0.05)


def test_one_expert_costs_at_least_a_dense_layer() -> None:
    """The same work, and a router and permutations beside it."""
    one = run(SMALL | {"experts": 1, "experts_per_token": 1}, {"dp": 8})
    dense = run({k: v for k, v in SMALL.items() if "expert" not in k}, {"dp": 8})
    assert dense.step_time < one.step_time < 2 * dense.step_time


def test_doubling_expert_parallelism_halves_expert_memory() -> None:
    """Parameters, gradients and (without a distributed optimizer) states of experts: a rank holds half as many."""
    m = load_model(Model(**SMALL))
    experts = 4 * 8 * 3 * 1024 * 4096
    held = {}
    for ep in (1, 2, 4, 8):
        memory = max(
            run(SMALL, {"dp": 8, "ep": ep}).peak_memory.values(), key=lambda x: x.total
        )
        held[ep] = memory.parameters + memory.gradients + memory.optimizer
    for ep in (1, 2, 4):
        assert held[ep] - held[2 * ep] == pytest.approx(
            (2 + 4 + 12) * experts / (2 * ep)
        )
    assert m.experts == 8


def test_sharded_states_do_not_depend_on_expert_parallelism() -> None:
    """Experts' states are spread over the ranks that hold the same ones: dp / ep of a copy that is ep times smaller."""
    states = {
        ep: max(
            m.optimizer
            for m in run(
                SMALL, {"dp": 8, "ep": ep, "data_parallel": "zero1"}
            ).peak_memory.values()
        )
        for ep in (1, 2, 8)
    }
    assert states[1] == pytest.approx(states[2], rel=1e-6) and states[
        2
    ] == pytest.approx(states[8], rel=1e-6)


def test_imbalance_makes_steps_longer() -> None:
    """The busiest rank's experts decide: uniform, then by Zipf's law, then all tokens to one expert."""
    times = [
        run(SMALL, {"dp": 8, "ep": 8, "imbalance": how}).step_time
        for how in ("uniform", "zipf 0.3", "zipf", [1, 0, 0, 0, 0, 0, 0, 0])
    ]
    assert times == sorted(times) and times[0] < times[1] < times[-1]


def test_capacity_bounds_imbalance() -> None:
    """With a capacity of the mean, padded, all routers cost the same, and no more than uniform routing that is waited for."""
    uniform = run(SMALL, {"dp": 8, "ep": 8}).step_time
    padded = {"moe_capacity": 1.0, "moe_pad_to_capacity": True}
    kept = run(SMALL, {"dp": 8, "ep": 8, "imbalance": "zipf"}, **padded).step_time
    even = run(SMALL, {"dp": 8, "ep": 8}, **padded).step_time
    assert kept == pytest.approx(even) and kept <= uniform
    more = run(
        SMALL, {"dp": 8, "ep": 8, "imbalance": "zipf"}, moe_capacity=1.25
    ).step_time
    assert (
        uniform <= more <= run(SMALL, {"dp": 8, "ep": 8, "imbalance": "zipf"}).step_time
    )


def test_dispatchers() -> None:
    """Over hosts DeepEP sends less than an all-to-all of every choice; beside other computation it costs less."""
    model = SMALL | {"experts": 64, "experts_per_token": 8, "moe_ffn": 512}
    times = {
        way: run(
            model, {"dp": 16, "ep": 16}, hosts=2, moe_token_dispatcher=way
        ).step_time
        for way in ("flex", "alltoall", "allgather")
    }
    assert times["flex"] < times["alltoall"] and times["allgather"] > 0
    beside = run(
        model, {"dp": 16, "ep": 16}, hosts=2, overlap_moe_expert_parallel_comm=True
    )
    assert beside.step_time < times["alltoall"]


def test_tokens_travel_beside_another_microbatch_only() -> None:
    """A forward pass without a backward pass beside it waits for its tokens: that of one microbatch, the first of eight."""
    model = SMALL | {"experts": 64, "experts_per_token": 8, "moe_ffn": 512}
    exposed = {}
    for microbatches in (1, 8):
        for overlap in (False, True):
            training = {"framework": "megatron", "seq_len": 2048}
            tables = {
                "cluster": {"name": "rail-h100", "hosts": 2, "host_factor": 0.01},
                "model": model,
                "training": {**training, "microbatches": microbatches},
                "parallel": {"dp": 16, "ep": 16},
                "megatron": {
                    "overlap_moe_expert_parallel_comm": overlap,
                    "device_connections": 32,  # one queue would hold up the other microbatch
                },
            }
            step = predict(parse_scenario(tables, "test"))
            exposed[microbatches, overlap] = step.breakdown["exposed_ep"]
    assert exposed[1, False] > exposed[1, True] > 0.3 * exposed[1, False]
    assert exposed[8, True] < 0.2 * exposed[8, False]


@given(st.sampled_from([8, 64, 160, 256]), st.floats(0, 3))
def test_loads_are_relative_to_their_mean(experts: int, exponent: float) -> None:
    """They add up to the number of experts; capacity only takes away; a rank's share is at least the mean."""
    (loads,) = layers_of(f"zipf {exponent:.3f}", experts)
    assert sum(loads) == pytest.approx(experts) and min(loads) > 0
    share = busiest(loads, 8, None, False)
    assert len(share) == experts // 8 and sum(share) >= experts / 8 - 1e-9
    assert sum(busiest(loads, 8, 1.2, False)) <= sum(share) + 1e-9


@given(st.sampled_from([1, 2, 4, 8, 16, 32, 64]), st.integers(1, 8))
def test_distinct_groups(groups: int, chosen: int) -> None:
    """A token's choices fall into at least one group and at most as many as there are, or as it makes."""
    assert 1 - 1e-9 <= distinct(groups, 64, chosen) <= min(groups, chosen) + 1e-9


@pytest.mark.parametrize(
    ("parallel", "text"),
    [
        ({"dp": 4, "tp": 2, "ep": 8, "sequence_parallel": True}, "parallel.etp = 1"),
        ({"dp": 4, "tp": 2, "ep": 4}, "sequence_parallel"),
        ({"dp": 8, "imbalance": "pareto"}, "parallel.imbalance"),
        ({"dp": 8, "imbalance": [1, 2]}, "2 loads"),
        ({"dp": 8, "imbalance": 3}, "imbalance"),
        ({"dp": 4, "tp": 2, "etp": 4, "sequence_parallel": True}, "1 or tp = 2"),
        ({"dp": 8, "ep": 8, "imbalance": [0] * 8}, "no load below 0"),
    ],
)
def test_what_does_not_fit_is_refused(parallel: dict[str, Any], text: str) -> None:
    """With the key, and what would do."""
    with pytest.raises(InputError, match=text):
        run(SMALL, parallel)


def test_experts_whole_on_ranks_of_tensor_parallelism() -> None:
    """With etp = 1 expert parallelism spans tensor-parallel ranks; groups cover a stage once."""
    grid = Grid(4, 2, 2, cp=1, ep=8, etp=1)
    ep, edp = grid.experts("ep", 1), grid.experts("dp", 1)
    assert sorted(ep.ravel()) == list(range(8, 16)) == sorted(edp.ravel())
    assert (
        run(
            SMALL, {"dp": 4, "tp": 2, "ep": 8, "etp": 1, "sequence_parallel": True}
        ).step_time
        > 0
    )
    assert (
        run(SMALL, {"dp": 4, "tp": 2, "ep": 4, "sequence_parallel": True}).step_time > 0
    )


def test_multi_token_prediction_costs_a_layer_and_a_head() -> None:
    """More than one layer more."""
    model = SMALL | LATENT
    plain, deeper, more = (
        run(model | keys, {"dp": 8, "ep": 8}).step_time
        for keys in ({}, {"layers": 5}, {"mtp_layers": 1})
    )
    assert plain < deeper < more
