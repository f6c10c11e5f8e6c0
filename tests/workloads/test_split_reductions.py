"""Kernels of reductions under torch.compile: by Inductor's own function, and by counts of profiled steps."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.fusion.graph import Node, Space
from prestep.workloads.fusion.group import Group, launches_of
from prestep.workloads.fusion.split import partials, split_factor


def launches(results: int, reduced: int, across: bool) -> list[Kernel]:
    """The kernels of a sum of fp32 whose results are written."""
    value, size = (1, 1), 4.0 * results
    space = Space(results * reduced, results, across)
    group = Group(0, space, [Node("sum", (), ((value, size),), space)])
    return [launch.kernel for launch in launches_of(group, [(value, size)])]


@pytest.mark.parametrize(
    ("results", "reduced", "across"),
    [
        (
            34,
            64,
            False,
        ),  # vit8: statistics of norms' rows, and gradients of biases and of norms' weights
        *((width, 34, True) for width in (64, 192, 256)),
        *((1, 64 + 3 * at, False) for at in (0, 50, 99)),  # shapes100
        (64, 64, True),  # mlp40
        (16, 512, False),  # conv20: channels of two pictures of 16 by 16
    ],
)
def test_small_reductions_are_one_kernel(
    results: int, reduced: int, across: bool
) -> None:
    """Profiled steps have one kernel for each of them (lab/cases/frameworks/hosts/compiled_h200.jsonl)."""
    assert len(launches(results, reduced, across)) == 1


def test_a_second_kernel_adds_what_blocks_of_the_first_one_leave() -> None:
    """4,096 rows of 4,096: 132 SMs hold 1,056 blocks, 33 for each of 32 times 128 columns, which add 32 times 4 rows."""
    _, second = launches(4096, 4096, True)
    assert second.bytes == 4096 * (4 * 4096 / (32 * 4) + 4)


def test_a_loss_over_many_elements_takes_two_kernels() -> None:
    """Blocks of 256 threads add 32 elements each: 2^20 elements are 128 of them."""
    assert len(launches(1, 8192, False)) == 1
    _, second = launches(1, 2**20, False)
    assert second.bytes == 4 * (128 + 1)


@settings(deadline=None)
@given(
    st.sampled_from((78, 108, 132)),
    st.integers(1, 2**14),
    st.integers(1, 2**22),
    st.booleans(),
)
def test_parts_are_those_of_inductor(
    multiprocessors: int, results: int, reduced: int, across: bool
) -> None:
    """`InductorChoices.reduction_split_factor` on a Hopper with so many SMs; before it, `num_splits` lets some through."""
    choices = pytest.importorskip("torch._inductor.choices", reason="needs PyTorch")
    properties = SimpleNamespace(
        multi_processor_count=multiprocessors,
        warp_size_or_default=32,
        max_threads_per_multi_processor=2048,
        major=9,
    )
    enough = reduced <= 32 or results >= multiprocessors * 2 * 32
    expected = 1
    if results == 1 or not enough:
        with pytest.MonkeyPatch.context() as patched:
            create = SimpleNamespace(create=lambda _: properties)
            patched.setattr(choices, "DeviceProperties", create)
            expected = choices.InductorChoices.reduction_split_factor(
                None, reduced, results, inner_reduction=results == 1 or not across
            )
    assert split_factor(results, reduced, across, multiprocessors) == expected


@given(st.integers(1, 2**14), st.integers(1, 2**24), st.booleans())
def test_every_further_kernel_has_less_to_add(
    results: int, reduced: int, across: bool
) -> None:
    """Partial results are fewer than what was there before, and more than the results."""
    counts = [results * reduced, *partials(results, reduced, across), results]
    if len(counts) > 2:
        assert counts == sorted(set(counts), reverse=True)
