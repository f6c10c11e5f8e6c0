"""Fat trees of two and three tiers: counts, routes and oversubscription."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.errors import InputError
from prestep.topologies.fabric.compile import compile_graph
from prestep.topologies.fat_tree import Params, build
from prestep.topologies.show.summary import bisection
from prestep.topologies.show.tiers import tiers

HOST: dict[str, Any] = {
    "gpus": 2,
    "nics": 2,
    "nvmes": 0,
    "nvlinks": (18,),
    "sockets": 1,
}


@given(
    hosts=st.integers(1, 12),
    spines=st.sampled_from([1, 2, 4]),
    ratio=st.sampled_from([1, 2]),
)
@settings(max_examples=15, deadline=None)
def test_two_tiers_by_formula(hosts: int, spines: int, ratio: int) -> None:
    """A leaf per four hosts begun, each with its ports down over the ratio as cables up, shared evenly by the spines."""
    fabric = compile_graph(
        build(
            Params(
                hosts=hosts,
                hosts_per_leaf=4,
                spines=spines,
                oversubscription=ratio,
                **HOST,
            )
        )
    )
    leaves, up = -(-hosts // 4), fabric.links.of_kind("spine")
    assert (
        len(fabric.nodes.of_kind("leaf")) == leaves
        and len(fabric.nodes.of_kind("spine")) == spines
    )
    assert (
        len(fabric.links.of_kind("nic")) == 2 * 2 * hosts
        and len(up) == 2 * leaves * spines
    )
    assert fabric.links.count[up].sum() == 2 * leaves * 8 // ratio
    assert not fabric.nodes.of_kind("core")


def test_three_tiers_by_formula() -> None:
    """Each pod has its spines; spine j of every pod reaches the same cores, and no others."""
    fabric = compile_graph(
        build(
            Params(
                hosts=8, hosts_per_leaf=2, leaves_per_pod=2, spines=2, cores=2, **HOST
            )
        )
    )
    assert [len(fabric.nodes.of_kind(kind)) for kind in ("leaf", "spine", "core")] == [
        4,
        4,
        4,
    ]
    up = fabric.links.of_kind("core")
    assert fabric.links.count[up].sum() == 2 * 16
    above = {(str(fabric.links.src[row]), str(fabric.links.dst[row])) for row in up}
    assert ("pod0/spine0", "core1") in above and ("pod1/spine0", "core1") in above
    assert ("pod0/spine1", "core1") not in above


@pytest.mark.parametrize(("ratio", "core_ratio"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_oversubscription_of_each_tier(ratio: int, core_ratio: int) -> None:
    """The bisection is the NICs' rate over both ratios; each tier's egress shows its own."""
    counts: dict[str, Any] = {
        "hosts": 8,
        "hosts_per_leaf": 2,
        "leaves_per_pod": 2,
        "spines": 2,
        "cores": 1,
    }
    fabric = compile_graph(
        build(
            Params(
                **counts,
                oversubscription=ratio,
                core_oversubscription=core_ratio,
                **HOST,
            )
        )
    )
    egress = {tier.kind: tier.egress for tier in tiers(fabric)}
    assert egress["leaf"] == pytest.approx(2 * 50e9)
    assert egress["spine"] == pytest.approx(4 * 50e9 / ratio)
    assert egress["core"] == pytest.approx(8 * 50e9 / ratio / core_ratio)
    assert bisection(fabric) == pytest.approx(2 * 8 * 50e9 / ratio / core_ratio)


def test_routes_go_no_higher_than_they_must() -> None:
    """Under one leaf, under one pod, and across the core, with one path per switch at the top."""
    fabric = compile_graph(
        build(
            Params(
                hosts=8, hosts_per_leaf=2, leaves_per_pod=2, spines=2, cores=2, **HOST
            )
        )
    )
    expected = {
        "host1/gpu0": (["leaf"], 1),
        "host2/gpu0": (["leaf", "spine", "leaf"], 2),
    }
    expected["host7/gpu0"] = (["leaf", "spine", "core", "spine", "leaf"], 4)
    for dst, (switches, paths) in expected.items():
        routes = fabric.routes("host0/gpu0", dst)
        assert len(routes) == paths
        for rows, _ in routes:
            kinds = [
                fabric.nodes.kinds[fabric.node_index(node)]
                for node in fabric.links.dst[rows]
            ]
            assert [
                kind for kind in kinds if kind in ("leaf", "spine", "core")
            ] == switches


def test_uneven_cables_are_refused() -> None:
    """Cables that do not divide over spines or cores, and counts below one."""
    mistakes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"spines": 3}, "spines"),
        ({"leaves_per_pod": 1, "cores": 3}, "cores"),
        ({"hosts": 0}, "hosts"),
    )
    for wrong, key in mistakes:
        with pytest.raises(InputError, match=f"fat_tree: {key}"):
            compile_graph(build(Params(**wrong)))
