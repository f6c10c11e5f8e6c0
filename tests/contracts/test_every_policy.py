"""What every routing policy promises, whatever it chooses."""

from __future__ import annotations

import numpy as np
import pytest

from prestep.sim.errors import InputError
from prestep.sim.tools.catalog import names
from prestep.topologies import load_cluster
from prestep.topologies.core.routing import Routing
from prestep.topologies.fabric import Fabric
from tests.sample import together

SMALL = {
    "dgx-h100-superpod": 64,
    "rail-h100": 4,
    "roce-h100": 8,
    "aws-p5": 2,
    "gb200-superpod-576": None,
    "h200-leafspine-2x2": None,
    "dgx-h100": None,
}
FABRICS = {name: load_cluster(name, hosts=hosts) for name, hosts in SMALL.items()}
POLICIES = names("routings")


def pairs(fabric: Fabric) -> list[tuple[str, str]]:
    """Within a host, to the same and to another rail of another host."""
    gpus = fabric.gpus
    return [
        (gpus[0], gpus[1]),
        (gpus[0], gpus[-1]),
        (gpus[1], gpus[len(gpus) // 2]),
        (gpus[-1], gpus[0]),
    ]


@together("name", FABRICS)
@together("policy", POLICIES)
def test_every_byte_arrives(policy: str, name: str) -> None:
    """What leaves the sender arrives at the receiver, and nothing stays or is made on the way."""
    fabric = FABRICS[name].with_routing(Routing(policy, seed=3, flows=4))
    for src, dst in pairs(fabric):
        rows, share = fabric.spread(src, dst)
        assert (np.diff(rows) > 0).all() and (share > 0).all()
        surplus: dict[str, float] = {}
        for row, part in zip(rows, share, strict=True):
            surplus[str(fabric.links.src[row])] = (
                surplus.get(str(fabric.links.src[row]), 0.0) - part
            )
            surplus[str(fabric.links.dst[row])] = (
                surplus.get(str(fabric.links.dst[row]), 0.0) + part
            )
        assert surplus.pop(src) == pytest.approx(-1) and surplus.pop(
            dst
        ) == pytest.approx(1)
        assert all(abs(rest) < 1e-9 for rest in surplus.values())


@pytest.mark.parametrize("policy", POLICIES)
def test_nvswitches_spread_by_address_whatever_the_network_does(policy: str) -> None:
    """Within a host every policy gives the same shares."""
    fabric = FABRICS["dgx-h100"]
    rows, share = fabric.with_routing(Routing(policy)).spread("gpu0", "gpu5")
    expected = fabric.spread("gpu0", "gpu5")
    assert np.array_equal(rows, expected[0]) and np.allclose(share, expected[1])


@pytest.mark.parametrize("policy", POLICIES)
def test_routes_are_the_same_every_time_and_kept(policy: str) -> None:
    """No randomness but the seed; a second question is answered from memory."""
    fabric = FABRICS["rail-h100"]
    first, again = (fabric.with_routing(Routing(policy, seed=5)) for _ in range(2))
    src, dst = fabric.gpus[0], fabric.gpus[-1]
    assert all(
        np.array_equal(a, b)
        for a, b in zip(first.spread(src, dst), again.spread(src, dst), strict=True)
    )
    assert first.spread(src, dst)[0] is first.spread(src, dst)[0]


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "rail"])
def test_only_links_of_the_best_paths_are_used(policy: str) -> None:
    """A policy chooses among the equally good paths; none is made longer. (PXN goes another way on purpose.)"""
    for fabric in FABRICS.values():
        for src, dst in pairs(fabric):
            allowed = {
                row for rows, _ in fabric.routes(src, dst) for row in rows.tolist()
            }
            assert (
                set(fabric.with_routing(Routing(policy)).spread(src, dst)[0].tolist())
                <= allowed
            )


def test_an_unknown_policy_is_an_error_with_the_names() -> None:
    """A slip of the pen is caught."""
    with pytest.raises(InputError, match="adaptive"):
        FABRICS["rail-h100"].with_routing(Routing("adaptve")).spread(
            "host0/gpu0", "host3/gpu7"
        )
