"""Many routes at once are the routes one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.topologies import fat_tree, load_cluster, rail_optimized, superpod
from prestep.topologies.core.links import Ints
from prestep.topologies.core.quantity import LinkSpec, Quantity
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.compile import compile_graph
from prestep.topologies.routes.batch import Batch
from prestep.topologies.routes.ports import HostPorts

SMALL = {
    "rails": compile_graph(
        rail_optimized.build(
            rail_optimized.Params(hosts=6, hosts_per_group=2, spines=2)
        )
    ),
    "rails that oversubscribe": compile_graph(
        rail_optimized.build(
            rail_optimized.Params(
                hosts=7, hosts_per_group=4, spines=2, oversubscription=2
            )
        )
    ),
    "two NICs a GPU": compile_graph(
        rail_optimized.build(
            rail_optimized.Params(hosts=5, hosts_per_group=2, spines=2, gpus=4)
        )
    ),
    "superpod with a core": compile_graph(
        superpod.build(
            superpod.Params(hosts=14, hosts_per_unit=4, ports=8, nics=4, gpus=4)
        )
    ),
    "more paths than are kept": compile_graph(
        fat_tree.build(
            fat_tree.Params(
                hosts=18, hosts_per_leaf=2, leaves_per_pod=8, spines=16, cores=8
            )
        )
    ),
    "pods": compile_graph(
        fat_tree.build(
            fat_tree.Params(
                hosts=10, hosts_per_leaf=2, leaves_per_pod=2, spines=4, cores=2
            )
        )
    ),
}
FOUND = [
    "gb200-nvl72",
    "aws-p5",
    "dgx-h100-superpod",
    "h200-leafspine-2x2",
    "roce-h100",
]


def pairs(fabric: Fabric) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Pairs of what sends and receives: GPUs, memories, NICs."""
    ends = [
        at
        for at, kind in enumerate(fabric.nodes.kinds)
        if kind in ("gpu", "memory", "nic")
    ]
    return st.lists(
        st.tuples(st.sampled_from(ends), st.sampled_from(ends)), min_size=1, max_size=12
    )


def compare(fabric: Fabric, chosen: list[tuple[int, int]]) -> None:
    src, dst = (np.array(column) for column in zip(*chosen, strict=True))
    pair, row, share = fabric.spreads(src, dst)
    amount = 1.0 + np.arange(len(src))
    total = np.zeros(len(fabric.links))
    for at, (a, b) in enumerate(chosen):
        rows, shares = fabric.spread(fabric.nodes.names[a], fabric.nodes.names[b])
        assert row[pair == at].tolist() == rows.tolist()
        assert share[pair == at] == pytest.approx(shares, rel=1e-12)
        total[rows] += shares * amount[at]
    assert fabric.loads(src, dst, amount) == pytest.approx(total, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", [*SMALL, *FOUND])
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_bytes_lie_where_the_router_puts_them(name: str, data: st.DataObject) -> None:
    """`spreads` is `spread` of every pair, and `loads` their sum, on every kind of cluster."""
    fabric = SMALL[name] if name in SMALL else load_cluster(name)
    compare(fabric, data.draw(pairs(fabric)))


@pytest.mark.parametrize(
    "name", ["rails", "rails that oversubscribe", "more paths than are kept", "pods"]
)
def test_hosts_that_are_alike_are_routed_once(name: str) -> None:
    """The router is asked for ways inside one host, whatever the number of hosts."""
    fabric = SMALL[name]
    gpus = fabric.positions(fabric.gpus)
    fabric._router.spreads.clear()
    fabric.loads(
        np.repeat(gpus, len(gpus)), np.tile(gpus, len(gpus)), np.ones(len(gpus) ** 2)
    )
    one = len(gpus) // len(fabric.hosts)
    assert len(fabric._router.spreads) <= one * (one - 1)


def test_a_host_with_a_link_less_is_a_pattern_of_its_own() -> None:
    """A narrower NVLink in one host changes the shares there, and nowhere else."""
    whole = SMALL["rails"]
    graph = whole.graph.copy()
    for ends in (("host1/gpu0", "host1/nvswitch0"), ("host1/nvswitch0", "host1/gpu0")):
        graph.edges[(*ends, 0)]["count"] = 1
    fabric = Fabric.from_graph(graph)
    gpus = [at for at, kind in enumerate(fabric.nodes.kinds) if kind == "gpu"]
    compare(fabric, [(a, b) for a in gpus[:16:3] for b in gpus[:16:5]])


def test_hosts_wired_to_each_other_are_left_to_the_router() -> None:
    """A cable between two NICs makes a way past the switches: hop counts decide, as for single routes."""
    graph = SMALL["rails"].graph.copy()
    spec = LinkSpec(Quantity(1e9, "guess", "a test"), Quantity(1e-6, "guess", "a test"))
    for a, b in (("host0/nic0", "host5/nic1"), ("host5/nic1", "host0/nic0")):
        graph.add_edge(a, b, kind="nic", bandwidth=spec.bandwidth.value, latency=1e-6)
    fabric = Fabric.from_graph(graph)
    gpus = [at for at, kind in enumerate(fabric.nodes.kinds) if kind == "gpu"]
    compare(fabric, [(a, b) for a in gpus[::5] for b in gpus[::7]])


@pytest.mark.parametrize("name", [*SMALL, "h200-leafspine-2x2", "aws-p5"])
def test_an_exchange_is_the_sum_of_its_pairs(name: str) -> None:
    """Counted by classes of GPUs: the bytes of every pair, the GPU itself and partial groups left out."""
    fabric = SMALL[name] if name in SMALL else load_cluster(name)
    gpus = fabric.positions(fabric.gpus)
    senders, receivers = gpus[: len(gpus) - 1], gpus[1::3]
    src, dst = np.repeat(senders, len(receivers)), np.tile(receivers, len(senders))
    expected = fabric.loads(src, dst, np.full(len(src), 2.0))
    found = fabric.exchange(senders, receivers, 2.0)
    assert found == pytest.approx(expected, rel=1e-12)
    assert np.array_equal(found > 0, expected > 0)


def test_an_exchange_of_thousands_makes_no_pairs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No more than the pairs inside hosts and one of each two classes are looked at."""
    fabric = compile_graph(
        rail_optimized.build(rail_optimized.Params(hosts=64, hosts_per_group=8))
    )
    gpus, seen = fabric.positions(fabric.gpus), []
    resolve, ports = Batch.resolve, HostPorts.ports

    def counted(batch: Batch, src: Ints, dst: Ints) -> Any:
        seen.append(len(src))
        return resolve(batch, src, dst)

    def looked(
        host: HostPorts, first: Any, second: Any, src: Ints, dst: Ints, nth: int = 0
    ) -> Any:
        seen.append(len(src))
        return ports(host, first, second, src, dst, nth)

    monkeypatch.setattr(Batch, "resolve", counted)
    monkeypatch.setattr(HostPorts, "ports", looked)
    fabric.exchange(gpus, gpus, 1.0)
    assert sum(seen) == 64 * 8 * 8 + (8 * 8) ** 2


def test_an_exchange_over_equally_near_adapters_makes_no_pairs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two NICs behind the CPU share what leaves and enters a host: as pair by pair, without making the pairs."""
    file = tmp_path / "one-socket.toml"
    one = '{ value = 1, evidence = "guess", source = "two NICs behind one CPU" }'
    file.write_text(
        f'extends = "alcf-polaris"\ndescription = "one socket"\nsockets = {one}\n',
        encoding="utf-8",
    )
    fabric = load_cluster(str(file), 20)
    gpus = fabric.positions(fabric.gpus)
    whole = sum(
        fabric.loads(np.full(len(gpus), one), gpus, (gpus != one) * 1.0) for one in gpus
    )
    monkeypatch.setattr("prestep.topologies.routes.exchange._pair_by_pair", None)
    assert fabric.exchange(gpus, gpus, 1.0) == pytest.approx(whole)


@pytest.mark.parametrize(
    "name", ["rails", "two NICs a GPU", "aws-p5", "dgx-h100-superpod"]
)
def test_a_way_within_a_host_is_that_of_the_router(name: str) -> None:
    """Also where leaving the host has as few hops: what stays off the network is better."""
    fabric = SMALL[name] if name in SMALL else load_cluster(name, hosts=2)
    names = zip(fabric.nodes.kinds, fabric.nodes.hosts, strict=True)
    ends = [
        at
        for at, (kind, host) in enumerate(names)
        if kind in ("gpu", "nic") and host == "host0"
    ]
    for a in ends:
        for b in ends[::3]:
            ways, expected = (
                [(rows.tolist(), share) for rows, share in one.routes(a, b)]
                for one in (fabric._batch, fabric._router)
            )
            assert ways == expected


def test_a_way_within_a_host_does_not_ask_the_router_of_the_cluster() -> None:
    """From a GPU to the NIC of another, inside one host of many: the whole cluster's rows are not listed by node."""
    fabric = load_cluster("aws-p5", hosts=4)
    fabric.route("host0/gpu1", fabric.nearest("host0/gpu0", "nic"))
    assert "_leaving" not in vars(fabric._router)
