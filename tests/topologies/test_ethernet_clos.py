"""Three-layer Ethernet: the reference's numbers, oversubscription, and even use of many equal paths."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from prestep.sim.errors import InputError
from prestep.topologies import load_cluster
from prestep.topologies.ethernet_clos import Params, build
from prestep.topologies.fabric.compile import compile_graph
from prestep.topologies.routes.router import MAX_PATHS
from prestep.topologies.show.summary import bisection
from prestep.topologies.show.tiers import tiers

HOST: dict[str, Any] = {
    "gpus": 2,
    "nics": 2,
    "nvmes": 0,
    "nvlinks": (18,),
    "sockets": 1,
}
SMALL = Params(
    hosts=16, hosts_per_rack=2, racks_per_pod=4, spines=4, oversubscription=2, **HOST
)


def test_the_reference_by_its_numbers() -> None:
    """Racks of 16 GPUs, 192 racks and 3,072 GPUs per pod without oversubscription, 1:7 above to the nearest cable."""
    fabric = load_cluster("roce-h100", hosts=2 * 384)
    assert len(fabric.gpus) == 2 * 3072
    assert [len(fabric.nodes.of_kind(kind)) for kind in ("leaf", "spine", "core")] == [
        384,
        32,
        27,
    ]
    leaf, spine, core = [tier for tier in tiers(fabric) if tier.kind != "nvswitch"]
    assert (leaf.children, spine.children, core.children) == (2, 192, 2)
    assert [leaf.egress, spine.egress] == pytest.approx([400e9, 800e9])
    assert 192 * spine.egress / core.egress == pytest.approx(7, rel=0.02)


@pytest.mark.parametrize("ratio", [1, 2, 4])
def test_the_bisection_is_that_of_the_core(ratio: int) -> None:
    """Two pods exchange their NICs' rate over the oversubscription; one pod alone is without."""
    counts: dict[str, Any] = {
        "hosts_per_rack": 2,
        "racks_per_pod": 4,
        "spines": 4,
        "oversubscription": ratio,
    }
    assert bisection(
        compile_graph(build(Params(hosts=16, **counts, **HOST)))
    ) == pytest.approx(2 * 8 * 2 * 50e9 / ratio)
    alone = compile_graph(build(Params(hosts=8, **counts, **HOST)))
    assert not alone.nodes.of_kind("core") and bisection(alone) == pytest.approx(
        2 * 4 * 2 * 50e9
    )


@pytest.mark.parametrize(
    ("dst", "way"),
    [
        ("host1/gpu0", ["leaf"]),
        ("host2/gpu0", ["leaf", "spine", "leaf"]),
        ("host15/gpu1", ["leaf", "spine", "core", "spine", "leaf"]),
    ],
)
def test_routes_go_up_and_then_down(dst: str, way: list[str]) -> None:
    """In the rack, in the pod, and between pods."""
    fabric = compile_graph(build(SMALL))
    for rows, _ in fabric.routes("host0/gpu0", dst):
        kinds = [
            fabric.nodes.kinds[fabric.node_index(node)]
            for node in fabric.links.dst[rows]
        ]
        assert [kind for kind in kinds if kind in ("leaf", "spine", "core")] == way


@pytest.mark.parametrize(
    ("src", "dst"), [("host0/gpu0", "host127/gpu1"), ("host3/gpu1", "host64/gpu0")]
)
def test_of_many_equal_paths_an_even_choice_is_kept(src: str, dst: str) -> None:
    """With 2,048 paths, all spines of both pods and all cores carry the same share."""
    fabric = compile_graph(
        build(
            Params(
                hosts=128,
                hosts_per_rack=8,
                racks_per_pod=8,
                spines=16,
                oversubscription=1,
                **HOST,
            )
        )
    )
    assert (
        len(fabric.nodes.of_kind("core")) == 8
        and len(fabric.routes(src, dst)) == MAX_PATHS
    )
    load: dict[str, float] = defaultdict(float)
    for row, share in zip(*fabric.spread(src, dst), strict=True):
        load[str(fabric.links.dst[row])] += share
    for pod in ("pod0", "pod1"):
        assert [load[f"{pod}/spine{at}"] for at in range(16)] == pytest.approx(
            [1 / 16] * 16
        )
    assert [load[f"core{at}"] for at in range(8)] == pytest.approx([1 / 8] * 8)


def test_uneven_cables_are_refused() -> None:
    """Ports down that do not divide over the spines, and counts below one."""
    for key, wrong in (("spines", 3), ("racks_per_pod", 0), ("nics", 0)):
        with pytest.raises(InputError, match=f"ethernet_clos: {key}"):
            compile_graph(build(Params(**{key: wrong})))  # type: ignore[arg-type]
