"""Laws of Megatron's switches that fuse kernels, or quantize otherwise: as much computed, less moved, no slower."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.errors import InputError
from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import KERNEL, Chain
from prestep.sim.predict import step_time
from prestep.sim.spec.load import Scenario, parse_scenario
from tests.executed import executed

DENSE: dict[str, Any] = {
    "kind": "transformer",
    "hidden": 2048,
    "layers": 4,
    "heads": 16,
    "kv_heads": 4,
    "ffn": 5632,
    "vocab": 8192,
}
EXPERTS = DENSE | {"moe_ffn": 1408, "experts": 64, "experts_per_token": 4}
LORA = {"kind": "lora", "rank": 16, "targets": ["qkv", "proj"], "dropout": 0.1}
ROPE = "fused_single_qkv_rope"
FUSER = "use_transformer_engine_op_fuser"
ROUTER = "moe_router_fusion"
BLACKWELL = "gb200-nvl72"


def run(
    model: dict[str, Any] = DENSE,
    precision: str = "bf16",
    adapter: dict[str, Any] | None = None,
    cluster: str = "dgx-h100",
    microbatches: int = 2,
    parallel: dict[str, Any] | None = None,
    packed: int | None = None,
    **megatron: Any,
) -> Scenario:
    """A step whose host is so fast that GPUs decide."""
    training = {
        "framework": "megatron",
        "seq_len": 4096,
        "precision": precision,
        "microbatches": microbatches,
    }
    return parse_scenario(
        {
            "cluster": {"name": cluster, "gpus": 4, "host_factor": 0.01},
            "model": model,
            "training": training | ({"packed": packed} if packed else {}),
            "parallel": {"dp": 4, "data_parallel": "ddp"} | (parallel or {}),
            "megatron": megatron,
            "adapter": adapter or {},
        },
        "test",
    )


def launched(s: Scenario, way: str) -> list[Kernel]:
    """Kernels of a direction of a layer."""
    chains = [
        kernel
        for kernel in executed(s).lowered.graph.kernels
        if isinstance(kernel, Chain) and kernel.name == f"layer {way}"
    ]
    graph = max(chains, key=lambda chain: chain.times).graph
    program = graph.programs[0]
    return [graph.kernels[k] for k in program.payload[program.kind == KERNEL]]


def both(s: Scenario) -> list[Kernel]:
    return [*launched(s, "forward"), *launched(s, "backward")]


def moved(s: Scenario) -> float:
    return sum(kernel.bytes for kernel in both(s))


def computed(s: Scenario) -> float:
    return sum(kernel.flops for kernel in both(s))


CASES = [
    ({}, ROPE),
    ({"model": DENSE | {"kv_heads": 16}}, ROPE),
    ({"attention": "unfused"}, ROPE),
    ({"precision": "fp8"}, FUSER),
    ({"precision": "fp8", "fp8_scaling": "dynamic"}, FUSER),
    ({"precision": "fp8", "fp8_scaling": "mx"}, FUSER),
    ({"precision": "fp8", "fp8_transposes": False}, FUSER),
    ({"adapter": LORA}, FUSER),
    ({"adapter": LORA, "precision": "fp8"}, FUSER),
    ({"model": EXPERTS}, ROUTER),
]


@pytest.mark.parametrize(("how", "switch"), CASES)
def test_a_fusion_computes_as_much_moves_less_and_is_faster(
    how: dict[str, Any], switch: str
) -> None:
    """Flops are the same; bytes, kernels and time are fewer. Weights are cast once a step either way."""
    once = how if "adapter" in how else {"fp8_param_gather": True, **how}
    plain, fused = run(**once), run(**once, **{switch: True})
    assert computed(fused) == computed(plain) > 0
    assert moved(fused) < moved(plain)
    assert len(both(fused)) < len(both(plain)) or switch == FUSER
    assert step_time(fused) < step_time(plain)


def test_one_kernel_cuts_and_rotates_all_that_the_projection_makes() -> None:
    """Two kernels forward become one, and three backward: 4096 tokens of 16 + 2 x 4 heads, read and written."""
    plain, fused = run(), run(**{ROPE: True})
    assert len(launched(plain, "forward")) - len(launched(fused, "forward")) == 1
    assert len(launched(plain, "backward")) - len(launched(fused, "backward")) == 2
    queries, keys, element = 4096 * 16 * 128, 4096 * 4 * 128, 2
    whole, turned = (queries + 2 * keys) * element, (queries + keys) * element
    assert moved(plain) - moved(fused) == pytest.approx(
        2 * 2 * turned + 2 * whole - 2 * 2 * whole
    )


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"packed": 512}, "packed"),
        ({"rope_fusion": False}, "rope_fusion"),
        ({"model": DENSE | {"positions": "none"}}, "rotated"),
        ({"model": DENSE | {"qk_norm": True}}, "norms"),
        ({"model": DENSE | {"attention_gate": True}}, "gate"),
    ],
)
def test_what_megatrons_kernel_does_not_take_is_refused(
    changes: dict[str, Any], word: str
) -> None:
    """As Megatron's assertions do."""
    with pytest.raises(InputError, match=word):
        step_time(run(**changes, **{ROPE: True}))


def test_an_activation_writes_fp8_itself_where_the_scale_is_there() -> None:
    """Of each of 5632 values a token: two bytes less forward and again read; backward twice as many, for both halves.

    Written in 8 bits (1 less), not read again (2 less); the transposed copy is made of 8 bits (1 read and 1 written).
    """
    keys: dict[str, Any] = {"precision": "fp8", "fp8_param_gather": True}
    plain, fused = run(**keys), run(**keys, **{FUSER: True})
    values = 3 * 4096 * 5632
    assert moved(plain) - moved(fused) == pytest.approx(3.0 * values)
    keys["fp8_transposes"] = False
    plain, fused = run(**keys), run(**keys, **{FUSER: True})
    assert moved(plain) - moved(fused) == pytest.approx(4.0 * values)
    assert len(both(plain)) - len(both(fused)) == 2


def test_an_activation_finds_the_largest_value_where_that_makes_the_scale() -> None:
    """One pass less over what it makes, forward and backward; rotated values have another largest one."""
    values = 3 * 4096 * 5632
    keys: dict[str, Any] = {"precision": "fp8", "fp8_param_gather": True}
    keys["fp8_scaling"] = "dynamic"
    assert moved(run(**keys)) - moved(run(**keys, **{FUSER: True})) == 2.0 * values
    keys = {"precision": "nvfp4", "cluster": BLACKWELL, "microbatches": 1}
    assert moved(run(**keys)) == moved(run(**keys, **{FUSER: True}))
    keys["nvfp4_rht"] = False
    assert moved(run(**keys)) - moved(run(**keys, **{FUSER: True})) == 2.0 * values


def test_rotation_and_the_scaling_of_fp8_leave_the_bytes_of_nvfp4() -> None:
    """One kernel writes rows and rotated columns; scales are those of NVFP4, whatever fp8 would have."""
    keys: dict[str, Any] = {"precision": "nvfp4", "cluster": BLACKWELL}
    plain = moved(run(**keys))
    assert moved(run(**keys, nvfp4_rht=False)) == plain
    assert moved(run(**keys, fp8_scaling="dynamic")) == plain


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 8))
def test_the_fuser_casts_weights_in_every_microbatch(microbatches: int) -> None:
    """The first one's is every step's: three projections' weights, times the share of the others."""
    keys: dict[str, Any] = {"precision": "fp8", "microbatches": microbatches}
    here, kept = (
        moved(run(**keys, fp8_param_gather=gathers, **{FUSER: True}))
        for gathers in (False, True)
    )
    weights = 3 * 2048 * 5632
    assert here - kept == pytest.approx(4.0 * weights * (1 - 1 / microbatches))


def test_the_fuser_is_of_quantized_dense_layers_or_adapters() -> None:
    """In 16 bits the activation has nothing to quantize."""
    assert step_time(run(**{FUSER: True})) == step_time(run())


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"model": EXPERTS}, "moe_fused_mlp"),
        ({"adapter": LORA | {"targets": ["fc1"]}}, "takes no adapters"),
        (
            {"adapter": LORA, "parallel": {"dp": 2, "tp": 2}},
            "tensor-parallel",
        ),
    ],
)
def test_what_the_fuser_does_not_take_is_refused(
    changes: dict[str, Any], word: str
) -> None:
    """As Megatron's and NeMo's own checks do."""
    with pytest.raises(InputError, match=word):
        step_time(run(**changes, **{FUSER: True}))


def test_dropout_behind_an_adapter_keeps_its_sum_apart() -> None:
    """The last product adds to the projection's output only where nothing is between them."""
    behind = LORA | {"dropout_position": "post"}
    plain, fused = (
        [len(both(run(adapter=a, **{FUSER: on}))) for on in (False, True)]
        for a in (behind, LORA)
    )
    assert plain[0] == plain[1]
    assert fused[0] > fused[1]


@pytest.mark.parametrize(
    ("scaling", "anew"), [("delayed", True), ("dynamic", True), ("mx", False)]
)
def test_without_a_cache_weights_are_transposed_in_every_backward_pass(
    scaling: str, anew: bool
) -> None:
    """Each projection's fp8 weight is read and written once more; blocks have columns of their own."""
    keys: dict[str, Any] = {"precision": "fp8", "fp8_scaling": scaling}
    plain, again = (
        run(**keys, keep_fp8_weight_transpose_cache=kept) for kept in (True, False)
    )
    weights = 3 * 2048 * 5632 + 2048 * (16 + 2 * 4) * 128 + 2048 * 2048
    assert launched(again, "forward") == launched(plain, "forward")
    assert moved(again) - moved(plain) == (2.0 * weights if anew else 0.0)
    assert (step_time(again) > step_time(plain)) == anew
    bf16 = [run(keep_fp8_weight_transpose_cache=kept) for kept in (True, False)]
    assert step_time(bf16[0]) == step_time(bf16[1])
