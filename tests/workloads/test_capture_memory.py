"""Memory of a recorded step: blocks of PyTorch's allocator, and whose they are."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prestep.sim.costs import generation
from prestep.sim.predict import predict
from prestep.sim.spec.load import load_scenario
from prestep.workloads.capture import recording
from prestep.workloads.capture.lower import lower
from prestep.workloads.capture.recording import Recording
from prestep.workloads.host_costs import host_costs
from prestep.workloads.memory.allocator import (
    BLOCK,
    MIB,
    Allocator,
    rounded,
    segment_size,
)
from prestep.workloads.operators.row_sums import row_sum_scratch
from tests.workloads.test_capture_recording import COMPUTE, tables

SIZES = st.integers(1, 64 * MIB)
#: Requests (bytes, stream), each followed by how many of the oldest alive go.
REQUESTS = st.lists(st.tuples(SIZES, st.integers(0, 1), st.integers(0, 2)), max_size=60)


def played(requests: list[tuple[int, int, int]]) -> tuple[Allocator, list[int]]:
    """An allocator after requests, and the storages that are alive."""
    allocator, alive = Allocator(), list[int]()
    for number, (size, stream, gone) in enumerate(requests, 1):
        allocator.take(number, size, stream)
        alive.append(number)
        for each in alive[:gone]:
            allocator.give_back(each)
        del alive[:gone]
    return allocator, alive


@given(REQUESTS)
def test_blocks_fill_the_segments(requests: list[tuple[int, int, int]]) -> None:
    """What is reserved is all blocks, what is allocated those in use, each as large as was asked and little more."""
    allocator, alive = played(requests)
    blocks = [block for *_, row in allocator.segments() for block in row]
    assert sum(size for size, _ in blocks) == allocator.reserved
    used = {storage: size for size, storage in blocks if storage}
    assert sorted(used) == alive
    assert sum(used.values()) == allocator.allocated
    for storage, size in used.items():
        asked = rounded(requests[storage - 1][0])
        assert asked <= size <= asked + MIB
        assert size % BLOCK == 0


@given(REQUESTS)
def test_neighbours_are_never_both_free(requests: list[tuple[int, int, int]]) -> None:
    """They are joined at once."""
    allocator, _ = played(requests)
    for *_, row in allocator.segments():
        free = [not storage for _, storage in row]
        assert not any(a and b for a, b in pairwise(free))


@given(REQUESTS)
def test_what_was_given_back_serves_again(requests: list[tuple[int, int, int]]) -> None:
    """When all is given back every segment is one free block, and nothing went to the device."""
    allocator, alive = played(requests)
    before = allocator.reserved
    for storage in alive:
        allocator.give_back(storage)
    assert allocator.allocated == 0 and allocator.reserved == before
    assert all(len(row) == 1 for *_, row in allocator.segments())


@given(REQUESTS, SIZES)
def test_an_allocator_goes_on_from_its_segments(
    requests: list[tuple[int, int, int]], size: int
) -> None:
    """One that begins with what another has reserved decides as that one does."""
    allocator, _ = played(requests)
    other = Allocator.of(allocator.segments())
    assert (other.reserved, other.allocated) == (
        allocator.reserved,
        allocator.allocated,
    )
    assert other.take(-1, size, 0) == allocator.take(-1, size, 0)
    assert other.reserved == allocator.reserved


@pytest.mark.parametrize(
    ("asked", "segment"),
    [
        (1, 2),
        (MIB, 2),
        (MIB + 1, 20),
        (10 * MIB - 512, 20),
        (10 * MIB, 10),
        (10 * MIB + 1, 12),
    ],
)
def test_segments_have_pytorch_s_sizes(asked: int, segment: int) -> None:
    """2 MiB for small blocks, 20 MiB for those below 10 MiB, else a multiple of 2 MiB (CUDACachingAllocator.cpp)."""
    assert segment_size(rounded(asked)) == segment * MIB


def test_streams_do_not_share_segments() -> None:
    """What one stream gave back does not serve another."""
    allocator = Allocator()
    allocator.take(1, 30 * MIB, 0)
    allocator.give_back(1)
    allocator.take(2, 30 * MIB, 1)
    assert allocator.reserved == 60 * MIB
    allocator.take(3, 30 * MIB, 0)
    assert allocator.reserved == 60 * MIB


def read(folder: Path, events: list[list[Any]], **rank: Any) -> Recording:
    path = folder / "job.capture"
    table = tables(events)
    table["ranks"][0] |= rank
    recording.write(path, table)
    return recording.read(path)


def test_each_handle_of_cublas_has_a_workspace(tmp_path: Path) -> None:
    """The program's thread and autograd's have one each, and so has every stream."""
    costs, workspace = (
        host_costs("captured"),
        float(generation.load("hopper").workspace),
    )
    forward, backward, beside = (
        ["operate", stream, 0, phase, 0] for stream, phase in ((0, 0), (0, 1), (7, 0))
    )
    for events, count in (
        ([], 0),
        ([forward, forward], 1),
        ([forward, backward], 2),
        ([forward, backward, beside], 3),
    ):
        memory = lower(read(tmp_path, events), costs, workspace=workspace).memory[0]
        assert memory.peak == memory.at_peak["workspace"] == count * workspace
    # 4096 KiB x 8 from Hopper on; before, 4096 KiB x 2 and 16 KiB x 8 (PyTorch's parseChosenWorkspaceSize)
    assert generation.load("blackwell").workspace == 4096 * 8 * 1024
    assert generation.load("ampere").workspace == 4096 * 1024 * 2 + 16 * 1024 * 8


def test_memory_has_owners_and_modules(tmp_path: Path) -> None:
    """What lasts is the weights', the optimizer's, ...; what the step asks for is its modules'."""
    events = [["allocate", 9, 4 * MIB, 0, 0], *COMPUTE, ["free", 9, 0]]
    alive = {"1": 8 * MIB, "2": 16 * MIB, "3": 2 * MIB}
    found = read(
        tmp_path,
        events,
        alive=alive,
        owners={"parameters": [1], "optimizer": [2]},
        modules={"model.layers.0.mlp": [9]},
    )
    memory = lower(found, host_costs("captured")).memory[0]
    sizes = {owner: size / MIB for owner, size in memory.at_peak.items() if size}
    assert sizes == {"parameters": 8, "optimizer": 16, "buffers": 2, "activations": 4}
    assert memory.modules == {"model.layers.0.mlp": 4 * MIB}


def test_what_was_reserved_before_the_step_stays(tmp_path: Path) -> None:
    """A free block of an earlier step serves this one, and is reserved even where nobody takes it."""
    events = [["allocate", 9, 4 * MIB, 0, 0], ["free", 9, 0]]
    segments = [[0, False, [[24 * MIB, 1], [40 * MIB, 0]]]]
    found = read(tmp_path, events, alive={"1": 24 * MIB}, segments=segments)
    memory = lower(found, host_costs("captured")).memory[0]
    assert memory.reserved == 64 * MIB
    assert memory.peak == 28 * MIB


def test_a_prediction_says_what_is_reserved(tmp_path: Path) -> None:
    """At least what is allocated, by rank, in JSON too; on every GPU with the workspaces of its cuBLAS."""
    read(tmp_path, [["allocate", 9, 4 * MIB, 0, 0], *COMPUTE, ["free", 9, 0]])
    path = tmp_path / "job.capture"
    result = predict(load_scenario(path, ["gpu=h100"]))
    assert result.reserved[0] >= result.peak_memory[0].total
    assert result.to_dict()["reserved_memory"] == {"0": result.reserved[0]}
    ampere = predict(load_scenario(path, ["gpu=a100"]))
    assert ampere.peak_memory[0].workspace < result.peak_memory[0].workspace


def test_sums_over_rows_leave_partial_sums(tmp_path: Path) -> None:
    """As the gradient of a bias does: what the model by hand counts for the same shape. Other sums leave none."""
    tensor = {"dtype": "bf16", "shape": [8192, 4096]}
    small = {"dtype": "bf16", "shape": [4096]}

    def peak(dimensions: list[int]) -> float:
        operation = ["aten.sum.dim_IntList", [tensor, dimensions], {}, [small]]
        path = tmp_path / "sum.capture"
        table = tables([["operate", 0, 0, 0, 0]]) | {"operations": [operation]}
        recording.write(path, table)
        return lower(recording.read(path), host_costs("captured")).memory[0].peak

    assert peak([0]) == row_sum_scratch(8192, 4096) > 0
    assert peak([1]) == peak([0, 1]) == 0
