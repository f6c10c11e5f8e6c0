"""Host time of recorded operations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from prestep.sim.costs import load_gpu
from prestep.sim.graph.kernel import Kernel
from prestep.sim.planning.planned import with_launches
from prestep.workloads.host_costs import host_costs, prices_and_counts
from prestep.workloads.host_work import NODES, extern_work, host_work
from prestep.workloads.operation import Argument, Operand, Operation
from prestep.workloads.operators.rules import kernels_of
from prestep.workloads.torch.recorder import Recorder, Shared
from tests.workloads.small import LAYERS, lowered

TENSOR = Operand("bf16", (64, 64))
LAUNCH = "compiled_launch"


def work(
    name: str, *arguments: Argument, results: int = 1, backward: bool = False
) -> dict[str, int]:
    operation = Operation(name, arguments, (), (TENSOR,) * results)
    return dict(host_work(operation, kernels_of(operation))[backward])


@pytest.mark.parametrize(
    ("name", "arguments", "cost"),
    [
        ("aten.mm.default", (TENSOR, TENSOR), "aten_product"),
        ("aten.add.Tensor", (TENSOR, TENSOR), "aten_elementwise"),
        ("aten.t.default", (TENSOR,), "view"),
        ("other.thing.default", (TENSOR,), "aten_elementwise"),
    ],
)
def test_an_operation_costs_what_its_family_does(
    name: str, arguments: tuple[Argument, ...], cost: str
) -> None:
    """What launches nothing is a view, what nobody knows an operation over elements."""
    assert work(name, *arguments) == {cost: 1}
    assert work(name, *arguments, backward=True) == {f"{cost}_backward": 1}


def test_lists_cost_by_their_tensors() -> None:
    """foreach operators collect the addresses of all tensors."""
    few = work("aten._foreach_mul_.Scalar", (TENSOR,) * 3, 2.0, results=0)
    assert few == {"aten_list": 1, "aten_list_tensor": 3}


def test_every_cost_has_a_time() -> None:
    """The table of recorded programs has all names that lowering uses."""
    costs = host_costs("captured")
    names = ("elementwise", "product", "attention", "convolution", "norm")
    assert all(costs[f"aten_{name}"] > 0 for name in (*names, "list", "list_tensor"))


def test_autograd_calls_take_longer() -> None:
    """A node is looked up, its operator called in the engine's thread, and gradients are handed on."""
    costs = host_costs("captured")
    assert all(costs[name] < costs[f"{name}_backward"] for name in NODES)


def test_recordings_have_the_prices_of_scenarios() -> None:
    """One home: what an operator takes the host is the same whoever wrote it down."""
    mine, others = host_costs("captured"), host_costs("pytorch-compiled")
    assert {name for name in others if mine[name] != others[name]} == {"graph_launch"}


def test_the_host_launches_every_kernel_of_an_operation() -> None:
    """A sum by index sorts: the host spends its further launches before what follows, and none for plain kernels."""
    places, rows = Operand("fp32", (64, 64)), Operand("fp32", (65536, 64))
    given = (places, (Operand("int64", (65536,)),), rows, True)
    (sorts,) = kernels_of(Operation("aten.index_put_.default", given, (), (places,)))
    shared = Shared()
    recorder = Recorder(0, shared, {"launch": 4.0e-6})
    for kernel in (sorts, Kernel("aten add", (1024,), "fp32", "", 12288.0), sorts):
        recorder.launch(kernel)
    graph = shared.graph([recorder.program()], {0: (0,)})
    gpu = load_gpu("h200")
    paid = with_launches(graph, gpu, 4.0e-6).programs[0].host
    plain = graph.programs[0].host
    more = np.round((paid - plain) / 4.0e-6)
    assert more[1] >= 5 and more[0] == more[2] == 0
    assert more[1] == gpu.further_launches(sorts)
    assert with_launches(graph, gpu, 0.0) is graph
    replayed = replace(graph.programs[0], host=np.zeros(3))
    free = replace(graph, programs=(replayed,))
    assert not with_launches(free, gpu, 4.0e-6).programs[0].host.any()


def test_layers_of_dtensors_cost_by_what_they_do() -> None:
    """Seven products a block; columns sum their input's gradient, rows their output, whose gradient is made whole."""
    counts = lowered(tp=2).host_operations[0]
    products = counts["dtensor_linear"], counts["dtensor_linear_backward"]
    assert products == (7 * LAYERS, 7 * LAYERS)
    assert (counts["dtensor_exchange"], counts["dtensor_backward"]) == (
        2 * LAYERS,
        7 * LAYERS,
    )
    _, counted = prices_and_counts("pytorch-eager")
    # Tokens as rows, the weight turned, the product and its rows as tokens again; backward both products, the weight
    # and the gradient turned, and the weight's gradient turned back and detached.
    forward, back = counted["dtensor_linear"], counted["dtensor_linear_backward"]
    assert (forward["dtensor_operation"], back["dtensor_operation"]) == (4, 9)


def test_compiled_code_pays_an_operator_more_than_a_kernel_of_its_own() -> None:
    """A product costs 2.8 times what Triton's kernels do, as measured.

    compiled_h200.jsonl: 299 products in a row, with the accumulated gradients of 100 weights, over what 121 kernels that
    convert weights add to `mlp40`.
    """
    mm = Operation("aten.mm.default", (TENSOR, TENSOR), (), (TENSOR,))
    prices = host_costs("captured")
    spent = extern_work(kernels_of(mm)[0], "mm")[1]
    product = sum(prices[name] * n for name, n in ((LAUNCH, 1), *spent))
    product += prices["accumulate_grad"] * 100 / 299
    assert product / prices[LAUNCH] == pytest.approx(2.8, rel=0.25)
    own = Kernel("fused_pointwise", (8,), bytes=8.0)
    assert extern_work(own, "mm") == extern_work(own, "add") == ((), ())
