"""What each routing policy promises of its own."""

from __future__ import annotations

import numpy as np
import pytest

from prestep.topologies import load_cluster
from prestep.topologies.core.links import Floats
from prestep.topologies.core.routing import Routing
from prestep.topologies.fabric import Fabric

POD = load_cluster("dgx-h100-superpod", hosts=64)
RAIL = load_cluster("rail-h100", hosts=4)


def load(fabric: Fabric, pairs: list[tuple[str, str]]) -> Floats:
    """Flows on every link, each of one NIC's rate, over how many its cables carry."""
    total = np.zeros(len(fabric.links))
    for src, dst in pairs:
        rows, share = fabric.spread(src, dst)
        total[rows] += share
    return total / fabric.links.count


# Every host of unit 0 to its partner in unit 1, on one rail: a permutation that a full fat tree carries unblocked.
SHIFT = [(f"host{at}/gpu0", f"host{32 + (at + 5) % 32}/gpu0") for at in range(32)]


def test_adaptive_and_static_carry_a_shift_unblocked() -> None:
    """Equal split over all spines, or D-mod-k: no cable has more than one flow (Zahavi 2010)."""
    for policy in ("adaptive", "static"):
        assert load(POD.with_routing(Routing(policy)), SHIFT).max() == pytest.approx(
            1.0
        )


def test_hashed_flows_collide_and_more_flows_collide_less() -> None:
    """ECMP with one connection a pair puts several flows on one cable; the more connections, the nearer to equal."""
    worst = [
        load(POD.with_routing(Routing("ecmp", seed=1, flows=flows)), SHIFT).max()
        for flows in (1, 8, 64)
    ]
    assert worst[0] > 1.4 and worst[0] > worst[1] > worst[2] > 1.0


def test_another_seed_is_another_draw() -> None:
    """Collisions are luck; the same seed has the same luck."""
    one, two, again = (
        load(POD.with_routing(Routing("ecmp", seed=seed)), SHIFT) for seed in (1, 2, 1)
    )
    assert np.array_equal(one, again) and not np.array_equal(one, two)


def test_shortest_puts_all_flows_on_one_spine() -> None:
    """Nothing is spread: 32 flows over the four cables to the first spine."""
    assert load(POD.with_routing(Routing("shortest")), SHIFT).max() == pytest.approx(
        32 / 4
    )


def test_static_spreads_over_the_core_and_down_again() -> None:
    """A leaf's flows to another rail of another unit use different spines on both sides: at most two meet on a cable."""
    fabric = load_cluster("dgx-h100-superpod", hosts=512).with_routing(
        Routing("static")
    )
    across = [
        (f"host{at}/gpu0", f"host{32 * 3 + at * 5 % 32}/gpu1") for at in range(32)
    ]
    assert load(fabric, across).max() <= 2.0


def test_static_is_a_forwarding_table() -> None:
    """Wherever a message comes from, a switch sends it to one port for one destination."""
    fabric = load_cluster("dgx-h100-superpod", hosts=512).with_routing(
        Routing("static")
    )
    for dst in ("host40/gpu3", "host300/gpu7"):
        port: dict[str, int] = {}
        for src in (
            "host1/gpu3",
            "host2/gpu3",
            "host33/gpu3",
            "host1/gpu0",
            "host500/gpu7",
            "host77/gpu6",
        ):
            for row in fabric.spread(src, dst)[0].tolist():
                switch = str(fabric.links.src[row])
                if not fabric.host_of(switch):
                    assert port.setdefault(switch, row) == row


def kinds(fabric: Fabric, src: str, dst: str) -> set[str]:
    rows, _ = fabric.spread(src, dst)
    return set(fabric.links.kind[rows].tolist())


def test_with_pxn_a_message_stays_on_the_receivers_rail() -> None:
    """Over NVLink to the GPU on the receiver's rail and out by its NIC: no spine. Without, over a spine."""
    rail = RAIL.with_routing(Routing("rail"))
    assert kinds(rail, "host0/gpu0", "host3/gpu5") == {"nvlink", "pcie", "nic"}
    ends = {
        str(rail.links.src[row]) for row in rail.spread("host0/gpu0", "host3/gpu5")[0]
    }
    assert {"host0/nic5", "group0/leaf5"} <= ends and "host0/nic0" not in ends
    assert kinds(
        RAIL.with_routing(Routing("rail", pxn=False)), "host0/gpu0", "host3/gpu5"
    ) == {"pcie", "nic", "spine"}
    assert kinds(rail, "host0/gpu5", "host3/gpu5") == {"pcie", "nic"}


def test_latency_is_that_of_the_hops() -> None:
    """Every link on the way adds its own; a policy does not change how many there are."""
    fabric = POD.with_routing(Routing("static"))
    rows, _ = fabric.spread("host0/gpu0", "host32/gpu0")
    assert fabric.latency(rows) == pytest.approx(
        sum(fabric.links.latency[row] for row in rows.tolist())
    )
    assert fabric.latency(rows) == pytest.approx(
        POD.latency(POD.route("host0/gpu0", "host32/gpu0"))
    )


@pytest.mark.parametrize("hosts", [128, 512])
def test_traffic_between_rails_stays_off_the_cpus(hosts: int) -> None:
    """Over two tiers of switches and over three: a GPU leaves by its own NIC, however many hops the network has."""
    fabric = load_cluster("dgx-h100-superpod", hosts=hosts)
    for dst in ("host1/gpu1", "host40/gpu6"):
        for rows, _ in fabric.routes("host0/gpu0", dst):
            path = [*fabric.links.src[rows].tolist(), dst]
            assert not any("cpu" in node for node in path)
            assert path[2] == "host0/nic0"
