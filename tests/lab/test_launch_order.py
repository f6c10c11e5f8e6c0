"""Which kernel takes the SMs first on a GPU follows from its connections, as two H200 were measured to do it."""

from __future__ import annotations

import pandas as pd
import pytest

from lab import CASES
from prestep.sim.costs.interference import draws_tiles
from prestep.sim.graph.kernel import Kernel, attention, product
from tests.sim.graphs import Op, all_reduce, graph
from tests.sim.test_engine import run, times

ROWS = pd.read_csv(CASES / "launch-order" / "rows.csv")
QUEUE = pd.read_csv(CASES / "launch-order" / "queue.csv")
GRAPHS = pd.read_csv(CASES / "launch-order" / "graphs.csv")
SMS = 132


def communication_first(connections: int) -> bool:
    """Whether the engine starts the communication first, which waits for the same kernel as the next kernel."""
    ops = [Op("compute", 10.0), Op("nccl", comms=(0,), deps=(0,)), Op("compute", 30.0)]
    done = run(
        graph([ops, ops], [all_reduce()]),
        idle=frozenset(),
        yielding=frozenset({0, 1} if connections == 1 else ()),
    )
    _, (communication, _), (kernel, _) = times(done)
    return communication <= kernel


@pytest.mark.parametrize("connections", [1, 8, 32])
def test_the_engine_starts_what_the_gpu_starts(connections: int) -> None:
    """In nine of ten repetitions and more, at least half of them for every pair of kernels."""
    rows = ROWS[ROWS.connections == connections]
    share = rows.communication_first / rows.repetitions
    measured = share if communication_first(connections) else 1.0 - share
    assert measured.mean() > 0.9
    assert measured.min() >= 0.5


def draws(name: str) -> bool:
    """Whether a kernel, by its name in the rows, takes its tiles from a counter."""
    kind, *sizes = name.split("_")
    if kind in ("mm", "fp8"):
        return draws_tiles(product(tuple(map(int, sizes))), SMS)
    libraries = {"attn": "cudnn", "fa2": "flash"}
    if kind == "ew":
        return draws_tiles(Kernel("fused", (1,)), SMS)
    return draws_tiles(attention((1, 8, 8, 64, 64), library=libraries[kind]), SMS)


@pytest.mark.parametrize("connections", [1, 32])
@pytest.mark.parametrize("counter", [True, False])
def test_a_graph_starts_a_communication_before_a_counter_is_reset(
    connections: int, counter: bool
) -> None:
    """From one queue, and before no other kernel: all repetitions but one in ten."""
    rows = GRAPHS[(GRAPHS.connections == connections) & (GRAPHS.launched == "graph")]
    rows = rows[rows.next.map(draws) == counter]
    share = rows.communication_first.sum() / rows.repetitions.sum()
    assert share > 0.9 if counter and connections == 1 else share < 0.1


def test_a_kernel_behind_another_holds_up_all_streams_of_one_queue() -> None:
    """Products wait for the end of another stream's first kernel where a second one is launched behind it."""
    rows = QUEUE[(QUEUE.record != "timed") & (QUEUE["first_ms"] > 0)]
    held = rows["product2"] > 1.5
    behind = (rows.connections == 1) & (rows["second_ms"] > 0) & (rows["first_ms"] > 1)
    assert held.sum() == 16
    assert (held == behind).all()
