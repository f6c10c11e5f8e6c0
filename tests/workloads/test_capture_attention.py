"""A recording asks for the attention that PyTorch takes on the GPU that it is played on."""

from __future__ import annotations

import pytest

from prestep.workloads.capture.attention import on_gpu
from prestep.workloads.capture.recording import Recording
from prestep.workloads.operation import Operand, Operation
from prestep.workloads.operators.attention import Fused

SHAPE = (2, 4, 64, 128)
X, NARROW = Operand("bf16", SHAPE), Operand("bf16", (*SHAPE[:3], 64))
MASK = Operand("bf16", (2, 4, 64, 64))
#: Values, mask, whether it is causal, and the backend on a GPU where cuDNN is not preferred.
CALLS = {
    "causal": (X, None, True, "flash"),
    "all tokens": (X, None, False, "flash"),
    "behind a mask": (X, MASK, False, "efficient"),
    "narrow values": (NARROW, None, True, "efficient"),
}


def calls(
    backend: str, v: Operand, mask: Operand | None, causal: bool
) -> list[Operation]:
    """Forward and backward as models by hand ask for them."""
    call = Fused(backend, X, X, v, True, causal, mask)
    return [call.forward(v), call.backward(v, v, (X, X, v))]


def played(operations: list[Operation], capability: tuple[int, ...]) -> list[Operation]:
    recorded = Recording(
        1, tuple(operations), (), {}, 0, 2, "h200", versions={"torch": "2.13.0"}
    )
    return list(on_gpu(recorded, capability).operations)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (12, 0)])
def test_other_gpus_take_other_kernels(name: str, capability: tuple[int, ...]) -> None:
    """With the arguments that a model by hand calls them with."""
    v, mask, causal, backend = CALLS[name]
    asked = played(calls("cudnn", v, mask, causal), capability)
    expected = calls(backend, v, mask, causal)
    for one, other in zip(asked, expected, strict=True):
        assert one.name == other.name
        # What is left of a row's sums and of random numbers is as cuDNN has it.
        shapes = [
            [
                x.shape
                if isinstance(x, Operand) and x.dtype == "bf16"
                else str(type(x))
                for x in each.arguments
            ]
            for each in (one, other)
        ]
        assert shapes[0] == shapes[1]
        assert [x for x in one.arguments if isinstance(x, bool)] == [
            x for x in other.arguments if isinstance(x, bool)
        ]


@pytest.mark.parametrize("capability", [(), (9, 0), (10, 0), (10, 3)])
def test_where_cudnn_comes_first_nothing_changes(capability: tuple[int, ...]) -> None:
    operations = calls("cudnn", X, None, True)
    assert played(operations, capability) == operations


def test_grouped_keys_behind_a_mask_stay() -> None:
    """PyTorch computes them in separate operations, which nobody recorded."""
    keys = Operand("bf16", (2, 2, *SHAPE[2:]))
    operations = [Fused("cudnn", X, keys, keys, True, False, MASK).forward(X)]
    assert played(operations, (8, 0)) == operations


def test_a_program_that_allows_cudnn_alone_has_it_on_other_gpus() -> None:
    """`sdpa_kernel(SDPBackend.CUDNN_ATTENTION)`: PyTorch has no other kernel to take on an A100."""
    operations = tuple(calls("cudnn", X, None, True))
    recorded = Recording(
        1,
        operations,
        (),
        {},
        0,
        2,
        "h200",
        versions={"torch": "2.13.0"},
        attention_said=True,
    )
    assert on_gpu(recorded, (8, 0)).operations == operations


def test_recordings_know_which_kernels_the_program_switched_off() -> None:
    """With PyTorch installed: cuDNN's, taken among others and alone."""
    torch = pytest.importorskip("torch")
    attention = pytest.importorskip("prestep.workloads.capture.record.attention")
    from torch.nn.attention import SDPBackend, sdpa_kernel

    x = torch.empty(1, 4, 256, 128, dtype=torch.bfloat16, device="meta")
    call = attention.Call(x, x, x)
    before = attention.only_cudnn
    try:
        attention.choose(call, (9, 0))
        assert not attention.only_cudnn
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            attention.choose(call, (9, 0))
        assert attention.only_cudnn
    finally:
        attention.only_cudnn = before
