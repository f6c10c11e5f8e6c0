"""Dragonflies: counts by formula, cables between every two groups, and short routes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.errors import InputError
from prestep.topologies.dragonfly import Params, build
from prestep.topologies.fabric.compile import compile_graph

HOST: dict[str, Any] = {"gpus": 1, "nics": 1, "nvmes": 0, "nvlinks": (), "sockets": 1}


@settings(max_examples=15, deadline=None)
@given(
    per_switch=st.integers(1, 2),
    switches=st.integers(1, 4),
    wide=st.integers(1, 2),
    data=st.data(),
)
def test_counts_and_cables_by_formula(
    per_switch: int, switches: int, wide: int, data: st.DataObject
) -> None:
    """Groups are full meshes inside and between; no switch has more than `global_cables` to other groups."""
    groups = data.draw(st.integers(1, switches * wide + 1))
    hosts = groups * per_switch * switches
    params = Params(
        hosts=hosts,
        hosts_per_switch=per_switch,
        switches_per_group=switches,
        global_cables=wide,
        **HOST,
    )
    fabric = compile_graph(build(params))
    links = fabric.links
    assert (len(fabric.gpus), len(fabric.nodes.of_kind("switch"))) == (
        hosts,
        groups * switches,
    )
    assert len(links.of_kind("local")) == groups * switches * (switches - 1)
    rows = links.of_kind("global")
    assert links.count[rows].sum() == groups * (groups - 1) * params.cables
    pairs = {
        tuple(str(end[row]).split("/")[0] for end in (links.src, links.dst))
        for row in rows
    }
    assert len(pairs) == groups * (groups - 1)
    out = [
        links.count[rows][links.src[rows] == switch].sum()
        for switch in fabric.nodes.of_kind("switch")
    ]
    assert max(out) <= wide


def test_the_largest_uses_every_cable_once() -> None:
    """With `switches * global_cables + 1` groups there is one cable between each two."""
    fabric = compile_graph(build(Params(hosts=36, **HOST)))
    rows = fabric.links.of_kind("global")
    assert len(rows) == 9 * 8 and (fabric.links.count[rows] == 1).all()


def test_no_route_is_longer_than_local_global_local() -> None:
    """Between any two hosts at most three cables between switches; one inside a group."""
    fabric = compile_graph(build(Params(hosts=36, **HOST)))
    for src, dst in itertools.combinations(fabric.gpus, 2):
        kinds = fabric.links.kind[fabric.route(src, dst)]
        between = kinds[np.isin(kinds, ["local", "global"])].tolist()
        same = int(src[4:].split("/")[0]) // 4 == int(dst[4:].split("/")[0]) // 4
        assert (
            between == ["local"] if same else len(between) <= 3 and "global" in between
        )


def test_what_cannot_be_joined_is_refused() -> None:
    """A tenth group of four switches with two cables each, and counts below one."""
    with pytest.raises(
        InputError, match="dragonfly: hosts: found 37, expected at most 36"
    ):
        compile_graph(build(Params(hosts=37)))
    for key in (
        "hosts",
        "hosts_per_switch",
        "switches_per_group",
        "global_cables",
        "nics",
    ):
        with pytest.raises(InputError, match=f"dragonfly: {key}"):
            compile_graph(build(Params(**{key: 0})))  # type: ignore[arg-type]


@pytest.mark.parametrize(("groups", "wide"), [(1, 4), (3, 4), (5, 2)])
def test_dragonfly_plus(groups: int, wide: int) -> None:
    """Every leaf has a cable to each spine of its group, spines alone go to others, and the way is leaf, spines, leaf."""
    leaves, spines = 2, 3
    params = Params(
        hosts=groups * leaves,
        switches_per_group=leaves,
        spines_per_group=spines,
        global_cables=wide,
        **HOST,
    )
    fabric = compile_graph(build(params))
    links = fabric.links
    assert len(links.of_kind("local")) == 2 * groups * leaves * spines
    rows = links.of_kind("global")
    assert links.count[rows].sum() == groups * (groups - 1) * params.cables
    assert not rows.size or {"spine"} == {
        fabric.nodes.kinds[fabric.node_index(name)] for name in links.src[rows]
    }
    if groups > 1:
        assert len(fabric.route("host0/gpu0", fabric.gpus[-1])) == 9
