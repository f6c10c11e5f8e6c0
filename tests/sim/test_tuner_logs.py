"""NCCL's cost model, channels, rings and trees against its own logs, and against tables of other versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prestep.sim.collectives.group import group_of
from prestep.sim.collectives.nccl import searched, tuner
from prestep.sim.collectives.nccl.search import search
from prestep.sim.collectives.plan import RING_OPS
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.collectives.settings import Nccl
from prestep.sim.costs.gpu_files import generation_of
from prestep.sim.exchanges import log_lines
from prestep.topologies import load_cluster
from prestep.topologies.fabric import Fabric
from tests.sim.hosts import cluster, logged

LOGS: dict[str, Any] = json.loads(
    (Path(__file__).parent / "data" / "nccl-logs.json").read_text(encoding="utf-8")
)
CASES = ("2", "4", "2x2", "4x1")


@pytest.mark.parametrize("case", CASES)
def test_the_tuning_table_is_the_log_s(case: str) -> None:
    """Every operation has the log's algorithms and protocols, each with its latency and bandwidth as printed."""
    fabric = logged(case)
    for op in RING_OPS:
        expected = LOGS[case]["table"][op]
        found = tuner.table(op, fabric.gpus, fabric)
        assert {" ".join(key) for key in found} | {"ring LL128"} == set(expected) | {
            "ring LL128"
        }
        for (algo, proto), (latency, bandwidth) in found.items():
            assert (latency, bandwidth) == pytest.approx(
                expected[f"{algo} {proto}"], abs=0.0501
            ), (op, algo, proto)


@pytest.mark.parametrize("case", CASES)
def test_the_choice_is_the_log_s(case: str) -> None:
    """Algorithm, protocol and number of channels of every size that was logged."""
    fabric = logged(case)
    for key, (algo, proto, channels) in LOGS[case]["choices"].items():
        op, size = key.split()
        plan = plan_collective(op, float(size), fabric.gpus, fabric)
        assert (plan.algo, plan.proto, plan.channels) == (algo, proto, channels), key


@pytest.mark.parametrize("case", CASES)
def test_channels_are_the_log_s(case: str) -> None:
    """Channels found, their bandwidths, the tree's pattern, and the channels of collectives, messages and peers."""
    fabric = logged(case)
    group = group_of(fabric, fabric.gpus)
    graph = search(group, "h200", Nccl())
    log = LOGS[case]["graph"]
    assert [4, graph.count, graph.ring, graph.inter] == log["ring"]
    assert [graph.pattern, graph.count, graph.tree] == log["tree"][:3]
    assert [graph.channels, graph.p2p, graph.per_peer] == LOGS[case]["channels"]


@pytest.mark.parametrize("case", CASES)
def test_rings_and_trees_are_the_log_s(case: str) -> None:
    """The order of every ring, and the parent of every rank on every channel."""
    fabric = logged(case)
    group = group_of(fabric, fabric.gpus)
    channels = LOGS[case]["channels"][0]
    orders = [order for count, order in LOGS[case]["rings"] for _ in range(count)]
    found = searched.every_host(group, fabric, Nccl())
    connected = log_lines.links(group, found, channels)
    assert [list(ring) for ring in connected.rings] == orders
    trees = [
        {int(k): v for k, v in found.items()}
        for count, found in LOGS[case]["trees"]
        for _ in range(count)
    ]
    assert [
        {rank: parent for rank, parent in enumerate(parents) if parent >= 0}
        for parents in connected.parents
    ] == trees


# Fact sheet, section 7: microseconds and GB/s by hand from src/graph/tuning.cc with the channels of public logs.
VECTORS = {
    "8xH100": {
        ("tree", "LL"): (15.2, 43.579),
        ("tree", "LL128"): (31.5, 128.8),
        ("tree", "Simple"): (64.4, 165.6),
        ("ring", "LL"): (15.0, 80.571),
        ("ring", "LL128"): (40.6, 189.257),
        ("ring", "Simple"): (56.0, 205.714),
        ("nvls", "Simple"): (25.0, 272.0),
    },
    "2x8": {
        ("tree", "LL"): (25.2, 16.575),
        ("tree", "LL128"): (48.5, 124.78),
        ("tree", "Simple"): (92.4, 140.76),
        ("ring", "LL"): (40.0, 20.8),
        ("ring", "LL128"): (75.2, 156.587),
        ("ring", "Simple"): (131.6, 204.8),
        ("nvls_tree", "Simple"): (66.8, 246.187),
    },
    "4x8": {
        ("tree", "LL"): (35.2, 8.670),
        ("tree", "LL128"): (65.5, 98.6),
        ("tree", "Simple"): (120.4, 122.4),
        ("ring", "LL"): (78.8, 10.529),
        ("ring", "LL128"): (144.4, 151.535),
        ("ring", "Simple"): (282.8, 198.194),
        ("nvls_tree", "Simple"): (108.6, 187.871),
    },
}


def hosts_of(case: str) -> Fabric:
    return load_cluster("dgx-h100") if case == "8xH100" else cluster(int(case[0]))


@pytest.mark.parametrize("case", VECTORS)
def test_tables_of_larger_machines(case: str) -> None:
    """One, two and four hosts of eight H100, NVLink SHARP included."""
    fabric = hosts_of(case)
    found = tuner.table("all_reduce", fabric.gpus, fabric, Nccl(nvls=True))
    assert set(found) == set(VECTORS[case])
    for key, values in VECTORS[case].items():
        assert found[key] == pytest.approx(values, rel=1e-3), key


def test_tables_of_blackwell_and_of_gathers() -> None:
    """Eight B200: 15 and 25 us, 161 and 411 GB/s; an all-gather by NVLink SHARP is left as bus bandwidth."""
    b200, h100 = load_cluster("dgx-b200"), load_cluster("dgx-h100")
    wanted = Nccl(nvls=True)
    found = tuner.table("all_reduce", b200.gpus, b200, wanted)
    assert found["ring", "LL"] == pytest.approx((15.0, 161.143), rel=1e-3)
    assert found["nvls", "Simple"] == pytest.approx((25.0, 411.429), rel=1e-3)
    assert found["tree", "Simple"] == pytest.approx((64.4, 331.2), rel=1e-3)
    gather = tuner.table("all_gather", h100.gpus, h100, wanted)
    assert gather["ring", "Simple"] == pytest.approx((32.2, 411.429), rel=1e-3)
    assert gather["nvls", "Simple"] == pytest.approx((25.0, 208.25), rel=1e-3)


# Fact sheet, section 7: winners of all-reduces by size in KiB.
WINNERS = {
    ("8xH100", True): {
        1: "ring LL",
        1024: "ring LL",
        4096: "nvls Simple",
        2**20: "nvls Simple",
    },
    ("8xH100", False): {
        1024: "ring LL",
        4096: "ring LL128",
        16384: "ring LL128",
        65536: "ring Simple",
    },
    ("2x8", True): {
        32: "tree LL",
        256: "tree LL128",
        1024: "tree LL128",
        4096: "nvls_tree Simple",
    },
    ("2x8", False): {
        4096: "tree LL128",
        16384: "ring LL128",
        65536: "ring LL128",
        262144: "ring Simple",
    },
}


@pytest.mark.parametrize(("case", "on"), WINNERS)
def test_winners_by_size(case: str, on: bool) -> None:
    """Which algorithm and protocol wins on one and two hosts of eight H100, with NVLink SHARP and without."""
    fabric = hosts_of(case)
    found = {}
    for size in WINNERS[case, on]:
        best = tuner.candidates(
            "all_reduce", size * 1024.0, fabric.gpus, fabric, Nccl(nvls=on)
        )[0]
        found[size] = f"{best.algo} {best.proto}"
    assert found == WINNERS[case, on]


def test_the_search_finds_the_channels_of_other_machines() -> None:
    """Channels and GB/s: A100 12 x 20, B200 16 x 45, H800 (8 links) 8 x 20; NVLink SHARP 8 x 40, 8 x 80, 32 x 20."""
    found = {}
    for name in ("dgx-a100", "dgx-b200", "hgx-h800", "dgx-h100", "gb200-nvl72"):
        fabric = load_cluster(name)
        graph = search(group_of(fabric, fabric.gpus), fabric.gpu_model, Nccl())
        found[name] = (
            graph.count,
            graph.ring,
            graph.heads,
            graph.nvls,
            graph.nvls_inter,
        )
    assert found["dgx-a100"][:3] == (12, 20, 0)
    assert found["dgx-b200"] == (16, 45, 8, 80, 90)
    assert found["hgx-h800"][:2] == (8, 20)
    assert found["dgx-h100"] == (12, 30, 8, 40, 60)
    assert found["gb200-nvl72"] == (16, 45, 32, 20, 40)
    racks = load_cluster("gb200-superpod-576")
    net = group_of(racks, racks.gpus[:72] + racks.gpus[72:144]).net
    assert (net.nics, net.speed / 1e9) == (72, pytest.approx(48))


def test_times_of_a_row() -> None:
    """8x H100, 64 MiB: the seven times that NCCL compares, in microseconds."""
    fabric = load_cluster("dgx-h100")
    rows = tuner.candidates("all_reduce", 2.0**26, fabric.gpus, fabric, Nccl(nvls=True))
    expected = [271.72, 382.22, 395.19, 570.96, 610.42, 847.91, 1555.14]
    assert [row.time * 1e6 for row in rows] == pytest.approx(expected, rel=1e-3)


def test_versions_differ() -> None:
    """Latencies of trees and NVLink SHARP, limits of LL, channels per peer: as each release has them."""
    one, two = load_cluster("dgx-h100"), cluster(2)

    def row(
        fabric: Fabric, version: str, algo: str, proto: str = "Simple"
    ) -> tuple[float, float]:
        return tuner.table(
            "all_reduce", fabric.gpus, fabric, Nccl(version=version, nvls=True)
        )[algo, proto]

    assert row(one, "2.18.5", "tree")[0] == pytest.approx(2 * 7 * 4.0)
    assert row(one, "2.21.5", "tree")[0] == pytest.approx(2 * 7 * 28.0)
    assert row(one, "2.23.4", "tree")[0] == pytest.approx(8.4 + 2 * 7 * 4.0)
    assert (row(one, "2.18.5", "nvls")[0], row(one, "2.21.5", "nvls")[0]) == (
        23.0,
        25.0,
    )
    assert row(one, "2.18.5", "ring", "LL")[1] == pytest.approx(87.7 * 8 / 14)
    assert row(two, "2.27.3", "nvls_tree")[0] == pytest.approx(25 + 2 * 14)

    def peers(hosts: int, version: str) -> int:
        fabric = cluster(hosts)
        return search(
            group_of(fabric, fabric.gpus), "h100", Nccl(version=version)
        ).per_peer

    assert [peers(n, "2.28.9") for n in (2, 4, 5)] == [2, 2, 1]
    assert [peers(n, "2.29.2") for n in (2, 4, 5, 9)] == [4, 4, 2, 1]
    assert peers(5, "2.19.3") == 2


def test_blackwell_is_counted_as_each_release_does() -> None:
    """src/graph/tuning.cc of these tags: GB/s of a ring's channel under LL128; a tree's factors on NVLSTree since 2.29.

    64 MiB is 2**20 times 64 bytes, whose factor is 0.8 under Simple, and 512 MiB has 0.9 from 2.29 on.
    """

    def rows(version: str) -> dict[int, float]:
        fabric = load_cluster("dgx-b200-superpod", 4)
        asked = Nccl(version=version, algo="nvls_tree")
        return {
            size: row.bandwidth
            for size in (2**26, 2**29, 2**32)
            for row in tuner.candidates("all_reduce", size, fabric.gpus, fabric, asked)
            if row.algo == "nvls_tree"
        }

    kind = generation_of("b200")
    versions = ("2.28.3", "2.28.9", "2.29.2", "2.29.7")
    assert [kind.at(Nccl(version=v).release).ring_ll128 for v in versions] == [
        (73.4, 73.4, 73.4),
        (73.4, 34.6, 73.4),
        (34.5, 34.6, 34.5),
        (40.0, 40.0, 40.0),
    ]
    older, newer = rows("2.28.9"), rows("2.29.2")
    shares = [newer[size] / older[size] for size in newer]
    assert shares == pytest.approx([0.8, 0.9, 1.0])


# collectives_leafspine.jsonl of the measured machine, label 4x1-nic16-spine16 and 2x2-...: us by MiB. NICs of 1.984 GB/s.
EMULATED = {
    ("4x1", "all_reduce"): {4: 3183, 32: 26223, 256: 207948},
    ("4x1", "all_gather"): {4: 1584, 32: 13313, 256: 105770},
    ("2x2", "all_reduce"): {4: 3186, 32: 25934, 256: 138656},
    ("2x2", "all_gather"): {4: 1584, 32: 12849, 256: 102467},
}


@pytest.mark.parametrize(("case", "op"), EMULATED)
def test_emulated_hosts_take_the_measured_time(case: str, op: str) -> None:
    """Over sockets, from 32 MiB on within 4 %, at 4 MiB within 10 %: also where NCCL leaves the ring for the tree."""
    fabric = logged(case)
    for size, time in EMULATED[case, op].items():
        plan = plan_collective(op, size * 2.0**20, fabric.gpus, fabric)
        assert plan.duration(fabric.links.bandwidth) == pytest.approx(
            time * 1e-6, rel=0.04 if size >= 32 else 0.1
        )
