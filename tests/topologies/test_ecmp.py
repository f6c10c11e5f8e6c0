"""ECMP: one path per flow, chosen evenly, with collisions that adaptive routing does not have."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.bench import hashed as flows
from prestep.topologies import load_cluster
from prestep.topologies.fabric.compile import compile_graph
from prestep.topologies.policies import ecmp
from prestep.topologies.rail_optimized import Params, build

POD = compile_graph(build(Params(hosts=16, hosts_per_group=8, spines=8)))
FLOWS = [
    (f"host{at}/gpu{gpu}", f"host{8 + at}/gpu{gpu}", 0)
    for at in range(8)
    for gpu in range(8)
]


@settings(max_examples=30, deadline=None)
@given(flow=st.integers(0, 1000), seed=st.integers(0, 3))
def test_a_flow_takes_one_of_the_equal_paths_and_keeps_it(flow: int, seed: int) -> None:
    """All of its bytes on every row, the same in each call."""
    rows, share = flows.path(POD, "host0/gpu0", "host9/gpu3", flow, seed)
    assert (share == 1).all()
    assert sorted(rows.tolist()) in [
        sorted(path.tolist()) for path, _ in POD.routes("host0/gpu0", "host9/gpu3")
    ]
    assert (flows.path(POD, "host0/gpu0", "host9/gpu3", flow, seed)[0] == rows).all()


def test_many_flows_of_a_pair_spread_over_all_spines() -> None:
    """800 flows put 100 on each of eight spines, give or take what a fair draw does."""
    load = flows.loads(POD, [("host0/gpu0", "host9/gpu0", flow) for flow in range(800)])
    spines = [load[POD.links.index["group0/leaf0", f"spine{at}"]] for at in range(8)]
    assert sum(spines) == 800 and min(spines) > 60 and max(spines) < 140


def test_flows_collide_where_an_even_split_would_not() -> None:
    """Full bisection: every host's rail to the other group fills each spine cable once, and by hash some twice."""
    even = np.zeros(len(POD.links))
    for src, dst, _ in FLOWS:
        rows, share = POD.spread(src, dst)
        even[rows] += share
    hashed, up = flows.loads(POD, FLOWS), POD.links.of_kind("spine")
    assert even[up].max() == pytest.approx(1)
    assert hashed[up].max() >= 2 and hashed.sum() == pytest.approx(even.sum())


def test_nvlink_is_not_hashed() -> None:
    """Inside a host a flow spreads over the NVSwitches as before."""
    fabric = load_cluster("dgx-h100")
    rows, share = flows.path(fabric, "gpu0", "gpu1", flow=3)
    assert (rows == fabric.spread("gpu0", "gpu1")[0]).all() and (
        share == fabric.spread("gpu0", "gpu1")[1]
    ).all()


def test_another_seed_is_another_draw_and_another_process_is_not() -> None:
    """The hash is of the names, not of Python's."""
    first, other = (flows.loads(POD, FLOWS, seed) for seed in (0, 1))
    assert (first != other).any()
    code = (
        "from prestep.topologies.policies.ecmp import hashed; print(hashed('0/a/b/0'))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert float(shown) == ecmp.hashed("0/a/b/0")
