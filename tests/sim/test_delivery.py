"""What storage brings to a host: never more than its disks, PCIe and network carry, whatever the number of readers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from prestep.sim.errors import InputError
from prestep.sim.planning.job import Batch
from prestep.sim.storage.dataload import Place, table_of
from prestep.sim.storage.feeding import delivery_of
from prestep.sim.storage.sections import Dataload
from prestep.sim.storage.systems import System, load_system, names
from prestep.topologies import cluster_names, load_cluster
from prestep.topologies.fabric import Fabric
from prestep.workloads.models.model import ModelSpec

SAMPLE = 16e6  # bytes


def cuts(system: System, fabric: Fabric) -> Iterator[tuple[str, float]]:
    """What bounds a host: name, bytes/s; sums over the links of the cluster's file, without any route."""
    hosts, kinds = np.array(fabric.nodes.hosts), np.array(fabric.nodes.kinds)
    src, dst = fabric.ends
    rates, first = fabric.links.bandwidth, fabric.host_of(fabric.gpus[0])
    within = (hosts[src] == first) & (hosts[dst] == first)
    into_memory = within & (kinds[dst] == "memory")
    yield "memory", float(rates[into_memory].sum())
    if system.attach == "nvme":
        yield "disks", float(rates[within & (kinds[src] == "nvme")].sum())
    if system.attach in ("network", "storage"):
        port = "nic" if system.attach == "network" else "storage_nic"
        ports = (hosts[dst] == first) & (hosts[src] != first) & (kinds[dst] == port)
        yield "ports", float(rates[ports].sum())
    everybody = len(fabric.hosts) if system.attach in ("network", "storage") else 1
    if system.attach == "storage":
        servers = (kinds[src] == "storage") & (kinds[dst] != "storage")
        yield "servers", float(rates[servers].sum()) / everybody
    if system.read is not None:
        yield "system", system.read / everybody
    if system.client is not None:
        yield "client", system.client


def bytes_per_second(system: System, fabric: Fabric, workers: int) -> float:
    """What the ranks of the first host read in a second, all hosts of the cluster reading."""
    first = fabric.host_of(fabric.gpus[0])
    ranks = sum(fabric.host_of(gpu) == first for gpu in fabric.gpus)
    asked = Dataload(decode=0.0, sample=SAMPLE, workers=workers, storage=system.name)
    rate = delivery_of(system, "reads", fabric, fabric.gpus)
    place = Place(ranks, 1e9, 1e9, 0.0, 0.0, system, rate)
    table = table_of(asked, Batch(), 1.0, ModelSpec(name="m", kind="mlp"), place)
    return float(table["batches"] * ranks * SAMPLE / table["read_time"])


@pytest.mark.parametrize("cluster", cluster_names())
def test_no_host_reads_more_than_its_narrowest_part_carries(cluster: str) -> None:
    """Of every storage system at every cluster, with 1 to 1,024 workers a rank; more workers never read less."""
    fabric = load_cluster(cluster)
    for system in map(load_system, names()):
        try:
            rates = [bytes_per_second(system, fabric, n) for n in (1, 16, 1024)]
        except InputError as error:
            assert error.mistakes[0].key == "dataload.storage"
            continue
        assert rates == sorted(rates)
        for part, most in cuts(system, fabric):
            assert rates[-1] <= most * (1 + 1e-9), (system.name, part)


@pytest.mark.parametrize("storage", ["nvme", "nvme-raid"])
@pytest.mark.parametrize("workers", [4, 16])
def test_eight_ranks_share_the_disks_of_their_host(storage: str, workers: int) -> None:
    """16 GB for each of eight ranks take 4.5 s from disks that write 28.5 GB/s together (Hugging Face, AWS p5)."""
    fabric = load_cluster("aws-p5")
    rate = bytes_per_second(load_system(storage), fabric, workers)
    assert 8 * 16e9 / rate == pytest.approx(4.5, rel=0.01)


def test_disks_of_twice_the_rate_read_twice_as_fast() -> None:
    """Until something else binds: what bounds reading is the cluster's disks, not a constant."""
    plain, fast = (
        load_cluster("aws-p5", overrides={"nvme.bandwidth": rate})
        for rate in ("1x", "1.2x")
    )
    system = load_system("nvme")
    assert bytes_per_second(system, fast, 64) == pytest.approx(
        1.2 * bytes_per_second(system, plain, 64)
    )
