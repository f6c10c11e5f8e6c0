"""AWS p5: formulas for its size, and what was measured and published of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.errors import InputError
from prestep.topologies import aws_p5, load_cluster
from prestep.topologies.aws_p5 import Params
from prestep.topologies.fabric.compile import compile_graph
from prestep.topologies.show.summary import bisection

PARAMS = st.builds(
    Params,
    hosts=st.integers(1, 3),
    gpus=st.integers(1, 8),
    sockets=st.integers(1, 2),
    nics_per_gpu=st.integers(1, 4),
    nvmes_per_gpu=st.integers(0, 2),
    nvlinks=st.lists(st.integers(1, 6), max_size=4).map(tuple),
)


@settings(max_examples=30, deadline=None)
@given(PARAMS)
def test_counts_follow_from_the_parameters(params: Params) -> None:
    """Each GPU brings a PCIe switch, its NICs and disks; each host its sockets and NVSwitches."""
    fabric = compile_graph(aws_p5.build(params))
    devices = 2 + params.nics_per_gpu + params.nvmes_per_gpu
    per_host = params.gpus * devices + 2 * params.sockets + len(params.nvlinks)
    assert len(fabric.nodes) == params.hosts * per_host + 1
    pairs = params.gpus * (
        2 + 2 * params.nics_per_gpu + params.nvmes_per_gpu + len(params.nvlinks)
    )
    sockets = params.sockets + params.sockets * (params.sockets - 1) // 2
    assert len(fabric.links) == 2 * params.hosts * (pairs + sockets)
    assert len(fabric.gpus) == params.hosts * params.gpus


def test_a_host_has_400_gb_per_second_of_efa() -> None:
    """32 network cards of 100 Gbit/s (AWS)."""
    links = load_cluster("aws-p5").links
    out = np.flatnonzero((links.kind == "nic") & (links.dst == "network"))
    assert len(out) == 32
    assert links.raw[out].sum() == pytest.approx(400e9)


def test_host_memory_reaches_a_gpu_at_the_measured_rate() -> None:
    """14.2 GB/s: PCIe Gen4 x8, also towards the host (nvbandwidth and DCGM on a p5)."""
    fabric = load_cluster("aws-p5")
    down, up = fabric.route("memory1", "gpu5"), fabric.route("gpu5", "memory1")
    assert fabric.links.bandwidth[down].min() == pytest.approx(14.2e9)
    assert fabric.links.bandwidth[up].min() == pytest.approx(14.26e9)


def test_a_host_has_the_bisection_of_eight_hoppers() -> None:
    """3.6 TB/s over NVLink, and a pair copies 393 GB/s, half of the measured 786 GB/s both ways."""
    fabric = load_cluster("aws-p5")
    assert bisection(fabric, ["nvlink"]) == pytest.approx(3.6e12)
    rows, share = fabric.spread("gpu0", "gpu7")
    assert (fabric.links.bandwidth[rows] / share).min() == pytest.approx(
        393e9, rel=0.001
    )


def test_several_hosts_talk_over_their_own_nics() -> None:
    """Four NICs here and four there are 16 equal paths, none through a CPU; names carry the host."""
    fabric = load_cluster("aws-p5", hosts=3)
    paths = fabric.routes("host0/gpu0", "host2/gpu7")
    assert (len(fabric.hosts), len(fabric.gpus), len(paths)) == (3, 24, 16)
    kinds = dict(zip(fabric.nodes.names, fabric.nodes.kinds, strict=True))
    assert {
        kinds[stop] for path, _ in paths for stop in fabric.links.dst[path].tolist()
    } == {
        "pcieswitch",
        "nic",
        "network",
        "gpu",
    }
    rows, share = fabric.spread("host0/gpu0", "host2/gpu7")
    assert (fabric.links.raw[rows] / share).min() == pytest.approx(50e9)


def test_wrong_parameters_are_reported_together() -> None:
    """Each with its name."""
    with pytest.raises(InputError) as caught:
        Params(hosts=0, gpus=0, nvlinks=(5, 0))
    assert {mistake.key for mistake in caught.value.mistakes} == {
        "hosts",
        "gpus",
        "nvlinks",
    }


def test_three_layers_of_switches_carry_what_is_below_them() -> None:
    """Five hosts, two under a leaf, two leaves under a spine: 3, 2 and 1 switches, as much bandwidth up as down."""
    placed = compile_graph(
        aws_p5.build(Params(hosts=5, hosts_per_leaf=2, leaves_per_spine=2))
    )
    kinds = placed.nodes.kinds
    assert [kinds.count(kind) for kind in ("leaf", "spine", "core")] == [3, 2, 1]
    links = placed.links
    for kind in ("spine", "core"):
        up = (links.kind == kind) & np.array(
            [placed.nodes.kinds[placed.node_index(name)] == kind for name in links.dst]
        )
        assert links.raw[up].sum() == pytest.approx(5 * 400e9)
