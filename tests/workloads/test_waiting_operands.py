"""What products keep for backward: bytes of activations of a layer, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from prestep.sim.analysis.memory import fullest
from prestep.sim.lowering import lowered_on
from prestep.sim.predict import load_fabric
from prestep.sim.spec.load import parse_scenario

HIDDEN, FFN, HEADS, TOKENS = 1024, 4096, 8, 512
#: Bytes of an element in a quantized operand with its share of a block's scale (OCP MX: 32 elements; NVFP4: 16).
QUANTIZED = {"fp8": 1.0, "mx": 1 + 1 / 32, "nvfp4": 1 / 2 + 1 / 16}


def activations(layers: int, precision: str, **megatron: Any) -> float:
    """Bytes of activations at the peak of a step with one microbatch."""
    tables: dict[str, Any] = {
        "cluster": {"name": "dgx-b200", "gpus": 1},
        "model": {
            "kind": "transformer",
            "hidden": HIDDEN,
            "layers": layers,
            "heads": HEADS,
            "ffn": FFN,
            "vocab": 256,
        },
        "training": {
            "framework": "megatron",
            "seq_len": TOKENS,
            "precision": precision,
        },
        "megatron": megatron,
    }
    scenario = parse_scenario(tables, "counted")
    return fullest(lowered_on(scenario, load_fabric(scenario))).activations


def of_a_layer(precision: str, **megatron: Any) -> float:
    """Bytes that one more layer keeps for each token."""
    few, many = (activations(layers, precision, **megatron) for layers in (4, 8))
    return (many - few) / 4 / TOKENS


@pytest.mark.parametrize("scaling", QUANTIZED)
def test_quantized_operands_wait_as_products_take_them(scaling: str) -> None:
    """Inputs of three products only in the quantized type; that of attention's projection beside attention's own.

    Two normed rows of the residual stream and the activation's output are 2 bytes an element in bf16 and q bytes
    quantized. Attention's output stays in bf16 for its own backward pass, and q bytes more.
    """
    q = QUANTIZED[scaling]
    given: dict[str, Any] = {"fp8_scaling": scaling} if scaling == "mx" else {}
    precision = "nvfp4" if scaling == "nvfp4" else "fp8"
    less = of_a_layer("bf16") - of_a_layer(precision, **given)
    assert less == pytest.approx((2 - q) * (2 * HIDDEN + FFN) - q * HIDDEN, rel=1e-3)


def test_torchao_keeps_originals() -> None:
    """A scale for each row is torchao's, whose backward casts again what waited in 16 bits."""
    rows = of_a_layer("fp8", fp8_scaling="rowwise")
    assert rows == pytest.approx(of_a_layer("bf16"), rel=1e-6)


def test_what_runs_again_is_quantized_when_it_comes() -> None:
    """A feed-forward part keeps its input in bf16 instead of a quantized one, both halves of the
    activation's input in bf16, and its output.
    """
    less = of_a_layer("fp8") - of_a_layer("fp8", recompute_modules=["mlp"])
    assert less == pytest.approx((1 + 2 * 2) * FFN + (1 - 2) * HIDDEN, rel=1e-3)
