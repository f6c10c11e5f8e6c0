"""The nearest NICs, GPUs and CPUs of a node are those that a search of the whole cluster finds."""

from __future__ import annotations

import pytest

from prestep.topologies import load_cluster

CLUSTERS = {
    "gb200-nvl72": 20,
    "rail-h100": 3,
    "roce-h100": 3,
    "aws-p5": 2,
    "dgx-a100": 1,
    "gb200-nvl4": 1,
    "h200-leafspine-2x2": 2,
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_host_answers_as_the_cluster_does(name: str) -> None:
    """Of every fifth node and every kind, in the order of the fabric."""
    fabric = load_cluster(name, hosts=CLUSTERS[name])
    names = fabric.nodes.names
    for at in range(0, len(names), 5):
        hops = fabric.hops(names[at])
        for kind in sorted(set(fabric.nodes.kinds)):
            of_kind = [i for i, other in enumerate(fabric.nodes.kinds) if other == kind]
            fewest = min(hops[of_kind])
            expected = [names[i] for i in of_kind if hops[i] == fewest]
            if fewest < 1 << 20:
                assert list(fabric.all_nearest(names[at], kind)) == expected
