"""Switches of the network that add up (SHARP, CollNet): who gains what, and what is said where there are none."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from prestep.cli import main
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.collectives.settings import Nccl
from prestep.topologies import load_cluster
from tests.sim import transfers
from tests.sim.hosts import cluster
from tests.sim.test_algorithms import entering, leaving
from tests.sim.transfers import replay, traffic, whole

ON = Nccl(collnet=True)


def seconds(fabric: Any, size: float, wanted: Nccl) -> float:
    plan = plan_collective("all_reduce", size, fabric.gpus, fabric, wanted)
    return plan.duration(fabric.links.bandwidth)


@pytest.mark.parametrize("name", ["dgx-h100-superpod", "dgx-b200-superpod"])
@pytest.mark.parametrize("hosts", [4, 32])
@pytest.mark.parametrize("nvls", [None, False])
def test_switches_that_add_are_never_slower(
    name: str, hosts: int, nvls: bool | None
) -> None:
    """Large all-reduces take no longer with SHARP in the network than without, with or without NVLink SHARP."""
    fabric = load_cluster(name, hosts)
    for size in (2.0**28, 2.0**33):
        without = seconds(fabric, size, Nccl(nvls=nvls))
        assert seconds(fabric, size, replace(ON, nvls=nvls)) <= without


def test_a_superpod_gains_half_as_much_again_to_twice() -> None:
    """8 GiB over 32 hosts: every byte crosses a NIC once instead of about twice, less what the switches cost."""
    fabric = load_cluster("dgx-h100-superpod", 32)
    gain = seconds(fabric, 2.0**33, Nccl()) / seconds(fabric, 2.0**33, ON)
    assert 1.5 <= gain <= 2.0
    assert (
        plan_collective("all_reduce", 2.0**33, fabric.gpus, fabric, ON).algo == "nvls"
    )


@pytest.mark.parametrize(("n", "hosts"), [(4, 2), (6, 3), (16, 2)])
def test_nvlink_sharp_between_hosts_reduces_once_in_the_network(
    n: int, hosts: int
) -> None:
    """Everybody has everything in the end; a GPU's slice of its host goes up once and comes back once."""
    everyone, local = set(range(n)), n // hosts
    switches, network = hosts + 1, n + hosts
    rounds = transfers.nvls("all_reduce", n, hosts)
    done = replay(rounds, whole(n, local, switches))
    assert all(done[r][c] == everyone for r in range(n) for c in range(local))
    assert traffic(rounds, network) == (n, n)
    gathered = replay(
        transfers.nvls("all_gather", n, hosts),
        [*({r: {r}} for r in range(n)), *({} for _ in range(switches))],
    )
    assert all(gathered[r] == {c: {c} for c in range(n)} for r in range(n))
    scattered = replay(
        transfers.nvls("reduce_scatter", n, hosts), whole(n, n, switches)
    )
    assert all(scattered[r][r] == everyone for r in range(n))


def test_every_nic_carries_one_slice_each_way() -> None:
    """S / NICs out and in; inside the host as on one host."""
    fabric = cluster(4, facts=("sharp",))
    wanted = replace(ON, nvls=True, algo="nvls")
    plan = plan_collective("all_reduce", 2.0**28, fabric.gpus, fabric, wanted)
    assert leaving(plan, fabric, "h1nic2", "nic") == pytest.approx(1 / 8)
    assert entering(plan, fabric, "h1nic2", "nic") == pytest.approx(1 / 8)
    assert leaving(plan, fabric, "h1gpu2") == pytest.approx(9 / 8)


def test_collnet_without_such_switches_says_so() -> None:
    """The plan is the one without CollNet, with a note that says what to do; on one host nothing is said."""
    fabric = load_cluster("rail-h100", 2)
    plan = plan_collective("all_reduce", 2.0**30, fabric.gpus, fabric, ON)
    assert seconds(fabric, 2.0**30, ON) == seconds(fabric, 2.0**30, Nccl())
    assert any("sharp = 1" in note for note in plan.notes)
    near = plan_collective("all_reduce", 2.0**30, fabric.gpus[:8], fabric, ON)
    assert not near.notes


def test_a_step_warns_of_collnet_without_such_switches() -> None:
    """The warning of a run names the setting and what to write; with such switches there is none."""

    def warnings(*more: str) -> list[str]:
        collnet = ("--json", "--set", "model.layers=2", "--set", "nccl.collnet=true")
        answer = CliRunner().invoke(main, ["run", "llama1b-ddp4", *collnet, *more])
        assert answer.exit_code == 0, answer.output
        found: list[str] = json.loads(answer.output)["warnings"]
        return [warning for warning in found if "collnet" in warning]

    (said,) = warnings()
    assert "sharp = 1" in said
    sharp = ("--cluster", "dgx-h100-superpod", "--set", "cluster.gpus=4")
    assert not warnings(*sharp)
