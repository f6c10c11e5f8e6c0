"""Gates of attention's output in PyTorch's own blocks, eager and compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lab.formats.model_flops import layer_flops
from prestep.sim.errors import InputError
from prestep.sim.predict import predict
from prestep.workloads.models.counts import total_parameters
from prestep.workloads.models.model import load_model
from tests.workloads.small import HIDDEN, LAYERS, SEQ, TRANSFORMER, ops, scenario
from tests.workloads.test_latent_blocks import LATENT, flops, products, step

FRAMEWORKS = ("pytorch-eager", "pytorch-compiled")
GATED = TRANSFORMER | {"attention_gate": True}
TOKENS, BLOCK = 2 * SEQ, 512


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("more", [{}, {"qk_norm": True}, {"positions": "none"}])
def test_flops_and_parameters_are_those_of_the_formulas(
    framework: str, more: dict[str, Any]
) -> None:
    """Forward as counted, products backward twice as much; every parameter is held."""
    model = GATED | more
    low, spec = step(model, framework), load_model(scenario(model).model)
    expected = sum(layer_flops(spec, layer, SEQ) for layer in range(LAYERS)) * TOKENS
    assert flops(low, "forward") == pytest.approx(expected, rel=1e-12)
    forward, backward = (flops(low, p, "mm") for p in ("forward", "backward"))
    assert backward == 2 * forward
    least = 2 * total_parameters(spec)
    assert low.parameters == total_parameters(spec)
    assert least <= low.memory[0].before["parameters"] < least + 10 * BLOCK * LAYERS


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_gate_costs_a_product_of_the_width_of_queries(framework: str) -> None:
    """In every layer, beside what the same model without it has."""
    gated, plain = (
        flops(step(m, framework), "forward", "mm") for m in (GATED, TRANSFORMER)
    )
    assert gated - plain == 2.0 * TOKENS * HIDDEN * HIDDEN * LAYERS


def test_a_joined_projection_makes_gates_too() -> None:
    """One product of queries, keys, values and gates; the flops are the same."""
    joined = step(GATED, pytorch={"joined_qkv": True})
    assert products(joined).count((TOKENS, 24 * HIDDEN // 8, HIDDEN)) == LAYERS
    assert flops(joined, "forward") == flops(step(GATED), "forward")


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("parts", [{"tp": 2}, {"pp": 2}, {"cp": 2}])
@pytest.mark.parametrize("recompute", ["none", "full", "products"])
def test_folded_is_unfolded(
    framework: str, parts: dict[str, int], recompute: str
) -> None:
    training: dict[str, Any] = {"framework": framework, "recompute": recompute}
    training |= {"microbatches": 2} if "pp" in parts else {}
    folded = scenario(GATED, training, dp=2, data_parallel="fsdp", **parts)
    slow = type(folded.faults)(slow_rank=0, slow_factor=1.0)
    whole = predict(replace(folded, faults=slow))
    assert predict(folded).step_time == pytest.approx(whole.step_time, rel=1e-6)


def test_a_gate_is_five_kernels() -> None:
    """A sigmoid and a product; their three backward; a copy joins the gradients of queries and gates."""
    gated, plain = (
        [op for op in ops(step(m)) if op.layer >= 0 and op.kernel is not None]
        for m in (GATED, TRANSFORMER)
    )
    assert len(gated) - len(plain) == 6 * LAYERS


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_latent_attention_has_none(framework: str) -> None:
    with pytest.raises(InputError, match="attention_gate"):
        step(LATENT | {"attention_gate": True}, framework)
