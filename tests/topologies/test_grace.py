"""Grace boards: C2C in the place of PCIe, direct NVLinks in the place of NVSwitches."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.errors import InputError
from prestep.topologies import grace, load_cluster
from prestep.topologies.fabric.compile import compile_graph
from prestep.topologies.grace import Params


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 2),
    st.integers(0, 6),
    st.integers(1, 4),
)
def test_counts_follow_from_the_parameters(
    hosts: int, cpus: int, each: int, nvlinks: int, nics: int
) -> None:
    """Every GPU has one CPU; every two CPUs a link; every two GPUs a link if there are NVLinks."""
    fabric = compile_graph(
        grace.build(
            Params(
                hosts=hosts,
                cpus=cpus,
                gpus=cpus * each,
                nvlinks=nvlinks,
                nics=nics,
                nvmes=1,
            )
        )
    )
    gpus = cpus * each
    assert len(fabric.nodes) == hosts * (gpus + 2 * cpus + nics + 1) + 1
    pairs = (
        gpus
        + cpus
        + cpus * (cpus - 1) // 2
        + 2 * nics
        + 1
        + bool(nvlinks) * gpus * (gpus - 1) // 2
    )
    assert len(fabric.links) == 2 * hosts * pairs
    assert fabric.graph.in_degree(fabric.gpus[0]) == 1 + bool(nvlinks) * (gpus - 1)


def test_the_c2c_of_a_gh200_is_900_gb_per_second_in_both_directions() -> None:
    """NVIDIA's datasheet; host memory is the narrower or the same, and no PCIe is on the way."""
    fabric = load_cluster("gh200")
    rows = fabric.links.of_kind("c2c")
    assert fabric.links.raw[rows].sum() == pytest.approx(900e9)
    assert fabric.links.kind[fabric.route("memory0", "gpu0")].tolist() == [
        "memory",
        "c2c",
    ]


@pytest.mark.parametrize(
    ("name", "total"), [("gh200-quad", 450e9), ("gb200-nvl4", 900e9)]
)
def test_direct_nvlinks_add_up_to_those_of_a_gpu(name: str, total: float) -> None:
    """18 links per GPU, six to each of the three others, one hop."""
    fabric = load_cluster(name)
    rows = [
        row for row in fabric.links.of_kind("nvlink") if fabric.links.src[row] == "gpu0"
    ]
    assert fabric.links.count[rows].tolist() == [6, 6, 6]
    assert fabric.links.raw[rows].sum() == pytest.approx(total)
    assert len(fabric.route("gpu0", "gpu3")) == 1


def test_boards_scale_to_several_hosts() -> None:
    """Under one network, each GPU through its own CPU's NIC."""
    fabric = load_cluster("gh200", hosts=4)
    assert fabric.gpus == tuple(f"host{at}/gpu0" for at in range(4))
    assert fabric.links.dst[fabric.route("host0/gpu0", "host3/gpu0")].tolist() == [
        "host0/cpu0",
        "host0/nic0",
        "network",
        "host3/nic0",
        "host3/cpu0",
        "host3/gpu0",
    ]


def test_wrong_parameters_are_reported_together() -> None:
    """GPUs that do not divide over the CPUs, hosts without NICs."""
    with pytest.raises(InputError) as caught:
        Params(hosts=2, gpus=3, cpus=2, nics=0)
    assert {mistake.key for mistake in caught.value.mistakes} == {"gpus", "nics"}
