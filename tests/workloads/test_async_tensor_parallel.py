"""Asynchronous tensor parallelism in eager PyTorch: what travels beside products, how they are cut, and what it saves."""

from __future__ import annotations

from typing import Any

import pytest

from prestep.sim.errors import InputError
from prestep.sim.predict import predict
from prestep.sim.spec.load import parse_scenario
from prestep.workloads.lowered import Lowered
from tests.executed import executed
from tests.workloads.small import HIDDEN, LAYERS, SEQ, TRANSFORMER, ops, scenario

SAMPLES, COLUMNS, ROWS = 2, 5, 2  # products of a layer: q, k, v, w1, w3 and wo, w2
WHOLE = 2.0 * SAMPLES * SEQ * HIDDEN  # bytes of an activation of all tokens


def ran(tp: int = 4, on: bool = True, **said: Any) -> Lowered:
    """A step, with and without."""
    pytorch = {"async_tensor_parallel": on} | said.pop("pytorch", {})
    s = scenario(pytorch=pytorch, tp=tp, sequence_parallel=True, **said)
    return executed(s, 1).lowered


def beside(low: Lowered, operation: str) -> list[float]:
    """Bytes of exchanges that copy engines make."""
    comms = [c for op in ops(low) for c in op.comms if c.copied and c.axis == "tp"]
    return [c.size for c in comms if c.op == operation]


def products(low: Lowered) -> list[float]:
    kernels = [op.kernel for op in ops(low) if op.kernel is not None]
    return [k.flops for k in kernels if k.is_product]


@pytest.mark.parametrize("tp", [2, 4])
def test_what_travels_beside_products(tp: int) -> None:
    """Inputs of columns and gradients of rows' outputs are gathered, sums of the others scattered, part by part."""
    low = ran(tp)
    gathered, scattered = beside(low, "all_gather"), beside(low, "reduce_scatter")
    count = LAYERS * (COLUMNS + ROWS)
    assert gathered == [WHOLE] * count
    assert scattered == [WHOLE / tp] * (tp * count)


def test_parts_are_the_whole() -> None:
    """However products are cut, they compute as much; each that is beside an exchange is one for each rank."""
    cut, whole = products(ran()), products(ran(on=False))
    assert sum(cut) == pytest.approx(sum(whole), rel=1e-12)
    assert len(cut) == len(whole) + LAYERS * (COLUMNS + ROWS) * 2 * (4 - 1)


def test_overlap_pays_where_products_are_large() -> None:
    """Wide layers hide their exchanges; of thin ones the parts cost more launches than the exchange took."""

    def step(hidden: int, seq_len: int, on: bool) -> float:
        model = {"kind": "transformer", "layers": 2, "heads": 32, "vocab": 1000}
        return predict(
            parse_scenario(
                {
                    "cluster": {"name": "dgx-h100"},
                    "model": model | {"hidden": hidden, "ffn": 4 * hidden},
                    "training": {"seq_len": seq_len, "framework": "pytorch-eager"},
                    "parallel": {"tp": 8, "sequence_parallel": True},
                    "pytorch": {"async_tensor_parallel": on},
                },
                "wide.toml",
            )
        ).step_time

    assert step(8192, 16384, True) < step(8192, 16384, False)
    assert step(512, 128, True) > step(512, 128, False)


def test_biases_are_added_behind_products() -> None:
    """No product beside an exchange adds one: each is a kernel more forward, and its gradient a sum in both ways."""

    def kernels(on: bool, bias: bool) -> int:
        low = ran(on=on, model=TRANSFORMER | {"bias": bias})
        return sum(op.kernel is not None for op in ops(low))

    extra = kernels(True, True) - kernels(True, False)
    assert extra == kernels(False, True) - kernels(False, False) + LAYERS * (
        COLUMNS + ROWS
    )


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"training": {"framework": "pytorch-compiled"}}, "wait for exchanges"),
        ({"training": {"precision": "fp8"}}, "quantized products"),
    ],
)
def test_what_it_does_not_go_with(said: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        ran(**said)
