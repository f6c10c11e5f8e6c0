"""Laws of NeMo Automodel's engine: PyTorch's FSDP2, pipelines and optimizers around Megatron-like layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.errors import InputError
from prestep.sim.graph.opgraph import COMM, KERNEL, SYNC
from prestep.sim.predict import plan, predict
from prestep.sim.predict import step_time as time_of
from prestep.sim.spec.load import Scenario, parse_scenario
from prestep.workloads.lowered import Place, Site
from prestep.workloads.megatron import engine
from prestep.workloads.megatron.lower import lower
from prestep.workloads.megatron.shard import consecutive
from prestep.workloads.schedules import Action
from prestep.workloads.schedules._lockstep import time_steps
from tests.executed import Executed, executed, of_lowered, step_time

HIDDEN, FFN, VOCAB, LAYERS, EXPERTS, INNER = 1024, 4096, 1024, 4, 8, 512
MODEL = {
    "kind": "transformer",
    "layers": LAYERS,
    "hidden": HIDDEN,
    "heads": 16,
    "ffn": FFN,
    "vocab": VOCAB,
    "gated": False,
}
MOE = {"experts": EXPERTS, "experts_per_token": 2, "moe_ffn": INNER}
# Parameters by hand: attention, two norms and a feed-forward layer; embedding; head with the last norm.
SHARED = 4 * HIDDEN**2 + 2 * HIDDEN
LAYER = SHARED + 2 * HIDDEN * FFN
MOE_LAYER = SHARED + EXPERTS * HIDDEN  # with the router
EXPERT = 2 * HIDDEN * INNER
EMBEDDING, HEAD = VOCAB * HIDDEN, VOCAB * HIDDEN + HIDDEN
WHOLE = LAYERS * LAYER + EMBEDDING + HEAD


def scenario(
    microbatches: int = 2,
    model: dict[str, Any] | None = None,
    pytorch: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    megatron: dict[str, Any] | None = None,
    **parallel: Any,
) -> Scenario:
    """On as many GPUs as the layout needs; gradients reduced in fp32 unless said otherwise."""
    layout: dict[str, Any] = {"dp": 4, "data_parallel": "fsdp"} | parallel
    gpus = 1
    for axis in ("dp", "tp", "pp", "cp"):
        gpus *= layout.get(axis, 1)
    cluster = (
        {"name": "rail-h100", "hosts": -(-gpus // 8), "gpus": gpus}
        if gpus > 8
        else {"name": "dgx-h100", "gpus": gpus}
    )
    count = "microbatches" if layout.get("pp", 1) > 1 else "grad_accumulation"
    return parse_scenario(
        {
            "cluster": cluster,
            "model": MODEL | (model or {}),
            "training": {
                "framework": "automodel",
                "seq_len": 1024,
                "micro_batch": 1,
                count: microbatches,
            }
            | (training or {}),
            "parallel": layout,
            "pytorch": {"reduce_dtype": "fp32"} | (pytorch or {}),
            "megatron": megatron or {},
        },
        "test",
    )


def sent(s: Scenario, op: str, axis: str = "dp") -> list[float]:
    """Bytes that each simulated rank's collectives of a kind along an axis say they move in a step, by stage."""
    graph = plan(s).lowered.graph

    def of_rank(program: Any) -> float:
        parts = [
            c
            for i, k in enumerate(program.kind)
            if k == COMM
            for c in program.parts[program.payload[i]]
        ]
        comms = [graph.comms[c] for c in parts]
        return float(sum(c.size for c in comms if c.op == op and c.axis == axis))

    return [of_rank(program) for program in graph.programs]


def peak(s: Scenario) -> float:
    return max(memory.total for memory in predict(s).peak_memory.values())


def gathers_before_layers(s: Scenario) -> list[int]:
    """How many gathers a rank has issued before each layer of its first forward pass."""
    graph = plan(s).lowered.graph
    program = graph.programs[0]
    seen, before = 0, list[int]()
    for at, kind in enumerate(program.kind):
        if kind == COMM:
            parts = program.parts[program.payload[at]]
            seen += sum(graph.comms[part].op == "all_gather" for part in parts)
        elif program.names[at] == "layer forward":
            before.append(seen)
    return before[: 2 * LAYERS : 2]  # each is a head and a tail


def test_layers_are_gathered_as_far_ahead_as_is_said() -> None:
    """The same bytes; where its layer computes the next one's gather is under way, backward two (set_modules_to_*)."""
    ahead = {"forward_prefetch": 1, "backward_prefetch": 2}
    plain, early = (scenario(1, pytorch=choices) for choices in ({}, ahead))
    assert sent(early, "all_gather") == sent(plain, "all_gather")
    # The root, with embedding and head, comes first.
    assert gathers_before_layers(plain) == [1 + layer for layer in (1, 2, 3, 4)]
    assert gathers_before_layers(early) == [1 + layer for layer in (2, 3, 4, 4)]
    assert peak(early) > peak(plain)


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize(("dtype", "wide"), [("fp32", 4), ("bf16", 2)])
def test_gathers_and_reductions_are_as_the_rules_say(
    microbatches: int, dtype: str, wide: int
) -> None:
    """Freed layers are gathered twice a microbatch but for the last, and what is outside of layers once.

    Kept ones are gathered once; reductions are made once, or always.
    """
    freed = scenario(microbatches, pytorch={"reduce_dtype": dtype})
    again = WHOLE + (LAYERS - 1) * LAYER
    assert sent(freed, "all_gather") == [2 * again * microbatches]
    assert sent(freed, "reduce_scatter") == [wide * WHOLE]
    kept = scenario(
        microbatches, pytorch={"reduce_dtype": dtype}, reshard_after_forward=False
    )
    assert sent(kept, "all_gather") == [2 * WHOLE]
    assert sent(kept, "reduce_scatter") == [wide * WHOLE]
    always: dict[str, Any] = {"reduce_dtype": dtype, "reduce_every_microbatch": True}
    every = scenario(microbatches, pytorch=always, reshard_after_forward=False)
    assert sent(every, "all_gather") == [2 * WHOLE * microbatches]
    assert sent(every, "reduce_scatter") == [wide * WHOLE * microbatches]


@pytest.mark.parametrize("tied", [False, True])
def test_a_dense_model_is_sharded_as_around_plain_modules(tied: bool) -> None:
    """FSDP2 is one engine: other layers send the same bytes, but for the last one, which Automodel keeps."""
    model = {"tied_embeddings": tied}
    layers = scenario(3, model=model)
    training = replace(layers.training, framework="pytorch-eager")
    modules = replace(layers, training=training)
    beyond = sent(modules, "all_gather")[0] - sent(layers, "all_gather")[0]
    assert beyond == 2 * LAYER * 3
    assert sent(layers, "reduce_scatter") == sent(modules, "reduce_scatter")
    for s in (layers, modules):  # the host's calls: one for every layer and the root
        assert plan(s).lowered.host_operations[0]["fsdp_reduce"] == LAYERS + 1


@pytest.mark.parametrize("vpp", [1, 2])
@pytest.mark.parametrize("runs", [1, 2])
def test_stages_gather_and_reduce_once(vpp: int, runs: int) -> None:
    """However many microbatches and runs of the schedule: each stage's parameters once, its gradients once."""
    s = scenario(
        4,
        pp=2,
        vpp=vpp,
        schedule="interleaved" if vpp > 1 else "1f1b",
        reshard_after_forward=False,
        training={"grad_accumulation": runs},
    )
    half = LAYERS // 2 * LAYER
    assert sent(s, "all_gather") == [2 * (half + EMBEDDING), 2 * (half + HEAD)]
    assert sent(s, "reduce_scatter") == [4 * (half + EMBEDDING), 4 * (half + HEAD)]


def test_stages_may_reduce_in_every_backward_pass() -> None:
    """Where the pipeline does not know FSDP's modules: each backward pass reduces, frees, and waits for both."""
    layout: dict[str, Any] = {"pp": 2, "schedule": "gpipe"}
    once = scenario(4, **layout, reshard_after_forward=False)
    every = scenario(
        4,
        **layout,
        reshard_after_forward=False,
        pytorch={"reduce_every_microbatch": True},
    )
    assert sent(every, "reduce_scatter") == [
        4 * x for x in sent(once, "reduce_scatter")
    ]
    # All forward passes keep what the first gathered; each backward pass but the first finds it freed.
    assert sent(every, "all_gather") == [4 * x for x in sent(once, "all_gather")]
    assert time_of(every) > time_of(once)


@pytest.mark.parametrize("pp", [1, 2])
def test_timed_rounds_wait_for_the_gpu(pp: int) -> None:
    """One wait a round; no step is shorter for it."""
    training = {"grad_accumulation": 2} if pp > 1 else {}
    plain = scenario(4, pp=pp, training=training)
    timed = scenario(4, pp=pp, training=training, pytorch={"timed_rounds": True})

    def waits(s: Scenario) -> int:
        return int((plan(s).lowered.graph.programs[0].kind == SYNC).sum())

    assert waits(timed) - waits(plain) >= (2 if pp > 1 else 4)
    assert time_of(timed) >= time_of(plain)


def test_experts_are_reduced_in_their_own_type() -> None:
    layout: dict[str, Any] = {"ep": 2, "reshard_after_forward": False}
    wide = scenario(2, MOE, **layout)
    thin = scenario(2, MOE, **layout, pytorch={"experts_reduce_dtype": "bf16"})
    (wider,), (thinner,) = (
        sent(wide, "reduce_scatter", "edp"),
        sent(thin, "reduce_scatter", "edp"),
    )
    assert wider == 2 * thinner
    assert sent(wide, "reduce_scatter") == sent(thin, "reduce_scatter")


def test_stages_that_free_gather_in_both_passes() -> None:
    """A stage's layers but the last are gathered again in backward, and stay till the next forward pass frees them."""
    s = scenario(4, pp=2, schedule="gpipe", reshard_after_forward=True)
    first = LAYERS // 2 * LAYER + EMBEDDING
    once = sent(s, "all_gather")[0]
    assert once > 2 * first and sent(s, "reduce_scatter")[0] == 4 * first


@pytest.mark.parametrize(("ep", "own"), [(1, 4), (2, 2), (4, 1)])
@pytest.mark.parametrize("pp", [1, 2])
def test_experts_are_sharded_over_the_ranks_that_have_the_same_ones(
    ep: int, own: int, pp: int
) -> None:
    """dp / ep ranks; alone they are neither gathered nor reduced."""
    s = scenario(4, MOE, pp=pp, ep=ep, reshard_after_forward=False)
    local = LAYERS // pp * EXPERTS // ep * EXPERT
    for op, wide in (("all_gather", 2), ("reduce_scatter", 4)):
        assert sent(s, op, "edp") == [wide * local * (own > 1)] * pp
    layers = LAYERS // pp * MOE_LAYER
    assert sum(sent(s, "all_gather")) == 2 * (pp * layers + EMBEDDING + HEAD)


def test_hybrid_sharding_sums_shards_over_copies() -> None:
    """All-gathers and reductions within a copy, an all-reduce of its shards over the copies."""
    s = scenario(1, dp=8, fsdp_shards=4, reshard_after_forward=False)
    assert sent(s, "all_gather") == [2 * WHOLE]
    assert sent(s, "all_reduce", "replicas") == [WHOLE]


@pytest.mark.parametrize(
    ("pytorch", "held"),
    [
        ({}, 2 + 2 + 4),
        ({"wide_moments": True}, 2 + 2 + 8),
        ({"master_weights": True}, 4 + 4 + 8),
    ],
)
def test_memory_between_steps_by_hand(pytorch: dict[str, Any], held: int) -> None:
    """Parameters, gradients and two moments of a shard, in the stored type or in fp32."""
    memory = next(iter(plan(scenario(pytorch=pytorch)).lowered.memory.values()))
    before = memory.before
    states = WHOLE // 4
    total = before["parameters"] + before["gradients"] + before["optimizer"]
    assert total == pytest.approx(held * states, rel=1e-6)


def test_memory_of_a_pipelines_sums() -> None:
    """Whole gradients of a stage wait in fp32 till its last backward pass."""
    memories = plan(scenario(4, pp=2, reshard_after_forward=False)).lowered.memory
    stage = LAYERS // 2 * LAYER + EMBEDDING
    gradients = memories[0].at_peak["gradients"]
    assert gradients == pytest.approx(4 * stage + 2 * stage // 4, rel=1e-6)
    assert memories[0].at_peak["buffers"] == pytest.approx(2 * stage, rel=1e-6)


@pytest.mark.parametrize("dp", [1, 4])
def test_every_element_of_a_shard_is_updated_once(dp: int) -> None:
    """By PyTorch's own AdamW; ranks with parts of the gradients agree on their norm first, and one alone need not."""
    s = scenario(pytorch={"fused_optimizer": True, "clip_gradients": True}, dp=dp)
    graph = plan(s).lowered.graph
    program = graph.programs[0]
    updated = [
        graph.kernels[kernel].shape[1]
        for kernel in program.payload[program.kind == KERNEL]
        if "adamw" in getattr(graph.kernels[kernel], "kind", "")
    ]
    assert sum(updated) == WHOLE // dp
    assert sent(s, "all_reduce").count(4.0) == (dp > 1)


def test_what_is_freed_needs_less_and_takes_longer() -> None:
    """Freeing layers trades memory for gathers; more shards leave less."""
    freed, kept = scenario(dp=8), scenario(dp=8, reshard_after_forward=False)
    assert peak(freed) < peak(kept)
    assert time_of(freed) >= time_of(kept)
    assert peak(scenario(dp=8)) < peak(scenario(dp=2))


def apart(s: Executed) -> float:
    """Step time with every replica simulated."""
    place = Place(8, blocking=False)
    site = Site(place=place)
    lowered = lower(s.scenario, s.model, site, apart=True, engine=engine.PYTORCH)
    assert len(lowered.graph.programs) > len(s.lowered.graph.programs)
    return step_time(of_lowered(s, lowered))


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.data())
def test_folded_is_unfolded(data: st.DataObject) -> None:
    """One replica of all that are alike gives the step time of all of them: FSDP x pp x ep x tp x cp."""
    pp = data.draw(st.sampled_from((1, 2)))
    tp = data.draw(st.sampled_from((1, 2)))
    dp = data.draw(st.sampled_from((4, 8)))
    ep = data.draw(st.sampled_from((0, 1, 2)))  # 0: dense
    parallel: dict[str, Any] = {
        "dp": dp,
        "pp": pp,
        "tp": tp,
        "ep": max(1, ep),
        "sequence_parallel": tp > 1,
        "reshard_after_forward": data.draw(st.booleans()),
        "schedule": data.draw(st.sampled_from(("1f1b", "gpipe"))) if pp > 1 else "1f1b",
    }
    model = {"hidden": 4096, "ffn": 8192} | (MOE if ep else {})
    s = executed(scenario(4, model, **parallel))
    assert apart(s) == pytest.approx(step_time(s), rel=1e-9)


@pytest.mark.parametrize(("schedule", "vpp"), [("zero-bubble", 1), ("zbv", 2)])
def test_schedules_that_split_backward_keep_parameters(schedule: str, vpp: int) -> None:
    """They run where layers stay; they are refused where layers are freed."""
    layout: dict[str, Any] = {"pp": 2, "schedule": schedule, "vpp": vpp}
    assert time_of(scenario(8, **layout, reshard_after_forward=False)) > 0
    with pytest.raises(InputError, match="reshard_after_forward"):
        plan(scenario(8, **layout, reshard_after_forward=True))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"pytorch": {"loss": "fused"}}, "pytorch.loss"),
        ({"megatron": {"overlap_grad_reduce": True}}, "megatron.overlap_grad_reduce"),
        ({"data_parallel": "zero1"}, "data_parallel"),
        ({"routing": "nearby"}, "routing"),
    ],
)
def test_what_it_does_not_run_is_named(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        plan(scenario(4, **changes))


@given(st.sampled_from([1, 2, 4, 8, 16, 32]), st.integers(1, 12), st.integers(1, 3))
def test_neighbours_fall_into_as_many_groups_as_counted(
    groups: int, chosen: int, rounds: int
) -> None:
    """The mean over all tokens that take the next experts in turn, counted one by one."""
    experts = 96
    tokens = range(experts * rounds)
    met = [
        {((t * chosen + i) % experts) // (experts // groups) for i in range(chosen)}
        for t in tokens
    ]
    counted = sum(map(len, met)) / len(met)
    assert consecutive(groups, experts, chosen) == pytest.approx(counted)


def test_neighbours_send_less_than_any() -> None:
    """DeepEP sends a token once to every rank or host that it needs: neighbours are on few of them."""
    usual: dict[str, Any] = {"ep": 8, "dp": 8, "reshard_after_forward": False}
    flex = {"moe_token_dispatcher": "flex"}
    model = MOE | {"experts": 64, "experts_per_token": 8, "hidden": 4096}
    long = {"seq_len": 16384}  # the GPUs are slower than the host
    times = [
        time_of(
            scenario(1, model, training=long, megatron=flex, routing=routing, **usual)
        )
        for routing in ("any", "consecutive")
    ]
    assert times[1] < times[0]


@given(st.integers(2, 6), st.integers(2, 4), st.integers(1, 4))
def test_time_steps_of_older_pipelines(ranks: int, chunks: int, rounds: int) -> None:
    """Every pass once; its input was made in an earlier time step; from where all run both, they share none."""
    microbatches, stages = ranks * rounds, ranks * chunks
    table = [time_steps(r, ranks, microbatches, chunks) for r in range(ranks)]
    at = {
        action: time
        for steps in table
        for time, action in enumerate(steps)
        if action is not None
    }
    assert len(at) == 2 * microbatches * stages
    for action, time in at.items():
        forward = action.kind == "F"
        before = action.stage + (-1 if forward else 1)
        if 0 <= before < stages:
            assert at[Action(before, action.kind, action.microbatch)] < time
    begun = max(
        min(t for t, a in enumerate(steps) if a is not None and a.kind == "B")
        for steps in table
    )
    times = {
        kind: {at[a] for a in at if a.kind == kind and at[a] >= begun} for kind in "FB"
    }
    assert not times["F"] & times["B"]


def test_older_pipelines_wait_for_their_neighbours() -> None:
    """An interleaved pipeline before 2.10 idles no less than the formula says, and its transfers are not overlapped."""
    layout: dict[str, Any] = {"pp": 4, "vpp": 2, "dp": 2, "schedule": "interleaved"}
    model = {"hidden": 4096, "ffn": 16384, "layers": 8, "vocab": 128}
    made = predict(
        scenario(
            8,
            model,
            {"version": "2.7"},
            training={"seq_len": 4096},
            reshard_after_forward=False,
            **layout,
        )
    )
    idle = made.breakdown["bubble"] + made.breakdown["exposed_pp"]
    assert 3 / 16 < idle / made.breakdown["compute"] < 1 / 2
    assert made.breakdown["exposed_pp"] > 0


def test_frozen_weights_are_gathered_and_not_reduced() -> None:
    """Beside adapters: gathers have all parameters, reductions and the optimizer only the adapters'."""
    tables: dict[str, Any] = {"reshard_after_forward": False, "model": {"gated": True}}
    plain = scenario(1, **tables)
    adapted = replace(plain, adapter=replace(plain.adapter, kind="lora", rank=16))
    thin = sent(adapted, "reduce_scatter")[0] / 4
    # Between hidden and each projection: qkv, the output, both halves of the first and the second of the feed-forward.
    layer = 16 * (4 * HIDDEN + 2 * HIDDEN + HIDDEN + 2 * FFN + FFN + HIDDEN)
    assert thin == LAYERS * layer
    whole = sent(plain, "all_gather")[0] / 2
    assert sent(adapted, "all_gather")[0] / 2 == whole + thin
    assert peak(adapted) < peak(plain)
