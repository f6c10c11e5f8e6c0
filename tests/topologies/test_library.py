"""Bundled clusters are built once in a process, and given out as copies."""

from __future__ import annotations

import numpy as np

from prestep.topologies import load_cluster
from prestep.topologies.fabric import Fabric
from prestep.topologies.files import clusterfile
from prestep.topologies.files.library import Library


def alike(one: Fabric, other: Fabric) -> bool:
    """Whether all columns of nodes and links, and the facts, are the same."""
    names = one.links.__dataclass_fields__
    columns = all(
        np.array_equal(getattr(one.links, name), getattr(other.links, name))
        for name in names
    )
    return columns and (one.nodes, one.facts, one.name) == (
        other.nodes,
        other.facts,
        other.name,
    )


def test_a_cluster_that_is_given_out_again_is_the_same() -> None:
    """Links, facts and routes of a copy are those of the one that was built, with other bandwidths too."""
    one = clusterfile.read("dgx-h100-superpod", 8)
    first, again = (load_cluster("dgx-h100-superpod", 8) for _ in range(2))
    assert first is not again and alike(first, again) and alike(first, one)
    gpus = one.gpus
    for src, dst in ((gpus[0], gpus[1]), (gpus[0], gpus[63]), (gpus[9], gpus[40])):
        routes = [
            [(path.tolist(), share) for path, share in fabric.routes(src, dst)]
            for fabric in (first, again, one)
        ]
        assert routes[0] == routes[1] == routes[2]


def test_a_change_stays_with_who_made_it() -> None:
    """A what-if of one copy is not seen in the next, and other numbers of hosts are other clusters."""
    plain = load_cluster("dgx-h100-superpod", 8)
    load_cluster(
        "dgx-h100-superpod", 8, {"nic.bandwidth": "2x", "spine.latency": "9 us"}
    )
    assert alike(load_cluster("dgx-h100-superpod", 8), plain)
    assert len(load_cluster("dgx-h100-superpod", 4).gpus) == 32 != len(plain.gpus)


def test_only_a_few_are_kept() -> None:
    """However many are asked for."""
    library = Library(most=3)
    for hosts in range(1, 6):
        library.read("dgx-h100-superpod", 4 * hosts)
    assert [hosts for _, hosts in library.clusters] == [12, 16, 20]


def test_one_large_cluster_stays_until_the_next() -> None:
    """A cluster of very many links is built once for a scenario's check and its run; two of them are never held."""
    library = Library(most_links=1000)
    first = library.read("rail-h100", 32)
    assert library.read("rail-h100", 32).links is first.links
    small = library.read("h200-host-4")
    second = library.read("rail-h100", 48)
    assert library.read("h200-host-4").links is small.links
    assert library.read("rail-h100", 48).links is second.links
    assert ("rail-h100", 32) not in library.clusters
