"""Host time of recorded operations."""

from __future__ import annotations

import pytest

from prestep.workloads.capture.host import host_work
from prestep.workloads.host_costs import host_costs
from prestep.workloads.operation import Argument, Operand, Operation
from prestep.workloads.operators.rules import kernels_of

TENSOR = Operand("bf16", (64, 64))


def work(name: str, *arguments: Argument, results: int = 1) -> dict[str, int]:
    operation = Operation(name, arguments, (), (TENSOR,) * results)
    return dict(host_work(operation, kernels_of(operation)))


@pytest.mark.parametrize(
    ("name", "arguments", "cost"),
    [
        ("aten.mm.default", (TENSOR, TENSOR), "aten_product"),
        ("aten.add.Tensor", (TENSOR, TENSOR), "aten_elementwise"),
        ("aten.t.default", (TENSOR,), "aten_view"),
        ("other.thing.default", (TENSOR,), "aten_elementwise"),
    ],
)
def test_an_operation_costs_what_its_family_does(
    name: str, arguments: tuple[Argument, ...], cost: str
) -> None:
    """What launches nothing is a view, what nobody knows an operation over elements."""
    assert work(name, *arguments) == {cost: 1}


def test_lists_cost_by_their_tensors() -> None:
    """foreach operators collect the addresses of all tensors."""
    few = work("aten._foreach_mul_.Scalar", (TENSOR,) * 3, 2.0, results=0)
    assert few == {"aten_list": 1, "aten_list_tensor": 3}


def test_every_cost_has_a_time() -> None:
    """The table of recorded programs has all names that lowering uses."""
    costs = host_costs("captured")
    names = ("view", "elementwise", "product", "attention", "convolution", "norm")
    assert all(costs[f"aten_{name}"] > 0 for name in (*names, "list", "list_tensor"))
