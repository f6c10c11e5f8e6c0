"""The cause "a slow rail" by the paths of rail clusters: rail i is the NIC i of every host."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from prestep.sim.collectives.settings import Nccl
from prestep.topologies import load_cluster
from prestep.topologies.edit.overrides import with_overrides
from prestep.validation.doctor.causes import CAUSES, nics_of
from prestep.validation.doctor.sweep import Situation
from prestep.validation.formats.collective_rows import Row

HOSTS = 3


@pytest.mark.parametrize("name", ["rail-h100", "rail-h200", "rail-h800"])
def test_a_rail_is_the_nic_of_one_number_of_every_host(name: str) -> None:
    """The links that the cause slows are those of the way between the hosts' first GPUs, whichever two, and of no other
    GPU's; every host has its own."""
    fabric = load_cluster(name, HOSTS)
    row = Row("rail", "all_reduce", 8 * HOSTS, 2**20, 1e-3, 1e-3, False, "here")
    row = replace(row, hosts=HOSTS, per_host=8)
    here = Situation(fabric, Nccl(), ((row,),))
    change = CAUSES["slow_rail"].changes(here)[0]
    slowed = with_overrides(fabric, change.links)
    rows = np.flatnonzero(slowed.links.bandwidth < fabric.links.bandwidth)
    by_host = [list(gpus) for gpus in fabric.gpus_by_host.values()]
    assert len(nics_of(here)) == len(by_host[0]) == 8
    touched = set[int]()
    for host, gpus in enumerate(by_host):
        for other in by_host[host + 1 :]:
            for number, (one, two) in enumerate(zip(gpus, other, strict=True)):
                way = {
                    *fabric.route(one, two).tolist(),
                    *fabric.route(two, one).tolist(),
                }
                assert bool(way & set(rows.tolist())) == (number == 0)
                touched |= way & set(rows.tolist())
    assert touched == set(rows.tolist())
    assert len({fabric.links.name(int(row)).split(".")[0] for row in rows}) >= HOSTS
