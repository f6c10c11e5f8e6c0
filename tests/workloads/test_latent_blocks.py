"""Latent attention, shared experts, dense layers and grouped experts in PyTorch's own blocks, eager and compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.formats.model_flops import layer_flops
from prestep.sim.errors import InputError
from prestep.sim.graph.kernel import Kernel
from prestep.sim.predict import predict
from prestep.workloads.host_costs import host_costs
from prestep.workloads.lowered import Lowered
from prestep.workloads.models.counts import total_parameters
from prestep.workloads.models.model import ModelSpec, load_model
from prestep.workloads.torch.grouped_experts import product
from prestep.workloads.torch.recorder import Shared
from prestep.workloads.torch.tape import Tape
from tests.executed import executed
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

FRAMEWORKS = ("pytorch-eager", "pytorch-compiled")
SAMPLES = 2
TOKENS = SAMPLES * SEQ
BLOCK = 512  # bytes of which memory is given out
STATES, ROTATED = 64, 16
LATENT = TRANSFORMER | {
    "kv_heads": 8,
    "kv_lora_rank": STATES,
    "rope_head_dim": ROTATED,
    "v_head_dim": 24,
}
DEEPSEEK = LATENT | {
    "q_lora_rank": 96,
    "experts": 4,
    "experts_per_token": 2,
    "moe_ffn": 128,
    "shared_experts": 1,
    "dense_layers": 1,
    "router_bias": True,
}


def step(
    model: dict[str, Any],
    framework: str = "pytorch-eager",
    training: dict[str, Any] | None = None,
    **said: Any,
) -> Lowered:
    tables = {"framework": framework} | (training or {})
    return executed(scenario(model, tables, **said), 1).lowered


def kernels(low: Lowered, phase: str) -> list[Kernel]:
    """Of blocks, in a pass."""
    found = [op for op in ops(low) if op.layer >= 0 and op.phase == phase]
    return [op.kernel for op in found if op.kernel is not None]


def products(low: Lowered, phase: str = "forward") -> list[tuple[int, ...]]:
    """Shapes of the products of blocks."""
    return [k.shape for k in kernels(low, phase) if "mm" in k.kind]


def flops(low: Lowered, phase: str, of: str = "") -> float:
    """Of a rank's kernels in blocks whose kind has a word."""
    return sum((k.flops or 0.0 for k in kernels(low, phase) if of in k.kind), 0.0)


def weighing(m: ModelSpec) -> float:
    """Flops of a product of each token's weights with its experts' results, in layers that have experts."""
    layers = sum(map(m.has_experts, range(LAYERS)))
    return 2.0 * layers * TOKENS * m.experts_per_token * m.hidden


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(FRAMEWORKS),
    st.sampled_from((None, 96)),
    st.sampled_from((None, 1, 2)),
    st.sampled_from(("loop", "grouped")),
)
def test_flops_are_those_of_the_formula(
    framework: str, queries: int | None, shared: int | None, how: str
) -> None:
    """Forward as `layer_flops` says; backward products twice and attention two and a half times as much."""
    model = DEEPSEEK | {"q_lora_rank": queries, "shared_experts": shared}
    model = {key: value for key, value in model.items() if value is not None}
    low = step(model, framework, pytorch={"experts": how})
    spec = load_model(scenario(model).model)
    expected = sum(layer_flops(spec, layer, SEQ) for layer in range(LAYERS)) * TOKENS
    expected += weighing(spec) if how == "grouped" else 0.0
    assert flops(low, "forward") == pytest.approx(expected, rel=1e-12)
    forward, backward = (flops(low, p, "mm") for p in ("forward", "backward"))
    assert backward == 2 * forward
    scores = 2.0 * 8 * SEQ * SEQ / 2 * SAMPLES * LAYERS
    query, value = HIDDEN // 8 + ROTATED, 24
    assert flops(low, "forward", "attention") == scores * (query + value)
    assert flops(low, "backward", "attention") == scores * (3 * query + 2 * value)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("model", [LATENT, DEEPSEEK, EXPERTS | {"moe_every": 2}])
def test_parameters_are_held_and_counted(framework: str, model: dict[str, Any]) -> None:
    """As many as the formula has; a rank holds them all, but for a correction of the router that nobody trains."""
    low = step(model, framework)
    spec = load_model(scenario(model).model)
    assert low.parameters == total_parameters(spec)
    untrained = 4 * (LAYERS - 1) if model is DEEPSEEK else 0
    held = low.memory[0].before["parameters"]
    least = 2 * (total_parameters(spec) - untrained)
    assert least <= held < least + BLOCK * 4 * LAYERS


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_shared_expert_appears_once_in_each_layer_of_experts(framework: str) -> None:
    """Its products have all tokens, and there is none of them in a dense layer or without shared experts."""
    shape = (TOKENS, 128, HIDDEN)
    up_and_gate = 2 * (LAYERS - 1)
    without = {key: v for key, v in DEEPSEEK.items() if key != "shared_experts"}
    counts = [
        products(step(m, framework)).count(shape) for m in (DEEPSEEK, without, LATENT)
    ]
    # Routed experts have as many rows: two of four experts for each token.
    routed = 2 * 4 * (LAYERS - 1) if TOKENS * 2 // 4 == TOKENS else 0
    assert counts == [up_and_gate + routed, routed, 0]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("sequence", [False, True])
def test_compressed_states_are_whole_on_every_rank(
    framework: str, sequence: bool
) -> None:
    """Gradients of states, and of the part of a key that heads share, are summed over ranks; products into them are not split."""
    low = step(
        LATENT | {"q_lora_rank": 96}, framework, tp=2, sequence_parallel=sequence
    )
    shapes = products(low)
    assert shapes.count((TOKENS, STATES + ROTATED, HIDDEN)) == LAYERS
    assert shapes.count((TOKENS, 96, HIDDEN)) == LAYERS
    assert shapes.count((TOKENS, 8 * (HIDDEN // 8 + 24) // 2, STATES)) == LAYERS
    states = 2.0 * LAYERS * TOKENS * (96 + STATES + ROTATED)
    backward = [op for op in ops(low) if op.phase == "backward"]
    sums = sum(
        c.size
        for op in backward
        for c in op.comms
        if c.op == "all_reduce" and c.size < 2.0 * TOKENS * HIDDEN
    )
    assert sums == states


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from(FRAMEWORKS),
    st.sampled_from(((1, 1), (2, 1), (1, 2))),
    st.booleans(),
    st.sampled_from(("none", "full", "products")),
    st.sampled_from(("loop", "grouped")),
)
def test_folded_is_unfolded(
    framework: str, parts: tuple[int, int], spread: bool, recompute: str, how: str
) -> None:
    """A slow rank that is not slow simulates every rank by itself, and the step takes as long."""
    tp, pp = parts
    layout = {"dp": 2, "tp": tp, "pp": pp, "ep": 2 if spread else 1}
    training: dict[str, Any] = {"framework": framework, "recompute": recompute}
    training |= {"microbatches": 2} if pp > 1 else {}
    pytorch = {"experts": how}
    folded = scenario(DEEPSEEK, training, pytorch, data_parallel="fsdp", **layout)
    slow = type(folded.faults)(slow_rank=0, slow_factor=1.0)
    whole = predict(replace(folded, faults=slow))
    assert predict(folded).step_time == pytest.approx(whole.step_time, rel=1e-6)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_grouped_experts_are_one_product_for_each_projection(framework: str) -> None:
    """Three forward and six backward for each layer of experts, with the flops of the loop's, and no more memory."""
    loop, grouped = (
        step(EXPERTS, framework, pytorch={"experts": how})
        for how in ("loop", "grouped")
    )
    kinds = [op.kernel.kind for op in ops(grouped) if op.kernel]
    assert kinds.count("aten _grouped_mm") == 9 * LAYERS
    weighed = weighing(load_model(scenario(EXPERTS).model))
    for phase, times in (("forward", 1), ("backward", 2)):
        assert flops(loop, phase) + times * weighed == flops(grouped, phase)
    assert loop.memory[0].before == grouped.memory[0].before


def test_products_of_experts_are_called_as_pytorch_calls_them() -> None:
    """Four experts of 32 rows: all rows in one operand, the weights' transposed; weights' gradients come first."""
    t = Tape(0, Shared(), host_costs("pytorch-eager"))
    x, w = t.empty((4, 32, 64)), t.empty((4, 256, 64))
    x.requires_grad = w.requires_grad = True
    y = product(t, x, w)
    t.backward(y, t.empty(y.shape))
    made = [k for k in t.shared.kernels if isinstance(k, Kernel)]
    assert [(k.kind, k.shape, k.layout) for k in made] == [
        ("aten _grouped_mm", (4, 128, 256, 64), "nt"),
        ("aten _grouped_mm", (4, 256, 64, 128), "tn"),
        ("aten _grouped_mm", (4, 128, 64, 256), "nn"),
    ]
    assert {k.flops for k in made} == {2.0 * 128 * 256 * 64}


def test_ranks_tell_each_other_how_many_rows_they_send() -> None:
    """Before tokens travel, in every pass that computes them; the loop of balanced experts knows."""
    loop, grouped = (
        step(EXPERTS, dp=2, ep=2, data_parallel="fsdp", pytorch={"experts": how})
        for how in ("loop", "grouped")
    )
    more = (
        communications(grouped)["ep all_to_all"] - communications(loop)["ep all_to_all"]
    )
    assert more == LAYERS
    told = volume(grouped, "ep all_to_all") - volume(loop, "ep all_to_all")
    assert told == LAYERS * 8 * 4
    waits = [op.name for op in ops(grouped) if op.name == "synchronize"]
    assert len(waits) == LAYERS


def test_flash_attention_2_has_values_as_wide_as_queries() -> None:
    """Zeros are put behind them: its products are wider than those of cuDNN, which takes them as they are."""
    cudnn, flash2 = (
        step(LATENT, pytorch={"attention": kernel}) for kernel in ("cudnn", "flash2")
    )
    query = HIDDEN // 8 + ROTATED
    ratio = 2 * query / (query + 24)
    attention = [flops(low, "forward", "attention") for low in (cudnn, flash2)]
    assert attention[1] == pytest.approx(attention[0] * ratio)


@pytest.mark.parametrize(
    ("model", "said", "told"),
    [
        (LATENT, {"joined_qkv": True}, "latent attention"),
        (LATENT, {"attention": "triton"}, "latent attention"),
        (TRANSFORMER, {"experts": "grouped"}, "nothing without experts"),
    ],
)
def test_what_latent_attention_does_not_have(
    model: dict[str, Any], said: dict[str, Any], told: str
) -> None:
    with pytest.raises(InputError, match=told):
        executed(scenario(model, {"framework": "pytorch-eager"}, said))
