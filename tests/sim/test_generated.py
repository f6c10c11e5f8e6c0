"""Kernels that a compiler generates: what bytes and what arithmetic take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.fit.generated import EVIDENCE, GPUS, operations, times
from prestep.sim.costs import load_gpu
from prestep.sim.costs.generated import SEPARATOR
from prestep.sim.costs.generated import operations as operations_in_use
from prestep.sim.graph.kernel import Kernel
from tests.sample import together

ELEMENTS = 1 << 26
OPERATIONS = operations_in_use()
FUNCTIONS = st.lists(st.sampled_from(sorted(OPERATIONS)), max_size=4)


def generated(functions: tuple[str, ...], size: float, elements: int) -> Kernel:
    return Kernel(
        "fused_pointwise", (elements,), layout=SEPARATOR.join(functions), bytes=size
    )


@given(FUNCTIONS, st.integers(1 << 10, ELEMENTS), st.floats(1.0, 20.0))
def test_arithmetic_never_makes_a_kernel_quicker(
    functions: list[str], elements: int, each: float
) -> None:
    """A kernel takes at least as long as its bytes, and one function more takes no less."""
    gpu = load_gpu("h100")
    plain = gpu.duration(generated((), each * elements, elements))
    some = gpu.duration(generated(tuple(functions), each * elements, elements))
    more = gpu.duration(generated((*functions, "sin"), each * elements, elements))
    assert plain <= some <= more


@together("name", sorted(OPERATIONS))
def test_what_arithmetic_bounds_is_as_quick_on_either_memory(name: str) -> None:
    """H100 and H200 have the same SMs, so kernels without bytes to speak of take the same time."""
    kernel = generated((name,), 1.0, ELEMENTS)
    assert load_gpu("h100").duration(kernel) == load_gpu("h200").duration(kernel)


@together("evidence", EVIDENCE)
def test_constants_are_those_of_the_measured_kernels(evidence: object) -> None:
    """Each function's operations are within a twentieth of the quickest GPU's largest measured kernel."""
    largest = [max(operations(gpu, evidence).items()) for gpu in GPUS]  # type: ignore[arg-type]
    measured = min(value for _, value in largest)
    assert OPERATIONS[evidence.function] == pytest.approx(measured, rel=0.05)  # type: ignore[attr-defined]


@pytest.mark.parametrize("gpu", GPUS)
def test_measured_sizes_that_no_constant_was_taken_from(gpu: str) -> None:
    """Kernels of an eighth of the size, where only their starts weigh more, come out within a third."""
    for evidence in EVIDENCE:
        for elements, seconds in times(gpu, evidence).items():
            if elements == ELEMENTS // 8:
                names = (evidence.function,) * evidence.times
                predicted = load_gpu(gpu).duration(
                    generated(names, 4.0 * elements, elements)
                )
                assert predicted == pytest.approx(seconds, rel=0.37)


@pytest.mark.parametrize(
    ("function", "columns", "seconds"),
    [
        ("mxrow", 7168, 525.3e-6),
        ("mxrow", 2048, 144.4e-6),
        ("mxcolumn", 7168, 472.2e-6),
        ("mxcolumn", 2048, 141.5e-6),
    ],
)
def test_mxfp8_casts_take_as_long_as_torchao_timed_them(
    function: str, columns: int, seconds: float
) -> None:
    """131,072 rows on a B200 of 1,000 W: pytorch/ao at 2c2d402, torchao/prototype/moe_training/README.md."""
    elements = 131_072 * columns
    kernel = generated((function,), (3 + 1 / 32) * elements, elements)
    assert load_gpu("b200").duration(kernel) == pytest.approx(seconds, rel=0.07)
