"""Which kernel takes the SMs first on a GPU follows from its connections, as two H200 were measured to do it."""

from __future__ import annotations

import pandas as pd
import pytest

from lab import CASES
from tests.sim.graphs import Op, all_reduce, graph
from tests.sim.test_engine import run, times

ROWS = pd.read_csv(CASES / "launch-order" / "rows.csv")


def communication_first(connections: int) -> bool:
    """Whether the engine starts the communication first, which waits for the same kernel as the next kernel."""
    ops = [Op("compute", 10.0), Op("nccl", comms=(0,), deps=(0,)), Op("compute", 30.0)]
    done = run(
        graph([ops, ops], [all_reduce()]),
        idle=frozenset(),
        in_order=connections == 1,
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
