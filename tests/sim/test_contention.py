"""Who shares what on real clusters: rates of transfers over their routes, worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from lab.bench import hashed as flows
from prestep.sim.engine.fair_share import Incidence, rates
from prestep.topologies import load_cluster
from prestep.topologies.edit.overrides import with_overrides
from prestep.topologies.fabric import Fabric

Pair = tuple[str, str]
DGX = load_cluster("dgx-h100")
POD = load_cluster("dgx-h100-superpod", hosts=4)


def shared(
    fabric: Fabric, pairs: Sequence[Pair], seed: int | None = None
) -> np.ndarray:
    """Bytes/s of transfers that run together: spread over equal paths, or (with a seed) each hashed onto one."""
    routes = [
        fabric.spread(*pair) if seed is None else flows.path(fabric, *pair, 0, seed)
        for pair in pairs
    ]
    incidence = Incidence.of(
        [rows for rows, _ in routes], [share for _, share in routes]
    )
    return rates(incidence, np.full(len(pairs), np.inf), fabric.links.bandwidth)[0]


def width(fabric: Fabric, src: str, dst: str) -> float:
    """Bytes/s of one row of links."""
    return float(fabric.links.bandwidth[fabric.links.index[src, dst]])


@pytest.mark.parametrize("senders", [1, 2, 3])
def test_incast_shares_the_receivers_port(senders: int) -> None:
    """However many hosts send to one GPU over its NIC: together they get its port, each an equal part."""
    found = shared(
        POD, [(f"host{h}/gpu0", "host0/gpu0") for h in range(1, senders + 1)]
    )
    port = width(POD, "unit0/leaf0", "host0/nic0")
    assert found == pytest.approx([port / senders] * senders)


def test_outcast_shares_the_senders_port() -> None:
    """One GPU that sends to three hosts divides its own NIC."""
    found = shared(POD, [("host0/gpu0", f"host{h}/gpu0") for h in (1, 2, 3)])
    assert found.sum() == pytest.approx(width(POD, "host0/nic0", "unit0/leaf0"))


def test_a_ring_of_hosts_does_not_contend() -> None:
    """Every host sends to the next on the same rail: each has its port to itself, in both directions."""
    found = shared(
        POD, [(f"host{h}/gpu3", f"host{(h + 1) % 4}/gpu3") for h in range(4)]
    )
    assert found == pytest.approx([48e9] * 4)


def test_flows_that_hash_onto_one_spine_collide() -> None:
    """On a fabric of full bisection, spread flows have their ports; hashed ones share spine cables as `loads` counts."""
    pod = load_cluster("roce-h100", hosts=16)
    pairs = [
        (f"host{h}/gpu{g}", f"host{h + 8}/gpu{g}") for h in range(4) for g in range(8)
    ]
    spread, hashed = shared(pod, pairs), shared(pod, pairs, seed=1)
    loads = flows.loads(pod, [(*pair, 0) for pair in pairs], seed=1)
    assert loads[pod.links.of_kind("spine")].max() > 1
    assert hashed.min() < 0.6 * spread.min() and hashed.max() <= spread.max() * (
        1 + 1e-9
    )
    for pair, rate in zip(pairs, hashed, strict=True):
        rows, _ = flows.path(pod, *pair, 0, 1)
        # Max-min never gives a flow less than an equal part of its most crowded link.
        assert rate >= (pod.links.bandwidth[rows] / loads[rows]).min() * (1 - 1e-9)


@pytest.mark.parametrize("factor", [0.5, 0.25])
def test_an_oversubscribed_spine_is_shared_by_all_that_cross_it(factor: float) -> None:
    """With uplinks of a quarter, hosts of one leaf that all send to the other get a quarter of their ports."""
    cluster = load_cluster(
        "h200-leafspine-4x1", overrides={"spine.bandwidth": f"{factor}x"}
    )
    found = shared(
        cluster, [("host0/gpu0", "host2/gpu0"), ("host1/gpu0", "host3/gpu0")]
    )
    assert found == pytest.approx([width(cluster, "leaf0", "leaf1") / 2] * 2)
    # Nobody pays for the spine who does not cross it.
    inside = shared(
        cluster, [("host0/gpu0", "host2/gpu0"), ("host2/gpu0", "host3/gpu0")]
    )
    assert inside[1] == pytest.approx(width(cluster, "host3/nic0", "leaf1"))


def test_gpus_of_a_socket_read_their_memory_at_the_speed_of_their_slots() -> None:
    """Four GPUs under four PCIe switches of one CPU: each has its slot, as long as the memory feeds them."""
    found = shared(DGX, [("memory0", f"gpu{g}") for g in range(4)])
    assert found == pytest.approx([width(DGX, "cpu0", "pcieswitch0")] * 4)
    slow = with_overrides(DGX, {"memory.bandwidth": "100 GB/s"})
    assert shared(slow, [("memory0", f"gpu{g}") for g in range(4)]) == pytest.approx(
        [25e9] * 4
    )


def test_gpus_behind_one_pcie_switch_share_its_uplink() -> None:
    """Two GPUs of a DGX A100 read host memory over one slot: half of it each; their neighbours do not notice."""
    a100 = load_cluster("dgx-a100")
    up = {gpu: _uplink(a100, gpu) for gpu in a100.gpus}
    pairs = {
        gpu: ("memory0" if "cpu0" in up[gpu] else "memory1", gpu) for gpu in a100.gpus
    }
    found = dict(zip(pairs, shared(a100, list(pairs.values())), strict=True))
    for gpu, ends in up.items():
        sharing = sum(other == ends for other in up.values())
        assert found[gpu] <= width(a100, *ends) / sharing * (1 + 1e-9)
    assert max(sum(other == ends for other in up.values()) for ends in up.values()) == 2


def _uplink(fabric: Fabric, gpu: str) -> Pair:
    """The link from a CPU by which host memory reaches a GPU."""
    rows = fabric.route(fabric.nearest(gpu, "memory"), gpu)
    return next(
        (fabric.links.src[r], fabric.links.dst[r])
        for r in rows
        if fabric.links.src[r].startswith("cpu")
    )


def test_a_process_on_the_wrong_numa_node_goes_over_the_socket_link() -> None:
    """All GPUs of a socket that read the other one's memory share the link between the CPUs."""
    wrong = shared(DGX, [("memory1", f"gpu{g}") for g in range(4)])
    assert (
        wrong.sum() == pytest.approx(width(DGX, "cpu1", "cpu0")) and np.ptp(wrong) < 1
    )
    assert wrong[0] < 0.6 * shared(DGX, [("memory0", "gpu0")])[0]


def test_nvlink_ports_bound_what_a_gpu_receives() -> None:
    """Seven GPUs that write to one get its 18 links together; a permutation of all eight has full speed."""
    port = sum(width(DGX, f"nvswitch{s}", "gpu0") for s in range(4))
    incast = shared(DGX, [(f"gpu{g}", "gpu0") for g in range(1, 8)])
    assert incast.sum() == pytest.approx(port) and np.ptp(incast) < 1
    ring = shared(DGX, [(f"gpu{g}", f"gpu{(g + 1) % 8}") for g in range(8)])
    assert ring == pytest.approx([port] * 8)


def test_a_slow_switch_port_holds_back_only_its_own_gpu() -> None:
    """Addresses are spread over the switches whatever their speed: half of one port is half of the transfer."""
    slow = with_overrides(DGX, {"link[gpu0->nvswitch1].bandwidth": "0.5x"})
    found = shared(slow, [("gpu0", "gpu1"), ("gpu2", "gpu3"), ("gpu1", "gpu0")])
    assert found[0] == pytest.approx(found[1] / 2) and found[2] == pytest.approx(
        found[1]
    )


def test_an_nvswitch_that_is_off_takes_its_links_along() -> None:
    """Without one of four switches (5 of 18 links) a pair of GPUs has 13 left."""
    less = with_overrides(DGX, {"nvswitch[0]": "off"})
    assert shared(less, [("gpu0", "gpu1")])[0] / shared(DGX, [("gpu0", "gpu1")])[
        0
    ] == pytest.approx(13 / 18)
