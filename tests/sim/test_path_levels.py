"""NCCL_P2P_LEVEL and NCCL_NET_GDR_LEVEL: how far apart GPUs, or a GPU and a NIC, may be to do without host memory."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prestep.sim.collectives.group import group_of
from prestep.sim.collectives.nccl.ways import NVL, PHB, PIX, SYS
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires import reach
from prestep.sim.errors import InputError
from prestep.topologies import load_cluster
from prestep.topologies.fabric.compile import compile_graph
from prestep.topologies.fabric.wiring import add_node, join, new_graph
from prestep.validation.formats.nccl_env import settings_of
from tests.sim.hosts import LEAF

LEVELS = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS")


@pytest.fixture(scope="module")
def pcie(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Eight GPUs on PCIe alone, two under each of four switches, on two sockets."""
    fact = '{{ value = {}, evidence = "guess", source = "a test" }}'
    path: Path = tmp_path_factory.mktemp("pcie") / "pcie.toml"
    lines = ['extends = "dgx-a100"', f"nvlinks = {fact.format('[]')}"]
    lines += [f"gpus_per_pcie_switch = {fact.format(2)}"]
    path.write_text("\n".join([*lines, f"amd_cpu = {fact.format(0)}"]) + "\n")
    return load_cluster(str(path))


@cache
def nvlink(name: str) -> Any:
    return load_cluster(name, 2 if name == "rail-h100" else None)


def seconds(fabric: Any, ranks: int, op: str = "all_reduce", **wanted: Any) -> float:
    plan = plan_collective(op, 2.0**28, fabric.gpus[:ranks], fabric, Nccl(**wanted))
    return plan.duration(fabric.links.bandwidth)


def through_memory(fabric: Any, a: int, b: int, **wanted: Any) -> bool:
    gpus = fabric.gpus[a], fabric.gpus[b]
    plan = plan_collective("send", 2.0**28, gpus, fabric, Nccl(**wanted))
    kinds = fabric.links.kind[plan.links]
    return "memory" in np.asarray(kinds).tolist()


def test_gpus_are_as_far_apart_as_what_lies_between(pcie: Any) -> None:
    """One PCIe switch, a CPU, two sockets, NVSwitches."""
    first, *others = pcie.gpus
    apart = [reach.distance(pcie, first, other) for other in others]
    assert apart == [PIX, PHB, PHB, SYS, SYS, SYS, SYS]
    on_switches = nvlink("dgx-h100")
    assert reach.distance(on_switches, *on_switches.gpus[:2]) == NVL


@pytest.mark.parametrize(("other", "needs"), [(1, "PIX"), (2, "PHB"), (4, "SYS")])
def test_peers_that_are_too_far_go_through_memory(
    pcie: Any, other: int, needs: str
) -> None:
    """A message passes host memory at every level below that of its way, and at none from it on."""
    for at, level in enumerate(LEVELS):
        far = at < LEVELS.index(needs)
        assert through_memory(pcie, 0, other, p2p_level=level) == far
    assert through_memory(pcie, 0, other) == (other > 1)  # NCCL's own level is PXB


def test_a_farther_level_is_never_slower(pcie: Any) -> None:
    """The more pairs are peers, the sooner an all-reduce over all GPUs of the host is done."""
    times = [seconds(pcie, 8, p2p_level=level) for level in LEVELS]
    assert all(far <= near * (1 + 1e-9) for near, far in pairwise(times))
    assert times[0] > 1.2 * times[-1]


def test_loc_is_no_peers_at_all() -> None:
    """LOC is what p2p_disable is, and on NVLink every other level is as none."""
    fabric = nvlink("dgx-h100")
    off, plain = seconds(fabric, 8, p2p_disable=True), seconds(fabric, 8)
    assert seconds(fabric, 8, p2p_level="LOC") == off > plain
    for level in LEVELS[1:]:
        assert seconds(fabric, 8, p2p_level=level) == plain


def test_without_memory_peers_are_hosts_of_their_own(pcie: Any) -> None:
    """shm_disable leaves GPUs that are no peers to the network: NCCL counts each set of peers as a node."""
    sizes = [len(h) for h in group_of(pcie, pcie.gpus, Nccl(shm_disable=True)).hosts]
    assert sizes == [2, 2, 2, 2]
    for fabric in (nvlink("dgx-h100"), nvlink("gb200-nvl72")):
        plain = group_of(fabric, fabric.gpus).hosts
        assert group_of(fabric, fabric.gpus, Nccl(shm_disable=True)).hosts == plain


@pytest.mark.parametrize("op", ["all_reduce", "all_to_all", "all_gather"])
def test_without_gpudirect_bytes_pass_the_hosts_memory(op: str) -> None:
    """Where a NIC is farther than the level, transfers between hosts take longer, and never inside one."""
    fabric = nvlink("rail-h100")
    far, near = (seconds(fabric, 16, op, net_gdr_level=at) for at in ("LOC", "PIX"))
    assert far > 1.1 * near and near == seconds(fabric, 16, op)
    assert seconds(fabric, 8, op, net_gdr_level="LOC") == seconds(fabric, 8, op)


def test_a_level_of_nics_needs_nics() -> None:
    """A cluster that does not say where its NICs are cannot answer; it says so."""
    graph = new_graph("bare", "h100", "test")
    add_node(graph, "leaf", "leaf")
    for host in ("h0", "h1"):
        join(graph, add_node(graph, f"{host}/gpu", "gpu", host), "leaf", "nic", LEAF)
    bare = compile_graph(graph)
    assert group_of(bare, bare.gpus).nodes == 2
    with pytest.raises(InputError, match="net_gdr_level"):
        group_of(bare, bare.gpus, Nccl(net_gdr_level="LOC"))


@pytest.mark.parametrize(
    ("variable", "value", "key", "level"),
    [
        ("NCCL_P2P_LEVEL", "sys", "p2p_level", "SYS"),
        ("NCCL_P2P_LEVEL", "0", "p2p_level", "LOC"),
        ("NCCL_P2P_LEVEL", "2", "p2p_level", "PXB"),
        ("NCCL_P2P_LEVEL", "5", "p2p_level", "SYS"),
        ("NCCL_NET_GDR_LEVEL", "PHB", "net_gdr_level", "PHB"),
    ],
)
def test_variables_are_read_as_nccl_reads_them(
    variable: str, value: str, key: str, level: str
) -> None:
    """Names in any case, and the digits of earlier releases."""
    nccl, ignored = settings_of({variable: value}, "all_reduce", None, "a log")
    assert getattr(nccl, key) == level and not ignored


def test_a_level_that_nccl_does_not_have_is_a_mistake() -> None:
    """With what was found and what there is."""
    with pytest.raises(InputError, match="LOC, NVL"):
        settings_of({"NCCL_P2P_LEVEL": "FAR"}, "all_reduce", None, "a log")
