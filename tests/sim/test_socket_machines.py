"""TCP sockets on a machine with constants of its own: threads that send and receive, rings that change NICs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lab.fit import calibrate_sockets
from prestep.sim.collectives.group import group_of
from prestep.sim.collectives.nccl.search import search
from prestep.sim.collectives.nccl.tuner import model_of
from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires import socket
from prestep.topologies import load_cluster

POLARIS = load_cluster("alcf-polaris-tcp", 2)
MIB = 2.0**20
OWN = """[socket.tcp]
send = 1e-5
receive = 1e-5
control = 1.0
copy = 1e-9
copy_flags = 1e-9
stage = 0.0
wake = 0.0
"""


def plan(
    op: str, size: float, version: str = "2.18.3", algo: str | None = None
) -> Plan:
    said = Nccl(version=version, algo=algo, proto="Simple" if algo else None)
    return plan_collective(op, size, POLARIS.gpus, POLARIS, said)


def time(made: Plan) -> float:
    return float(made.duration(POLARIS.links.bandwidth))


def traffic(made: Plan, version: str) -> socket.Traffic:
    wanted = Nccl(version=version)
    found = socket.traffic_of(
        made, group_of(POLARIS, POLARIS.gpus, wanted), POLARIS, wanted
    )
    assert found is not None
    return found


@pytest.mark.parametrize("op", ["all_reduce", "all_to_all"])
def test_bytes_received_between_sends_cost_the_thread_too(op: str) -> None:
    """Trees and all-to-alls take a thread longer for every byte it also receives, rings of two threads do not."""
    tcp = socket.tcp_of(POLARIS)
    both = traffic(
        plan(op, 64 * MIB, algo="tree" if op == "all_reduce" else None), "2.18.3"
    )
    with_, without = (
        socket.message_time(both, "Simple", one, Nccl())[0]
        for one in (tcp, replace(tcp, taken=0.0))
    )
    assert with_ - without == pytest.approx(both.amount * tcp.taken)
    ring = traffic(plan("all_gather", 64 * MIB), "2.18.3")
    assert not ring.shared and not ring.both


def test_rings_that_change_nics_share_threads_since_2_21() -> None:
    """Where each NIC is near one GPU a ring of NCCL 2.21 leaves by the NIC that the other ring enters: it is slower."""
    old, new = (
        plan("all_gather", 256 * MIB, version) for version in ("2.18.3", "2.21.5")
    )
    assert not traffic(old, "2.18.3").shared and traffic(new, "2.21.5").shared
    assert 1.5 < time(new) / time(old) < 4
    messages = [
        time(plan("all_to_all", 256 * MIB, version)) for version in ("2.18.3", "2.21.5")
    ]
    assert messages[0] == pytest.approx(messages[1])


def test_a_cluster_brings_its_own_tcp(tmp_path: Path) -> None:
    """[socket.tcp] of the file that a cluster names as `nccl` counts there and nowhere else."""
    (tmp_path / "own.toml").write_text(OWN)
    (tmp_path / "mine.toml").write_text(
        'extends = "alcf-polaris-tcp"\nnccl = "own.toml"\n'
    )
    mine = load_cluster(str(tmp_path / "mine.toml"), 2)
    assert socket.tcp_of(mine).copy == 1e-9 and socket.tcp_of(POLARIS).copy != 1e-9
    slow = plan_collective(
        "all_gather", 256 * MIB, mine.gpus, mine, Nccl(version="2.18.3")
    )
    assert slow.duration(mine.links.bandwidth) > 2 * time(plan("all_gather", 256 * MIB))


def test_times_grow_with_size() -> None:
    """A ring, a tree and messages over these sockets never take less for twice the bytes."""
    for op, algo in (
        ("all_gather", None),
        ("all_reduce", "ring"),
        ("all_reduce", "tree"),
        ("all_to_all", None),
    ):
        took = [time(plan(op, 2.0**k, algo=algo)) for k in range(12, 31)]
        assert took == sorted(took)


@pytest.mark.parametrize(
    ("version", "op", "share"),
    [
        ("2.18.3", "all_reduce", 0.25),
        ("2.20.5", "all_gather", 0.25),
        ("2.21.5", "all_reduce", 0.5),
    ],
)
def test_older_versions_believe_less_of_ll(version: str, op: str, share: float) -> None:
    """Across hosts a ring with LL counts a quarter of its bandwidth before 2.21, and a half since."""
    wanted = Nccl(version=version)
    model = model_of(group_of(POLARIS, POLARIS.gpus, wanted), POLARIS, wanted)
    assert model.ll_share(op) == share


def test_one_host_before_2_21_counts_a_third_for_gathers() -> None:
    """On one host all-reduces count a quarter, gathers a third."""
    host, wanted = load_cluster("dgx-a100"), Nccl(version="2.18.3")
    model = model_of(group_of(host, host.gpus, wanted), host, wanted)
    assert model.ll_share("all_reduce") == 0.25 and model.ll_share(
        "all_gather"
    ) == pytest.approx(1 / 3)


def test_racks_have_as_many_channels_as_their_nvlinks_allow() -> None:
    """Of 72 NICs of a rack NCCL's search uses as many as the GPUs' NVLinks carry channels: 16, doubled to 32."""
    racks, wanted = load_cluster("gb200-superpod-576", 36), Nccl()
    found = search(group_of(racks, racks.gpus, wanted), "gb200", wanted, racks)
    assert (found.count, found.channels) == (16, 32) and found.ring == pytest.approx(
        45.1
    )


def test_a_machine_without_rows_to_fit_to_is_refused(tmp_path: Path) -> None:
    """The fit of sockets names the machines that have rows for it."""
    path = tmp_path / "rows.csv"
    path.write_text(",".join(calibrate_sockets.published_collectives.COLUMNS) + "\n")
    with pytest.raises(calibrate_sockets.InputError, match="polaris-tcp"):
        calibrate_sockets.machine_rows(path, "sirius-tcp")
