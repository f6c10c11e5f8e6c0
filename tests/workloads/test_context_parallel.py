"""Context parallelism in PyTorch: what goes round, who is in which group, and what it costs, by hand arithmetic."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.collectives.planner import plan_collective
from prestep.sim.errors import InputError
from prestep.sim.graph.opgraph import KERNEL, Chain
from prestep.sim.predict import predict
from prestep.sim.spec.load import parse_scenario
from prestep.workloads.exchanges.context import groups
from prestep.workloads.lowered import Lowered
from tests.executed import Executed, executed
from tests.workloads.small import (
    EXPERTS,
    HIDDEN,
    LAYERS,
    SEQ,
    TRANSFORMER,
    communications,
    ops,
    scenario,
    volume,
)

HEADS, KV_HEADS, SAMPLES = 8, 4, 2
KEYS = SAMPLES * SEQ * KV_HEADS * HIDDEN // HEADS  # numbers in the keys of a layer
AROUND, ONWARDS = "cp all_gather", "cp sendrecv"
rotations = st.sampled_from(("allgather", "alltoall"))


def ran(framework: str = "pytorch-eager", **said: Any) -> Executed:
    """One step of a scenario's tables."""
    training = {"framework": framework} | (said.pop("training", None) or {})
    return executed(scenario(training=training, **said), 1)


def attention_flops(low: Lowered) -> float:
    kernels = [op.kernel for op in ops(low) if op.kernel is not None]
    return sum(k.flops for k in kernels if "attention" in k.kind)


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from((2, 4)),
    rotations,
    st.sampled_from(("pytorch-eager", "pytorch-compiled")),
)
def test_bytes_that_go_round(cp: int, way: str, framework: str) -> None:
    """Keys and values reach every rank in both passes, in bf16; their gradients make all steps in fp32."""
    low = ran(framework, pytorch={"rotate_method": way}, cp=cp).lowered
    part = 2 * KEYS // cp  # keys and values of one rank
    home = LAYERS * cp * part * 4.0
    if way == "allgather":
        assert volume(low, AROUND) == LAYERS * 2 * cp * part * 2.0
        assert volume(low, ONWARDS) == home
    else:
        assert volume(low, AROUND) == 0
        assert volume(low, ONWARDS) == LAYERS * 2 * (cp - 1) * part * 2.0 + home


@pytest.mark.parametrize("framework", ["pytorch-eager", "megatron"])
@pytest.mark.parametrize(("cp", "ring"), [(2, 1), (4, 1), (4, 2)])
def test_bytes_of_exchanged_heads(framework: str, cp: int, ring: int) -> None:
    """Queries, keys, values and outputs of a rank's tokens are exchanged in each pass, whatever goes around.

    Of each a rank sends all but its own part. Keys and values that go around are those of a rank's heads, of the tokens
    of its neighbours: as many bytes as without neighbours, over shorter rings.
    """
    said: dict[str, Any] = {"cp": cp, "ring_degree": ring}
    if framework == "pytorch-eager" and ring > 1:
        said["pytorch"] = {"rotate_method": "alltoall"}
    low = ran(framework, **said).lowered
    queries = 2.0 * SAMPLES * SEQ // cp * HIDDEN
    keys = queries * KV_HEADS / HEADS
    hops = (ring - 1) * 2 * keys
    around = hops + 2 * hops
    if framework != "megatron":  # gradients that go around are in fp32, and go home
        around = 2 * hops + ring * 2 * 2 * keys if ring > 1 else 0
    assert sent(low, "all_to_all") == LAYERS * 2 * (2 * queries + 2 * keys)
    assert sent(low, "sendrecv") == LAYERS * around


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(
    ("scaling", "behind"), [("delayed", 1), ("dynamic", 2), ("mx", None)]
)
def test_heads_of_attention_in_fp8_are_exchanged_in_fp8(
    scaling: str, behind: int | None, again: bool
) -> None:
    """Ahead of attention what it reads: queries, keys, values, the gradient of its output
    and, where backward exchanges it again, the output. With delayed scales also
    what it makes, which current scales leave in 16 bits; with scales of blocks all is."""
    tables = {
        "cluster": {"name": "dgx-b200", "gpus": 4},
        "model": TRANSFORMER,
        "training": {"framework": "megatron", "precision": "fp8", "seq_len": SEQ}
        | {"micro_batch": SAMPLES},
        "parallel": {"cp": 4, "ring_degree": 1},
        "megatron": {"fp8_dot_product_attention": True, "fp8_scaling": scaling}
        | {"exchange_result_again": again},
    }
    low = executed(parse_scenario(tables, "test"), 1).lowered
    queries = SAMPLES * SEQ // 4 * HIDDEN
    keys = queries * KV_HEADS // HEADS
    reads, makes = (2 + again) * queries + 2 * keys, 2 * queries + 2 * keys
    ahead = 1 if behind else 2
    assert sent(low, "all_to_all") == LAYERS * (ahead * reads + (behind or 2) * makes)


@pytest.mark.parametrize("framework", ["pytorch-eager", "megatron"])
def test_windows_exchange_all_heads(framework: str) -> None:
    """Which tokens a query sees changes nothing of what is exchanged, and a window's scores are counted once."""
    windowed = TRANSFORMER | {"window": 256}
    long = {"training": {"seq_len": 2048}, "cp": 4, "ring_degree": 1}
    if framework != "megatron":  # the library's kernels: PyTorch's own take a mask
        long |= {"pytorch": {"attention": "flash2"}}
    whole, part = (
        ran(framework, model=m, **long).lowered for m in (TRANSFORMER, windowed)
    )
    assert sent(part, "all_to_all") == sent(whole, "all_to_all") > 0
    # Blocks of 256 tokens along the diagonal, each 256 x 256 scores, beside 2,048 x 2,048.
    blocks = 2 * 2048 / 256 - 1
    assert scores(part) == pytest.approx(scores(whole) * blocks * 256**2 / 2048**2)


def scores(low: Lowered) -> float:
    """Of all attention, before half of them are masked."""
    kernels = [k for op in ops(low) if op.kernel for k in launched(op.kernel)]
    shapes = [k.shape for k in kernels if "attention" in k.kind]
    return float(sum(prod(shape[:2]) * shape[3] ** 2 for shape in shapes))


def launched(kernel: Any) -> list[Any]:
    """A kernel, or those of a recorded layer."""
    if not isinstance(kernel, Chain):
        return [kernel]
    graph = kernel.graph
    return [
        graph.kernels[i] for p in graph.programs for i in p.payload[p.kind == KERNEL]
    ]


def sent(low: Lowered, operation: str) -> float:
    """Bytes of a rank's exchanges along cp, those inside of recorded layers too."""
    total = 0.0
    for op in ops(low):
        comms = [*op.comms]
        if isinstance(op.kernel, Chain):
            comms += op.kernel.graph.comms
        total += sum(c.size for c in comms if (c.axis, c.op) == ("cp", operation))
    return total


def test_neighbours_exchange_heads_and_rings_go_across() -> None:
    """Of eight ranks with rings of two, four neighbours exchange heads; each meets one of the other four."""
    near, across = (groups(role, range(8), 2) for role in ("heads", "ring"))
    assert [*map(tuple, near)] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [*map(tuple, across)] == [(0, 4), (1, 5), (2, 6), (3, 7)]


@pytest.mark.parametrize("framework", ["pytorch-eager", "megatron"])
@pytest.mark.parametrize("ring", [1, 2, 4])
def test_every_exchange_attends_to_all_keys(framework: str, ring: int) -> None:
    """However a sequence is shared, the ranks' attention together is that of whole samples."""

    def work(**said: Any) -> float:
        return scores(ran(framework, **said).lowered)

    assert 4 * work(cp=4, ring_degree=ring) == pytest.approx(work())


@pytest.mark.parametrize("cp", [2, 4])
def test_bytes_on_the_links(cp: int) -> None:
    """What links carry of an operation among the cp ranks is what as many such operations put on idle links."""
    done = ran(cp=cp, pytorch={"rotate_method": "alltoall"})
    part = 2 * KEYS // cp
    nvlink, total = done.fabric.links.kind == "nvlink", 0.0
    traffic = done.run.traffic
    for row, begin, end in zip(*traffic.segments(), strict=True):
        plan = traffic.plans[traffic.activity[row]]
        if plan.op == "sendrecv":
            each = plan.usage[nvlink[plan.links]].sum() * plan.copies
            total += float(traffic.rate[row] * (end - begin) * each)

    def alone(size: float) -> float:
        gpus = done.gpus[:cp]
        plan = plan_collective("sendrecv", size, gpus, done.fabric, done.scenario.nccl)
        return float(plan.usage.sum()) * size

    forth, back = alone(2.0 * part), alone(4.0 * part)
    assert forth >= cp * 2.0 * part
    expected = LAYERS * (2 * (cp - 1) * forth + cp * back)
    assert total == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("way", ["fsdp", "ddp"])
def test_gradients_meet_over_replicas_and_parts(way: str) -> None:
    """Ranks 0 and 1 share samples, so do 2 and 3; parameters and gradients belong to all four."""
    low = ran(dp=2, cp=2, data_parallel=way).lowered
    groups = {(c.axis, c.groups) for c in low.graph.comms}
    assert groups == {("cp", ((0, 1), (2, 3))), ("dp", ((0, 1, 2, 3),))}
    whole = 2.0 * low.parameters
    if way == "ddp":
        assert volume(low, "dp all_reduce") == whole
    else:
        root = 2.0 * (2 * 1000 + 1) * HIDDEN  # stays between its passes
        assert volume(low, "dp all_gather") == 2 * whole - root
        assert volume(low, "dp reduce_scatter") == whole


def test_parts_lie_between_tensor_ranks_and_stages() -> None:
    """The default order is tp-cp-pp-dp; `parallel.order` says another."""
    said: dict[str, Any] = {"cp": 2, "tp": 2, "data_parallel": "fsdp"}
    groups = {
        order: {
            (c.axis, c.groups) for c in ran(**said, order=order).lowered.graph.comms
        }
        for order in ("tp-cp", "cp-tp")
    }
    near, far = ((0, 1), (2, 3)), ((0, 2), (1, 3))
    assert groups["tp-cp"] == {("tp", near), ("cp", far), ("dp", far)}
    assert groups["cp-tp"] == {("tp", far), ("cp", near), ("dp", near)}


def test_hybrid_shards_hold_whole_samples() -> None:
    low = ran(dp=2, cp=2, data_parallel="fsdp", fsdp_shards=2).lowered
    groups = {(c.axis, c.groups) for c in low.graph.comms}
    near, far = ((0, 1), (2, 3)), ((0, 2), (1, 3))
    assert groups == {("cp", near), ("dp", near), ("replicas", far)}


def test_experts_are_spread_over_whole_samples() -> None:
    """Two ranks that share a sample share experts too, as torchtitan has it."""
    low = ran(model=EXPERTS, dp=2, cp=2, ep=2, data_parallel="fsdp").lowered
    groups = {c.axis: c.groups for c in low.graph.comms}
    assert groups["ep"] == groups["cp"] == ((0, 1), (2, 3))
    with pytest.raises(InputError, match="whole groups of cp"):
        scenario(EXPERTS, cp=4, ep=2, data_parallel="fsdp")


@settings(max_examples=6, deadline=None)
@given(st.sampled_from((2, 4)), st.sampled_from(("pytorch-eager", "pytorch-compiled")))
def test_parts_of_attention_are_all_of_it(cp: int, framework: str) -> None:
    """The ranks' blocks together have as many operations as the attention of whole samples."""
    parts = attention_flops(ran(framework, cp=cp).lowered)
    assert cp * parts == pytest.approx(attention_flops(ran(framework).lowered))


@pytest.mark.parametrize("framework", ["pytorch-eager", "pytorch-compiled"])
def test_more_ranks_need_less_memory(framework: str) -> None:
    """With step-by-step exchanges nothing grows with the ranks; activations and shards shrink."""
    said = {"data_parallel": "fsdp"}
    way = {"rotate_method": "alltoall"}
    long = {"seq_len": 2048}
    peaks = [
        ran(framework, pytorch=way, training=long, cp=cp, **said).lowered.memory[0].peak
        for cp in (2, 4)
    ]
    whole = ran(framework, training=long).lowered.memory[0].peak
    assert all(b < a for a, b in pairwise([whole, *peaks]))


def test_recomputed_layers_exchange_again_unless_attention_is_kept() -> None:
    """Full checkpointing runs forward twice; selective checkpointing keeps attention's result, however it was made."""

    def gathers(how: str) -> int:
        low = ran(cp=2, training={"recompute": how}).lowered
        return communications(low)[AROUND]

    assert gathers("none") == gathers("products") == 2 * LAYERS
    assert gathers("full") == 3 * LAYERS


def test_kept_attention_counts_once() -> None:
    """What selective checkpointing keeps of a layer does not grow with the steps of the ring."""

    def kept(cp: int) -> float:
        training = {"recompute": "products", "seq_len": 1024 * cp}
        return ran(cp=cp, training=training).lowered.memory[0].peak

    assert kept(4) < 1.5 * kept(2)


def test_stages_send_parts() -> None:
    """An activation between stages is one rank's part of the sequence."""
    sent = [
        volume(ran(pp=2, cp=cp, training={"microbatches": 2}).lowered, "pp send")
        for cp in (1, 2)
    ]
    assert sent[0] == 2 * sent[1]


def test_compiled_blocks_launch_less_around_attention() -> None:
    def kernels(framework: str) -> int:
        low = ran(framework, cp=4).lowered
        both = [
            [op for op in ops(each) if op.kernel and op.kernel.kind != "memset"]
            for each in (low, ran(framework).lowered)
        ]
        return len(both[0]) - len(both[1])

    assert kernels("pytorch-compiled") < kernels("pytorch-eager") / 2


@pytest.mark.parametrize(
    ("pytorch", "training", "words"),
    [
        ({"version": "2.5"}, {}, "2.7 or later"),
        ({"attention": "triton"}, {}, "PyTorch's own kernels"),
        ({}, {"seq_len": 6}, "a multiple of 2"),
    ],
)
def test_what_context_parallel_does_not_run(
    pytorch: dict[str, Any], training: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        ran(cp=2, pytorch=pytorch, training=training)


@pytest.mark.parametrize("said", [{"dp": 2}, {"cp": 2, "ring_degree": 1}])
def test_a_way_round_needs_a_ring(said: dict[str, int]) -> None:
    with pytest.raises(InputError, match=r"parallel.cp > 1"):
        ran(**said, pytorch={"rotate_method": "alltoall"})


@pytest.mark.parametrize(
    ("framework", "ring", "model", "words"),
    [
        ("pytorch-eager", 3, {}, "a divisor of cp = 4"),
        ("megatron", 1, {"heads": 6, "kv_heads": 6, "hidden": 240}, "whole ones"),
        ("pytorch-compiled", 2, {}, "go around a ring alone"),
    ],
)
def test_heads_that_no_neighbours_exchange(
    framework: str, ring: int, model: dict[str, int], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        ran(framework, model=TRANSFORMER | model, cp=4, ring_degree=ring)


@pytest.mark.parametrize("ring", [1, 2])
def test_windows_and_documents_go_with_exchanged_heads_alone(ring: int) -> None:
    """A rank has all tokens of its heads then; around a ring it would need its neighbours' alone."""
    packed = {"training": {"packed": 32}, "pytorch": {"attention": "flash2"}}
    for said in ({"model": TRANSFORMER | {"window": 32}}, packed):
        if ring == 1:
            whole, part = ran(**said).lowered, ran(**said, cp=2, ring_degree=1).lowered
            assert 2 * attention_flops(part) == pytest.approx(attention_flops(whole))
        else:
            with pytest.raises(InputError, match="ring_degree = 1"):
                ran(**said, cp=2)


@pytest.mark.parametrize(
    "said",
    [
        {"pytorch": {"fsdp": "1"}, "parallel": {"data_parallel": "fsdp"}},
        {"training": {"precision": "fp32"}},
        {"training": {"precision": "fp16"}, "pytorch": {"master_weights": True}},
        {"training": {"optimizer": "muon"}, "parallel": {"data_parallel": "fsdp"}},
        {"parallel": {"data_parallel": "zero1"}},
    ],
)
def test_it_goes_with_what_trains_elsewhere(said: dict[str, Any]) -> None:
    tables = {name: said[name] for name in ("training", "pytorch") if name in said}
    result = predict(scenario(cp=2, dp=2, **tables, **said.get("parallel", {})))
    assert result.step_time > 0
    assert result.breakdown["exposed_cp"] > 0
