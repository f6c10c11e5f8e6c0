"""Storage systems and transfers to them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prestep.sim.engine.storage import Leg, play
from prestep.sim.errors import InputError
from prestep.sim.storage.curve import TRANSFERS, Transfer, table_of, throughput, way_of
from prestep.sim.storage.systems import System, load_system, names
from prestep.topologies import load_cluster

GIB = 2.0**30
FIGURES = [
    ("nvme-raid", 26.59, 337_000),
    ("weka", 4.21, 51_000),
    ("lustre", 1.13, 17_000),
    ("ebs", 1.1, 730),
]


@pytest.mark.parametrize(("name", "throughput", "iops"), FIGURES)
def test_published_figures_come_out(name: str, throughput: float, iops: float) -> None:
    """What gdsio wrote with 64 threads, throughput of 1 MiB and requests/s of 64 KiB, comes out within 2 %."""
    system, small = load_system(name), 2**16
    written = system.throughput(2**20, 64, "write") / GIB
    requests = system.throughput(small, 64, "write", random=True) / small
    assert written == pytest.approx(throughput, rel=0.02)
    assert requests == pytest.approx(iops, rel=0.02)


@given(st.sampled_from(names()), st.integers(9, 26), st.integers(1, 200), st.booleans())
def test_more_is_never_slower(
    name: str, power: int, threads: int, random: bool
) -> None:
    """Larger requests and more threads never lower the throughput, and no curve exceeds the system's bandwidth."""
    system = load_system(name)
    rate = system.throughput(2.0**power, threads, random=random)
    assert 0 < rate <= system.bandwidth("read")
    assert system.throughput(2.0 ** (power + 1), threads, random=random) >= rate
    assert system.throughput(2.0**power, threads + 1, random=random) >= rate


def test_writers_share_a_link() -> None:
    """Two flows over one link end when it has carried both; a flow alone runs at its own cap."""
    link, once = np.array([0]), np.array([1.0])
    both = play(
        [
            [Leg("a", 10.0, links=link, usage=once)],
            [Leg("b", 10.0, links=link, usage=once)],
        ],
        np.array([5.0]),
    )
    assert both == [[pytest.approx(4.0)], [pytest.approx(4.0)]]
    assert play(
        [[Leg("wait", latency=1.0), Leg("c", 10.0, cap=2.0)]], np.array([5.0])
    ) == [[1.0, pytest.approx(6.0)]]


def test_a_request_without_bytes_is_refused() -> None:
    """Requests need bytes and threads."""
    with pytest.raises(InputError, match="at least one thread"):
        load_system("weka").throughput(0, 1)
    with pytest.raises(InputError, match="did you mean"):
        load_system("wekka")


def at_p5(name: str, transfer: Transfer = "cpu_only", gpus: int = 0) -> list[float]:
    """Bytes/s read and written by 64 threads of a p5 host, by size of request."""
    system = load_system(name)
    way = way_of(system, load_cluster("aws-p5"), transfer, gpus)
    return [
        row[key]
        for row in table_of(system, 64, way)
        for key in ("read_sequential", "write_sequential")
    ]


def test_disks_are_counted_by_the_cluster() -> None:
    """The cluster's own disks give what all of them give: eight of 3.57 GB/s on a p5, and without a cluster nothing is said."""
    assert max(at_p5("nvme")) == pytest.approx(8 * 3.57e9)
    assert len(way_of(load_system("nvme"), load_cluster("aws-p5")).disks) == 8
    with pytest.raises(InputError, match="--cluster"):
        table_of(load_system("nvme"))


@pytest.mark.parametrize("name", ["nvme", "nvme-raid", "weka"])
def test_a_copy_to_the_gpu_is_never_faster_than_none(name: str) -> None:
    """Bytes that go on to a GPU request by request come no faster than those that stay; more GPUs never slow them down."""
    stay = at_p5(name)
    for gpus in (1, 2, 8):
        assert np.all(np.array(at_p5(name, "cpu_gpu", gpus)) <= stay)
    for transfer in TRANSFERS:
        one, eight = at_p5(name, transfer, 1), at_p5(name, transfer, 8)
        assert np.all(np.array(one) <= np.array(eight) * (1 + 1e-9))


def test_one_gpu_reaches_far_disks_over_its_own_slot() -> None:
    """A GPU of a p5 has one disk beside it; the rest come over PCIe 4.0 x8, so all disks are faster without it."""
    assert max(at_p5("nvme", "gpu_direct", 1)) < 0.6 * max(at_p5("nvme"))
    assert max(at_p5("nvme", "gpu_direct", 8)) == pytest.approx(max(at_p5("nvme")))


def test_gpus_that_do_not_reach_a_system_are_refused() -> None:
    """GPU direct needs a system that GPUs reach."""
    with pytest.raises(InputError, match="GPUs do not reach"):
        way_of(load_system("lustre"), load_cluster("aws-p5"), "gpu_direct")


def test_writes_have_their_own_requests() -> None:
    """An object store takes 3,500 writes a second and gives 5,500 reads, at most."""
    system: System = load_system("object")
    for op, most in (("read", 5500), ("write", 3500)):
        assert throughput(system, 4096, 10_000, op) / 4096 == pytest.approx(most)  # type: ignore[arg-type]
